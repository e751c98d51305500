"""Rules on turns in token ids: how they begin, their order and contents; their ends: `turn_ends.py`."""

from __future__ import annotations

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.layouts.turns import occurrences
from niels_gpt.doctor.rows import ASSISTANT, ROLES, SYSTEM, Turns, counts_in, covered
from niels_gpt.doctor.rules import turn_ends
from niels_gpt.doctor.view import View
from niels_gpt.inputs.rows import Bools, Int64s

USER = ROLES.index("user")
_ARTICLES = dict.fromkeys(ROLES, "a") | {"assistant": "an"}


def _check_double_bos(view: View) -> None:
    """A beginning of text, or the whole preamble, twice in a row where a text begins."""
    layout, rows = view.scope.layout, view.rows
    if layout is None:
        return
    places = _beginnings(view)
    # The template's whole preamble, its first token (often a bos), and the tokenizer's bos.
    runs = {layout.preamble, layout.preamble[:1], () if layout.bos is None else (layout.bos,)} - {()}
    twice = np.unique(np.concatenate([np.zeros(0, np.int64), *(occurrences(rows.ids, run + run) for run in runs)]))
    found = np.intersect1d(places, twice)
    # The second one must be in the same row.
    found = found[found + 1 < rows.starts[rows.row_of[found] + 1]]
    view.hit("double-bos", rows.row_of[found], found, "the text begins twice")


def _check_bos_missing(view: View) -> None:
    """Texts that begin with a turn, where every text of the format begins with other control tokens."""
    layout, turns = view.scope.layout, view.turns
    if layout is None or turns is None or view.rendered_turns is not None or not layout.preamble:
        return
    if layout.first_ids != {layout.preamble[0]}:  # some texts of the format begin without them
        return
    places, ids = _beginnings(view), view.rows.ids
    without = np.isin(places, turns.start) | np.isin(ids[places], layout.preamble[1:])
    # Where a column places the text one token too late, its beginning is before it.
    late = ~np.isin(places, view.rows.starts) & np.isin(ids[places - 1], layout.preamble)
    places = places[without & ~late & (ids[places] != layout.preamble[0])]
    note = f"the text begins here; the format begins texts with {view.scope.decode_id(layout.preamble[0])!r}"
    view.hit("bos-missing", view.rows.row_of[places], places, note)


def _beginnings(view: View) -> Int64s:
    """Where texts begin: with rows and documents, and after padding on the left."""
    rows = view.rows
    padded = view.padding
    first = rows.first_of_document & ~padded
    # The first real token after padding.
    left = np.flatnonzero(padded[:-1] & ~padded[1:]) + 1
    # Only where the row begins with padding: padding between texts is not a beginning of its own.
    found: Int64s = np.union1d(np.flatnonzero(first), left[padded[rows.starts[rows.row_of[left]]]])
    return found


def _check_order(view: View) -> None:
    """A user turn after a user turn, an assistant turn after one, or a system turn after a user turn.

    Ids alone show this order, so it is a warning. A system turn after an assistant turn may begin another text, which
    `attention-crosses` reports.
    """
    turns, rows = view.turns, view.rows
    if turns is None or len(turns) < 2:
        return
    before, after = turns.role[:-1], turns.role[1:]
    # Neighbours in one row and one text.
    same = (turns.row[1:] == turns.row[:-1]) & ~rows.first_of_document[turns.start[1:]]
    answers = (before == ASSISTANT) & (after == ASSISTANT)
    layout = view.scope.layout
    if layout is not None and layout.repeats_opener:
        # Neighbouring assistant turns are parts of one answer (gpt-oss), which ends where serving stops.
        stop = turns.stop[:-1]
        answers &= (stop >= 0) & np.isin(rows.ids[stop], list(layout.serving_stops))
    wrong = same & (answers | ((before == USER) & ((after == USER) | (after == SYSTEM))))
    # A table by place, since only the few findings that become evidence need a note.
    pairs = dict(zip(turns.start[1:][wrong].tolist(), zip(before[wrong], after[wrong], strict=True), strict=True))
    ends = turns.end - counts_in(view.padding, turns.body, turns.end)
    empty = {*turns.start[ends <= turns.body].tolist()}

    def note(_: int, place: int) -> str:
        first, second = (ROLES[role] for role in pairs[place])
        if first == second == "assistant" and place in empty:
            return "a header without an answer follows the last answer: a generation prompt"
        return f"{_ARTICLES[second]} {second} turn directly after {_ARTICLES[first]} {first} turn"

    view.hit("turn-order", turns.row[1:][wrong], turns.start[1:][wrong], note)


def _check_headers(view: View) -> None:
    """Headers that the format does not write."""
    short, unknown, long, spaced = view.wrong_headers
    turns = view.turns
    notes = dict.fromkeys(short.tolist(), "the white space after this header is missing")
    notes |= dict.fromkeys(unknown.tolist(), "the header that begins here is not one of this format")
    notes |= dict.fromkeys(long.tolist(), _MORE_SPACE)
    places = np.array(sorted(notes), dtype=np.int64)
    view.hit("header-drift", view.rows.row_of[places], places, lambda _, at: notes[at])
    view.counters.sums["answers"] += 0 if turns is None else len(turns.assistants)
    view.hit(_SPACE_FIRST, view.rows.row_of[spaced], spaced, lambda _, __: _MORE_SPACE)
    view.counters.sums[WRONG_HEADERS] += len(np.unique(view.rows.row_of[np.append(places, spaced)]))


# Candidates, counted as hits of this name until `finish` decides. One answer may begin with an empty line. Where many
# do, the model learns to begin so; where nearly all do, the header has another line.
_SPACE_FIRST = "header-drift: white space before answers"
WRONG_HEADERS = "rows with headers that the format does not write"
FEWEST_SPACED, SPACED_SHARE, ALL_SPACED_SHARE = 3, 0.03, 0.9
_MORE_SPACE = "more white space than the format writes follows this header"


def check(view: View) -> None:
    """Judge where turns begin and end, and their contents."""
    layout = view.scope.layout
    _check_double_bos(view)
    if layout is None or view.turns is None:
        return
    if view.rendered_turns is None:  # what a renderer has just written is in order
        _check_bos_missing(view)
        _check_order(view)
        _check_headers(view)
    _check_cut_turns(view, view.turns)
    turn_ends.check(view, layout, view.turns)
    _check_contents(view, layout, view.turns)


def _check_cut_turns(view: View, turns: Turns) -> None:
    """Rows that begin with the rest of a turn."""
    first, last = view.cut_turns
    view.counters.sums["turns found"] += len(turns)
    trained = dict(zip(first.tolist(), (counts_in(view.trained, first, last) > 0).tolist(), strict=True))

    def note(_: int, place: int) -> str:
        return f"the row begins inside {'an answer that is trained' if trained[place] else 'a turn'}, with this token"

    view.hit("begins-mid-turn", view.rows.row_of[first], first, note)


def _check_contents(view: View, layout: Layout, turns: Turns) -> None:
    """Control tokens inside messages that the format itself never writes."""
    ids, n = view.rows.ids, len(view.rows.ids)
    foreign = layout.controls - layout.template_ids - layout.serving_stops - {layout.pad, layout.bos}
    text_end = np.maximum(turns.end - counts_in(view.padding, turns.body, turns.end), turns.body)
    # Without a stop the last token may be a wrong end of turn, which `turn_ends` reports.
    open_ends = np.where(turns.role == ASSISTANT, turn_ends.last_text(view, turns, text_end), turns.end)
    ends = np.where((turns.role == ASSISTANT) & (turns.stop >= 0), turns.stop, open_ends)
    body: Bools = covered(turns.body, ends, n)
    wrong = np.isin(ids, list(foreign)) & body & ~view.padding
    # Ends of text are in order after a message, where tools put them between texts. Inside of one more text follows.
    ends_of_text = list(layout.serving_stops - layout.template_ids)
    follows = np.append(body[1:] & ~view.padding[1:] & ~np.isin(ids[1:], list(layout.controls)), False)
    others = covered(turns.body, np.where(turns.role == ASSISTANT, turns.body, ends), n)
    view.hit_tokens(
        "special-tokens-in-content",
        wrong | (np.isin(ids, ends_of_text) & others & follows & ~view.padding),
        lambda _, place: f"the control token {view.scope.decode_id(int(ids[place]))!r} inside a message",
    )


def finish(counters: Counters) -> None:
    """Adjust the findings that depend on the whole input; called after the last row."""
    spaced, answers = counters.hits.get(_SPACE_FIRST), counters.sums["answers"]
    if spaced is not None and spaced.count < max(FEWEST_SPACED, SPACED_SHARE * answers):
        counters.drop(_SPACE_FIRST)
    elif spaced is not None:
        # Alone, and before some of the answers only, the white space may be that of the answers themselves.
        if "header-drift" not in counters.hits and spaced.count < ALL_SPACED_SHARE * answers:
            counters.milder["header-drift"] = "warning"
        counters.move(_SPACE_FIRST, "header-drift", rows=counters.sums[WRONG_HEADERS])
    turn_ends.finish(counters)
    # Without any turn the rows are plain text, of which no turn can be cut.
    if not counters.sums["turns found"]:
        if counters.sums["trained tokens"]:
            counters.move("begins-mid-turn", "user-tokens-trained")
        else:
            counters.drop("begins-mid-turn")
