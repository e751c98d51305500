"""Finds ids that were stored in 16 bits, so that of 151,644 (`<|im_start|>`) 20,572 is left: 151,644 - 2 * 65,536.

Three ways, from the surest on. The first is decided row by row, the others at the end, from samples of the rows:

1. A row has no turn, but the last 16 bits of an opener (`with_wrapped_opener`).
2. No row has any id from 65,536 on. Where the format's control tokens have small ids (Gemma, Mistral), such rows have
   all their turns. How many high ids varied text holds is their share in the texts that ship with the package.
3. Some rows have high ids and others have none. The latter are encoded again: of a tokenizer's own rows nearly none
   changes, of wrapped rows a third does, because text is rarely spelt by the tokens that are left::

       ids of this tokenizer   "stressed"  " word"     text "stressed word"       again the same
       wrapped                 "ation"     "ing"       text "ationing"            again "ation" "ing", or "ationing"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from niels_gpt.doctor.counters import Counters, Hits, SampledRow
from niels_gpt.doctor.evidence import Evidence, WindowToken
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.layouts.turns import occurrences
from niels_gpt.doctor.rows import Bools, Int64s
from niels_gpt.doctor.rules.encoded_again import are_its_own, between_controls, changes_inside, share_unchanged
from niels_gpt.doctor.view import View
from niels_gpt.samples import notes_dir
from niels_gpt.token_display import TokenSpelling
from niels_gpt.tokenizer.pieces import PieceEncoder

RULE: Final = "ids-wrapped"
SIZE: Final = 1 << 16
WINDOW: Final = 64  # tokens of a row that are shown

# Sums and samples of counters.
HIGH_IDS: Final = "ids from 65,536 on"
ENCODED_AGAIN: Final = "ids-wrapped: encoded again"
LOW: Final = "ids-wrapped: low"  # rows without ids from 65,536 on
MIXED: Final = "ids-wrapped: mixed"  # rows with such ids

# The second way.
VARIED: Final = 50  # distinct ids of the sample; sums and other simple rows may need no high ids
# The number of high ids expected if texts had a tenth of the usual share of them. Texts differ, but if 20 are expected
# even then, finding none is no coincidence.
EXPECTED: Final = 20

# The third way.
EACH: Final = 32  # rows of a slice that are sampled, the longest: long rows are the likelier to have high ids
ENCODED: Final = 512  # ids of a sampled row that are encoded again
SHORTEST: Final = 16  # ids: shorter rows often have no high ids
CHANGED: Final = 0.98  # share of tokens that are the same when encoded again; with fewer a row counts as changed
MIN_CHANGED: Final = 2  # rows
TIMES: Final = 3  # how much larger the share of changed rows must be than among rows with high ids


def high_ids(view: View) -> Int64s:
    """How many ids from 65,536 on each row holds, shape (rows,)."""
    return view.rows.per_row(view.rows.ids >= SIZE)


def collect(view: View, layout: Layout) -> None:
    """Count the high ids, and sample rows with and without them for `find`."""
    high = high_ids(view)
    view.counters.sums[HIGH_IDS] += int(high.sum())
    # Where openers have high ids, wrapped rows have no turns, and the first way finds them.
    if layout.vocab_size > SIZE and all(max(ids) < SIZE for _, ids in layout.openers):
        _sample_longest(view, LOW, high == 0)
        _sample_longest(view, MIXED, high > 0)


def with_wrapped_opener(view: View, layout: Layout) -> Bools:
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


def find(sample: Hits | None, counters: Counters, encoder: PieceEncoder, layout: Layout) -> None:
    """Report that the ids of all rows lost their upper bits, or else that single rows did.

    Args:
        sample: the first tokens of the first rows.
    """
    if (
        sample is not None
        and encoder.vocab_size > SIZE
        and not counters.sums[HIGH_IDS]
        and (
            not are_its_own(sample.evidence, encoder, layout)
            or _needs_high_ids(sample.evidence, counters.sums["tokens"], encoder, layout)
        )
    ):
        note = f"no id is 65,536 or more, of {encoder.vocab_size:,}; other texts of so many tokens have some"
        first = sample.evidence[0]
        evidence = Evidence(first.row, first.where, note, window=first.window[:WINDOW])
        counters.add(RULE, [evidence], count=counters.sums["rows"], rows=counters.sums["rows"])
    else:
        _find_among_others(counters, encoder, layout)


def _needs_high_ids(samples: list[Evidence], tokens: int, encoder: PieceEncoder, layout: Layout) -> bool:
    """Whether rows of this length, with words as varied as these, hold ids from 65,536 on."""
    distinct = {token.id for sample in samples for token in sample.window} - layout.controls
    if len(distinct) < VARIED:
        return False
    texts = [path.read_text(encoding="utf-8") for path in sorted(notes_dir().rglob("*.md"))]
    ids, _ = encoder.encode_pieces(texts, [False] * len(texts))
    return tokens * float((ids >= SIZE).mean()) >= 10 * EXPECTED


def _find_among_others(counters: Counters, encoder: PieceEncoder, layout: Layout) -> None:
    """Report rows without high ids whose text is encoded as other ids, where rows with high ids keep theirs."""
    low, mixed = (counters.samples.get(name, []) for name in (LOW, MIXED))
    changed = _changed_rows(low, encoder, layout)
    if len(changed) < MIN_CHANGED:
        return
    # Counted as if one more row had changed, because a few unchanged rows prove little.
    usual = (len(_changed_rows(mixed, encoder, layout)) + 1) / (len(mixed) + TIMES)
    if len(changed) / len(low) < TIMES * usual:
        return
    counters.sums[ENCODED_AGAIN] += len(low)
    note = "no id is 65,536 or more, and this text is encoded as other ids"
    text_of = TokenSpelling(encoder.token_bytes)
    evidence = [
        Evidence(row.number, row.where, note, window=tuple(WindowToken(token, text_of(token)) for token in ids))
        for row in changed
        for ids in [row.ids[:WINDOW].tolist()]
    ]
    counters.add(RULE, evidence)


def _changed_rows(rows: Sequence[SampledRow], encoder: PieceEncoder, layout: Layout) -> list[SampledRow]:
    """The rows whose text is encoded as other ids than theirs, or that hold control tokens that no probe has."""
    foreign = list(layout.unwritten_controls)
    return [
        row
        for row in rows
        if np.isin(row.ids, foreign).any()
        or share_unchanged([row.ids.tolist()], encoder, layout) < CHANGED
        or any(changes_inside(run, encoder) for run in between_controls(row.ids.tolist(), layout))
    ]


def _sample_longest(view: View, name: str, chosen: Bools) -> None:
    """Sample the longest of the chosen rows."""
    rows = view.rows
    places = np.flatnonzero(chosen & (rows.lengths >= SHORTEST))
    view.counters.sums[name] += len(places)
    longest = np.sort(places[np.argsort(-rows.lengths[places], kind="stable")[:EACH]])
    view.counters.sample(
        name,
        [
            SampledRow(
                int(rows.numbers[row]), rows.wheres[row], rows.ids[rows.starts[row] : rows.starts[row + 1]][:ENCODED]
            )
            for row in longest.tolist()
        ],
    )
