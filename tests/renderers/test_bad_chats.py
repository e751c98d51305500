"""What cannot be rendered is refused, with the message's index and the field, and nothing hangs or fails oddly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TokenizerError, UsageError
from niels_gpt.renderers.base import build_training_sample
from niels_gpt.renderers.registry import FAMILIES, create_renderer
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.chats import TOOLS, Messages
from tests.renderers.sweeps import CHATML, families
from tests.renderers.tiny_families import TOKENS, folder_of, renderer_of

ASKED = {"role": "user", "content": "a"}
ID = "123456789"  # of nine letters or digits, as Mistral wants them
RESULT = {"role": "tool", "content": "r", "tool_call_id": ID}
WITH_TOOLS = [name for name in TOKENS if TOKENS[name].holds.get("tools", True)]
BARE = (  # families that write arguments one by one
    *("glm-4.5", "glm-5", "glm-5.1", "glm-5.2", "glm-5.3", "laguna-xs.2", "minimax-m2", "qwen3.5"),
    *("qwen3.6", "qwen3.8", "nemotron-3", "nemotron-3-ultra", "deepseek-v4", "deepseek-v4-preview", "deepseek-v4.1"),
)
CHATMLS = ("qwen", "nemotron", "chatml", "olmo", "smollm")  # by what their names begin with


def calling(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": ID, "function": function}]}


def template(source: str = CHATML, **more: Any) -> TemplateRenderer:
    return TemplateRenderer(folder_of("qwen3"), template=source, **more)


def refusal(renderer: Any, messages: Any, tools: Any = None) -> MessageError:
    """The error of rendering, which is that of every other way to the ids."""
    with pytest.raises(MessageError) as caught:
        renderer.render(messages, tools=tools)
    for again in (renderer.render_ids, lambda m, tools: build_training_sample(renderer, m, tools=tools)):
        with pytest.raises(MessageError) as other:
            again(messages, tools=tools)
        assert str(other.value) == str(caught.value)
    with pytest.raises(MessageError, match="conversation 1: ") as of_many:
        renderer.render_many([[ASKED], messages], tools=[None, tools])
    assert str(of_many.value) == f"conversation 1: {caught.value}"
    assert of_many.value.reason == caught.value.reason
    return caught.value


# ---- what the door refuses, for every renderer: case -> messages, reason, what the error says

ANYWHERE: dict[str, tuple[Any, str, str]] = {  # two of what tests/test_messages.py has: each comes through one door
    "no content": ([ASKED, {"role": "user"}], "missing_field", "message 1: content is missing"),
    "half a character in arguments": (
        [ASKED, calling(name="f", arguments={"k": ["\udc00"]})],
        "invalid_unicode",
        "function.arguments.k holds half of a surrogate pair",
    ),
}


@pytest.mark.parametrize("name", [*FAMILIES, "template"])
def test_refused_at_the_door(name: str) -> None:
    for messages, reason, told in ANYWHERE.values():
        error = refusal(template() if name == "template" else renderer_of(name), messages)
        assert error.reason == reason
        assert told in str(error)


# ---- what families refuse

UNFIT: dict[str, tuple[Messages, str, str, tuple[str, ...]]] = {
    "an unknown role": (
        [ASKED, {"role": "critic", "content": "x"}],
        "unknown_role",
        "message 1: role is 'critic'; expected one of system, user, assistant",
        tuple(FAMILIES),
    ),
    "an image": (
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}],
        "unsupported_content",
        "message 0: content.1 is of type 'image_url'",
        tuple(FAMILIES),
    ),
    "a text part without text": (
        [ASKED, {"role": "assistant", "content": [{"type": "text"}]}],
        "unsupported_content",
        "message 1: content.0",
        tuple(FAMILIES),
    ),
    "arguments that are no JSON": (
        [ASKED, calling(name="f", arguments="{k: 1")],
        "wrong_arguments",
        "message 1: tool_calls.0.function.arguments is '{k: 1'",
        tuple(WITH_TOOLS),
    ),
    "arguments that are no object": (
        [ASKED, calling(name="f", arguments="[1]")],
        "wrong_arguments",
        "message 1: tool_calls.0.function.arguments is JSON list; expected an object",
        BARE,
    ),
    "a result without a call": (
        [ASKED, RESULT],
        "tool_without_call",
        "message 1: a tool result, but the assistant turn before it calls no tool",
        tuple(WITH_TOOLS),
    ),
    "a result behind a user": (
        [ASKED, calling(name="f", arguments={}), ASKED, RESULT],
        "tool_without_call",
        "message 3: a tool result",
        tuple(WITH_TOOLS),
    ),
    "a result of another call": (
        [ASKED, calling(name="f", arguments={}), RESULT | {"tool_call_id": "zz"}],
        "tool_without_call",
        "message 2: tool_call_id is 'zz'; expected one of the calls before it: ['123456789']",
        tuple(WITH_TOOLS),
    ),
    "calls of a user": (
        [ASKED | {"tool_calls": calling(name="f", arguments={})["tool_calls"]}],
        "unsupported_field",
        "message 0: tool_calls",
        tuple(FAMILIES),
    ),
    "calls without a place": (
        [ASKED, calling(name="f", arguments={})],
        "unwritten",
        "message 1: tool_calls is not written",
        ("chatml", "ngpt", "gemma", "llama-3.0", "raw"),
    ),
    "a late system message": (
        [ASKED, {"role": "system", "content": "s"}],
        "late_system",
        "message 1: a system message after others",
        (
            "deepseek-v3",
            "deepseek-r1",
            "deepseek-v3.1",
            "deepseek-v4",
            "gpt-oss",
            "minimax-m2",
            "ngpt",
            "qwen3.5",
            "qwen3.6",
        ),
    ),
}


@families
def test_refused_by_families(family: str) -> None:
    for messages, reason, told, of_families in UNFIT.values():
        if family in of_families:
            error = refusal(renderer_of(family), messages)
            assert error.reason == reason
            assert told in str(error)


# Sets and numbers that JSON has not, as tables write missing ones.
UNWRITABLE = ({"k": {1, 2}}, {"k": math.nan}, {"k": [{"n": -math.inf}]}, "[" * 100_000 + "]" * 100_000, '{"k": NaN}')
UNWRITABLE_BARE = ('{"k": "\\ud800"}', '{"k": 1e999}')  # in families that write arguments one by one


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_arguments_that_cannot_be_written(family: str) -> None:
    for arguments in (*UNWRITABLE, *(UNWRITABLE_BARE if family in BARE else ())):
        error = refusal(renderer_of(family), [ASKED, calling(name="f", arguments=arguments)])
        assert str(error).startswith("message 1: tool_calls.0.function.arguments")


# ---- what single families refuse

ANSWER, SYSTEM = {"role": "assistant", "content": "b"}, {"role": "system", "content": "s"}


def asking(number: int = 1, content: str = "", **more: Any) -> dict[str, Any]:
    call = {"id": ID, "function": {"name": "f", "arguments": {}}} | more
    return {"role": "assistant", "content": content, "tool_calls": [call] * number}


REFUSED: list[tuple[str, list[dict[str, Any]], Any, str, str]] = [
    ("llama-3", [ASKED, asking(2)], None, "unwritten", "message 1: tool_calls is not written"),
    ("llama-3", [ASKED, asking(content="b")], None, "unwritten", "message 1: content is not written ('b')"),
    ("mistral", [ASKED, asking(content="b")], None, "unwritten", "message 1: content is not written ('b')"),
    ("llama-3", [SYSTEM, ANSWER], TOOLS, "no_user_message", "message 1: no user speaks here"),
    ("llama-3", [SYSTEM], TOOLS, "no_user_message", "message 1: no user speaks here"),
    ("gemma", [SYSTEM], None, "no_user_message", "message 0: a system message and nothing else"),
    ("mistral", [SYSTEM], None, "no_user_message", "message 0: a system message and nothing else"),
    ("gemma", [ASKED, ANSWER, SYSTEM], None, "late_system", "message 2: a system message after others"),
    ("mistral", [ASKED, SYSTEM], None, "late_system", "message 1: a system message after others"),
    ("gemma", [ANSWER], None, "roles_do_not_alternate", "message 0: role is 'assistant' after nothing"),
    ("gemma", [ASKED, ASKED], None, "roles_do_not_alternate", "message 1: role is 'user' after 'user'"),
    (
        "gemma",
        [ASKED, ANSWER, ANSWER],
        None,
        "roles_do_not_alternate",
        "message 2: role is 'assistant' after 'assistant'",
    ),
    (
        "mistral",
        [ASKED, asking(), RESULT, ASKED],
        None,
        "roles_do_not_alternate",
        "message 3: role is 'user' after 'tool'",
    ),
    ("mistral", [ASKED, asking(id="call_1")], None, "wrong_call_id", "message 1: tool_calls.0.id is 'call_1'"),
    ("mistral", [ASKED, asking(id="")], None, "wrong_call_id", "message 1: tool_calls.0.id is missing"),
    (
        "mistral",
        [ASKED, asking(), {"role": "tool", "content": "r"}],
        None,
        "wrong_call_id",
        "message 2: tool_call_id is missing",
    ),
]


@pytest.mark.parametrize(("family", "messages", "tools", "reason", "told"), REFUSED)
def test_refused_by_one_family(family: str, messages: Messages, tools: Any, reason: str, told: str) -> None:
    error = refusal(renderer_of(family), messages, tools)
    assert error.reason == reason
    assert told in str(error)


# ---- tools

WRONG_TOOLS: dict[str, tuple[Any, str]] = {
    "one tool alone": ({"name": "f"}, "tools is a dict; expected a list"),
    "a name": ("f", "tools is 'f'.*expected JSON"),
    "names": (["f"], r"tools\[0\] is 'f'.*expected JSON"),
    "a number": (5, "tools is a int; expected a list"),
    "an array": (np.array([{"name": "f"}, {"name": "g"}]), "tools is a ndarray; expected a list"),
    "a tool without name": ([{"name": "f"}, {"function": {"description": "d"}}], r"tools\[1\] has no function"),
    "a function that is a text": (
        [{"type": "function", "function": "f"}],
        r"tools\[0\]\.function is 'f'.*expected JSON",
    ),
}


@pytest.mark.parametrize("case", WRONG_TOOLS)
@pytest.mark.parametrize("family", ["qwen3", "gpt-oss"])
def test_tools_of_a_wrong_shape(family: str, case: str) -> None:
    tools, told = WRONG_TOOLS[case]
    for use in (
        lambda: renderer_of(family).render([ASKED], tools=tools),
        lambda: renderer_of(family).parse_response([1], tools=tools),
        lambda: renderer_of(family).bridge_to_next_turn([1], [1], [ASKED], tools=tools),
        lambda: build_training_sample(renderer_of(family), [ASKED], tools=tools),
    ):
        with pytest.raises(MessageError, match=told):
            use()


def test_tools_are_one_entry_per_conversation() -> None:
    with pytest.raises(UsageError, match="1 tools for 2 conversations"):
        renderer_of("qwen3").render_many([[ASKED], [ASKED]], tools=[None])


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_tools_that_cannot_be_written(family: str) -> None:
    for value in ({1, 2}, "\ud800", math.nan):
        tools = [{"type": "function", "function": {"name": "f", "description": value}}]
        with pytest.raises(MessageError, match=r"tools\[0\]"):
            renderer_of(family).render([ASKED], tools=tools)


# ---- tokenizers and options


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("other", ["qwen3", "kimi-k2"])
def test_the_tokenizer_of_another_family(family: str, other: str) -> None:
    if family == "raw" or family.startswith(CHATMLS if other == "qwen3" else other.split("-")[0]):
        assert create_renderer(folder_of(other), family).render_ids([ASKED])
        return
    with pytest.raises(TokenizerError, match=f"which {family} writes; expected a tokenizer of that family"):
        create_renderer(folder_of(other), family)


# ---- ids


@families
def test_ids_that_no_tokenizer_has(family: str) -> None:
    """Models with padded embeddings may sample them."""
    renderer = renderer_of(family)
    assert renderer.parse_response([]).content == ""
    for ids in ([-1], [renderer.vocab_size], [2**40]):
        parsed = renderer.parse_response(ids)
        assert (parsed.reasoning_content or "") + parsed.content == "\ufffd"
