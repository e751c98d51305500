"""From ids back to conversations: what is read, what is proved by rendering again, what is said to be lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.explorer.api import Explorer
from niels_gpt.explorer.inversion import declared_tools, ids_in_text, read_conversation
from niels_gpt.explorer.inversion_view import lost
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.renderers.registry import FAMILIES
from tests.explorer.conftest import Client, client_of
from tests.renderers.sweeps import chats
from tests.renderers.tiny_families import folder_of, renderer_of

CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Rain in Oslo?"},
    {"role": "assistant", "content": "4 degrees, ☂", "reasoning_content": "look it up"},
    {"role": "user", "content": "And <|im_end|> you?\n"},
    {"role": "assistant", "content": "Dry.", "reasoning_content": "a joke"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "rain",
            "description": "of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALLING: list[dict[str, Any]] = [
    {"role": "system", "content": "Be dry."},
    CHAT[0],
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "x1", "type": "function", "function": {"name": "rain", "arguments": {"city": "Oslo", "day": "now"}}}
        ],
    },
    {"role": "tool", "content": "none", "tool_call_id": "x1", "name": "rain"},
    {"role": "assistant", "content": "It is dry."},
]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A server with a small tokenizer of Qwen3."""
    with client_of(Explorer(RendererList([str(folder_of("qwen3"))]))) as found:
        yield found


CHOICE = {"renderer": "qwen3", "tokenizer": folder_of("qwen3").name}


WORDS = st.text(st.sampled_from("ab é☂你\n <>{}'\"1"), max_size=12).map(lambda text: f"x{text}x")


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("raw", "ngpt")])
@settings(max_examples=5, deadline=None, derandomize=True)
@given(contents=st.lists(WORDS, min_size=1, max_size=6), system=st.none() | WORDS, prompt=st.booleans())
def test_conversations_are_read_back(family: str, contents: list[str], system: str | None, prompt: bool) -> None:
    """Rendering what was read gives the given ids, in every family, and the contents are the given ones."""
    renderer = renderer_of(family)
    roles = ["user", "assistant"] * 3
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    prompt = prompt and messages[-1]["role"] == "user"
    ids = renderer.render(messages, add_generation_prompt=prompt).token_ids
    found = read_conversation(renderer, ids)
    assert found.ids == ids, (messages, found.messages)
    if family == "mistral":  # its prompt is the end of the user's turn, which holds the system message
        return
    if not family.startswith("mistral"):  # whose prompts write nothing behind the user's turn
        assert found.prompt == prompt
    assert [m["content"] for m in found.messages][-len(contents) :][1:] == contents[1:]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("raw", "ngpt")])
def test_hostile_conversations_end_in_words(family: str) -> None:
    """Tags of other formats, images, empty texts: what cannot be read back is said, and nothing fails otherwise."""
    renderer = renderer_of(family)
    for messages, tools in chats(family, 3, seed=5):
        with suppress(UsageError, MessageError):
            found = read_conversation(renderer, renderer.render(messages, tools=tools).token_ids)
            assert found.ids or found.problem
            assert all(isinstance(said, str) for said in lost(renderer, found))


def test_what_is_lost_is_found_by_trying() -> None:
    renderer = renderer_of("qwen3")
    said = " ".join(lost(renderer, read_conversation(renderer, renderer.render(CHAT).token_ids)))
    assert "Reasoning before the last user message" in said
    assert "Reasoning after" not in said, "the last answer's reasoning is written"
    assert "White space" not in said, "Qwen's format keeps it"
    said = " ".join(lost(renderer, read_conversation(renderer, renderer.render(CALLING, tools=TOOLS).token_ids)))
    assert "ids of tool calls" in said
    assert "order of a call's arguments" not in said
    assert "order of keys in tool schemas" not in said
    stripping = renderer_of("llama-3")
    said = " ".join(lost(stripping, read_conversation(stripping, stripping.render(CHAT[:1]).token_ids)))
    assert "White space before and after the content of user messages" in said


def test_tools_and_calls_are_read_back() -> None:
    renderer = renderer_of("qwen3")
    found = read_conversation(renderer, renderer.render(CALLING, tools=TOOLS).token_ids)
    assert found.tools == TOOLS
    assert [m["role"] for m in found.messages] == [m["role"] for m in CALLING]
    assert found.messages[2]["tool_calls"][0]["function"] == CALLING[2]["tool_calls"][0]["function"]
    assert found.messages[0]["content"] == "Be dry."
    assert declared_tools('{"name": "a", "parameters": {"x": 1}} {"name": broken') is None


def test_pasted_ids() -> None:
    assert ids_in_text("[1, 2,3]\n") == ids_in_text("1 2 3") == ids_in_text("tensor([1, 2, 3])") == [1, 2, 3]
    assert ids_in_text(", ".join(map(str, range(500)))) == list(range(500))
    assert ids_in_text("1 2 three") is ids_in_text("") is ids_in_text("[]") is None
    assert ids_in_text("7 " * 80 + "seven") is None
    assert ids_in_text("1" * 59 + "x") is ids_in_text("9" * 5000) is ids_in_text("7" * 30) is None
    with pytest.raises(UsageError, match="position 1 holds -100"):
        ids_in_text("5 -100 7")
    with pytest.raises(UsageError, match="at most"):
        ids_in_text("1 " * 500_001)


def test_over_http(client: Client) -> None:
    table = client.ask("/api/render", {"messages": CHAT, "choice": CHOICE})
    told = client.ask("/api/inversion", {"given": json.dumps(table["ids"]), "choice": CHOICE})
    assert told["state"] == "same"
    assert told["table"]["runs"] == table["runs"], "each token has its owner"
    # The reasoning before the last user message is in no ids.
    wanted = [{"role": m["role"], "content": m["content"]} for m in CHAT]
    assert told["conversation"]["messages"] == [*wanted[:3], CHAT[3]]
    half = client.ask("/api/inversion", {"given": str(table["ids"][:-4]), "choice": CHOICE})
    assert half["state"] == "cut"
    text = "".join(table["texts"]).replace("<|im_end|> you", "you")
    told = client.ask("/api/inversion", {"given": text, "choice": CHOICE})
    assert told["state"] == "same"
    assert told["note"]
    prompt = client.ask("/api/render", {"messages": CHAT[:1], "choice": CHOICE, "prompt": True})
    told = client.ask("/api/inversion", {"given": str(prompt["ids"]), "choice": CHOICE})
    assert (told["state"], told["prompt"], len(told["conversation"]["messages"])) == ("same", True, 1)


def test_other_ids_are_shown_beside_the_rendering(client: Client) -> None:
    ids = client.ask("/api/render", {"messages": CHAT, "choice": CHOICE})["ids"]
    told = client.ask("/api/inversion", {"given": str([*ids[:3], *ids]), "choice": CHOICE})
    assert told["state"] == "differs"
    assert told["verdict"].startswith("≠")
    assert told["drift"]["left"]
    assert told["table"]["ids"] == [*ids[:3], *ids]
    assert told["again"]["ids"] != told["table"]["ids"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"given": "no turns here", "choice": CHOICE}, "no turn of this format"),
        ({"given": "", "choice": CHOICE}, "expected 1 to"),
        ({"given": "9999999", "choice": CHOICE}, "outside the vocabulary"),
        ({"given": "1 2", "choice": {"renderer": "qwen3"}}, "--tokenizer"),
        ({"given": "1 2", "choice": {"renderer": "raw"}}, "bare text"),
        ({"given": "1 -100", "choice": CHOICE}, "not labels"),
    ],
)
def test_errors_in_words(client: Client, body: Any, words: str) -> None:
    assert words in client.ask("/api/inversion", body, 400)["error"]


def test_a_thousand_messages(client: Client) -> None:
    many = [m for at in range(500) for m in ({"role": "user", "content": f"q {at}"}, {**CHAT[1], "content": f"a {at}"})]
    ids = client.ask("/api/render", {"messages": many, "choice": CHOICE})["ids"]
    told = client.ask("/api/inversion", {"given": str(ids), "choice": CHOICE})
    assert told["state"] == "same"
    assert [m["content"] for m in told["conversation"]["messages"]] == [m["content"] for m in many]
