"""Ids that were stored in 16 bits, and those of another tokenizer that look like control tokens or another format."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from niels_gpt.doctor import diagnose
from niels_gpt.renderers.registry import create_renderer
from tests.assets import ASSETS, needs_assets
from tests.doctor.made import assistant, chats, user
from tests.doctor.planted_contents import sentences
from tests.doctor.planted_vocabulary import renumbered
from tests.memory import shared


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
def test_ids_of_another_tokenizer_are_found_where_they_look_like_control_tokens() -> None:
    """In a tenth of the rows; and one text that is full of control tokens is no other tokenizer."""
    renderer, other = renderer_at("mistral-nemo-instruct-2407"), renderer_at("qwen2.5-0.5b-instruct")
    given = [[user(sentences(Random(n), 3)), assistant(sentences(Random(-n), 12))] for n in range(40)]
    right, wrong = rows_of(renderer, given), rows_of(other, given[::10])
    report = diagnose([wrong[n // 10] if n % 10 == 0 else row for n, row in enumerate(right)], renderer=renderer)
    assert report.rules("error") == ["id-out-of-range", "wrong-tokenizer"]
    found = report.finding("wrong-tokenizer")
    assert found is not None
    assert found.rows == 4
    at = len(right[4]["input_ids"]) - 3
    controls = sorted(renderer.encoder.control_ids.values())[-8:]
    high = renderer.encoder.vocab_size - 1
    right[4]["input_ids"][at:at], right[4]["labels"][at:at] = [*controls, high], [*controls, high]
    assert diagnose(right, renderer=renderer).rules("warning") == ["special-tokens-in-content"]


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


def test_separators_that_were_added_later_do_not_hide_wrapped_rows() -> None:
    renderer = renumbered("qwen2.5", "large")
    rows = rows_of(renderer, chats(20))
    stop = next(token for token in reversed(rows[0]["input_ids"]) if token in renderer.encoder.control_ids.values())
    noise = [wrapped(row) for row in rows[:4]]
    for row in noise:
        row["input_ids"], row["labels"] = [*row["input_ids"], stop], [*row["labels"], -100]
    report = diagnose([*noise, *rows[4:]], renderer=renderer)
    assert {one.rule: one.rows for one in report.findings if one.severity == "error"} == {"ids-wrapped": 4}
