"""Rules on masks: every token has one kind, by its turn, and a table says what is wrong with a kind that is trained.

::

    <|im_start|> assistant newline <think> newline   The answer   <|im_end|>   newline
    HEADER .......................................   BODY .....   STOP         TAIL

BODY and STOP should be trained. A mask is shifted if it is exactly that once it is moved by one token.

A turn that one row does not train may be trained in another: where a format drops reasoning from history, one
conversation becomes several rows, each with its last turn. So turns are looked up, in `finish`, by a hash of their last
tokens::

    row 0    U1 [A1]               A1 trained
    row 1    U1  A1  U2 [A2]       A1 is not trained here, but in row 0: no finding
    row 2    U3  A3  U4 [A4]       no row trains A3: turns-untrained
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.rows import TOOL, Turns, counts_in, covered
from niels_gpt.doctor.view import View
from niels_gpt.inputs.rows import Bools, Int64s
from niels_gpt.sources.curation.ngrams import mixed

Kinds = npt.NDArray[np.int8]
# NEUTRAL may be trained, or not: empty think blocks, openers that end the turn before them, the rest of a cut turn.
PROMPT, RESULT, HEADER, BODY, STOP, TAIL, NEUTRAL = range(7)
# The kinds that should not be trained: their rule, and what a place says.
WRONG: Final = {
    PROMPT: ("user-tokens-trained", "prompt text is trained from here on"),
    RESULT: ("tool-results-trained", "a tool result is trained from here on"),
    HEADER: ("header-trained", "the assistant's header, or what the prompt prefills, is trained from here on"),
    TAIL: ("tail-trained", "this token is trained and comes after the stop"),
}
# Trained tokens of all tokens, in rows that train some and not all.
MIN_SHARE: Final = 0.10
MAX_SHARE: Final = 0.98
IN_ANSWERS: Final = 0.9  # of the trained tokens, at least, where the mask trains answers
MIN_SHARE_OF_SAMPLE: Final = 0.90  # of the rows with several turns; see `_finish_turns`
OF_QUESTION: Final = 8  # the number of tokens before an answer by which it is looked up as well
AT_END: Final = 16  # the number of tokens at the end of an answer by which it is looked up
UNTRAINED_ENDS: Final = "rows whose end-of-turn is not trained"


def check(view: View) -> None:
    """Judge the mask of each row as a whole, and, where turns are known, inside the plausible ones."""
    rows, trained, counters = view.rows, view.trained, view.counters
    if rows.trained is None:
        # A row without a mask among others was found before; here no row of the slice has one. See `finish`.
        view.hit_rows("mask-missing", np.ones(len(rows), dtype=np.bool_), "the row has no labels and no mask")
        return
    zero = rows.per_row(trained) == 0
    view.hit_rows("mask-all-zero", zero, "no token of this row is trained")
    view.hit_tokens("padding-trained", trained & view.padding, "padding is trained from here on")
    ones = _all_one(view, zero)
    view.hit_rows("mask-all-one", ones, "every token of this row is trained")
    plain = ~(zero | ones)
    # Rows that train nothing or everything have findings of their own, and would hide the share of the others.
    judged = ~view.padding & plain[rows.row_of]
    counters.sums["plain real tokens"] += int(judged.sum())
    counters.sums["plain trained tokens"] += int((trained & judged).sum())
    counters.sums["plain trained answer tokens"] += int((view.sampled & trained & judged).sum())
    # Without turns nothing is known about the inside of rows.
    if view.turns is not None and view.scope.layout is not None:
        _check_inside(view, view.scope.layout, plain)


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


def kinds_of(view: View, layout: Layout, answers: Turns) -> Kinds:
    """The kind of each token, shape (tokens,).

    Args:
        answers: the assistant turns; see `without_empty_thoughts`.
    """
    assert view.turns is not None
    n = len(view.rows.ids)
    kinds = np.full(n, PROMPT, dtype=np.int8)
    results = view.turns.select(view.turns.role == TOOL)
    kinds[covered(results.start, results.end, n)] = RESULT
    body = view.turns.assistants.body
    stop = np.where(answers.stop >= 0, answers.stop, answers.end)
    for starts, ends, kind in (
        (answers.start, body, HEADER),
        (body, answers.body, NEUTRAL),
        (answers.body, stop, BODY),
        (np.minimum(stop + 1, answers.end), answers.end, TAIL),
    ):
        kinds[covered(starts, ends, n)] = kind
    # The opener of the next turn may end this one, and be trained, or not.
    kinds[answers.stop[answers.stop >= 0]] = STOP if layout.has_own_stop else NEUTRAL
    if layout.repeats_opener:  # the model samples the headers between parts of an answer
        kinds[covered(answers.start[answers.resumed], answers.body[answers.resumed], n)] = NEUTRAL
    kinds[covered(*view.cut_turns, n)] = NEUTRAL  # reported as begins-mid-turn
    return kinds


def _check_inside(view: View, layout: Layout, plain: Bools) -> None:
    """Judge the tokens of rows that train some tokens and not all, and the turns of all of them.

    Args:
        plain: bool of shape (rows,), these rows.
    """
    assert view.turns is not None
    rows, trained = view.rows, view.trained
    answers = without_empty_thoughts(view, layout, view.turns.assistants)
    kinds = kinds_of(view, layout, answers)
    shifted = _check_shifts(view, kinds, answers, plain)
    judged = plain & ~shifted
    # The first token of a text is never predicted, so it is not trained whatever its mask is.
    wrong = trained & judged[rows.row_of] & ~view.padding & ~rows.first_of_document
    for kind, (rule, note) in WRONG.items():
        view.hit_tokens(rule, wrong & (kinds == kind), note)
    if not len(answers):
        return
    # A turn without a stop ends where the padding after it begins.
    last = np.where(answers.stop >= 0, answers.stop, answers.end - counts_in(view.padding, answers.body, answers.end))
    last = np.maximum(last, answers.body)
    count = counts_in(trained, answers.body, last)
    # Without a stop the index is -1, the False at the end.
    stopped = np.append(trained, False)[answers.stop] & (answers.stop >= 0)
    _check_stops(view, layout, answers, count > 0, stopped, judged)
    # Turns without a stop were cut, and a policy may have left a part out on purpose.
    # A stop that is trained alone is no hole where it is the next opener, or where no text is before it.
    some = (count > 0) | (stopped & layout.has_own_stop)
    holes = judged[answers.row] & (answers.stop >= 0) & some & (count < last - answers.body)
    note = "only a part of the answer that begins here is trained"
    view.hit("mask-holes", answers.row[holes], answers.body[holes], note)
    _check_empty_thoughts(view, layout, judged)
    _check_turns(view, answers, last, (count > 0) | stopped, plain)


def _check_shifts(view: View, kinds: Kinds, answers: Turns, plain: Bools) -> Bools:
    """Rows whose mask is right, in all turns of which it trains a token, once it is moved by one; shape (rows,).

    ::

        kinds            HEADER BODY BODY STOP TAIL
        as it should be  .      #    #    #    .
        early            #      #    #    .    .        moved to the right it is right
        late             .      .    #    #    #
    """
    assert view.turns is not None
    rows, trained = view.rows, view.trained
    wanted = (kinds == BODY) | (kinds == STOP)
    matters = (kinds != NEUTRAL) & ~view.padding
    low, high = answers.start, np.minimum(answers.end + 1, rows.starts[answers.row + 1])
    wrong = (trained != wanted) & matters
    if not wrong.any():  # the usual case
        return np.zeros(len(rows), dtype=np.bool_)
    is_wrong = counts_in(wrong, low, high) > 0
    # Where an empty think block is left out, with its white space, a trained newline after the stop is only that.
    left_out = (answers.body > view.turns.assistants.body) & ~view.white[answers.body]
    is_wrong &= ~left_out | (counts_in(wrong & (kinds != TAIL), low, high) > 0)
    touched = counts_in(trained, low, high) > 0
    shown = is_wrong & (answers.end - answers.body > 1) & (answers.body > answers.start)
    # After a wrong header a correct mask seems to begin one token too early or late.
    found = np.zeros(len(rows), dtype=np.bool_)
    possible = plain.copy()
    possible[rows.row_of[np.concatenate(view.wrong_headers)]] = False
    for by, edge, note in (
        (1, rows.starts[:-1], "the mask begins one token too early, in the header, and ends one token too early"),
        (-1, rows.starts[1:] - 1, "the mask leaves out the first token of each answer"),
    ):
        moved = np.roll(trained, by)
        moved[edge] = False
        asked = matters.copy()
        asked[edge] = False  # what was moved into the row from outside is not known
        fits = counts_in((moved != wanted) & asked, low, high) == 0
        some, rest = (np.bincount(answers.row[which], minlength=len(rows)) for which in (shown & fits, touched & ~fits))
        rows_found = possible & ~found & (some > 0) & (rest == 0)
        view.hit_rows("mask-shifted", rows_found, note)
        found |= rows_found
    return found


def _check_stops(view: View, layout: Layout, answers: Turns, is_trained: Bools, stopped: Bools, judged: Bools) -> None:
    """Answers that are trained without their stop.

    Args:
        is_trained, stopped: bool of shape (answers,): some of the text, and the stop, are trained.
        judged: the rows to judge, bool of shape (rows,).
    """
    rows = view.rows
    # A turn that is not trained at all lacks no stop; `_check_turns` judges it.
    is_trained = is_trained & judged[answers.row]
    if not layout.has_own_stop:
        # A stop is the opener of the next turn, which the last turn of a row does not have: one per row is enough.
        some_stop = np.bincount(answers.row[is_trained & stopped], minlength=len(rows)) > 0
        some_answer = np.bincount(answers.row[is_trained], minlength=len(rows)) > 0
        view.hit_rows("open-turns", some_answer & ~some_stop, "no token that ends a turn is trained in this row")
        return
    wrong = is_trained & (answers.stop >= 0) & ~stopped
    view.counters.sums[UNTRAINED_ENDS] += len(np.unique(answers.row[wrong]))
    # The tokenizer's padding token, and whatever the rows are padded with.
    padding = {layout.pad, *np.unique(rows.ids[view.padding]).tolist()} - {None}
    is_padding = np.isin(rows.ids[answers.stop], list(padding))
    for rule, chosen in (("eot-masked-as-padding", wrong & is_padding), ("eot-not-trained", wrong & ~is_padding)):
        view.hit(rule, answers.row[chosen], answers.stop[chosen], "this end-of-turn is not trained")


def _check_empty_thoughts(view: View, layout: Layout, judged: Bools) -> None:
    """Empty think blocks that are trained as a whole: a template may prefill the opening tag."""
    if layout.think is None:
        return
    rows, trained = view.rows, view.trained
    ends = np.flatnonzero((rows.ids == layout.think[1]) & trained & judged[rows.row_of])
    # From each trained </think> back over one or two tokens of newlines to its <think>.
    at = ends - 1
    for _ in range(2):
        at = at - ((at >= 0) & view.white[np.maximum(at, 0)])
    empty = at[(at >= 0) & (rows.ids[at] == layout.think[0]) & trained[at]]
    view.hit("empty-think-trained", rows.row_of[empty], empty, "an empty think block is trained")


def without_empty_thoughts(view: View, layout: Layout, turns: Turns) -> Turns:
    """The turns, with their bodies after an empty think block that is not trained.

    Some templates write such a block before every answer. Leaving it out of the loss is in order: serving without
    reasoning puts it into the prompt::

        w white space, T <think>, E </think>       w T w E w a b      body 0 -> 5
    """
    if layout.think is None or not len(turns):
        return turns
    opened, closed = layout.think
    # Four steps from the body on: white space, <think>, white space, </think>; `at` is where each turn has come to.
    n = len(view.rows.ids)
    # One place more, so that the position after the last token can be asked.
    ids = np.append(view.rows.ids, -1)
    white = view.white
    at = _after_white_space(white, turns.body)
    at = _after_white_space(white, at + (ids[at] == opened))
    found = (ids[at] == closed) & (at < turns.end)
    last = np.minimum(at + 1, n)
    untrained = found & (counts_in(view.trained, turns.body, last) == 0)
    # White space after the block may belong to the answer: only what is not trained is left out with it.
    after = _after_white_space(white & ~np.append(view.trained, True), last)
    return replace(turns, body=np.where(untrained, np.minimum(after, turns.end), turns.body))


def _after_white_space(white: Bools, positions: Int64s) -> Int64s:
    """Each place, or that after one or two tokens of white space."""
    for _ in range(2):
        positions = positions + white[positions]
    return positions


# ---- turns that no row trains


def _check_turns(view: View, turns: Turns, text_end: Int64s, is_trained: Bools, judged: Bools) -> None:
    """Count, in `view.counters`, the keys of trained and untrained turns, and the rows that leave turns out.

    Args:
        turns: the assistant's. text_end: where the text of each ends.
        judged: bool of shape (rows,), the rows to judge.
    """
    rows, layout, counters, n = view.rows, view.scope.layout, view.counters, len(view.rows)
    assert layout is not None
    # Parts of one answer (gpt-oss's channels) are one turn: begins # . # # gives the numbers 0 0 1 2.
    begins = ~turns.resumed if layout.repeats_opener else np.ones(len(turns), dtype=np.bool_)
    number, first = np.cumsum(begins) - 1, np.flatnonzero(begins)
    last = np.append(first[1:], len(turns)) - 1  # the last part of each
    row, body, end = turns.row[first], turns.body[last], text_end[last]
    trained = np.bincount(number[is_trained], minlength=len(first)) > 0
    keys = _keys(view, layout, turns.start[first], body, end)
    counters.trained_turns.append(keys[trained])
    of_row, trained_of_row = np.bincount(row, minlength=n), np.bincount(row[trained], minlength=n)
    several = (of_row > 1) & judged
    counters.sums["rows of several turns"] += int(several.sum())
    whole = turns.stop[last] >= 0  # a turn that was cut is rightly left out of the loss
    if not layout.has_own_stop:
        # Nothing ends the last turn of a row, whether it was cut or not; rows as long as the longest may have been.
        lengths = rows.per_row(~view.padding)
        whole |= lengths[row] < lengths.max(initial=0)
    # A header without an answer is a generation prompt at the end of a row, which `turn-order` reports.
    left = ~trained & whole & (end > body) & (several & (trained_of_row > 0))[row]
    if view.switched_off is not None:  # the user's own choice for this message, not a lost mask
        left &= ~view.switched_off[turns.start[first]]
    # Only its first, or only its last turn is trained: that one is alone, and the turn after or before it is not.
    is_first, is_last = np.append(True, row[1:] != row[:-1]), np.append(row[1:] != row[:-1], True)
    only_first, only_last = (
        np.bincount(row[trained & edge], minlength=n) * (trained_of_row == 1) > 0 for edge in (is_first, is_last)
    )

    def note(at: int, _: int) -> str:
        which = "the last is" if only_last[at] else "the first is" if only_first[at] else "some are"
        return f"several assistant turns, of which only {which} trained"

    view.hit_rows("turns-untrained", np.bincount(row[left], minlength=n) > 0, note)
    counters.untrained_turns.append(np.column_stack((keys[left], rows.numbers[row[left]].astype(np.uint64))))


def _keys(view: View, layout: Layout, start: Int64s, body: Int64s, end: Int64s) -> npt.NDArray[np.uint64]:
    """For each answer a hash of its last tokens and of the last text before it; uint64 of shape (answers,).

    The answer counts from after its last control token or think tag: tokens before that may be reasoning, which formats
    drop from history together with the white space after it.
    """
    ids, white = view.rows.ids, view.white
    marks = np.flatnonzero(np.isin(ids, [*layout.controls, *(layout.think or ())]))
    # Marks at 3 7: before 7 is the mark 3, before 8 the mark 7, before 2 none (-1).
    mark = np.append(-1, marks)[np.searchsorted(marks, end)]
    low = np.maximum(_after_white_space(white, np.maximum(body, mark + 1)), end - AT_END)
    answer, back = np.nonzero(end[:, None] - 1 - np.arange(AT_END) >= low[:, None])
    # A sum, since numpy adds by answer without a loop: of the hashes of each token and its distance from the end.
    hashes = _mixed(_mixed(ids[end[answer] - 1 - back].astype(np.uint64)) + back.astype(np.uint64))
    sums = np.zeros(len(end), dtype=np.uint64)
    np.add.at(sums, answer, hashes)
    # Of the question the tokens back to white space: formats may write a system text and an empty line before it.
    is_text = np.append(~white[:-1] & ~np.isin(ids, list(layout.controls)) & ~view.rows.first_of_document, False)
    place = np.append(-1, np.flatnonzero(is_text))[np.searchsorted(np.flatnonzero(is_text), start)]
    for distance in range(OF_QUESTION):
        here = is_text[place]  # at -1, the end, it is False, and so it is from the first other token on
        sums += np.where(here, _mixed(~(ids[place].astype(np.uint64) + np.uint64(distance))), np.uint64(0))
        place = np.where(here, place - 1, -1)
    return sums


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each value, a step of the generator splitmix64. `mixed` alone would map 0 to 0."""
    return mixed(values + np.uint64(0x9E3779B97F4A7C15))


# ---- what only the whole input shows


def finish(counters: Counters, *, sampled: bool) -> None:
    """Decide what only the whole input shows.

    Args:
        sampled: not all rows were read.
    """
    if not counters.sums["rows with a mask"]:
        counters.drop("mask-missing")
        counters.milder["mask-missing"] = "warning"  # it may be made later; a mixture ends the training
        if counters.sums["turns found"]:
            note, rows = "no labels, assistant_masks, completion_mask or loss_mask", counters.sums["rows"]
            counters.add("mask-missing", [Evidence(row=-1, where="", note=note)], count=rows, rows=rows)
    _finish_turns(counters, sampled=sampled)
    if "eot-masked-as-padding" in counters.hits:  # in one row: then the cause is the same for all
        counters.move("eot-not-trained", "eot-masked-as-padding", rows=counters.sums[UNTRAINED_ENDS])


def _finish_turns(counters: Counters, *, sampled: bool) -> None:
    """Drop the findings of rows whose untrained turns are all trained in another row.

    In a sample a turn may be trained in a row outside of it. Then the rule fires only if nearly all rows with several
    turns leave some out.
    """
    hits = counters.drop("turns-untrained")
    if hits is None:
        return
    found = np.concatenate([np.zeros((0, 2), np.uint64), *counters.untrained_turns])
    never = ~np.isin(found[:, 0], np.concatenate([np.zeros(0, np.uint64), *counters.trained_turns]))
    rows = np.unique(found[never, 1]).astype(np.int64)
    if not len(rows) or (sampled and len(rows) < MIN_SHARE_OF_SAMPLE * counters.sums["rows of several turns"]):
        return
    evidence = [piece for piece in hits.evidence if piece.row in set(rows.tolist())]
    evidence = evidence or [Evidence(row=int(rows[0]), where="", note="assistant turns that no row trains")]
    counters.add("turns-untrained", evidence, count=len(rows), rows=len(rows))


def share_is_unusual(counters: Counters) -> bool:
    """Whether the share of trained tokens points to a wrong mask.

    Where turns are known, the share itself shows nothing if the trained tokens are those of answers: a template's own
    system prompt, or results of tools, may be ten times longer than the answers::

        tokens 1,000   trained 50   of these in answers 50      5 % are trained, and the mask is right
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
