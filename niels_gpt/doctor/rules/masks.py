"""Rules on the mask of whole rows; `answers` and `untrained` judge it inside rows that pass these."""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.rules import answers, untrained
from niels_gpt.doctor.view import TurnMasks, View, without_empty_thoughts
from niels_gpt.inputs.rows import Bools

WITHOUT_MASK: Final = "row-without-mask"


# Trained tokens of all tokens, in rows that train some and not all.
MIN_SHARE: Final = 0.10
MAX_SHARE: Final = 0.98
# Where the model samples one token of an empty think block, `</think>` (GLM-5, Kimi K2.5, Nemotron 3), a mask that
# leaves it out is in order, and looks as if it were shifted to the right. Data has one of both: where most rows train
# the token, those that do not are shifted.
UNCLEAR: Final = "rows whose mask is shifted, or leaves out an empty think block"
WRITTEN: Final = "rows that train the end of an empty think block"
MINORITY: Final = 0.5  # of the rows that train it
IN_ANSWERS: Final = 0.9  # of the trained tokens, at least, where the mask trains answers


def check(view: View) -> None:
    """Judge the mask of each row as a whole, then hand the plausible ones to `answers` and `untrained`."""
    rows, trained, counters = view.rows, view.trained, view.counters
    if rows.trained is None:
        # A row without a mask among others was found before; here no row of the slice has one. See `finish`.
        view.hit_rows(WITHOUT_MASK, np.ones(len(rows), dtype=np.bool_), "the row has no labels and no mask")
        return
    real = ~view.padding
    zero = rows.per_row(trained) == 0
    view.hit_rows("mask-all-zero", zero, "no token of this row is trained")
    view.hit_tokens("padding-trained", trained & view.padding, "padding is trained from here on")
    ones = _all_one(view, zero)
    view.hit_rows("mask-all-one", ones, "every token of this row is trained")
    plain = ~(zero | ones)
    # Rows that train nothing or everything have findings of their own, and would hide the share of the others.
    judged = real & plain[rows.row_of]
    counters.sums["plain real tokens"] += int(judged.sum())
    counters.sums["plain trained tokens"] += int((trained & judged).sum())
    counters.sums["plain trained answer tokens"] += int((view.sampled & trained & judged).sum())
    # Without turns nothing is known about the inside of rows.
    layout = view.scope.layout
    if view.turns is None or layout is None:
        return
    turn_masks = TurnMasks.of(view, without_empty_thoughts(view, layout, view.turns.assistants))
    shifted = turn_masks.shifted_rows(len(rows))
    # After a wrong header a correct mask seems to begin one token too early or late.
    shifted[rows.row_of[np.concatenate(view.wrong_headers)]] = False
    view.hit_rows("mask-shifted", shifted & plain, lambda row, _: turn_masks.shift_note(row))
    unclear, written = turn_masks.unclear_rows(len(rows))
    view.hit_rows(UNCLEAR, unclear & plain & ~shifted, "the mask leaves out the first token, which other rows train")
    counters.sums[WRITTEN] += int((written & plain & ~shifted).sum())
    answers.check(view, layout, turn_masks, plain & ~shifted)
    untrained.check(view, layout, turn_masks, plain)


def _all_one(view: View, zero: Bools) -> Bools:
    """Rows whose tokens are all trained although some belong to a prompt, bool of shape (rows,).

    The first token of a text has nothing to be predicted from, so its mask does not count.

    Args:
        zero: rows that train nothing.
    """
    rows = view.rows
    untrained_tokens = rows.per_row(~view.padding & ~view.trained & ~rows.first_of_document) > 0
    if view.turns is None:  # labels alone may be plain text, all of which is trained; a mask column has a purpose
        return ~zero & ~untrained_tokens & (rows.mask_from not in ("", "labels"))
    foreign = rows.per_row(~view.padding & ~view.sampled & ~rows.first_of_document) > 0
    has_turns = np.bincount(view.turns.row, minlength=len(rows)) > 0
    ones: Bools = ~zero & ~untrained_tokens & foreign & has_turns
    return ones


def finish(counters: Counters, *, sampled: bool) -> None:
    """Decide what only the whole input shows.

    Args:
        sampled: not all rows were read.
    """
    if not counters.sums["rows with a mask"]:
        counters.drop(WITHOUT_MASK)  # no row has one
    if counters.sums["turns found"] and not counters.sums["rows with a mask"]:
        note = "no labels, assistant_masks, completion_mask or loss_mask"
        rows = counters.sums["rows"]
        counters.add("mask-missing", [Evidence(row=-1, where="", note=note)], count=rows, rows=rows)
    unclear = counters.drop(UNCLEAR)
    if unclear is not None and unclear.rows <= MINORITY * counters.sums[WRITTEN]:
        counters.add("mask-shifted", unclear.evidence, count=unclear.count, rows=unclear.rows)
    untrained.finish(counters, sampled=sampled)
    answers.finish(counters)


def share_is_unusual(counters: Counters) -> bool:
    """Whether the share of trained tokens points to a wrong mask.

    Where turns are known, the share itself shows nothing if the trained tokens are those of answers: a template's own
    system prompt, or results of tools, may be ten times longer than the answers::

        tokens 1,000   trained 50   of these in answers 50      5 % are trained, and the mask is right

    Answers that are not trained, in whole or in part, are findings of `untrained` and `answers`. They do not count
    here: an answer may be trained in another row, or be left out by its own weight.
    """
    share = loss_share(counters)
    if share is None or MIN_SHARE <= share <= MAX_SHARE:
        return False
    in_answers = counters.sums["plain trained answer tokens"]
    return not (in_answers and in_answers >= IN_ANSWERS * counters.sums["plain trained tokens"])


def loss_share(counters: Counters) -> float | None:
    """The share of trained tokens in rows that train some tokens and not all; `None` where there are no such rows."""
    tokens = counters.sums["plain real tokens"]
    return counters.sums["plain trained tokens"] / tokens if tokens else None
