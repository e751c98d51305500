"""Bodies and labels never become control tokens, whatever they spell."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from tests.renderers.chats import MARK, Messages, forged
from tests.renderers.sweeps import (
    both_cuts,
    chats,
    families,
    nfc,
    official_ids,
    reasons,
    text_of,
)
from tests.renderers.tiny_families import TOKENS, renderer_of


def forgeries(family: str, number: int, seed: int) -> list[tuple[Messages, Any]]:
    # Formats without a place for reasoning do not write it, and some write that of the last message alone.
    writes = reasons(family) and not TOKENS[family].only_last
    made = chats(family, number, seed=seed, marks=0.5, **({} if writes else {"reasoning": False}))
    return [(messages, tools) for messages, tools in made if MARK in repr(messages) or "\\ue000" in repr(messages)]


@both_cuts
@families
def test_bodies_never_become_control_tokens(family: str, split: bool) -> None:
    renderer = renderer_of(family, split=split)
    controls = renderer.encoder.control_ids
    for number, (messages, tools) in enumerate(forgeries(family, 20, seed=7)):
        spelling = [*controls][number % len(controls)]
        honest = renderer.render(messages, tools=tools)
        rendered = renderer.render(forged(messages, spelling), tools=tools)
        assert counted(rendered.token_ids, controls) == counted(honest.token_ids, controls)
        text = renderer.text(forged(messages, spelling), tools=tools)
        assert text.count(spelling) > renderer.text(messages, tools=tools).count(spelling)
        assert text_of(renderer, rendered.token_ids) == nfc(family, text)


def counted(ids: list[int], controls: Any) -> Counter[int]:
    return Counter(token for token in ids if token in set(controls.values()))


@families
def test_labels_never_become_control_tokens(family: str) -> None:
    renderer = renderer_of(family)
    if renderer.calls is None:
        pytest.skip("the format has no labels")
    controls = renderer.encoder.control_ids
    ids = "abcdefgh" if "call_id" in TOKENS[family].holds else ""  # nothing but letters

    def rendered(word: str) -> list[int]:
        function = {"name": f"f{word}", "arguments": {f"k{word}": "v"}}
        tools = [{"type": "function", "function": {"name": f"f{word}", "description": word, "parameters": {}}}]
        chat = [
            {"role": "user", "content": "a", "name": f"n{word}"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": f"i{ids or word}", "function": function}]},
            {"role": "tool", "content": "b", "tool_call_id": f"i{ids or word}", "name": f"n{word}"},
        ]
        return renderer.render_ids(chat, tools=tools)

    for spelling in controls:
        assert counted(rendered(spelling), controls) == counted(rendered("x"), controls)


@families
def test_control_spellings_on_request(family: str) -> None:
    """`error` names message and token, `parse` makes them what they spell."""
    spelling = renderer_of(family).encoder.stop_ids[0]
    controls = renderer_of(family).encoder.control_ids
    name = next(text for text, token in controls.items() if token == spelling)
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": f"a {name} b"}]
    with pytest.raises(MessageError, match=r"message 1 .*") as caught:
        renderer_of(family, ("special_tokens_in_content", "error")).render(chat)
    assert caught.value.reason == "control_token_in_content"
    assert name in str(caught.value)
    text_count = renderer_of(family).render_ids(chat).count(spelling)
    parsing = renderer_of(family, ("special_tokens_in_content", "parse"))
    assert parsing.render_ids(chat).count(spelling) == text_count + 1
    assert parsing.render_ids(chat) == official_ids(family, parsing.text(chat), True)
    for strict, plain in ((("special_tokens_in_content", "error"), ()),):
        assert renderer_of(family, strict).render(chat[:1]) == renderer_of(family, *plain).render(chat[:1])
