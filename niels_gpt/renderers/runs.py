"""Which texts of a conversation are encoded alone, and what is known of the rest; found out once for each shape."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from niels_gpt.renderers.apart import Apart
from niels_gpt.renderers.rendered import SCAFFOLD
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.stand_ins import STAND_IN
from niels_gpt.tokenizer.encoder import Encoder
from niels_gpt.tokenizer.seams import SEAM, Seams

Span = tuple[int, int]
Control = tuple[int, int, int, int]  # the piece that holds it, its first byte in that, the byte behind it, its id


class _Cell(NamedTuple):
    """A piece or a part of one, with the facts of the piece as in `Script`."""

    text: str
    facts: int
    begins_piece: bool
    run: int  # -1: it is not encoded


def apart_of(encoder: Encoder, seams: Seams, out: Script, controls: Sequence[Control]) -> Apart | None:
    """What is known of a conversation of stand-ins; `None`: it has none, or one that cannot be encoded apart.

    Args:
        out: the conversation as a grammar writes it, with one stand-in in a piece at most.
        controls: its control tokens.
    """
    text = "".join(out.texts)
    values = [found.span() for found in STAND_IN.finditer(text)]
    runs = _runs(text, values, _spans(out, controls), seams)
    if not runs:
        return None
    cells = _cells(out, runs)
    scaffold = [bool(cell.facts & SCAFFOLD) for cell in cells]
    ids, owner = encoder.encode_pieces([cell.text for cell in cells], scaffold)
    counts = np.bincount(owner, minlength=len(cells))
    units: list[int] = []
    places: list[int] = []
    run = 0
    for cell in cells:
        if cell.run < 0:
            continue
        if cell.run == run:
            run += 1
            units.append(-len(SEAM))
        rest, found = STAND_IN.subn("", cell.text)
        if found:
            places.append(len(units))
        units.append(len(rest.encode()))
    encoded = np.array([cell.run >= 0 for cell in cells], np.bool_)
    begins = np.array([cell.begins_piece for cell in cells], np.int32)
    return Apart(
        form=() if runs == values else _form(SEAM.join([text[a:b] for a, b in runs])),
        units=np.array(units, np.int64),
        places=np.array(places, np.int64),
        cells=2 * np.where(encoded, -1, counts).astype(np.int32) + begins,
        facts=np.array(out.facts, np.int32),
        ids=ids[~encoded.repeat(counts)],
    )


def _form(text: str) -> tuple[str, ...]:
    """A text cut at its stand-ins, with nothing in place of each: ("a", "", "b", "", "") of "a(value 0)b(value 1)"."""
    before, *behind = STAND_IN.split(text)
    return (before, *(part for frame in behind for part in ("", frame)))


def _spans(out: Script, controls: Sequence[Control]) -> list[Span]:
    """Where control tokens stand in what a grammar writes, in characters."""
    at = list(accumulate(map(len, out.texts), initial=0))
    spans: list[Span] = []
    for piece, begin, end, _ in controls:
        data = out.texts[piece].encode()
        spans.append((at[piece] + len(data[:begin].decode()), at[piece] + len(data[:end].decode())))
    return spans


def _runs(text: str, values: Sequence[Span], controls: Sequence[Span], seams: Seams) -> list[Span] | None:
    """The texts that are encoded with the values in them, each as short as it can be; `None`: one has no proven ends.

    A text begins behind a control token or most ends of lines (`Seams.parts`), and ends before a control token or a
    space::

        <s>\\n(value 0)\\n# Tools</s>      values  4 13      controls  0 3, 21 25      run  4 15

    Args:
        values, controls: where they stand, in characters.
    """
    cuttable = [True] * (len(text) + 1)
    for begin, end in (*values, *controls):
        cuttable[begin + 1 : end] = [False] * (end - begin - 1)
    behind, before = [0, *(end for _, end in controls)], {len(text), *(begin for begin, _ in controls)}
    runs: list[Span] = []
    for first, last in values:
        if runs and last <= runs[-1][1]:
            continue
        begin, end = first, last
        while text[begin].isspace() or not (cuttable[begin] and seams.parts(text, _last(behind, begin), begin)):
            begin -= 1
            if begin < 0:
                return None
        while not (cuttable[end] and (end in before or text[end] == " ") and not text[end - 1].isspace()):
            end += 1
            if end > len(text):
                return None
        if runs and begin < runs[-1][1]:  # nothing parts it from the one before
            begin = runs.pop()[0]
        runs.append((begin, end))
    if any(begin < stop and start < end for begin, end in runs for start, stop in controls):
        return None
    return runs


def _last(ascending: Sequence[int], at: int) -> int:
    """The last of these that is not behind."""
    return ascending[bisect_right(ascending, at) - 1]


def _cells(out: Script, runs: Sequence[Span]) -> list[_Cell]:
    """The pieces, cut where runs begin and end."""
    cells: list[_Cell] = []
    begins = [begin for begin, _ in runs]
    cuts = sorted({cut for run in runs for cut in run})
    for at, text, facts in zip(accumulate(map(len, out.texts), initial=0), out.texts, out.facts, strict=False):
        stop = at + len(text)
        for begin, end in pairwise((at, *cuts[bisect_right(cuts, at) : bisect_left(cuts, stop)], stop)):
            run = bisect_right(begins, begin) - 1
            encoded = begin < end and run >= 0 and end <= runs[run][1]
            cells.append(_Cell(text[begin - at : end - at], facts, begin == at, run if encoded else -1))
    return cells
