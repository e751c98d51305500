"""Ids that were stored in 16 bits, where the format's control tokens have small ids, so that all turns are there."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from niels_gpt.doctor import diagnose
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.samples import chats_file, notes_dir
from tests.assets import ASSETS, needs_assets
from tests.doctor.made import chats
from tests.doctor.planted_vocabulary import renumbered
from tests.memory import shared
from tests.renderers.small import user


@shared
def renderer_at(folder: str) -> Any:
    return create_renderer(str(ASSETS / folder))


def rows_of(renderer: Any, chats: list[Any]) -> list[dict[str, Any]]:
    return [{"input_ids": made.token_ids, "labels": made.labels()} for made in map(renderer.render, chats)]


def wrapped(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.where(np.array(ids) < 0, ids, np.array(ids) % (1 << 16)).tolist()  # -100 stays
        for name, ids in row.items()
    }


@needs_assets
def test_wrapped_text_is_found_though_every_turn_is_there() -> None:
    renderer = renderer_at("gemma-3-1b-it")
    messages = [json.loads(line)["messages"] for line in chats_file().read_text(encoding="utf-8").splitlines()]
    plain = rows_of(renderer, [one for one in messages if {each["role"] for each in one[::2]} == {"user"}])
    assert sum(len(row["input_ids"]) for row in plain) > 5_000
    assert diagnose(plain, renderer=renderer).rules("error") == []
    report = diagnose([wrapped(row) for row in plain], renderer=renderer)
    assert report.rules("error") == ["ids-wrapped"]
    found = report.finding("ids-wrapped")
    assert found is not None
    assert found.rows == len(plain)


@needs_assets
@pytest.mark.parametrize("folder", ["gemma-3-1b-it", "mistral-nemo-instruct-2407"])
def test_a_tenth_of_wrapped_rows_among_others_is_found(folder: str) -> None:
    renderer = renderer_at(folder)
    notes = [
        part for note in sorted(notes_dir().rglob("*.md")) for part in note.read_text(encoding="utf-8").split("\n\n")
    ]
    pairs = [
        [user(question[:80]), {"role": "assistant", "content": answer}]
        for question, answer in pairwise(notes)
        if question.strip() and answer.strip()
    ]
    plain = rows_of(renderer, pairs[:300])
    assert diagnose(plain, renderer=renderer).rules("error") == []
    report = diagnose([wrapped(row) if n % 10 == 4 else row for n, row in enumerate(plain)], renderer=renderer)
    assert report.rules("error") == ["ids-wrapped"]
    found = report.finding("ids-wrapped")
    assert found is not None
    assert found.rows <= 30
    assert all(evidence.row % 10 == 4 for evidence in found.evidence)


def test_rows_whose_control_tokens_are_wrapped_are_judged_by_nothing_else() -> None:
    """Their ids may spell anything; the next rows are judged as before."""
    renderer = renumbered("qwen2.5", "large")
    good = rows_of(renderer, chats(20))
    for row in good[10:12]:
        row["labels"] = list(row["input_ids"])
    noise = [wrapped(row) for row in rows_of(renderer, chats(30)[20:])]
    for row in noise:
        row["labels"] = list(row["input_ids"])
    report = diagnose([*noise, *good], renderer=renderer)
    assert {one.rule: one.rows for one in report.findings if one.severity == "error"} == {
        "ids-wrapped": 10,
        "mask-all-one": 2,
    }


@needs_assets
def test_rows_that_need_no_large_ids_are_not_taken_for_wrapped_ones() -> None:
    renderer, rng = renderer_at("gemma-3-1b-it"), random.Random(1)
    sums = [(rng.randint(1, 999), rng.randint(1, 999)) for _ in range(2000)]
    pairs = [[user(f"{a} + {b} = ?"), {"role": "assistant", "content": str(a + b)}] for a, b in sums]
    assert diagnose(rows_of(renderer, pairs), renderer=renderer).rules("error") == []
