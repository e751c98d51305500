"""OpenAI's own library for the format of gpt-oss, with the vocabulary of the real tokenizer; conversations for it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import openai_harmony as harmony
from tokenizers.pre_tokenizers import ByteLevel

from tests.assets import ASSETS
from tests.memory import shared
from tests.renderers.chats import Messages, plain_text

FOLDER = ASSETS / "gpt-oss-20b"


def rank_file(tokenizer: Path, folder: Path) -> Path:
    """The vocabulary of a byte-level tokenizer as tiktoken's rank file, where the library looks for it."""
    vocab = json.loads(tokenizer.read_bytes())["model"]["vocab"]
    byte_of = {char: byte for byte in range(256) for char in _written(byte)}
    lines = (
        base64.b64encode(bytes(byte_of[char] for char in token)) + b" %d\n" % rank
        for token, rank in sorted(vocab.items(), key=lambda item: item[1])
    )
    file = folder / "o200k_base.tiktoken"
    file.write_bytes(b"".join(lines))
    return file


def _written(byte: int) -> str:
    """How byte-level tokenizers write a byte: itself if it can be seen, else moved up behind 255, in order."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in seen:
        return chr(byte)
    return chr(256 + [other for other in range(256) if other not in seen].index(byte))


@shared
def judge(folder: Path) -> harmony.HarmonyEncoding:
    """The library's encoding; it checks the file's sha256 against the published one, and needs no network then."""
    assert {char for byte in range(256) for char in _written(byte)} == set(ByteLevel.alphabet())
    rank_file(FOLDER / "tokenizer.json", folder)
    with mock.patch.dict(os.environ, TIKTOKEN_ENCODINGS_BASE=str(folder)):
        return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def spoken(role: str, text: str, **more: str) -> harmony.Message:
    """A message of the library's: `channel`, `recipient`, `content_type`, the author's `name`."""
    author = harmony.Author(role=harmony.Role(role), name=more.pop("name", None))
    made = harmony.Message.from_author_and_content(author, text)
    for field, value in more.items():
        setattr(made, field, value)
    return made


def as_harmony(messages: Messages, tools: Any, **system: Any) -> harmony.Conversation:
    """Our messages as the library's: reasoning, calls and answers apart, texts as our renderer writes them."""
    made = [harmony.Message.from_role_and_content(harmony.Role.SYSTEM, harmony.SystemContent(**system))]
    given = messages[0]["role"] in ("system", "developer")
    developer = harmony.DeveloperContent.new()
    if given and messages[0]["content"]:
        developer = developer.with_instructions(messages[0]["content"])
    if tools:
        functions = [tool["function"] for tool in tools]
        developer = developer.with_function_tools([harmony.ToolDescription(**function) for function in functions])
    if developer.instructions or developer.tools:
        made.append(harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, developer))
    called = ""
    for message in messages[given:]:
        text = plain_text(message["content"])
        if message["role"] == "user":
            made.append(spoken("user", text))
        elif message["role"] == "tool":
            quoted = json.dumps(text, ensure_ascii=False)
            made.append(spoken("tool", quoted, name=called, recipient="assistant", channel="commentary"))
        else:
            made += (turn := assistant_of(message, text))
            called = turn[-1].recipient or ""
    return harmony.Conversation.from_messages(made)


def assistant_of(message: dict[str, Any], text: str) -> list[harmony.Message]:
    """An assistant's message as those of the library."""
    calls = message.get("tool_calls") or []
    thoughts = message.get("reasoning_content") or (text if calls else "") or None
    made = [] if thoughts is None else [spoken("assistant", thoughts, channel="analysis")]
    if not calls:
        return [*made, spoken("assistant", text, channel="final")]
    function = calls[0]["function"]
    given = function["arguments"]
    arguments = json.dumps(json.loads(given) if isinstance(given, str) else given, ensure_ascii=False)
    to = {"recipient": f"functions.{function['name']}", "channel": "commentary", "content_type": "json"}
    return [*made, spoken("assistant", arguments, **to)]
