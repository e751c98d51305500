"""Token tables and drift, against the renderer and against slow, obvious ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.explorer.drift import compare
from niels_gpt.explorer.renderer_list import RendererChoice, RendererList
from niels_gpt.explorer.token_columns import MODES, ModeMask, TokenTable, edges
from niels_gpt.messages import normalise
from niels_gpt.renderers.registry import create_renderer
from tests.renderers.tiny_families import folder_of

CHAT: list[Any] = [
    {"role": "user", "content": "Do I need an umbrella?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}],
    },
    {"role": "tool", "tool_call_id": "call00001", "content": "rain 🌧 naïve 你好"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And tomorrow?"},
    {"role": "assistant", "content": "No.", "weight": 0.5},
]


def table(texts: list[str], ids: list[int] | None = None, trained: list[int] | None = None) -> TokenTable:
    mode = ModeMask("end_of_turn", "", "", trained or [], 0)
    return TokenTable("", "token", texts, ids, [], [], [mode], {}, tokenizer="t" if ids else "")


WORDS = st.lists(st.sampled_from(["a", "ab", "b", "ba", "é🙂"]), max_size=12)
IDS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(WORDS, WORDS)
def test_drift_by_text_marks_all_that_differs(one: list[str], other: list[str]) -> None:
    found = compare(table(one), table(other))
    assert found.same == ("".join(one) == "".join(other)) == (found.left == [])
    if not found.same:  # entries may be cut by a word that differs, so only what is in front of the first is whole
        (a, b), (c, d) = found.left[0], found.right[0]
        assert "".join(other).startswith("".join(one[:a]))
        assert "".join(one).startswith("".join(other[:c]))
        assert b > a or d > c
        assert all(0 <= start <= stop <= len(one) for start, stop in found.left)


@given(IDS, IDS)
def test_drift_by_ids_marks_all_that_differs(one: list[int], other: list[int]) -> None:
    found = compare(table(list(map(str, one)), one), table(list(map(str, other)), other))
    assert found.by == "ids"
    assert found.same == (one == other) == (found.left == [])
    at = [0, 0]
    for (a, b), (c, d) in zip([*found.left, (len(one),) * 2], [*found.right, (len(other),) * 2], strict=True):
        assert one[at[0] : a] == other[at[1] : c]
        at = [b, d]


def test_a_long_difference_is_one_place() -> None:
    one, other = [7, *range(3000)], [7, *range(10_000, 13_000)]
    found = compare(table(list(map(str, one)), one), table(list(map(str, other)), other))
    assert found.left == found.right == [(1, 3001)]


def test_masks_are_compared_where_ids_are_equal() -> None:
    sides = [table(["a"] * 9, [1] * 9, trained) for trained in ([1, 3, 4, 5], [1, 3, 6, 7])]
    assert [compare(sides[0], other).mask_at for other in sides] == [-1, 4]


@pytest.mark.parametrize("family", ["qwen3", "llama-3", "kimi-k2"])
def test_a_table_is_what_the_renderer_gives(family: str) -> None:
    folder = folder_of(family)
    renderers = RendererList([str(folder)])
    shown = renderers.table(CHAT, None, RendererChoice(family, next(iter(renderers.tokenizers))), MODES)
    renderer = create_renderer(renderers.encoder(next(iter(renderers.tokenizers))), family)
    made = renderer.render(CHAT)
    assert shown.ids == made.token_ids
    weights = [made.weights(mode.on, messages=normalise(CHAT)) for mode in MODES]
    assert [mode.trained for mode in shown.modes] == [edges(weight > 0) for weight in weights]
    by_name = {mode.name: mode.count for mode in shown.modes}
    assert by_name["content"] == by_name["end_of_turn"] - 3, "three ends of turn"
    pieces = renderers.table(CHAT, None, RendererChoice(family), MODES)
    assert "".join(pieces.texts) == renderer.text(CHAT), "without a tokenizer the text is the same"


def test_tokenizers_have_short_names(tmp_path: Path, tokenizer_dir: Path) -> None:
    several = tmp_path / "several"
    for name in ("a", "b"):
        (several / name).mkdir(parents=True)
        (several / name / "spm.model").write_bytes((tokenizer_dir / "spm.model").read_bytes())
    renderers = RendererList([str(several), str(tokenizer_dir), str(tokenizer_dir)])
    assert list(renderers.tokenizers) == ["a", "b", "tokenizer", "tokenizer (2)"]
    assert renderers.first == RendererChoice("ngpt", "a")
    assert next(e for e in renderers.listed() if e["renderer"] == "ngpt")["tokenizer"] == "a"
