"""Mistral's families against `mistral-common`, with which Mistral serves its models: the ids of requests.

Its Tekken vocabulary is in its wheel. Here it is cut to 3 000 tokens, which load in no time, and gets the control
tokens of each version; our side takes the library's tokenizer object.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("mistral_common")
import mistral_common
from mistral_common.protocol.instruct.chunk import TextChunk, ThinkChunk
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.normalize import normalizer_for_tokenizer_version
from mistral_common.protocol.instruct.request import ChatCompletionRequest, InstructRequest
from mistral_common.protocol.instruct.tool_calls import FunctionCall, Tool, ToolCall
from mistral_common.protocol.instruct.validator import MistralRequestValidatorV5, MistralRequestValidatorV13
from mistral_common.tokens.tokenizers.base import TokenizerVersion
from mistral_common.tokens.tokenizers.instruct import (
    InstructTokenizerV7,
    InstructTokenizerV11,
    InstructTokenizerV13,
)
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES
from tests.renderers.chats import TOOLS, Messages, conversation
from tests.renderers.sweeps import wanted
from tests.renderers.tiny_families import TOKENS

VERSIONS = {
    "mistral-v7": (TokenizerVersion.v7, InstructTokenizerV7, MistralRequestValidatorV5),
    "mistral-v11": (TokenizerVersion.v11, InstructTokenizerV11, MistralRequestValidatorV5),
    "mistral-v13": (TokenizerVersion.v13, InstructTokenizerV13, MistralRequestValidatorV13),
}
families = pytest.mark.parametrize("family", VERSIONS)
CONTROLS = 1000  # ids below are control tokens in every Tekken
# At their ids in the models' own files.
SPELLINGS = {
    **dict(enumerate(("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"))),
    **dict(enumerate(("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>"), start=7)),
    **dict(
        enumerate(
            ("[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
            start=12,
        )
    ),
    **dict(enumerate(("[TOOL_CONTENT]",), start=19)),
    **dict(enumerate(("[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"), start=32)),
}
# What Mistral's library takes: names of letters, digits, underscores and dashes.
WEATHER = [tool for tool in TOOLS if "." not in tool["function"]["name"]]


@cache
def tekken_file() -> dict[str, Any]:
    path = Path(mistral_common.__file__).parent / "data" / "tekken_240718.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def judge_of(family: str, size: int) -> Any:
    """Their tokenizer of requests, with this many tokens of text."""
    version, kind, _ = VERSIONS[family]
    controls = [
        {"rank": rank, "token_str": SPELLINGS.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
        for rank in range(CONTROLS)
    ]
    tekken = Tekkenizer(
        tekken_file()["vocab"][:size],
        controls,  # type: ignore[arg-type]
        tekken_file()["config"]["pattern"],
        size + CONTROLS,
        CONTROLS,
        version,
    )
    return kind(tekken)


@cache
def pair_of(family: str) -> tuple[Any, Family]:
    judge = judge_of(family, 3000)
    return judge, FAMILIES[family](judge.tokenizer)  # a repository may hold tekken.json alone


def their_ids(judge: Any, family: str, messages: Messages, tools: Any) -> list[int]:
    """The ids of a request, validated, normalised and encoded as `MistralTokenizer.encode_chat_completion` does it.

    It refuses requests that end in an answer, which are what one trains on, so the last message is not checked.
    """
    version, _, validator = VERSIONS[family]
    request = ChatCompletionRequest(
        messages=list(map(as_theirs, messages)), tools=[Tool(**tool) for tool in tools or ()]
    )
    check = validator()
    check._validate_message_list_content(request.messages)
    check._validate_tools(request.tools or [])
    normalised = normalizer_for_tokenizer_version(version).from_chat_completion_request(request)
    assert isinstance(normalised, InstructRequest)
    ids: list[int] = judge.encode_instruct(normalised).tokens
    return ids


def as_theirs(message: dict[str, Any]) -> Any:
    content = message["content"]
    if message["role"] == "system":
        return SystemMessage(content=content)
    if message["role"] == "user":
        return UserMessage(content=content)
    if message["role"] == "tool":
        return ToolMessage(content=content, tool_call_id=message.get("tool_call_id", "000000000"))
    calls = [
        ToolCall(id=call.get("id", "000000000"), function=FunctionCall(**call["function"]))
        for call in message.get("tool_calls") or ()
    ]
    if message.get("reasoning_content"):
        content = [ThinkChunk(thinking=message["reasoning_content"]), TextChunk(text=content or "")]
    return AssistantMessage(content=content or None, tool_calls=calls or None)


def requests(family: str, number: int, seed: int) -> list[tuple[Messages, Any]]:
    """Random conversations that their library takes: names that it allows, and no empty answer."""
    rng = random.Random(f"{family} {seed}")
    thinks = TOKENS[family].reasons  # the others have no place for reasoning
    held = wanted(family, parts=False, nones=False, reasoning=thinks, call_id=lambda name, number: f"{number:09d}")
    found = []
    while len(found) < number:
        messages, tools = conversation(rng, held)
        tools = WEATHER if tools else None
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        named = all("." not in call["function"]["name"] for call in calls)
        said = all(m["content"] or m.get("tool_calls") for m in messages if m["role"] == "assistant")
        if named and said:
            found.append(([{k: v for k, v in m.items() if k not in ("train", "weight")} for m in messages], tools))
    return found


@families
@pytest.mark.parametrize("number", [150, pytest.param(4000, marks=pytest.mark.slow)])
def test_ids_of_random_requests(family: str, number: int) -> None:
    judge, ours = pair_of(family)
    made = requests(family, number, seed=1)
    for messages, tools in made:
        assert ours.render_ids(messages, tools=tools) == their_ids(judge, family, messages, tools)
    assert sum(bool(tools) for _, tools in made) > number / 3
    assert sum(m["role"] == "tool" for messages, _ in made for m in messages) > number / 5


@families
def test_results_are_json_in_one_form(family: str) -> None:
    """As their library does before it encodes, whatever the tool returned."""
    judge, ours = pair_of(family)
    call = {"id": "000000001", "type": "function", "function": {"name": "f", "arguments": ""}}
    for text in ("", " ", '{"a":1,"a":2}', "[1,2]", "NaN", "1e3", ' "x" ', '"\\u00e9"', "{", "007"):
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call | {"function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": text, "tool_call_id": "000000001"},
        ]
        assert ours.render_ids(messages) == their_ids(judge, family, messages, None)
    half = [*messages[:2], messages[2] | {"content": '"\\ud83d"'}]  # nobody can encode what this spells
    assert '"\\ud83d"' in ours.text(half)
