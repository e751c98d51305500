"""Ids that were stored in 16 bits, where the format's control tokens have small ids, so that all turns are there."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from niels_gpt.doctor import diagnose
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.samples import chats_file
from tests.assets import ASSETS, needs_assets
from tests.renderers.small import user


def rows_of(renderer: Any, chats: list[Any]) -> list[dict[str, Any]]:
    return [{"input_ids": made.token_ids, "labels": made.labels()} for made in map(renderer.render, chats)]


def wrapped(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.where(np.array(ids) < 0, ids, np.array(ids) % (1 << 16)).tolist()  # -100 stays
        for name, ids in row.items()
    }


@needs_assets
def test_wrapped_text_is_found_though_every_turn_is_there() -> None:
    renderer = create_renderer(str(ASSETS / "gemma-3-1b-it"), "gemma")
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
def test_rows_that_need_no_large_ids_are_not_taken_for_wrapped_ones() -> None:
    renderer, rng = create_renderer(str(ASSETS / "gemma-3-1b-it"), "gemma"), random.Random(1)
    sums = [(rng.randint(1, 999), rng.randint(1, 999)) for _ in range(2000)]
    chats = [[user(f"{a} + {b} = ?"), {"role": "assistant", "content": str(a + b)}] for a, b in sums]
    assert diagnose(rows_of(renderer, chats), renderer=renderer).rules("error") == []
