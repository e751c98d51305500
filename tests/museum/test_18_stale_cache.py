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
from tests.museum.exhibit import Exhibit
from tests.renderers.tiny_families import renderer_of

EXHIBIT = Exhibit(
    number=18,
    title="The cache belongs to yesterday's tokenizer",
    happened="Prepared data is stored under the name of the tokenizer or the hash of the config. The tokenizer or "
    "template of that name changes, and training continues with the old ids. In other tools the hash changes for no "
    "reason, and everything is prepared again.",
    hidden="Old ids are valid ids, of another format. The loss falls as before.",
    caught="A cache records the sha256 of its sources, of the tokenizer's bytes and of the template. A different "
    "build into the same place is refused with a message that names what differs; the same build is recognised. There "
    "is no rule, because the doctor sees one tokenizer at a time.",
    rules=(),
    threads=("allenai/open-instruct#1518", "allenai/open-instruct#1802", "axolotl-ai-cloud/axolotl#3303"),
)


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
