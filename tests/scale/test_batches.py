"""Batches are bounded by what is in a row, not by the number of rows: large rows are encoded a few at a time."""

from __future__ import annotations

from typing import Any

import pytest

from niels_gpt.builds.rows import BATCH_CHARACTERS, BATCH_ROWS, batches, characters

TEXT = "x" * (BATCH_CHARACTERS // 10)
USER: Any = {"role": "user", "content": "hello"}
LARGE: dict[str, tuple[list[Any], Any]] = {
    "content": ([{"role": "user", "content": TEXT}], None),
    "reasoning": ([USER, {"role": "assistant", "content": "", "reasoning_content": TEXT}], None),
    "arguments": (
        [USER, {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": TEXT}}]}],
        None,
    ),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": TEXT}]}], None),
    "image": ([{"role": "user", "content": [{"type": "image", "image": TEXT.encode()}]}], None),
    "tools": ([USER], [{"type": "function", "function": {"name": "f", "description": TEXT}}]),
}


@pytest.mark.parametrize("what", LARGE)
def test_whatever_makes_a_row_large_counts(what: str) -> None:
    messages, tools = LARGE[what]
    sizes = [len(batch) for batch in batches([0] * 95, lambda row: characters(messages, tools))]
    assert max(sizes) <= 10
    assert sum(sizes) == 95


def test_small_rows_fill_a_batch() -> None:
    sizes = [len(batch) for batch in batches([0] * (BATCH_ROWS + 1), lambda row: characters([USER], None))]
    assert sizes == [BATCH_ROWS, 1]
