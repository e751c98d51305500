"""Rules on preferences: rows with chosen and rejected sides, labels or ranks, and datasets built from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from niels_gpt.datasets import Dataset
from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.inputs.rows import Int64s
from niels_gpt.messages import Message
from niels_gpt.preferences.dataset import Fitting, PreferenceSplit, StoredGroup
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.preference_files import record_to_preference

# How sure the rule is (standard errors), and from which difference on a length matters.
LEAST_SURE: Final = 4.0
LEAST_RATIO: Final = 1.1
GROUPS_AT_ONCE: Final = 2048


def check(numbers: Int64s, records: Sequence[Record | Rejected], form: str, counters: Counters) -> None:
    """Judge rows of a file; those that are no preferences become hits."""
    for number, record in zip(numbers.tolist(), records, strict=True):
        read = record if isinstance(record, Rejected) else record_to_preference(record, form)
        if isinstance(read, Rejected):
            rule = {"prompt_differs": "prompt-mismatch", "side_without_answer": "chosen-shorter-than-prompt"}
            found = rule.get(read.reason, "unusable-row")
            counters.add(found, [Evidence(row=number, where=read.where, note=read.why)])
            continue
        first, *others = read.completions
        if others and all(one.messages == first.messages for one in others):
            note = f"{first.name} and {others[0].name} are the same"
            counters.add("identical-pair", [Evidence(row=number, where=read.prompt.where, note=note)])
        # Lengths in characters: rows of a file are judged without a tokenizer.
        lengths = [sum(map(_characters, one.messages)) for one in read.completions]
        if others:  # from the best to the worst
            _add_pairs(np.array([lengths[0]]), np.array([lengths[-1]]), counters)


def _characters(message: Message) -> int:
    content = message["content"]
    return len(content) if isinstance(content, str) else sum(len(str(part.get("text", ""))) for part in content)


def check_stored(dataset: Dataset, splits: Sequence[str], max_length: int | None, counters: Counters) -> None:
    """Judge a dataset of preferences of ours: its groups, and the ids of their prompts."""
    base = 0
    for name in splits:
        opened = PreferenceSplit([dataset.path], name, Fitting(1, "skip"))
        n = len(opened.begins) - 1
        for start in range(0, n, GROUPS_AT_ONCE):
            numbers = np.arange(start, min(n, start + GROUPS_AT_ONCE))
            for number, group in zip(numbers.tolist(), opened.read(dataset.split(name), numbers), strict=True):
                for rule, note in _faults(group, max_length):
                    where = f"{dataset.path} {name} group {number}"
                    counters.add(rule, [Evidence(row=base + group.first, where=where, note=note)])
                # The lengths of completions in tokens, from the best to the worst.
                lengths = np.array([len(one) for one in group.ids]) - int(group.records["prompt_length"][0])
                if len(lengths) > 1:
                    _add_pairs(lengths[:1], lengths[-1:], counters)
        base += int(opened.begins[-1])  # rows are numbered through all splits


def _faults(group: StoredGroup, max_length: int | None) -> Iterator[tuple[str, str]]:
    """Rules that a group breaks, each with what was found."""
    first, *others = group.ids
    n = int(group.records["prompt_length"][0])
    if any(not np.array_equal(one[:n], first[:n]) for one in others):
        yield "prompt-mismatch", f"the first {n:,} ids, which are the prompt, differ"
    elif others and all(np.array_equal(one, first) for one in others):
        yield "identical-pair", "all completions have the same ids"
    if max_length is not None and n >= max_length:
        yield "chosen-shorter-than-prompt", f"the prompt has {n:,} tokens and fills rows of {max_length:,}"


def _add_pairs(best: Int64s, worst: Int64s, counters: Counters) -> None:
    difference = best - worst
    sums = counters.sums
    sums["pairs"] += len(best)
    sums["pairs: best longer"] += int((difference > 0).sum())
    sums["pairs: difference"] += int(difference.sum())
    sums["pairs: squares"] += int((difference**2).sum())
    sums["pairs: best"] += int(best.sum())
    sums["pairs: worst"] += int(worst.sum())


def finish(counters: Counters, name: str | Path) -> None:
    """Judge, over all pairs, whether the length of a side predicts that it is chosen: a test of the mean difference."""
    sums = counters.sums
    n = sums["pairs"]
    if n < 2:
        return
    mean = sums["pairs: difference"] / n
    variance = (sums["pairs: squares"] - n * mean**2) / (n - 1)
    ratio = sums["pairs: best"] / sums["pairs: worst"] if sums["pairs: worst"] else math.inf
    # Compared by squares: where all differences are equal, the error is 0, and rounding may make it negative.
    is_sure = mean != 0 and mean**2 >= LEAST_SURE**2 * max(variance / n, 0.0)
    if not is_sure or 1 / LEAST_RATIO < ratio < LEAST_RATIO:
        return
    share = sums["pairs: best longer"] / n
    note = f"the chosen side is longer in {share:.1%} of {n:,} pairs; chosen sides are {ratio:.2f} times as long in all"
    counters.add("length-leakage", [Evidence(row=-1, where=str(name), note=note)], count=1, rows=0)
