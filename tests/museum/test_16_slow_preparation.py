"""A rendering of the whole prefix for every turn."""

from __future__ import annotations

import copy
from typing import Any

from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import chats
from tests.renderers.tiny_families import renderer_of


def naive(renderer: Any, messages: list[dict[str, Any]]) -> list[bool]:
    mask: list[bool] = []
    for turn, message in enumerate(messages):
        so_far = renderer.render_ids(messages[: turn + 1])
        mask += [message["role"] == "assistant"] * (len(so_far) - len(mask))
    return mask


class Counting:
    """An encoder that counts the characters that it encodes."""

    def __init__(self, encoder: Any) -> None:
        self.encoder, self.characters = encoder, 0

    def encode_pieces(self, texts: Any, *more: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self.encoder.encode_pieces(texts, *more)

    def encode_strings(self, texts: Any, *more: Any) -> Any:
        self.characters += sum(len(text) for own in texts for text in own)
        return self.encoder.encode_strings(texts, *more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)


def work(make: Any, turns: int) -> int:
    """Characters encoded for one conversation of so many turns."""
    renderer = copy.copy(renderer_of("chatml"))
    renderer.encoder = Counting(renderer.encoder)  # type: ignore[assignment]
    make(renderer, chats(1, turns=turns)[0])
    return int(renderer.encoder.characters)  # type: ignore[attr-defined]


def test_naive() -> None:
    assert work(naive, 32) > 3.5 * work(naive, 16)


def test_ours() -> None:
    assert 0 < work(build_training_sample, 32) < 2.2 * work(build_training_sample, 16)
