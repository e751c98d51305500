"""Rules on rows that hold several texts."""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.doctor.layout import occurrences
from niels_gpt.doctor.rows import ASSISTANT, SYSTEM, Int64s
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.view import View

RULES: Final = (
    Rule(
        "seam-trained",
        "error",
        "the first token of a packed text is in the loss",
        "It is predicted from the end of an unrelated text, which is noise.",
        "Texts were joined with their masks, and the first token of the next was trained.",
        "Set the label of each text's first token to -100 (position_ids == 0).",
        ("huggingface/trl#3067",),
        ("tokens",),
        needs=("mask",),
    ),
    Rule(
        "attention-crosses",
        "warning",
        "rows hold several texts and nothing says where they begin",
        "Attention runs from one conversation into the next, and positions go on counting.",
        "Texts were concatenated without position_ids or seq_lengths.",
        "Keep position_ids that restart, or seq_lengths; and an attention kernel that uses them.",
        ("huggingface/trl#805", "huggingface/alignment-handbook#204"),
        ("tokens",),
        needs=("beginnings",),
    ),
    Rule(
        "packing-lengths",
        "error",
        "seq_lengths or position_ids do not fit the row",
        "Trainers derive attention from them; wrong ones join or cut texts, or crash a kernel.",
        "Rows were cut or padded after packing.",
        "Pack last; the lengths of a row must add up to its tokens, and positions count up from 0.",
        ("huggingface/trl#4554",),
        ("tokens",),
    ),
)


def check(view: View) -> None:
    """Judge the seams."""
    rows = view.rows
    seams = rows.first_of_document.copy()
    seams[rows.starts[:-1]] = False
    if rows.trained is not None:
        places = np.flatnonzero(seams & view.trained & ~view.padding)
        view.hit("seam-trained", rows.row_of[places], places, "a text begins here, and its first token is trained")
    beginnings = _beginnings(view)
    inside = beginnings[~rows.first_of_document[beginnings]]
    view.hit("attention-crosses", rows.row_of[inside], inside, "another text begins here, and no column says so")
    if rows.trained is not None:
        trained = inside[view.trained[inside]]
        view.hit("seam-trained", rows.row_of[trained], trained, "a text begins here, and its first token is trained")


def _beginnings(view: View) -> Int64s:
    """Where texts visibly begin inside rows: a preamble, or a system turn behind an assistant's."""
    layout, rows = view.scope.layout, view.rows
    if layout is None:
        return np.zeros(0, dtype=np.int64)
    found = [np.zeros(0, dtype=np.int64)]
    run = layout.preamble or (() if layout.bos is None else (layout.bos,))
    if run:
        places = occurrences(rows.ids, run)
        doubled = np.isin(places, places + len(run)) | np.isin(places - 1, np.flatnonzero(rows.ids == run[0]))
        found.append(places[~doubled])
    turns = view.turns
    if turns is not None and len(turns) > 1 and not run:
        behind = (turns.role[1:] == SYSTEM) & (turns.role[:-1] == ASSISTANT) & (turns.row[1:] == turns.row[:-1])
        found.append(turns.start[1:][behind])
    places = np.unique(np.concatenate(found))
    # Behind padding on the left a text begins too.
    inside: Int64s = places[(places != rows.starts[rows.row_of[places]]) & ~view.padding[np.maximum(places - 1, 0)]]
    return inside
