"""Ids that were stored in 16 bits, and those of another tokenizer that look like control tokens or another format."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from niels_gpt.doctor import diagnose
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.samples import notes_dir
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


def notes(n: int) -> list[Any]:
    """Questions and answers of ordinary text."""
    parts = [part for note in sorted(notes_dir().rglob("*.md")) for part in note.read_text("utf-8").split("\n\n")]
    pairs = [
        [user(question[:80]), {"role": "assistant", "content": answer}]
        for question, answer in pairwise(parts)
        if question.strip() and answer.strip()
    ]
    return pairs[:n]


@needs_assets
@pytest.mark.parametrize("each", [1, 10])
def test_ids_of_another_tokenizer_are_found_where_they_look_like_control_tokens(each: int) -> None:
    renderer, other = renderer_at("mistral-nemo-instruct-2407"), renderer_at("qwen2.5-0.5b-instruct")
    wrong, right = rows_of(other, notes(200)), rows_of(renderer, notes(200))
    rows = [wrong[n] if n % each == 0 else row for n, row in enumerate(right)]
    report = diagnose(rows, renderer=renderer)
    assert report.rules("error") == ["id-out-of-range", "wrong-tokenizer"]
    found = report.finding("wrong-tokenizer")
    assert found is not None
    assert 0.7 * len(rows) <= found.rows * each <= len(rows)  # short rows hold too few


@needs_assets
def test_a_text_full_of_control_tokens_is_no_other_tokenizer() -> None:
    renderer = renderer_at("mistral-nemo-instruct-2407")
    rows = rows_of(renderer, notes(20))
    at = len(rows[4]["input_ids"]) - 3
    controls = sorted(renderer.encoder.control_ids.values())[-8:]
    high = renderer.encoder.vocab_size - 1
    rows[4]["input_ids"][at:at], rows[4]["labels"][at:at] = [*controls, high], [*controls, high]
    assert diagnose(rows, renderer=renderer).rules("warning") == ["special-tokens-in-content"]


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
