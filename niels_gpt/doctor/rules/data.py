"""Rules on rows as such: whole, different, of ids that exist, of labels that are the ids."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.report import Evidence
from niels_gpt.doctor.rows import Bools
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Tally
from niels_gpt.doctor.view import View
from niels_gpt.format.fitting import drop_oldest_turns
from niels_gpt.format.masks import IGNORE_INDEX

RULES: Final = (
    Rule(
        "unusable-row",
        "error",
        "rows cannot be read",
        "Loaders drop them in silence, or crash hours into a run.",
        "Broken JSON, missing fields, columns of different lengths.",
        "Repair or drop them.",
    ),
    Rule(
        "empty-row",
        "warning",
        "rows are empty",
        "They count in averages over rows and hold nothing.",
        "A filter that emptied contents and kept the rows.",
        "Drop them.",
        applies=("chats", "tokens", "documents"),
    ),
    Rule(
        "duplicate-row",
        "warning",
        "rows are there more than once",
        "They weigh more than others; where copies lie in train and validation, validation is too good.",
        "Sources that overlap, or a file that was appended to itself.",
        "Drop the copies, or say that they are wanted.",
        applies=("chats", "tokens", "documents"),
    ),
    Rule(
        "id-out-of-range",
        "error",
        "ids are not in the vocabulary",
        "The embedding lookup reads past its table: a crash on the GPU, or another model's token.",
        "Rows were tokenised with another tokenizer, or ids wrapped around in a small integer type.",
        "Tokenise again with this tokenizer.",
        applies=("tokens", "documents"),
        needs=("vocabulary",),
    ),
    Rule(
        "labels-preshifted",
        "error",
        "labels are shifted already",
        "The Hugging Face trainers shift labels themselves: the model learns to predict the token after the next.",
        "Labels made for a trainer that wants them shifted (Megatron, torchtitan, nanochat).",
        "Store labels aligned with input_ids.",
        ("areal-project/AReaL#1427",),
        ("tokens",),
    ),
    Rule(
        "labels-foreign",
        "error",
        "labels are neither -100 nor the row's ids",
        "The model is taught other tokens than it reads.",
        "Labels and ids come from different rows or tokenizers.",
        "Build both from one record.",
        applies=("tokens",),
    ),
    Rule(
        "over-long",
        "warning",
        "rows are longer than training takes",
        "What a trainer does with them decides what is lost: a tail without its end-of-turn teaches not to stop.",
        "Long conversations and a smaller --max-length.",
        "Choose a policy by its price (see the table), never a cut inside an assistant's turn.",
        ("allenai/open-instruct#1876", "huggingface/trl#3927"),
        needs=("ids",),
    ),
)


def check(view: View) -> View:
    """Judge the rows, and return them with their mask where the ids are, should labels be shifted."""
    check_ids(view)
    view = _labels(view)
    _lengths(view)
    return view


def check_ids(view: View) -> None:
    """Judge whether the ids are in the vocabulary."""
    rows, layout = view.rows, view.scope.layout
    wrong = rows.ids < 0
    size = layout.vocab_size if layout is not None else None
    if size is not None:
        wrong |= rows.ids >= size
    told = "the vocabulary is not known" if size is None else f"the vocabulary has {size:,} ids"
    view.hit_tokens("id-out-of-range", wrong, lambda _, place: f"id {int(rows.ids[place])}; {told}")


def _labels(view: View) -> View:
    """Labels beside ids.

    ::

        ids      5 6 7 8        labels  . 6 7 8   aligned        6 7 8 .   shifted (all supervised ones fit ids[1:])
    """
    rows = view.rows
    if rows.labels is None or rows.trained is None:
        return view
    taught = rows.labels != IGNORE_INDEX
    other = taught & (rows.labels != rows.ids)
    odd = rows.per_row(other) > 0
    if not odd.any():
        return view
    following = np.append(rows.ids[1:], IGNORE_INDEX)
    following[rows.starts[1:] - 1] = IGNORE_INDEX
    shifted = odd & (rows.per_row(taught & (rows.labels != following)) == 0)
    view.hit_rows("labels-preshifted", shifted, "labels[i] is input_ids[i + 1] wherever it is not -100")
    wrong = other & (odd & ~shifted)[rows.row_of]
    view.hit_tokens("labels-foreign", wrong, lambda _, place: f"label {int(rows.labels[place])}")  # type: ignore[index]
    moved = np.concatenate(([False], taught[:-1]))
    moved[rows.starts[:-1]] = False
    return replace(view, rows=replace(rows, trained=np.where(shifted[rows.row_of], moved, rows.trained)))


def _lengths(view: View) -> None:
    limit, rows = view.scope.max_length, view.rows
    if limit is None:
        return
    real = rows.lengths - rows.per_row(view.padding)
    long = np.flatnonzero(real > limit)
    view.hit("over-long", long, np.full(len(long), -1), lambda row, _: f"{int(real[row]):,} tokens, room for {limit:,}")
    if len(long):
        _prices(view, long, limit)


POLICIES: Final = ("head", "tail", "drop_partial_turn", "skip", "drop_oldest_turns")


def _prices(view: View, long: np.ndarray[Any, np.dtype[np.int64]], limit: int) -> None:
    """What each policy would lose of the rows that are too long.

    ::

        trained   . # # . # | # .      room 5: head loses 1 and cuts a turn; drop_partial_turn loses 2; tail loses 1
    """
    rows, trained, tally = view.rows, view.trained, view.tally
    sums = np.concatenate(([0], np.cumsum(trained)))
    start, stop = rows.starts[long], rows.starts[long + 1]
    cut, taught = start + limit, sums[stop] - sums[start]
    through = trained[cut] & trained[cut - 1]
    run = _run_start(trained, cut)
    kept = {
        "head": sums[cut] - sums[start],
        "tail": sums[stop] - sums[stop - limit],
        "drop_partial_turn": np.where(through, sums[np.maximum(run, start)], sums[cut]) - sums[start],
        "skip": np.zeros(len(long), dtype=np.int64),
    }
    special = view.scope.sentinels
    if special:
        kept["drop_oldest_turns"] = np.array([_kept(view, row, limit) for row in long.tolist()], dtype=np.int64)
    for policy, left in kept.items():
        tally.sums[f"{policy}: trained tokens lost"] += int((taught - left).sum())
        tally.sums[f"{policy}: rows without a trained token"] += int(((left == 0) & (taught > 0)).sum())
    tally.sums["head: turns cut"] += int(through.sum())
    tally.sums["over-long tokens"] += int((stop - start - limit).sum())


def _run_start(trained: np.ndarray[Any, Any], cut: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where the run of trained tokens that reaches `cut` begins."""
    untrained = np.concatenate(([-1], np.flatnonzero(~trained)))
    begin: np.ndarray[Any, np.dtype[np.int64]] = untrained[np.searchsorted(untrained, cut) - 1] + 1
    return begin


def _kept(view: View, row: int, limit: int) -> int:
    start, stop = (int(view.rows.starts[at]) for at in (row, row + 1))
    special = {f"{name}_id": token for name, token in view.scope.sentinels.items()}
    slices = drop_oldest_turns(view.rows.ids[start:stop], limit, **special)
    return sum(int(view.trained[start:stop][part].sum()) for part in slices)


def prices(tally: Tally) -> dict[str, dict[str, int]]:
    """What each policy would lose, by name."""
    found: dict[str, dict[str, int]] = {}
    for name, number in sorted(tally.sums.items()):
        policy, _, what = name.partition(": ")
        if policy in POLICIES:
            found.setdefault(policy, {})[what] = number
    return found


def duplicates(tally: Tally, source: str) -> None:
    """Rows whose hash came before; the evidence names both.

    ::

        hashes  7 3 7 7     sorted, stable  3 7 7 7 of rows 1 0 2 3     copies  2 3, of row 0
    """
    if not tally.hashes:
        return
    hashes, numbers = np.concatenate(tally.hashes), np.concatenate(tally.numbers)
    order = np.argsort(hashes, kind="stable")
    copies = np.sort(order[1:][hashes[order][1:] == hashes[order][:-1]])
    evidence = [
        Evidence(
            row=int(numbers[at]),
            where=f"{source} row {int(numbers[at])}",
            note=f"the same as row {int(numbers[np.argmax(hashes == hashes[at])])} (rows are counted from 0)",
        )
        for at in copies[: tally.keep].tolist()
    ]
    tally.add("duplicate-row", evidence, count=len(copies), rows=len(copies))


def hash_rows(view: View, chosen: Bools | None = None) -> None:
    """Remember what rows hold, by the hash of their ids and mask.

    Args:
        chosen: only these, bool of shape (rows,).
    """
    rows = view.rows
    held = [rows.ids] if rows.trained is None else [rows.ids, rows.trained]
    hashes = np.zeros(len(rows), dtype=np.uint64)
    for row, (start, stop) in enumerate(zip(rows.starts[:-1].tolist(), rows.starts[1:].tolist(), strict=True)):
        digest = hashlib.blake2b(digest_size=8)
        for values in held:
            digest.update(values[start:stop].data)
        hashes[row] = int.from_bytes(digest.digest())
    kept = slice(None) if chosen is None else chosen
    view.tally.hashes.append(hashes[kept])
    view.tally.numbers.append(rows.numbers[kept])
