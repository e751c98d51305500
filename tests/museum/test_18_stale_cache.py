"""A cache known by its tokenizer's name, when the tokenizer has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.episodes import build_episodes
from niels_gpt.errors import Mismatch
from niels_gpt.messages import Conversation
from tests.doctor.made import chats
from tests.renderers.tiny_families import renderer_of


def naive(cache: dict[str, list[int]], name: str, encode: Callable[[], list[int]]) -> list[int]:
    if name not in cache:
        cache[name] = encode()
    return cache[name]


def test_naive() -> None:
    old, new = (renderer_of("chatml", split=split) for split in (True, False))  # two tokenizers of one name
    cache: dict[str, list[int]] = {}
    messages = chats(1)[0]
    naive(cache, "my-model", lambda: old.render_ids(messages))
    assert naive(cache, "my-model", lambda: new.render_ids(messages)) != new.render_ids(messages)


def test_ours(tmp_path: Path) -> None:
    def build(renderer: Any) -> None:
        conversations = [Conversation(messages, "chat") for messages in chats()]
        build_episodes(conversations, tmp_path / "data", encoder=renderer, source_config={"path": "chats.jsonl"})

    old, new = (renderer_of("chatml", split=split) for split in (True, False))
    build(old)
    build(old)  # already built, nothing to do
    with pytest.raises(Mismatch, match="tokenizer_sha256"):
        build(new)
