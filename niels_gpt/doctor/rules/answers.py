"""Rules on the mask inside a row: prompts, headers, answers and their stops."""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.rows import ASSISTANT, TOOL, covered
from niels_gpt.doctor.view import TurnMasks, View
from niels_gpt.inputs.rows import Bools

UNTRAINED_ENDS: Final = "rows whose end-of-turn is not trained"


def check(view: View, layout: Layout, turn_masks: TurnMasks, rows: Bools) -> None:
    """Judge rows whose mask is plausible as a whole.

    Args:
        rows: bool of shape (rows,): the rows to judge. Rows that train nothing, train everything or have a shifted mask
            are reported by `masks` and left out here.
    """
    _check_prompts(view, layout, rows[view.rows.row_of])
    _check_stops(view, layout, turn_masks, rows)
    _check_answers(view, layout, turn_masks, rows)


def _check_prompts(view: View, layout: Layout, judged: Bools) -> None:
    """Trained tokens that the model never samples."""
    rows, turns = view.rows, view.turns
    assert turns is not None
    # The first token of a text is never predicted, so it is not trained whatever its mask is.
    wrong = view.trained & judged & ~view.padding & ~rows.first_of_document
    # The rest of a turn at the beginning of a row is reported as begins-mid-turn.
    foreign = wrong & (view.role_of != ASSISTANT) & ~covered(*view.cut_turns, len(rows.ids))
    if not layout.has_own_stop:  # the opener after the assistant turn ends it, so it may be trained
        ends = turns.assistants.stop
        foreign[ends[ends >= 0]] = False
    view.hit_tokens("tool-results-trained", foreign & (view.role_of == TOOL), "a tool result is trained from here on")
    view.hit_tokens("user-tokens-trained", foreign & (view.role_of != TOOL), "prompt text is trained from here on")
    assistants = turns.assistants
    header = wrong & covered(assistants.start, assistants.body, len(rows.ids))
    if layout.repeats_opener:  # the model samples the headers between parts of an answer
        header &= ~covered(assistants.start[assistants.resumed], assistants.body[assistants.resumed], len(rows.ids))
    # Think tags of the header are prefilled by the prompt, which is a rule of its own.
    tags = np.isin(rows.ids, layout.think or ())
    view.hit_tokens("header-trained", header & ~tags, "the assistant's header is trained from here on")
    view.hit_tokens("supplied-trained", header & tags, "the generation prompt prefills this token")
    # From after the stop to the end of the turn; empty where there is no stop.
    tail = wrong & covered(
        np.where(assistants.stop >= 0, assistants.stop + 1, assistants.end), assistants.end, len(rows.ids)
    )
    view.hit_tokens("tail-trained", tail, "this token is trained and comes after the stop")


def _check_stops(view: View, layout: Layout, turn_masks: TurnMasks, rows: Bools) -> None:
    """Answers that are trained without their stop."""
    turns = turn_masks.turns
    # A turn that is not trained at all lacks no stop; `untrained` judges it.
    trained = (turn_masks.count > 0) & rows[turns.row]
    if not layout.has_own_stop:
        # A stop is the opener of the next turn, which the last turn of a row does not have: one per row is enough.
        some_stop = np.bincount(turns.row[trained & turn_masks.stop], minlength=len(rows)) > 0
        some_answer = np.bincount(turns.row[trained], minlength=len(rows)) > 0
        view.hit_rows("open-turns", some_answer & ~some_stop, "no token that ends a turn is trained in this row")
        return
    wrong = trained & (turns.stop >= 0) & ~turn_masks.stop
    view.counters.sums[UNTRAINED_ENDS] += len(np.unique(turns.row[wrong]))
    # The tokenizer's padding token, and whatever the rows are padded with.
    padding = {layout.pad, *np.unique(view.rows.ids[view.padding]).tolist()}
    is_padding = wrong & np.isin(view.rows.ids[turns.stop], [token for token in padding if token is not None])
    note = "this end-of-turn is not trained"
    view.hit("eot-masked-as-padding", turns.row[is_padding], turns.stop[is_padding], note)
    other = wrong & ~is_padding
    view.hit("eot-not-trained", turns.row[other], turns.stop[other], note)


def _check_answers(view: View, layout: Layout, turn_masks: TurnMasks, rows: Bools) -> None:
    """Answers that are trained in part, and empty think blocks."""
    turns, ids = turn_masks.turns, view.rows.ids
    # Turns without a stop were cut, and a policy may have left a part out on purpose.
    # A stop that is trained alone is no hole where it is the next opener, or where no text is before it.
    some = (turn_masks.count > 0) | (turn_masks.stop & layout.has_own_stop)
    holes = rows[turns.row] & (turns.stop >= 0) & some & (turn_masks.count < turn_masks.length)
    view.hit(
        "mask-holes",
        turns.row[holes],
        turns.body[holes],
        "only a part of the answer that begins here is trained",
    )
    if layout.think is None:
        return
    opened, closed = layout.think
    ends = np.flatnonzero((ids == closed) & view.trained & rows[view.rows.row_of])
    # From each trained </think> back over white space to its <think>.
    begins = ends - 1
    for _ in range(2):  # one or two tokens of newlines between the tags
        white_bytes = (begins >= 0) & (ids[begins] >= 0) & (ids[begins] < layout.vocab_size)
        white_bytes[white_bytes] = layout.white_bytes[ids[begins[white_bytes]]]
        # A step back over one token of white space; where there is none the place stays.
        begins = begins - white_bytes
    # Only where the opening tag is trained: a template may prefill it.
    empty = (begins >= 0) & (ids[begins] == opened) & view.trained[begins]
    view.hit("empty-think-trained", view.rows.row_of[begins[empty]], begins[empty], "an empty think block is trained")


def finish(counters: Counters) -> None:
    """If the end-of-turn is masked as padding in one row, report all untrained ends as that: the cause is the same."""
    if "eot-masked-as-padding" in counters.hits:
        counters.move("eot-not-trained", "eot-masked-as-padding", rows=counters.sums[UNTRAINED_ENDS])
