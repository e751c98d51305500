"""Our families beside tml-renderers: ids, what is trained, prompts; what differs is listed."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("tml_renderers", reason="no tml-renderers")
from tests.renderers import tml
from tests.renderers.chats import Messages, Wanted, conversation


def tidied(messages: Messages) -> Messages:
    """Letters at the ends of all texts: they join no token with the markup beside them."""
    texts = ("content", "reasoning_content")
    return [{key: f"x{held or ''}x" if key in texts else held for key, held in m.items()} for m in messages]


def without_reasoning_of_old(messages: Messages) -> Messages:
    """Only the last message has reasoning."""
    last = len(messages) - 1
    return [{k: held for k, held in m.items() if k != "reasoning_content" or i == last} for i, m in enumerate(messages)]


HELD: dict[str, Any] = {"nones": False, "flags": False, "inline": False, "parts": False, "loose": False}


@pytest.mark.parametrize("name", ["qwen3"])
def test_random_conversations(name: str) -> None:
    rng = random.Random(name)
    wanted = Wanted(**HELD, user_first=True, late_system=False, text_arguments=False)
    for _ in range(60):
        messages, tools = conversation(rng, wanted, ends_with="assistant")
        messages = tidied(without_reasoning_of_old(messages))
        ours, theirs = (samples(name, messages, tools) for samples in (tml.our_samples, tml.their_samples))
        assert tml.turns_of(ours) == tml.turns_of(theirs)
        if messages[-2]["role"] != "assistant":
            assert tml.our_prompt(name, messages[:-1], tools) == tml.their_prompt(name, messages[:-1], tools)
