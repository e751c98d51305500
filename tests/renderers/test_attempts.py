"""What is a call, what is an attempt at one, and what is text: for all dialects, by families and by named parsers."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.parsers import get_tool_parser
from tests.renderers.chats import TOOLS
from tests.renderers.damage import Ids, bytes_of, damaged, stock_of
from tests.renderers.sweeps import families
from tests.renderers.test_parsers import PARSER_OF
from tests.renderers.test_template_families import WRITTEN, reader
from tests.renderers.tiny_families import renderer_of

Told = list[tuple[str | None, Any, Status]]
MALFORMED, UNCLOSED = Status.MALFORMED_STRUCTURE, Status.UNCLOSED_BLOCK


def opened(name: str) -> Any:
    return reader(name) if name in WRITTEN else renderer_of(name)


def ids_of(renderer: Any, text: str) -> Ids:
    ids: Ids = renderer.encoder.encode_pieces([text], [True])[0].tolist()
    return ids


def read(name: str, text: str) -> tuple[str, Told]:
    """Content and calls of a completion that was cut; the parser by name reads the same calls."""
    renderer = opened(name)
    parsed = renderer.parse_response(ids_of(renderer, text), prompt_ids=ids_of(renderer, "a"))
    calls = [(call.name, call.arguments, call.status) for call in parsed.tool_calls]
    if name in PARSER_OF:
        by_name = get_tool_parser(PARSER_OF[name], renderer.encoder).extract(ids_of(renderer, text))[1]
        assert [(call.name, call.arguments, call.status) for call in by_name] == calls
    return parsed.content, calls


# ---- ok is certain

KEY, VALUE = "<arg_key>a</arg_key>", "<arg_value>1</arg_value>"
FENCE = "\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
NOT_OK = {
    "a closing tag in a name": ("glm-5", "<tool_call>now</arg_value></tool_call>"),
    "words about both tags": ("glm-4.5", "Use <tool_call> and </tool_call> for it."),
    "a sentence in place of a name": ("laguna-xs.2", "<tool_call>the weather</tool_call>"),
    "words between a name and a key": ("glm-5.1", f"<tool_call>f so {KEY}{VALUE}</tool_call>"),
    "words between key and value": ("glm-5.2", f"<tool_call>f{KEY} is {VALUE}</tool_call>"),
    "words between two pairs": ("laguna-xs.2", f"<tool_call>f\n{KEY}\n{VALUE} and {KEY}\n{VALUE}\n</tool_call>"),
    "words behind the pairs": ("glm-5.3", f"<tool_call>f{KEY}{VALUE} done</tool_call>"),
    "a value without its end": ("glm-5", f"<tool_call>f{KEY}<arg_value>1{KEY}{VALUE}</tool_call>"),
    "a key without its end": ("glm-4.5", f"<tool_call>f\n<arg_key>a\n{VALUE}\n</tool_call>"),
    "arguments under another name": ("qwen3", '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>'),
    "and of Mistral": ("mistral", '[TOOL_CALLS][{"name": "f", "input": {"a": 1}}]'),
    "and of Hunyuan": ("hunyuan", '<tool_calls>[{"name": "f", "args": {"a": 1}}]</tool_calls>'),
    "and of Command A": ("command-a", '<|START_ACTION|>[{"tool_name": "f", "arguments": {"a": 1}}]<|END_ACTION|>'),
    "and of Llama": ("llama-3", '<|python_tag|>{"name": "f", "arguments": {"a": 1}}'),
    "and of Inkling": ("inkling", 'f<|content_invoke_tool_json|>{"name":"f","arguments":{"a":1}}<|end_message|>'),
    "a key twice": ("qwen3", '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>'),
    "a key twice deeper": ("qwen2.5", '<tool_call>{"name": "f", "arguments": {"a": {"b": 1, "b": 1}}}</tool_call>'),
    "a key twice of Kimi": (
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1, "a": 2}<|tool_call_end|><|tool_calls_section_end|>',
    ),
    "a key twice of gpt-oss": (
        "gpt-oss",
        ' to=functions.f<|channel|>commentary json<|message|>{"a": 1, "a": 2}<|end|>',
    ),
    "a key twice in tags": ("glm-5", f"<tool_call>f{KEY}{VALUE}{KEY}{VALUE}</tool_call>"),
    "a parameter twice": (
        "qwen3.5",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
    ),
    "a parameter twice of MiniMax": (
        "minimax-m2",
        '<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter><parameter name="a">2</parameter>'
        "</invoke></minimax:tool_call>",
    ),
    "a keyword twice": ("lfm2", "<|tool_call_start|>[f(a=1, a=2)]<|tool_call_end|>"),
    "a key twice in Python": ("olmo-3", "<function_calls>f(a={'b': 1, 'b': 2})</function_calls>"),
    "a line in a parameter's name": (
        "nemotron-3",
        "<tool_call>\n<function=f>\n<parameter=a\n>\n1\n</parameter>\n</function>\n</tool_call>",
    ),
    "words before the separator": (
        "deepseek-v3",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>so a function<｜tool▁sep｜>f{FENCE}",
    ),
    "words in a name": ("mistral-v11", "[TOOL_CALLS]so I call[ARGS]{}"),
    "words in a header": (
        "gpt-oss",
        " to=functions.f<|channel|>commentary so and so json<|message|>{}<|end|>",
    ),
}


@pytest.mark.parametrize("case", NOT_OK)
def test_what_is_not_accounted_for_is_not_ok(case: str) -> None:
    name, text = NOT_OK[case]
    _, calls = read(name, text)
    assert calls
    assert all(status is not Status.OK for _, _, status in calls)


@pytest.mark.parametrize("name", ["qwen3", "llama-3", "hunyuan"])
def test_a_json_call_may_name_its_type(name: str) -> None:
    """As OpenAI writes calls, and models that were trained on them."""
    call = '{"type": "function", "name": "f", "KEY": {"a": 1}}'
    around = {"qwen3": "<tool_call>CALL</tool_call>", "llama-3": "CALL", "hunyuan": "<tool_calls>[CALL]</tool_calls>"}
    text = around[name].replace("CALL", call).replace("KEY", "parameters" if name == "llama-3" else "arguments")
    assert read(name, text) == ("", [("f", {"a": 1}, Status.OK)])
    assert read(name, text.replace('"function"', '"tool"'))[1][0][2] is MALFORMED


# ---- every attempt is returned

FUNCTION = "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>"
KIMI_CALL = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
DSML = '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>\n</｜DSML｜invoke>'
INVOKE = '<invoke name="f"><parameter name="a">x</parameter></invoke>'
ATTEMPTS: dict[str, tuple[str, str, str, Told]] = {
    "a function": ("qwen3.5", f"b {FUNCTION}c", "b c", [("f", {"a": "x"}, MALFORMED)]),
    "a function with the closing tag": ("qwen3.6", f"b{FUNCTION}\n</tool_call>", "b", [("f", {"a": "x"}, MALFORMED)]),
    "a function that was cut": ("nemotron-3", FUNCTION[:25], "", [("f", {}, UNCLOSED)]),
    "an invocation": ("minimax-m2", f"b{INVOKE}", "b", [("f", {"a": "x"}, MALFORMED)]),
    "an invocation that was cut": ("minimax-m2", INVOKE[:40], "", [("f", {}, UNCLOSED)]),
    "DeepSeek's": ("deepseek-v4", f"b{DSML}", "b", [("f", {"a": "x"}, MALFORMED)]),
    "Kimi's": ("kimi-k2", f"b{KIMI_CALL}", "b", [("f", {}, MALFORMED)]),
    "Kimi's behind its section": (
        "kimi-k2.5",
        f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>{KIMI_CALL}",
        "",
        [("f", {}, Status.OK), ("f", {}, MALFORMED)],
    ),
    "in DeepSeek's tags": (
        "deepseek-v3.1",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "",
        [("f", {}, MALFORMED)],
    ),
    "pairs": ("glm-5", f"f{KEY}{VALUE}</tool_call>", "f", [(None, {"a": 1}, MALFORMED)]),
    "Mistral's arguments": ("mistral-v11", "f[ARGS]{}", "f", [(None, {}, Status.MISSING_NAME)]),
    "a closed pair of tags": ("qwen3", "a<tool_call>no</tool_call>", "a", [(None, None, Status.INVALID_JSON)]),
    "a closed section": (
        "kimi-k2",
        "<|tool_calls_section_begin|>f<|tool_calls_section_end|>",
        "",
        [(None, None, MALFORMED)],
    ),
    "an empty list of nothing": ("hunyuan", "<tool_calls></tool_calls>", "", [(None, None, MALFORMED)]),
}


@pytest.mark.parametrize("case", ATTEMPTS)
def test_tags_without_those_around_them_are_an_attempt(case: str) -> None:
    name, text, content, calls = ATTEMPTS[case]
    assert read(name, text) == (content, calls)


def test_an_attempt_ends_reasoning_that_is_not_closed() -> None:
    """As a call does: a spelled tag where the turn is complete, a token always."""
    renderer = renderer_of("qwen3.5")
    ids = ids_of(renderer, "hm\n" + FUNCTION)
    assert renderer.parse_response(ids).tool_calls == []
    parsed = renderer.parse_response([*ids, *renderer.get_stop_token_ids()[:1]])
    assert (parsed.reasoning_content, parsed.content) == ("hm", "")
    assert [(call.name, call.status) for call in parsed.tool_calls] == [("f", MALFORMED)]
    (call,) = renderer_of("kimi-k2.5").parse_response(ids_of(renderer_of("kimi-k2.5"), "hm" + KIMI_CALL)).tool_calls
    assert (call.name, call.status) == ("f", MALFORMED)


SECTIONS = {
    **dict.fromkeys(("kimi-k2", "kimi-k2-thinking", "kimi-k2.5"), "<|tool_calls_section_begin|>"),
    **dict.fromkeys(("deepseek-v3", "deepseek-v3.1"), "<｜tool▁calls▁begin｜>"),
    "minimax-m2": "<minimax:tool_call>\n",
    "deepseek-v4": "<｜DSML｜tool_calls>\n",
    "deepseek-v4.1": "<｜DSML｜ calls>\n",
    "mistral": "[TOOL_CALLS][",
    "mistral-v11": "[TOOL_CALLS]",
    "command-a": "<|START_ACTION|>[\n",
    "lfm2": "<|tool_call_start|>[",
    "olmo-3": "<function_calls>",
    "llama-3": "<|python_tag|>",
    **dict.fromkeys(("qwen3", "qwen3.5", "glm-5", "laguna-xs.2"), "<tool_call>\n"),
}


@pytest.mark.parametrize("name", SECTIONS)
def test_an_opening_tag_at_the_end_is_an_unclosed_call(name: str) -> None:
    content, calls = read(name, f"a{SECTIONS[name]}")
    assert (content, calls) == ("a", [(None, calls[0][1], UNCLOSED)])


# ---- a tag in a sentence

PROSE = {
    **dict.fromkeys(("qwen2.5", "qwen3", "qwen3.5", "qwen3.8", "nemotron-3", "glm-5", "laguna-xs.2"), "<tool_call>"),
    **dict.fromkeys(("kimi-k2", "kimi-k2.5"), "<|tool_calls_section_begin|>"),
    "deepseek-v3": "<｜tool▁calls▁begin｜>",
    "deepseek-v4": "<｜DSML｜tool_calls>",
    "minimax-m2": "<minimax:tool_call>",
    "mistral-v11": "[TOOL_CALLS]",
    "hunyuan": "<tool_calls>",
    "seed-oss": "<seed:tool_call>",
    "gemma-4": "<|tool_call>",
    "lfm2": "<|tool_call_start|>",
}


@pytest.mark.parametrize("rest", ["` before each call.", ", then", " tag, which opens a call.", "\n\nand so on"])
@pytest.mark.parametrize("name", PROSE)
def test_a_tag_that_no_call_follows_is_text(name: str, rest: str) -> None:
    text = f"Write {PROSE[name]}{rest}"
    assert read(name, text) == (text, [])


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "glm-5", "seed-oss"])
def test_a_call_behind_a_tag_that_is_text_is_read(name: str) -> None:
    renderer = opened(name)
    call = {
        "qwen3": '{"name": "f", "arguments": {}}</tool_call>',
        "qwen3.5": "<function=f></function></tool_call>",
        "glm-5": "f</tool_call>",
        "seed-oss": "<function=f></function></seed:tool_call>",
    }[name]
    content, calls = read(name, f"Write {renderer.calls.opening}, so:{renderer.calls.opening}{call}")
    assert (content, calls) == (f"Write {renderer.calls.opening}, so:", [("f", {}, Status.OK)])


# ---- nothing is in no field


def check_pieces(renderer: Any, ids: Ids, parsed: ParsedResponse) -> None:
    """The pieces are one behind the other, and what they hold is in the fields."""
    stops = renderer.get_stop_token_ids()
    end = next((at for at, token in enumerate(ids) if token in stops), len(ids))
    spans = [piece.token_span for piece in parsed.pieces]
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans)][: len(spans)]
    assert all(start < stop for start, stop in spans)
    assert (spans[-1][1] if spans else 0) == min(len(ids), end + 1)
    assert [piece.kind is Kind.STOP for piece in parsed.pieces].count(True) == (end < len(ids))
    for kind, field in ((Kind.REPLY, parsed.content), (Kind.REASONING, parsed.reasoning_content or "")):
        held = [bytes_of(renderer, ids[slice(*piece.token_span)]) for piece in parsed.pieces if piece.kind is kind]
        letters = "".join(part.decode(errors="replace") for part in held).replace("\ufffd", "").split()
        rest = iter("".join(letters))
        assert all(letter in rest for letter in "".join(field.replace("\ufffd", "").split()))
        # All of the field, and at each edge no more than the rest of a token that it shares with markup.
        assert len("".join(rest)) <= 8 * len(held)


@families
def test_pieces_of_damaged_completions_tile_them(family: str) -> None:
    renderer, rng, stock = renderer_of(family), random.Random(family), stock_of(family)
    for _ in range(60):
        ids = damaged(rng, stock)
        ids = ids[: rng.randint(0, len(ids))] if rng.random() < 0.3 else ids
        check_pieces(renderer, ids, renderer.parse_response(ids, tools=TOOLS if renderer.calls else None))


def test_the_pieces_of_an_answer_with_a_call() -> None:
    renderer = renderer_of("qwen3")
    texts = ["<think>\n", "hm", "\n</think>\n\n", "Here", "\n", '<tool_call>{"name": "f", "arguments": {}}</tool_call>']
    ids = [ids_of(renderer, text) for text in [*texts, "<|im_end|>"]]
    parsed = renderer.parse_response([token for part in ids for token in part])
    kinds = [Kind.MARKUP, Kind.REASONING, Kind.MARKUP, Kind.REPLY, Kind.MARKUP, Kind.MARKUP, Kind.STOP]
    ends = [sum(map(len, ids[: at + 1])) for at in range(len(ids))]
    assert parsed.pieces == [*zip(kinds, zip([0, *ends], ends, strict=False), strict=True)]
    assert parsed.tool_calls[0].token_span == parsed.pieces[5].token_span


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<|channel|>analysis<|message|>a<|end|>words<|start|>assistant<|channel|>final<|message|>b", "words\nb"),
        ("<|channel|>analysis<|message|>a<|end|>words<|channel|>final<|message|>b", "words\nb"),
        ("words<|channel|>final<|message|>b", "words\nb"),
        ("<|channel|>final<|message|>a<|end|>words", "a\nwords"),
        ("<|channel|>final<|message|>a<|end|><|start|>assistant so<|channel|>final<|message|>b", "a\n so\nb"),
        ("<|channel|>final with many words<|message|>b", " with many words\nb"),
    ],
)
def test_words_between_the_messages_of_gpt_oss_are_content(text: str, content: str) -> None:
    assert read("gpt-oss", text)[0] == content
