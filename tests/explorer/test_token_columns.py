"""Tokens in columns, modes and drift: against slow, obvious ways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.explorer.drift import compare
from niels_gpt.explorer.renderer_list import RendererChoice, RendererList
from niels_gpt.explorer.token_columns import MODES, TokenTable, edges
from niels_gpt.messages import normalise
from niels_gpt.renderers.loss import LossOn
from niels_gpt.renderers.masks import loss_weights
from niels_gpt.renderers.registry import create_renderer
from tests.assets import ASSETS, encoder_at, needs_assets

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


def _table(texts: list[str], tokenizer: str = "", ids: list[int] | None = None) -> TokenTable:
    return TokenTable("", "token", texts, ids, [], [], [], {}, tokenizer=tokenizer)


WORDS = st.lists(st.sampled_from(["a", "ab", "b", "ba", "é🙂"]), max_size=12)


def same_between(one: list[Any], other: list[Any], left: list[Any], right: list[Any]) -> bool:
    """What lies between the places that differ is equal."""
    at = [0, 0]
    for (a, b), (c, d) in zip([*left, (len(one),) * 2], [*right, (len(other),) * 2], strict=True):
        if one[at[0] : a] != other[at[1] : c]:
            return False
        at = [b, d]
    return True


@settings(deadline=None)
@given(WORDS, WORDS)
def test_drift_by_text_holds_everything_that_differs(one: list[str], other: list[str]) -> None:
    found = compare(_table(one), _table(other))
    assert found.same == ("".join(one) == "".join(other)) == (found.left == [])
    if not found.same:  # entries may be cut by a word that differs, so only what is in front of the first is whole
        (a, b), (c, d) = found.left[0], found.right[0]
        assert "".join(other).startswith("".join(one[:a]))
        assert "".join(one).startswith("".join(other[:c]))
        assert b > a or d > c
        assert all(0 <= start <= stop <= len(one) for start, stop in found.left)


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_drift_by_ids(one: list[int], other: list[int]) -> None:
    found = compare(_table(list(map(str, one)), "t", one), _table(list(map(str, other)), "t", other))
    assert found.by == "ids"
    assert found.same == (one == other) == (found.left == [])
    assert same_between(one, other, found.left, found.right)
    if found.left:
        (a, _), (c, _) = found.left[0], found.right[0]
        assert one[:a] == other[:c]
        assert a == len(one) or c == len(other) or one[a] != other[c]


def test_a_long_difference_is_one_place() -> None:
    one, other = list(range(3000)), list(range(10_000, 13_000))
    found = compare(_table(list(map(str, one)), "t", [7, *one]), _table(list(map(str, other)), "t", [7, *other]))
    assert found.left == found.right == [(1, 3001)]


@needs_assets
@pytest.mark.parametrize(("family", "folder"), [("qwen3", "qwen3-8b"), ("llama-3", "llama-3.1-8b-instruct")])
def test_table_is_what_the_renderer_gives(family: str, folder: str) -> None:
    renderers = RendererList([str(ASSETS / folder)])
    renderers._encoders[folder] = encoder_at(ASSETS / folder)
    table = renderers.table(CHAT, None, RendererChoice(family, folder), MODES)
    renderer = create_renderer(encoder_at(ASSETS / folder), family)
    made = renderer.render(CHAT)
    assert table.ids == made.token_ids
    assert sum(len(text) for text in table.texts) >= len(renderer.text(CHAT))
    on = {
        "none": LossOn("all_tokens"),
        "end_of_turn": LossOn(),
        "last_turn": LossOn("last_assistant_turn"),
        "tool_bodies": LossOn(bodies_of_roles=frozenset({"tool"})),
    }
    messages = normalise(CHAT)
    for mode in table.modes:
        if mode.name in on:
            weights = loss_weights(made, messages, on[mode.name])
            assert mode.trained == edges(weights > 0)
    by_name = {mode.name: mode.count for mode in table.modes}
    stops = sum(
        token in renderer.get_stop_token_ids() and made.sampled_mask[at] for at, token in enumerate(made.token_ids)
    )
    assert by_name["content"] == by_name["end_of_turn"] - stops
    assert stops == 3


@needs_assets
def test_a_stop_that_is_no_eos_is_found() -> None:
    renderers = RendererList([str(ASSETS / "kimi-k2")])
    renderers._encoders["kimi-k2"] = encoder_at(ASSETS / "kimi-k2")
    counts = []
    for renderer in ("kimi-k2", "template"):
        chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
        table = renderers.table(chat, None, RendererChoice(renderer, "kimi-k2"), MODES)
        counts.append({mode.name: mode.count for mode in table.modes})
    assert counts[0] == counts[1]
    assert counts[0]["content"] == counts[0]["end_of_turn"] - 1


@needs_assets
@pytest.mark.parametrize(("family", "folder"), [("qwen3", "qwen3-8b"), ("llama-3", "llama-3.1-8b-instruct")])
def test_without_a_tokenizer_the_text_is_the_same(family: str, folder: str) -> None:
    renderers = RendererList()
    pieces = renderers.table(CHAT, None, RendererChoice(family), MODES)
    assert "".join(pieces.texts) == create_renderer(encoder_at(ASSETS / folder), family).text(CHAT)


def test_tokenizers_by_name(tmp_path: Any, tokenizer_dir: Any) -> None:
    several = tmp_path / "several"
    for name in ("a", "b"):
        (several / name).mkdir(parents=True)
        (several / name / "spm.model").write_bytes((tokenizer_dir / "spm.model").read_bytes())
    renderers = RendererList([str(several), str(tokenizer_dir), str(tokenizer_dir)])
    assert list(renderers.tokenizers) == ["a", "b", "tokenizer", "tokenizer (2)"]
    assert renderers.first == RendererChoice("ngpt", "a")
    assert next(e for e in renderers.listed() if e.renderer == "ngpt").tokenizer == "a"
