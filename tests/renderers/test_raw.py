"""Texts without markers: what is written, letter by letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.families.raw import RawRenderer, RawRendererConfig
from niels_gpt.tokenizer import SPECIAL_TOKENS
from tests.assets import ASSETS, encoder_at, needs_assets
from tests.renderers.tiny_families import Tokens, byte_level, folder_of

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?"},
    {"role": "assistant", "content": "Rome."},
]
WRITTEN = "Be brief. Capital of France? Paris.<|endoftext|> And of Italy? Rome.<|endoftext|>"


SEPARATORS = (" ", "\n", "\n\n", "\n ", "", " | ")


@needs_assets
@pytest.mark.parametrize("folder", ["qwen2.5-0.5b-instruct", "llama-3.1-8b-instruct", "mistral-nemo-instruct-2407"])
@pytest.mark.parametrize("separator", SEPARATORS, ids=repr)
def test_what_is_served_is_what_was_trained(folder: str, separator: str) -> None:
    """Prompt and answer are the ids of the whole, also where `?` and newlines, or a blank and a word, are one token."""
    renderer = RawRenderer(encoder_at(ASSETS / folder), RawRendererConfig(separator=separator))
    whole, prompt = renderer.render(CHAT), renderer.render_ids(CHAT[:-1], add_generation_prompt=True)
    if separator:  # without, texts grow together: `Italy?Rome`
        assert whole.token_ids[: len(prompt)] == prompt
        assert all(whole.sampled_mask[len(prompt) :])
    said = whole.token_ids[len(prompt) :]
    new = [{"role": "user", "content": "Thanks."}]
    bridge = renderer.bridge_to_next_turn(prompt, said, new)
    assert bridge is not None
    assert bridge.token_ids == renderer.render_ids([*CHAT, *new], add_generation_prompt=True)
    assert renderer.parse_response(said).content == "Rome."


def without_eos(tmp_path: Path, **config: str) -> Path:
    byte_level(Tokens(controls=("<pad>",))).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_without_an_eos_nothing_ends(tmp_path: Path) -> None:
    renderer = RawRenderer(without_eos(tmp_path))
    assert renderer.text(CHAT) == WRITTEN.replace("<|endoftext|>", "")
    assert renderer.get_stop_token_ids() == []
    prompt = renderer.render_ids(CHAT[:-1], add_generation_prompt=True)
    said = renderer.render_ids(CHAT)[len(prompt) :]
    assert renderer.parse_response(said).content == "Rome."
    assert renderer.bridge_to_next_turn(prompt, said, CHAT[:1]) is None


def test_our_own_tokenizer_has_an_end() -> None:
    renderer = RawRenderer(folder_of("ngpt"))
    assert renderer.text(CHAT[:3]) == f"Be brief. Capital of France? Paris.{SPECIAL_TOKENS[3]}"
    assert [renderer.encoder.decode([stop]) for stop in renderer.get_stop_token_ids()] == [SPECIAL_TOKENS[3]]
