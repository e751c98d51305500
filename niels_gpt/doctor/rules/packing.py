"""Rules on packed rows, which hold several texts."""

from __future__ import annotations

import numpy as np

from niels_gpt.doctor.layouts.turns import occurrences
from niels_gpt.doctor.rows import ASSISTANT, SYSTEM
from niels_gpt.doctor.view import View
from niels_gpt.inputs.rows import Int64s


def check(view: View) -> None:
    """Judge where texts begin inside rows: at the places that a column records, and at others that the ids show."""
    rows = view.rows
    recorded = rows.first_of_document.copy()
    # A text at the start of a row is no boundary inside it.
    recorded[rows.starts[:-1]] = False
    beginnings = _visible_beginnings(view)
    unrecorded = beginnings[~rows.first_of_document[beginnings]]
    # A row with some boundaries has a column that records them, at other places than the ids show.
    misplaced = rows.per_row(recorded)[rows.row_of[unrecorded]] > 0
    for rule, places, note in (
        ("attention-crosses", unrecorded[~misplaced], "another text begins here, and no column records it"),
        (
            "packing-lengths",
            unrecorded[misplaced],
            "another text begins here; seq_lengths or position_ids say otherwise",
        ),
    ):
        view.hit(rule, rows.row_of[places], places, note)
    if rows.trained is None:
        return
    for places in (np.flatnonzero(recorded & view.trained & ~view.padding), unrecorded[view.trained[unrecorded]]):
        view.hit(
            "packed-start-trained", rows.row_of[places], places, "a text begins here, and its first token is trained"
        )


def _visible_beginnings(view: View) -> Int64s:
    """Where the ids show that a text begins inside a row: a preamble, or a system turn after an assistant turn."""
    layout, rows = view.scope.layout, view.rows
    if layout is None:
        return np.zeros(0, dtype=np.int64)
    found = [np.zeros(0, dtype=np.int64)]
    # Formats with a preamble or bos begin every text with it, so a system turn inside a row begins none. Many
    # tokenizers have a bos that their template does not write (Nemotron 3, Kimi K2).
    writes_bos = layout.bos is not None and (layout.bos in layout.template_ids or not layout.openers)
    run = layout.preamble or ((layout.bos,) if writes_bos and layout.bos is not None else ())
    if run:
        places = occurrences(rows.ids, run)
        # Two in a row are a double bos, not two texts.
        doubled = np.isin(places, places + len(run)) | np.isin(places - 1, np.flatnonzero(rows.ids == run[0]))
        found.append(places[~doubled])
    turns = view.turns
    if turns is not None and len(turns) > 1 and not run:
        after = (turns.role[1:] == SYSTEM) & (turns.role[:-1] == ASSISTANT) & (turns.row[1:] == turns.row[:-1])
        first, before = turns.start[1:][after], turns.start[:-1][after]
        # gpt-oss's template begins each text with a system message of its own, which is no turn, so the message for
        # developers after it is the first turn. Where the text is recorded, its beginning is between the two turns.
        texts = np.flatnonzero(rows.first_of_document & np.isin(rows.ids, list(layout.first_ids)))
        is_recorded = np.searchsorted(texts, first, side="right") > np.searchsorted(texts, before, side="right")
        found.append(first[~is_recorded])
    places = np.unique(np.concatenate(found))
    # The first text of a row is not inside it, also where it follows padding on the left.
    inside: Int64s = places[(places != rows.starts[rows.row_of[places]]) & ~view.padding[np.maximum(places - 1, 0)]]
    return inside
