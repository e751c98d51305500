"""Rules on rows that are not of this tokenizer or not of this format: other ids, other headers, ids of 16 bits.

`check` sorts rows by what their ids show alone (`_RowKinds`). `finish` asks the tokenizer about windows of them, once
for the whole input::

    kind of row           what the tokenizer says of its windows                          reported as
    wrapped               nothing; the ids are proof                                      ids-wrapped
    foreign, outside,     all are encoded as the same ids again (`_are_its_own`),     other-format: rows without a
    without_turn          or their text holds headers of another format                   turn, and no others
                          else                                                            wrong-tokenizer
    unmasked              their text holds headers of another format                      other-format
                          else                                                            nothing: plain text
    foreign               no row is of another tokenizer                                  special-tokens-in-content

Ids that were stored in 16 bits are those of a row without a turn that holds the last 16 bits of an opener: of 151,644
(`<|im_start|>`) 20,572 is left, 151,644 - 2 * 65,536. Where control tokens have small ids (Gemma, Mistral), such rows
have all their turns, and are found where their text is encoded as other ids, as those of another tokenizer.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence, WindowToken
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.layouts.turns import occurrences
from niels_gpt.doctor.rows import Turns
from niels_gpt.doctor.view import View
from niels_gpt.inputs.rows import Bools
from niels_gpt.tokenizer.pieces import PieceEncoder

WRONG_TOKENIZER: Final = "wrong-tokenizer"
OTHER_FORMAT: Final = "other-format"
WRAPPED: Final = "ids-wrapped"
NAMES: Final = (WRONG_TOKENIZER, OTHER_FORMAT, WRAPPED)
# Findings that ids of another vocabulary cause by accident: these look like the rest of a turn or the start of a text.
_BY_ACCIDENT: Final = ("begins-mid-turn", "packed-start-trained", "attention-crosses")

# Candidates, counted as hits of these names until `finish` decides.
_FOREIGN: Final = "wrong-tokenizer: control tokens"
_UNMASKED: Final = "other-format: rows without a mask"
NO_TURN: Final = "no turn of this format is in the row"  # the note of candidates, and the sum of such rows

FOREIGN: Final = 5  # different control tokens of a row that the format does not write
# Of the tokens; a run that was cut may end in another one. Ids of other tokenizers were seen to reach 0.4 to 0.94.
SAME: Final = 0.96
SIZE: Final = 1 << 16  # ids of 16 bits
WINDOW: Final = 64  # tokens of a row that are shown, and encoded again
_OTHER_TURNS: Final = re.compile(
    r"<\|im_start\|>|<\|start_header_id\|>|<\|header_start\|>|<start_of_turn>|\[INST\]|<｜User｜>"
    r"|<\|(?:system|user|assistant)\|>|### (?:Instruction|Response|User|Assistant)|\b(?:User|USER|Human): "
)


@dataclass(frozen=True)
class _RowKinds:
    """Rows that may be of another tokenizer or format; bool arrays of shape (rows,).

    A row of one of the first two kinds is of no other one.

    Attributes:
        wrapped: no turn, and 16 bits of an opener.
        foreign: several control tokens that the format does not write. Where control tokens have small ids, ids of
            another tokenizer hold many of them, and turns by accident.
        without_turn: no turn, but a part of the tokens is trained. Rows that are trained completely or not at all may
            be plain text, which has no turns.
        outside: more ids outside of the vocabulary than chance explains.
        unmasked: no turn, in data without a mask.
    """

    wrapped: Bools
    foreign: Bools
    without_turn: Bools
    outside: Bools
    unmasked: Bools


def check(view: View) -> View:
    """Find rows that are not of this tokenizer or format.

    Returns:
        The view for all further rules: without rows whose control tokens are wrapped or anything but the format's.
            They hold neither turns nor text.
    """
    layout = view.scope.layout
    if layout is None or not layout.trusted or view.rendered_turns is not None or view.turns is None:
        return view
    kinds = _kinds_of(view, layout, view.turns)
    view.hit_rows(WRAPPED, kinds.wrapped, "turns begin with the last 16 bits of this format's control tokens")
    note = f"the row holds {FOREIGN} or more control tokens that the format does not write"
    view.hit_rows(_FOREIGN, kinds.foreign, note)
    view.counters.sums[NO_TURN] += int(kinds.without_turn.sum())
    _sample(view, kinds.without_turn, WRONG_TOKENIZER, NO_TURN)
    _sample(view, kinds.foreign, WRONG_TOKENIZER, note)
    _sample(view, kinds.outside & ~kinds.without_turn, WRONG_TOKENIZER, "many ids of the row are not in the vocabulary")
    _sample(view, kinds.unmasked, _UNMASKED, NO_TURN)
    dropped = kinds.wrapped | kinds.foreign | kinds.outside
    return replace(view, rows=view.rows.select(~dropped)) if dropped.any() else view


def _kinds_of(view: View, layout: Layout, turns: Turns) -> _RowKinds:
    rows, n = view.rows, len(view.rows)
    no_turn = np.bincount(turns.row, minlength=n) == 0
    wrapped = no_turn & _with_wrapped_opener(view, layout)
    foreign = _foreign_rows(view, layout) & ~wrapped
    trained = rows.per_row(view.trained)
    partly = (trained > 0) & (trained < rows.per_row(~view.padding & ~rows.first_of_document))
    rest = ~wrapped & ~foreign
    outside = rest & (rows.per_row(rows.ids >= layout.vocab_size) > (1 - SAME) * rows.lengths)
    unmasked = rest & no_turn & ~outside if rows.trained is None else np.zeros(n, dtype=np.bool_)
    return _RowKinds(wrapped, foreign, rest & no_turn & partly, outside, unmasked)


def _with_wrapped_opener(view: View, layout: Layout) -> Bools:
    """Rows with no id from 65,536 on, and with an opener of which 16 bits are left; bool of shape (rows,)."""
    rows = view.rows
    found = np.zeros(len(rows), dtype=np.bool_)
    for _, ids in layout.openers:
        if max(ids) >= SIZE:
            at = occurrences(rows.ids, tuple(token % SIZE for token in ids))
            found[rows.row_of[at]] = True
    # Separators and padding may have been added after the ids were stored in 16 bits.
    added = [*layout.serving_stops, *layout.stops, -1 if layout.pad is None else layout.pad]
    found &= rows.per_row((rows.ids >= SIZE) & ~np.isin(rows.ids, added)) == 0
    return found


def _foreign_rows(view: View, layout: Layout) -> Bools:
    """Rows with at least `FOREIGN` different control tokens that the format does not write, bool of shape (rows,)."""
    rows, ids = view.rows, view.rows.ids
    places = np.flatnonzero(np.isin(ids, list(layout.unwritten_controls)))
    # One number for each pair of a row and an id: of 100 ids, id 7 in row 2 is 207.
    pairs = np.unique(rows.row_of[places] * layout.vocab_size + ids[places])
    found: Bools = np.bincount(pairs // layout.vocab_size, minlength=len(rows)) >= FOREIGN
    return found


def _sample(view: View, chosen: Bools, rule: str, note: str) -> None:
    """Count rows, with their first tokens as evidence."""
    rows, counters = view.rows, view.counters
    places = np.flatnonzero(chosen)
    evidence = []
    for row in places[: counters.max_evidence].tolist():
        start, stop = int(rows.starts[row]), int(rows.starts[row + 1])
        ids = rows.ids[start:stop][~view.padding[start:stop]][:WINDOW].tolist()
        window = tuple(WindowToken(token, view.scope.decode_id(token)) for token in ids)
        evidence.append(Evidence(int(rows.numbers[row]), rows.wheres[row], note, window=window))
    counters.add(rule, evidence, count=len(places), rows=len(places))


def all_wrong(counters: Counters) -> bool:
    """Whether every row is of another vocabulary, so that rules on turns have found nothing real."""
    return 0 < counters.sums["rows"] <= _wrong_rows(counters)


def _wrong_rows(counters: Counters) -> int:
    return sum(counters.hits[name].rows for name in NAMES if name in counters.hits)


def finish(counters: Counters, encoder: PieceEncoder | None, layout: Layout | None) -> None:
    """Judge the candidates with the tokenizer, and drop what follows from a wrong one.

    Args:
        encoder: `None` without a tokenizer; then there are no candidates.
    """
    unmasked = counters.drop(_UNMASKED)
    if encoder is not None and layout is not None:
        found = counters.hits.get(WRONG_TOKENIZER)
        if found is not None and (
            _are_its_own(found.evidence, encoder, layout) or _hold_other_turns(found.evidence, encoder, layout)
        ):
            counters.drop(WRONG_TOKENIZER)
            # Rows with turns are of this format, whatever control tokens their texts hold.
            evidence = [piece for piece in found.evidence if piece.note == NO_TURN]
            counters.add(OTHER_FORMAT, evidence, count=counters.sums[NO_TURN], rows=counters.sums[NO_TURN])
        if WRONG_TOKENIZER in counters.hits:
            counters.drop(_FOREIGN)
        elif unmasked is not None and unmasked.evidence and _hold_other_turns(unmasked.evidence, encoder, layout):
            counters.add(OTHER_FORMAT, unmasked.evidence, count=unmasked.count, rows=unmasked.rows)
        # Dropped only if they are in no more rows than those ids: then no other row needs to have them.
        wrong = _wrong_rows(counters)
        for rule in _BY_ACCIDENT:
            hits = counters.hits.get(rule)
            if hits is not None and hits.rows <= wrong:
                counters.drop(rule)
    counters.move(_FOREIGN, "special-tokens-in-content")


def _hold_other_turns(samples: list[Evidence], encoder: PieceEncoder, layout: Layout) -> bool:
    """Whether the text of all samples holds headers of other formats. Ids of another tokenizer have no such text.

    Tools encode headers and messages separately, so these ids may not be the same when all are encoded again.
    """
    ids = [[token.id for token in sample.window if token.id not in layout.controls] for sample in samples]
    texts = [encoder.decode([token for token in row if 0 <= token < encoder.vocab_size]) for row in ids]
    return all(map(_OTHER_TURNS.search, texts))


def _are_its_own(samples: list[Evidence], encoder: PieceEncoder, layout: Layout) -> bool:
    """Whether nearly all tokens of these windows are the same when their text is encoded again.

    Tokens are compared as multisets, so that one changed token does not shift all others: of 5 6 7 8 and 5 9 8, two
    are the same, of four. Ids without text never are.
    """
    same = total = 0
    for sample in samples:
        row = [token.id for token in sample.window]
        total += sum(token >= layout.vocab_size for token in row)
        # The runs that ordinary text is encoded as; an id outside of the vocabulary also ends a run.
        for is_text, run in groupby(row, lambda token: 0 <= token < layout.vocab_size and token not in layout.controls):
            ids = [*run] if is_text else []
            again, _ = encoder.encode_pieces([encoder.decode(ids)], [False])
            same += sum((Counter(ids) & Counter(again.tolist())).values())
            total += max(len(ids), len(again))
    return total == 0 or same / total >= SAME
