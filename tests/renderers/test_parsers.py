"""Parsers by name, alone and in a renderer by template."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import UsageError
from niels_gpt.renderers.base import ToolCallParseStatus as Status
from niels_gpt.renderers.configs import DefaultRendererConfig
from niels_gpt.renderers.parsers import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    Qwen3ToolParser,
    ThinkTextReasoningParser,
    dialect_of,
    get_reasoning_parser,
    get_tool_parser,
)
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.template.renderer import DefaultRenderer
from tests.renderers.chats import TOOLS
from tests.renderers.damage import check_calls_sane, damaged, stock_of
from tests.renderers.small import CHATML, family
from tests.renderers.sweeps import answered, conversations, served_and_said
from tests.renderers.tiny_families import renderer_of

PARSER_OF = {
    "qwen2.5": "hermes",
    "qwen3": "qwen3",
    "qwen3-vl": "qwen3",
    "qwen3.5": "qwen3.5",
    "nemotron-3": "qwen3.5",
    "glm-4.5": "glm",
    "glm-5": "glm",
    "glm-5.1": "glm",
    "glm-5.2": "glm",
    "glm-5.3": "glm",
    "kimi-k2": "kimi-k2",
    "kimi-k2-thinking": "kimi-k2",
    "kimi-k2.5": "kimi-k2",
    "laguna-xs.2": "laguna-xs.2",
    "minimax-m2": "minimax-m2",
    "deepseek-v3": "deepseek-v3",
    "deepseek-r1": "deepseek-v3",
    "deepseek-r1-0528": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3.1",
    "deepseek-v4": "deepseek-v4",
    "deepseek-v4-preview": "deepseek-v4",
    "deepseek-v4.1": "deepseek-v4.1",
    "llama-3": "llama-3",
    "mistral": "mistral",
    "mistral-v7": "mistral-v7",
    "mistral-v11": "mistral-v11",
    "mistral-v13": "mistral-v13",
    "qwen3.6": "qwen3-coder",
    "qwen3.8": "qwen3-coder",
    "nemotron-3-ultra": "nemotron-3",
}


def by_template(name: str, **config: Any) -> DefaultRenderer:
    config = {"tool_parser": PARSER_OF[name], "reasoning_parser": "think"} | config
    return DefaultRenderer(family(name).encoder, DefaultRendererConfig(**config), template=CHATML)


def ids_of(renderer: Any, text: str) -> list[int]:
    return list(map(int, renderer.encoder.encode_pieces([text], [True])[0]))


def test_names() -> None:
    encoder = family("qwen3").encoder
    for name, made in TOOL_PARSERS.items():
        assert type(get_tool_parser(name, encoder)) is type(made(encoder))
    assert isinstance(get_tool_parser("qwen3", encoder), Qwen3ToolParser)
    for name, reasoning in REASONING_PARSERS.items():
        assert type(get_reasoning_parser(name, encoder)) is type(reasoning(encoder))
    with pytest.raises(
        UsageError,
        match=r"no tool parser 'qwen4'; expected one of hermes, qwen2\.5, qwen3, .*, mistral, .*; did you mean 'qwen3'",
    ):
        get_tool_parser("qwen4", encoder)
    with pytest.raises(
        UsageError, match=r"no reasoning parser 'thinking'; expected one of think, .*; did you mean 'think'"
    ):
        get_reasoning_parser("thinking", encoder)
    with pytest.raises(UsageError, match="no tool parser"):
        by_template("qwen3", tool_parser="xml")
    with pytest.raises(UsageError, match="no reasoning parser"):
        by_template("qwen3", reasoning_parser="")


def test_parsers_pickle() -> None:
    """They are sent to workers that read completions."""
    encoder = family("qwen3").encoder
    parsers = [*(get_tool_parser(name, encoder) for name in TOOL_PARSERS)]
    parsers += [*(get_reasoning_parser(name, encoder) for name in REASONING_PARSERS)]
    for parser in parsers:
        assert type(pickle.loads(pickle.dumps(parser))) is type(parser)


def test_every_dialect_has_a_name() -> None:
    alone = {
        "qwen2.5",
        "seed-oss",
        "hunyuan",
        "command-a",
        "apertus",
        "lfm2",
        "gemma-4",
        "llama-4",
        "olmo-3",
    }  # no family has their dialect
    assert set(PARSER_OF.values()) | alone == set(TOOL_PARSERS)
    for name, kind in FAMILIES.items():
        if kind.calls is not None and name not in ("gpt-oss", "inkling"):  # their families alone read their channels
            assert isinstance(dialect_of(PARSER_OF[name]), type(kind.calls)), f"add {name} to PARSER_OF"


@conversations(40, 400)
@pytest.mark.parametrize("name", PARSER_OF)
def test_damaged_completions_are_read_by_name(name: str, number: int) -> None:
    """Nothing raises, calls are sane, and what is no call is there as it was, in order."""
    renderer, rng, stock = renderer_of(name), random.Random(name), stock_of(name)
    parser = get_tool_parser(PARSER_OF[name], renderer.encoder)
    for _ in range(number):
        ids = damaged(rng, stock)
        content, calls = parser.extract(ids, tools=rng.choice((None, TOOLS)))
        check_calls_sane(renderer, ids, calls)
        rest = iter(ids)
        assert all(token in rest for token in content)
        by_template(name).parse_response(ids).content.encode()


@pytest.mark.parametrize("name", PARSER_OF)
def test_the_same_calls_as_the_family_reads(name: str) -> None:
    own, parser = renderer_of(name), get_tool_parser(PARSER_OF[name], renderer_of(name).encoder)
    called = 0
    for messages, tools in answered(name, 30, seed=6):
        said = served_and_said(own, messages, tools)[1]
        stop = next((at for at, token in enumerate(said) if token in own.get_stop_token_ids()), len(said))
        expected = own.parse_response(said, tools=TOOLS).tool_calls
        assert parser.extract(said[:stop], tools=TOOLS)[1] == expected
        called += len(expected)
    assert called > 5


def test_calls_and_what_is_left() -> None:
    renderer = family("qwen3")
    parser = get_tool_parser("qwen3", renderer.encoder)
    first, second = '<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>', "<tool_call>\nno\n</tool_call>"
    ids = ids_of(renderer, f"before{first} \n{second}between{first}\n")
    content, calls = parser.extract(ids)
    assert renderer.encoder.decode(content) == "beforebetween"
    assert [found.status for found in calls] == [Status.OK, Status.INVALID_JSON, Status.OK]
    assert [renderer.encoder.decode(ids[slice(*found.token_span)]) for found in calls] == [first, second, first]
    assert (calls[0].name, calls[0].arguments) == ("get", {"a": 1})
    assert parser.extract([]) == ([], [])
    assert parser.extract(ids_of(renderer, " \n")) == (ids_of(renderer, " \n"), [])


def test_half_characters_move_no_call() -> None:
    """A completion that ends in three bytes of an emoji: the call behind its reasoning is read where it stands."""
    renderer = by_template("qwen3")
    said = ids_of(renderer, '<think>\nx\n</think>\n\na<tool_call>{"name": "f", "arguments": {}}</tool_call>b 🦑')
    while renderer.encoder.decode(said).endswith("🦑"):
        said.pop()
    parsed = renderer.parse_response(said)
    assert (parsed.content, parsed.reasoning_content) == ("\n\nab \ufffd", "x")
    (found,) = parsed.tool_calls
    assert renderer.encoder.decode(said[slice(*found.token_span)]) == f"<tool_call>{found.raw}</tool_call>"


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("hello", None, "hello"),
        ("", None, ""),
        (
            "<think>\nabc\n</think>\n\nhello\n",
            "abc",
            "\n\nhello\n",
        ),  # newlines there may be of the content
        ("abc\n</think>\n\nhello", "abc", "\n\nhello"),  # the prompt supplied the opening tag
        ("<think>\nabc", "abc", ""),  # cut
        ("\n<think>abc", "abc", ""),
        ("<think>\n\n</think>\n\nhello", None, "\n\nhello"),
        ("a <think> b", None, "a <think> b"),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
    ],
)
def test_reasoning(text: str, reasoning: str | None, rest: str) -> None:
    assert ThinkTextReasoningParser().extract(text) == (reasoning, rest)
