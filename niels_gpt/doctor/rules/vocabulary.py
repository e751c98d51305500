"""Rules on ids that belong to another vocabulary: rows of another tokenizer, and ids that were stored in 16 bits.

Rows of this tokenizer without any turn of the format were written in another one.

`check` looks for rows that train a part of their tokens and hold no turn of the format. `finish` asks the tokenizer:
ids that it has made itself come out the same when their text is encoded again, ids of another one do not::

    ids of this tokenizer   9906 1917      text "Hello world"      again  9906 1917
    ids of another one      9707 1879      text " stressed exp"    again  62852 1367

Ids that lost their upper bits are still tokens, which often come out the same. Where the format's control tokens have
small ids (Gemma, Mistral), such rows have all their turns. What they lack are the ids from 65,536 on. If no row has
any, their share in the texts that ship with the package says how many of them varied text holds. If some rows have
them, those without are encoded again: of a tokenizer's own rows nearly none changes, of wrapped rows a third does::

    ids of this tokenizer   "stressed"  " word"     text "stressed word"       again the same
    wrapped                 "ation"     "ing"       text "ationing"            again "ation" "ing", or "ationing"
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

import numpy as np

from niels_gpt.doctor.counters import Counters, Hits, SampledRow
from niels_gpt.doctor.evidence import Evidence, WindowToken
from niels_gpt.doctor.layout import Layout, occurrences
from niels_gpt.doctor.rows import Bools
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.view import View
from niels_gpt.samples import notes_dir
from niels_gpt.token_display import TokenSpelling
from niels_gpt.tokenizer.pieces import PieceEncoder

OTHER_FORMAT: Final = "other-format"
NO_TURN: Final = "no turn of this format is in the row"
RULES: Final = (
    Rule(
        "wrong-tokenizer",
        "error",
        "ids were made with another tokenizer",
        "The model reads and learns other texts than those in the source. The loss starts high and still falls.",
        "Rows were tokenised for another model, or the tokenizer was replaced afterwards.",
        "Tokenise the source again with the tokenizer that trains, or pass the one that made the rows.",
        applies=("tokens",),
        needs=("turns",),
    ),
    Rule(
        OTHER_FORMAT,
        "error",
        "rows hold no turn of this format",
        "The model is trained on turns that serving never writes, and serving stops at an end that it has not seen.",
        "The rows were rendered with the chat template of another model, or joined from plain texts.",
        "Render the source again with the template that will serve; or name what wrote the rows (--renderer, "
        "--template).",
        ("ollama/ollama#6823", "hiyouga/LlamaFactory#3426"),
        applies=("tokens",),
        needs=("turns",),
    ),
    Rule(
        "ids-wrapped",
        "error",
        "ids were stored in 16 bits, and those from 65,536 on are others now",
        "Control tokens have the highest ids, so no turn begins or ends any more; the texts are noise.",
        "ids.astype(np.uint16) with a vocabulary of more than 65,536 entries.",
        "Tokenise again and store uint32.",
        applies=("tokens",),
        needs=("turns",),
    ),
)
_OTHER_TURNS: Final = re.compile(
    r"<\|im_start\|>|<\|start_header_id\|>|<\|header_start\|>|<start_of_turn>|\[INST\]|<｜User｜>"
    r"|<\|(?:system|user|assistant)\|>|### (?:Instruction|Response|User|Assistant)|\b(?:User|USER|Human): "
)
SIZE: Final = 1 << 16
WINDOW: Final = 64  # tokens of a row that are encoded again
# Of the tokens; a run that was cut may end in another one. Ids of other tokenizers were seen to reach 0.4 to 0.94.
SAME: Final = 0.96
FOREIGN: Final = 5  # different control tokens of a row that the format does not write
# Rows without a mask and without turns are plain text, unless they begin with headers of another format.
UNMASKED: Final = "other-format: rows without a mask"
FOREIGN_ROWS: Final = "wrong-tokenizer: control tokens"
SAMPLE: Final = "ids-wrapped: sample"
VARIED: Final = 50  # distinct ids of the sample; sums and other simple rows may need no high ids
# Rows without and with ids from 65,536 on; of each slice the longest, because long rows are the likelier to have them.
LOW: Final = "ids-wrapped: low"
MIXED: Final = "ids-wrapped: mixed"
ENCODED_AGAIN: Final = "ids-wrapped: encoded again"
EACH: Final = 32  # of a slice
ENCODED: Final = 512  # ids of a sampled row that are encoded again
SHORTEST: Final = 16  # ids: shorter rows often have no high ids
CHANGED: Final = 0.98  # share of tokens that are the same when encoded again; with fewer a row counts as changed
# Tokens of a text's beginning and end that may change: tools encode headers and messages separately, and rows are cut.
SEAM: Final = 4
MIN_CHANGED: Final = 2  # rows
TIMES: Final = 3  # how much larger the share of changed rows must be than among rows with high ids
# The number of high ids expected if texts had a tenth of the usual share of them. Texts differ, but if 20 are expected
# even then, finding none is no coincidence.
EXPECTED: Final = 20


def check(view: View) -> View:
    """Find rows of ids without any turn of the format.

    Returns:
        The view for all further rules: without rows whose control tokens are wrapped or anything but the format's.
            They hold neither turns nor text.
    """
    layout, rows = view.scope.layout, view.rows
    if layout is None or not layout.trusted or view.rendered_turns is not None or view.turns is None:
        return view
    high = rows.per_row(rows.ids >= SIZE)
    view.counters.sums["ids from 65,536 on"] += int(high.sum())
    _sample(view, np.ones(len(rows), dtype=np.bool_), SAMPLE, "the first tokens of a row")
    if layout.vocab_size > SIZE and all(max(ids) < SIZE for _, ids in layout.openers):
        _sample_longest(view, LOW, high == 0)
        _sample_longest(view, MIXED, high > 0)
    no_turn = np.bincount(view.turns.row, minlength=len(rows)) == 0
    # Separators and padding may have been added after the ids were stored in 16 bits.
    added = [*layout.serving_stops, *layout.stops, -1 if layout.pad is None else layout.pad]
    text_high = rows.per_row((rows.ids >= SIZE) & ~np.isin(rows.ids, added))
    wrapped = no_turn & (text_high == 0) & _with_wrapped_opener(view, layout)
    view.hit_rows("ids-wrapped", wrapped, "turns begin with the last 16 bits of this format's control tokens")
    trained = rows.per_row(view.trained)
    # Rows that are trained completely or not at all may be plain text, which has no turns.
    partly = (trained > 0) & (trained < rows.per_row(~view.padding & ~rows.first_of_document))
    # Where control tokens have small ids, ids of another tokenizer hold many of them, and turns by accident.
    foreign = _control_tokens(view, layout) & ~wrapped & ((high > 0) | (layout.vocab_size <= SIZE))
    note = f"the row holds {FOREIGN} or more control tokens that the format does not write"
    view.hit_rows(FOREIGN_ROWS, foreign, note)
    without = no_turn & ~wrapped & ~foreign & partly
    view.counters.sums[NO_TURN] += int(without.sum())
    _sample(view, without, "wrong-tokenizer", NO_TURN)
    _sample(view, foreign, "wrong-tokenizer", note)
    # More ids outside of the vocabulary than chance explains.
    outside = rows.per_row(rows.ids >= layout.vocab_size) > (1 - SAME) * rows.lengths
    outside &= ~wrapped & ~foreign
    _sample(view, outside & ~(no_turn & partly), "wrong-tokenizer", "many ids of the row are not in the vocabulary")
    if rows.trained is None:
        _sample(view, no_turn & ~wrapped & ~foreign & ~outside, UNMASKED, NO_TURN)
    dropped = wrapped | foreign | outside
    return replace(view, rows=rows.select(~dropped)) if dropped.any() else view


def _control_tokens(view: View, layout: Layout) -> Bools:
    """Rows with at least `FOREIGN` different control tokens that the format does not write, bool of shape (rows,)."""
    rows, ids = view.rows, view.rows.ids
    places = np.flatnonzero(np.isin(ids, list(_unwritten(layout))))
    # One number for each pair of a row and an id.
    pairs = np.unique(rows.row_of[places] * layout.vocab_size + ids[places])
    found: Bools = np.bincount(pairs // layout.vocab_size, minlength=len(rows)) >= FOREIGN
    return found


def _unwritten(layout: Layout) -> frozenset[int]:
    """Control tokens that neither the format writes nor serving knows."""
    named = {token for token in (layout.bos, layout.pad) if token is not None}
    return layout.controls - layout.template_ids - layout.serving_stops - named


def _with_wrapped_opener(view: View, layout: Layout) -> Bools:
    """Rows with an opener of which 16 bits are left, bool of shape (rows,): 151644 is 20572."""
    found = np.zeros(len(view.rows), dtype=np.bool_)
    for _, ids in layout.openers:
        if max(ids) >= SIZE:
            at = occurrences(view.rows.ids, tuple(token % SIZE for token in ids))
            found[view.rows.row_of[at]] = True
    return found


def _sample_longest(view: View, name: str, chosen: Bools) -> None:
    """Sample the longest of the chosen rows, for `_changed_rows`."""
    rows = view.rows
    chosen = chosen & (rows.lengths >= SHORTEST)
    places = np.flatnonzero(chosen)
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
    names = ("wrong-tokenizer", OTHER_FORMAT, "ids-wrapped")
    return 0 < counters.sums["rows"] <= sum(counters.hits[name].rows for name in names if name in counters.hits)


def finish(counters: Counters, encoder: PieceEncoder | None, layout: Layout | None) -> None:
    """Judge the samples with the tokenizer, and drop what follows from a wrong one.

    Args:
        encoder: `None` without a tokenizer; then nothing was sampled.
    """
    sample, unmasked = counters.drop(SAMPLE), counters.drop(UNMASKED)
    if encoder is not None and layout is not None:
        found = counters.hits.get("wrong-tokenizer")
        if found is not None and (
            _are_its_own(found.evidence, encoder, layout) or _hold_other_turns(found.evidence, encoder, layout)
        ):
            counters.drop("wrong-tokenizer")
            # Rows with turns are of this format, whatever control tokens their texts hold.
            evidence = [piece for piece in found.evidence if piece.note == NO_TURN]
            counters.add(OTHER_FORMAT, evidence, count=counters.sums[NO_TURN], rows=counters.sums[NO_TURN])
        elif found is None and "ids-wrapped" not in counters.hits:
            _find_wrapped(sample, counters, encoder, layout)
        if "wrong-tokenizer" in counters.hits:
            counters.drop(FOREIGN_ROWS)
        elif unmasked is not None and unmasked.evidence and _hold_other_turns(unmasked.evidence, encoder, layout):
            counters.add(OTHER_FORMAT, unmasked.evidence, count=unmasked.count, rows=unmasked.rows)
        # Ids of another vocabulary look like the rest of a turn or the beginning of a text by accident. Such findings
        # are dropped if they are in no more rows than those ids.
        names = ("wrong-tokenizer", OTHER_FORMAT, "ids-wrapped")
        wrong = sum(counters.hits[rule].rows for rule in names if rule in counters.hits)
        for rule in ("begins-mid-turn", "packed-start-trained", "attention-crosses"):
            hits = counters.hits.get(rule)
            if hits is not None and hits.rows <= wrong:
                counters.drop(rule)
    counters.move(FOREIGN_ROWS, "special-tokens-in-content")


def _find_wrapped(sample: Hits | None, counters: Counters, encoder: PieceEncoder, layout: Layout) -> None:
    """Report that the ids of all rows lost their upper bits; else search for single such rows."""
    if (
        sample is not None
        and encoder.vocab_size > SIZE
        and not counters.sums["ids from 65,536 on"]
        and (
            not _are_its_own(sample.evidence, encoder, layout)
            or _needs_high_ids(sample.evidence, counters.sums["tokens"], encoder, layout)
        )
    ):
        note = f"no id is 65,536 or more, of {encoder.vocab_size:,}; other texts of so many tokens have some"
        first = sample.evidence[0]
        evidence = Evidence(first.row, first.where, note, window=first.window[:WINDOW])
        counters.add("ids-wrapped", [evidence], count=counters.sums["rows"], rows=counters.sums["rows"])
    else:
        _find_wrapped_among_others(counters, encoder, layout)


def _find_wrapped_among_others(counters: Counters, encoder: PieceEncoder, layout: Layout) -> None:
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
    counters.add("ids-wrapped", evidence)


def _changed_rows(rows: Sequence[SampledRow], encoder: PieceEncoder, layout: Layout) -> list[SampledRow]:
    """The rows whose text is encoded as other ids than theirs, or that hold control tokens that no probe has."""
    unwritten = list(_unwritten(layout))
    return [
        row
        for row in rows
        if np.isin(row.ids, unwritten).any()
        or _share_unchanged([row.ids.tolist()], encoder, layout) < CHANGED
        or any(changes_inside(run, encoder) for run in _between_controls(row.ids.tolist(), layout))
    ]


def changes_inside(ids: list[int], encoder: PieceEncoder) -> bool:
    """Whether the text of these ids is encoded as other ids, and not only at its beginning or end.

    ::

        ids      5 6 7 8 9 1 2 3 4      again  5 6 7 8 9 50 3 4      the same on the left 5, on the right 2
    """
    again, _ = encoder.encode_pieces([encoder.decode(ids)], [False])
    made = [int(token) for token in again]
    left, right = _common(ids, made), _common(ids[::-1], made[::-1])
    return made != ids and len(ids) - right > SEAM and left < len(ids) - SEAM


def _common(first: list[int], second: list[int]) -> int:
    """How many tokens two lists have in common at their beginning."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def _are_its_own(samples: list[Evidence], encoder: PieceEncoder, layout: Layout) -> bool:
    """Whether nearly all of these tokens are the same when their text is encoded again."""
    return _share_unchanged([[token.id for token in sample.window] for sample in samples], encoder, layout) >= SAME


def _hold_other_turns(samples: list[Evidence], encoder: PieceEncoder, layout: Layout) -> bool:
    """Whether the text of all samples holds headers of other formats. Ids of another tokenizer have no such text.

    Tools encode headers and messages separately, so these ids may not be the same when all are encoded again.
    """
    ids = [[token.id for token in sample.window if token.id not in layout.controls] for sample in samples]
    texts = [encoder.decode([token for token in row if 0 <= token < encoder.vocab_size]) for row in ids]
    return all(map(_OTHER_TURNS.search, texts))


def _share_unchanged(rows: Iterable[list[int]], encoder: PieceEncoder, layout: Layout) -> float:
    """The share of the tokens, 0 to 1, that are the same when their text is encoded again; ids without text are not."""
    same = total = 0
    for row in rows:
        total += sum(token >= layout.vocab_size for token in row)
        for ids in _between_controls(row, layout):
            again, _ = encoder.encode_pieces([encoder.decode(ids)], [False])
            made = [int(token) for token in again]
            same += sum((Counter(ids) & Counter(made)).values())
            total += max(len(ids), len(made))
    return same / total if total else 1.0


def _needs_high_ids(samples: list[Evidence], tokens: int, encoder: PieceEncoder, layout: Layout) -> bool:
    """Whether rows of this length, with words as varied as these, hold ids from 65,536 on."""
    distinct = {token.id for sample in samples for token in sample.window} - layout.controls
    if len(distinct) < VARIED:
        return False
    texts = [path.read_text(encoding="utf-8") for path in sorted(notes_dir().rglob("*.md"))]
    ids, _ = encoder.encode_pieces(texts, [False] * len(texts))
    return tokens * float((ids >= SIZE).mean()) >= 10 * EXPECTED


def _between_controls(ids: list[int], layout: Layout) -> Iterator[list[int]]:
    """The runs of ids that ordinary text is encoded as; an id outside of the vocabulary ends a run, too."""
    for is_text, run in groupby(ids, lambda token: 0 <= token < layout.vocab_size and token not in layout.controls):
        if is_text:
            yield list(run)
