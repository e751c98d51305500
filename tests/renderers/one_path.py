"""The slow way to the same ids: every script through the general path of its encoder, one by one."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.renderers.encode import concatenate_batches, render_conversations
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.types import RenderedBatch
from tests.renderers.chats import Messages

TAGS = (
    *("<think>", "</think>", "<tool_response>", "</tool_response>", "<tool_call>", "/nothink", "/no_think", "/think"),
    *("</assistant>", "<|im_end|>", "<response>", "[INST]", "</s>", "〈|EOS|〉", "<", "%s", "%", "{}", '{"a": 1}'),
)
WORDS = (
    *("hello", "a b", "ü", "é\u0301", "你好", "🤖", "\n", " ", "\u00a0", "\u3000", "\u200b", "\t", "\0", "x\n\ny", "1"),
    *('say "hi"', "C:\\new", "<b>&amp;", "5 > 3", "'", "\x7f", *TAGS),
)


def by_general_path(renderer: Family, conversations: list[Messages], tools: list[Any] | None = None) -> RenderedBatch:
    """What `render_many` returns, without the fast path and without batches."""
    encoder = renderer.encoder
    general = getattr(encoder, "_encode_general", encoder.encode_strings)
    slow: Any = SimpleNamespace(encode_strings=general, decode=encoder.decode, token_bytes=encoder.token_bytes)
    offered = tools or [None] * len(conversations)
    return concatenate_batches(
        [
            render_conversations(slow, renderer.emit, [messages], [own])
            for messages, own in zip(conversations, offered, strict=True)
        ]
    )


def same(one: RenderedBatch, other: RenderedBatch) -> None:
    """Everything, down to the types of the arrays."""
    for field in fields(RenderedBatch):
        here, there = getattr(one, field.name), getattr(other, field.name)
        if callable(here):  # the encoder's `decode`, which is not a result
            continue
        if isinstance(here, np.ndarray):
            assert here.dtype == there.dtype, field.name
            assert here.tolist() == there.tolist(), field.name
        else:
            assert list(here) == list(there), field.name


def writable(renderer: Family, messages: Messages, tools: Any = None) -> bool:
    """The grammar has a place for this conversation."""
    try:
        renderer.emit(messages, tools=tools)
    except MessageError:
        return False
    return True


def texts(rng: random.Random) -> str:
    """A text that is ordinary but for one word, or one of odd words alone."""
    if rng.random() < 0.6:
        return f"hello{rng.choice(WORDS)}{rng.choice(('you', ''))}"
    return "".join(rng.choice(WORDS) for _ in range(rng.choice((0, 1, 1, 2, 3, 5))))


def varied(messages: Messages, rng: random.Random) -> Messages:
    """The same kind of conversation with other values, most of them."""
    names = {call.get("id"): texts(rng) for message in messages for call in message.get("tool_calls") or ()}
    made = copy.deepcopy(messages)
    for message in made:
        for field in ("content", "reasoning_content"):
            if isinstance(message.get(field), str) and message[field] and rng.random() < 0.7:
                message[field] = texts(rng)
        if "tool_call_id" in message:
            message["tool_call_id"] = names.get(message["tool_call_id"], "unknown")
        for call in message.get("tool_calls") or ():
            if "id" in call:
                call["id"] = names[call["id"]]
            call["function"]["arguments"] = _arguments(call["function"]["arguments"], rng)
    return made


def _arguments(given: Any, rng: random.Random) -> Any:
    """Other arguments, as an object or as JSON text, as these are."""
    made = {texts(rng): rng.choice((texts(rng), 1, None, [texts(rng)])) for _ in range(rng.randint(0, 2))}
    return json.dumps(made, indent=rng.choice((None, 1)), ensure_ascii=False) if isinstance(given, str) else made
