"""A completion that is read as it is sampled is read as `parse_response` reads it, however it comes in chunks."""

from __future__ import annotations

import json
import random
import sys
import tracemalloc
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.completions.parsed import (
    ArgumentDelta,
    CallClosed,
    CallName,
    CallOpened,
    ContentDelta,
    Event,
    ParsedResponse,
    ReasoningDelta,
    Stopped,
    ToolCallParseStatus,
)
from niels_gpt.renderers.completions.text import Completion, GrowingCompletion
from niels_gpt.renderers.dialects.json_values import json_value_at
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.parsers import REASONING_PARSERS, TOOL_PARSERS
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.chats import TOOLS
from tests.renderers.damage import TEXTS, Ids, Stock, bytes_of, damaged, stock_of
from tests.renderers.sweeps import conversations, families, served_and_said
from tests.renderers.test_parsers import PARSER_OF, by_template
from tests.renderers.test_template_families import TAGS, WRITTEN
from tests.renderers.test_template_families import reader as tags_reader
from tests.renderers.tiny_families import TOKENS, renderer_of

IN_ALL = 600  # damaged completions, over all families together


def chunks_of(rng: random.Random, ids: Ids) -> list[Ids]:
    """One token at a time, all at once, or anything between."""
    if rng.random() < 0.6:
        return [[token] for token in ids]
    cuts = sorted(rng.randint(0, len(ids)) for _ in range(rng.randint(0, 5)))
    return [ids[lo:hi] for lo, hi in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def streamed(
    renderer: Any, chunks: Sequence[Ids], prompt_ids: Ids | None, tools: Any
) -> tuple[list[Event], ParsedResponse]:
    """All events, and the result; what a parser says of its calls in between is checked on the way."""
    parser = renderer.stream(prompt_ids, tools=tools)
    events: list[Event] = []
    for chunk in chunks:
        events += parser.feed(chunk)
        for call in parser.calls:
            json.dumps(call.partial_arguments, ensure_ascii=False)
    events += parser.finish()
    result = parser.result()
    for call, closed in zip(parser.calls, result.tool_calls, strict=True):
        assert call.call == closed
        if closed.status is ToolCallParseStatus.OK:
            assert call.partial_arguments == closed.arguments
    return events, result


def check_events(events: list[Event], result: ParsedResponse) -> None:
    """What the events tell is what the result holds; nothing comes in a wrong order."""
    assert isinstance(events[-1], Stopped)
    assert not any(isinstance(event, Stopped) for event in events[:-1])
    joined = {kind: "".join(e.text for e in events if isinstance(e, kind)) for kind in (ReasoningDelta, ContentDelta)}
    assert joined[ContentDelta] == result.content
    assert joined[ReasoningDelta] == (result.reasoning_content or "")
    assert not any(isinstance(event, ReasoningDelta | ContentDelta) and not event.text for event in events)
    check_calls(events, result)


def check_calls(events: list[Event], result: ParsedResponse) -> None:
    of_calls = [event for event in events if isinstance(event, CallOpened | CallName | ArgumentDelta | CallClosed)]
    by_index: dict[int, list[Event]] = defaultdict(list)
    for event in of_calls:
        by_index[event.index].append(event)
    assert of_calls == [event for index in range(len(result.tool_calls)) for event in by_index[index]]
    for index, call in enumerate(result.tool_calls):
        opened, *middle, closed = by_index[index]
        assert opened == CallOpened(index)
        assert closed == CallClosed(index, call)
        names = [event for event in middle if isinstance(event, CallName)]
        deltas = [event for event in middle if isinstance(event, ArgumentDelta)]
        assert middle == [*names, *deltas]
        assert len(names) <= 1
        if call.name is not None:
            assert names == [CallName(index, call.name)]
        if call.status is ToolCallParseStatus.OK:
            assert arguments_told(deltas, call.arguments) == call.arguments


def arguments_told(deltas: list[ArgumentDelta], expected: Any) -> Any:
    """The arguments that deltas tell; of a value without quotes a schema may say whether it is a text or JSON."""
    if not deltas:
        return {}
    texts: dict[str | None, str] = {}
    for delta in deltas:
        is_new = delta.parameter is not None and not delta.text  # a parameter may come twice
        texts[delta.parameter] = "" if is_new else texts.get(delta.parameter, "") + delta.text
    if None in texts:
        assert len(texts) == 1
        return json.loads(texts[None])
    return {name: value_told(text, expected[name]) for name, text in texts.items()}


def value_told(text: str, expected: Any) -> Any:
    python = {"True": True, "False": False, "None": None}
    return text if text == expected else python[text] if text in python else json.loads(text)


def check_streams(renderer: Family | TemplateRenderer, name: str, number: int, seed: int) -> None:
    rng, stock = random.Random(f"{name} {seed}"), stock_of(name)
    for _ in range(number):
        check_stream(renderer, rng, damaged(rng, stock) if rng.random() < 0.9 else rng.choice(stock.completions))


def check_stream(renderer: Family | TemplateRenderer, rng: random.Random, ids: Ids) -> None:
    """A completion in some division into chunks, with or without a stop, tools and a prompt."""
    if rng.random() < 0.5:
        ids = [*ids, renderer.get_stop_token_ids()[0], *ids[:3]]
    end = rng.choice((None, "a", renderer.reasoning_tags[0] + "\n"))
    prompt = None if end is None else renderer.encoder.encode_pieces([end], [True])[0].tolist()
    tools = rng.choice((None, TOOLS)) if renderer.calls else None
    events, result = streamed(renderer, chunks_of(rng, ids), prompt, tools)
    assert result == renderer.parse_response(ids, tools=tools, prompt_ids=prompt)
    check_events(events, result)


@families
def test_streams_of_damaged_completions(family: str) -> None:
    check_streams(renderer_of(family), family, -(-IN_ALL // len(FAMILIES)), seed=5)


@conversations(12, 300)
@pytest.mark.parametrize("name", PARSER_OF)
def test_streams_read_by_parsers_of_templates(name: str, number: int) -> None:
    check_streams(by_template(name), name, number, seed=7)


CALLS = (
    *('{"name": "f", "arguments": {"a": 1}}', '{"f": {"a": 1}}', 'f(a="b")', "f", '{"a": 1}', "<function=f>", "[", "]"),
    *("f(a=('x\\", 3 * "'" + "x", ")", 'call:f{a:<|"|>', "call:f{a:[1,", ", ", "\n", "a"),
)


@conversations(2, 60)
@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_streams_of_all_parsers(name: str, number: int) -> None:
    """Random texts made of a dialect's tags and of calls, in tokens of another model."""
    rng = random.Random(name)
    for reasoning, kind in REASONING_PARSERS.items():
        renderer = by_template("qwen3", tool_parser=name, reasoning_parser=reasoning)
        dialect = renderer.calls
        assert dialect is not None
        closing = [tag for tag in getattr(dialect, "__dict__", {}).values() if isinstance(tag, str) and tag]
        pieces = [*kind.tags, *[dialect.opening] * 3, *closing, *CALLS, *CALLS, *TEXTS]
        for _ in range(number):
            text = "".join(rng.choices(pieces, k=rng.randint(1, 9)))
            scaffold = rng.random() < 0.7  # else the tags are spelled
            check_stream(renderer, rng, renderer.encoder.encode_pieces([text], [scaffold])[0].tolist())


@conversations(20, 600)
@pytest.mark.parametrize("name", WRITTEN)
def test_streams_of_damaged_completions_of_families_by_template(name: str, number: int) -> None:
    """What these models write, damaged; the tokenizer has all their tags."""
    renderer, rng = tags_reader(name), random.Random(name)
    written = WRITTEN[name].replace('"x"', "'x\\''").replace("1", "(1, {'é': 2})")
    encode, every = renderer.encoder.encode_pieces, range(renderer.encoder.vocab_size)
    stock = Stock(
        [encode([text], [True])[0].tolist() for text in (WRITTEN[name], "a" + WRITTEN[name], written)],
        [*renderer.encoder.added_ids.values()],
        [token for token, held in zip(every, renderer.encoder.token_bytes(every), strict=True) if len(held) == 1],
        [encode([text], [False])[0].tolist() for text in (*TEXTS, *CALLS, *TAGS)],
        len(every),
    )
    for _ in range(number):
        check_stream(renderer, rng, damaged(rng, stock))


@conversations(12, 200)
@families
def test_a_growing_completion_has_the_places_of_a_whole_one(family: str, number: int) -> None:
    rng, stock, encoder = random.Random(family), stock_of(family), renderer_of(family).encoder
    stops = renderer_of(family).get_stop_token_ids()
    for _ in range(number):
        ids = damaged(rng, stock)
        whole, growing = Completion(encoder, ids, stops), GrowingCompletion(encoder, stops)
        for token in ids:
            growing.append(token)
        growing.end()
        assert (growing.text, growing.ids, growing.stopped) == (whole.text, whole.ids, whole.stopped)
        for _ in range(20 if whole.ids else 0):
            start, stop = sorted(rng.randint(0, len(whole.text)) for _ in range(2))
            first, last = growing.span(start, stop)
            assert (first, last) == whole.span(start, stop)
            assert whole.text[start:stop].encode("utf-8", "surrogateescape") in bytes_of(
                renderer_of(family), ids[first:last]
            )
            for marker in rng.choices([*encoder.added_ids, "a "], k=3):
                assert growing.find(marker, start) == whole.find(marker, start)


# ---- how soon


PLAIN = "A longer answer, which has no markup at all, in one paragraph of some length."


@families
def test_a_plain_answer_is_reported_at_once(family: str) -> None:
    """Behind its own prompt, a text lags at most two characters behind the tokens, be it reasoning or content."""
    renderer = renderer_of(family)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": PLAIN}]
    served, said = served_and_said(renderer, turns, None)
    parser, told, lags = renderer.stream(served), "", []
    for at, token in enumerate(said):
        told += "".join(e.text for e in parser.feed([token]) if isinstance(e, ReasoningDelta | ContentDelta))
        sampled = renderer.encoder.decode(said[: at + 1])
        if PLAIN[:20] in sampled and PLAIN not in sampled:
            lags.append(len(sampled) - sampled.index(PLAIN[:20]) - len(told))
    assert PLAIN in told
    assert lags
    assert max(lags) <= 2


CALLERS = [name for name, kind in FAMILIES.items() if kind.calls is not None]
LONG = "word " * 30


def long_call(family: str, times: int = 1, content: str = "") -> tuple[Ids, Ids]:
    """The prompt and the ids of a turn with one call, whose first argument is long."""
    call = {"id": "123456789", "function": {"name": "get_weather", "arguments": {"city": LONG * times, "days": 1}}}
    if "kimi" in family:
        call["id"] = "functions.get_weather:0"
    turn = {"role": "assistant", "content": content, "tool_calls": [call]}
    if TOKENS[family].opens_block:  # without reasoning, the call would be in the block that the prompt opens
        turn["reasoning_content"] = "hm"
    return served_and_said(renderer_of(family), [{"role": "user", "content": "a"}, turn], TOOLS)


def check_reported_as_it_comes(renderer: Any, served: Ids | None, said: Ids) -> None:
    """The name comes before the arguments, and long arguments in many parts, before the call closes."""
    parser, opened, named, deltas, closed = renderer.stream(served, tools=TOOLS), -1, -1, [], -1
    seen = []
    for at, token in enumerate(said):
        for event in parser.feed([token]):
            opened = at if isinstance(event, CallOpened) else opened
            named = at if isinstance(event, CallName) else named
            closed = at if isinstance(event, CallClosed) else closed
            deltas += [at] * isinstance(event, ArgumentDelta)
        seen += [parser.calls[0].partial_arguments] if parser.calls else []
    assert 0 <= opened <= named < min(deltas) + 1 < closed
    assert len(set(deltas)) > 20
    cities = [part["city"] for part in seen if part and "city" in part]
    assert cities == sorted(cities, key=len)
    assert len(set(cities)) > 20
    (call,) = parser.result().tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": LONG, "days": 1})


@pytest.mark.parametrize("family", CALLERS)
def test_calls_are_reported_as_they_come(family: str) -> None:
    """Of every family that knows calls; there is no exception."""
    check_reported_as_it_comes(renderer_of(family), *long_call(family))


# A long call as a model writes it, where no family has the dialect of a tool parser.
LONG_CALLS = {
    "seed-oss": "<seed:tool_call>\n<function=get_weather>\n<parameter=city>LONG</parameter>\n<parameter=days>1"
    "</parameter>\n</function>\n</seed:tool_call>",
    "hunyuan": '<tool_calls>[{"name": "get_weather", "arguments": {"city": "LONG", "days": 1}}]</tool_calls>',
    "command-a": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
    '{"city": "LONG", "days": 1}}\n]<|END_ACTION|>',
    "apertus": '<|tools_prefix|>[{"get_weather": {"city": "LONG", "days": 1}}]<|tools_suffix|>',
    "lfm2": "<|tool_call_start|>[get_weather(city='LONG', days=1)]<|tool_call_end|>",
    "gemma-4": '<|tool_call>call:get_weather{city:<|"|>LONG<|"|>,days:1}<tool_call|>',
    "llama-4": '<|python_start|><|python_end|>{"name": "get_weather", "parameters": {"city": "LONG", "days": 1}}',
    "olmo-3": '<function_calls>get_weather(city="LONG", days=1)</function_calls>',
}


def named_call(parser: str, times: int = 1) -> tuple[TemplateRenderer, Ids | None, Ids]:
    """A renderer by template with a tool parser, a prompt where one matters, and a turn with one long call."""
    family = next((family for family, name in PARSER_OF.items() if name == parser), None)
    if family is not None:
        return by_template(family), *long_call(family, times)
    if TOOL_PARSERS[parser] is TOOL_PARSERS["hermes"]:
        return by_template("qwen3", tool_parser=parser), *long_call("qwen3", times)
    renderer = tags_reader(parser)
    text = LONG_CALLS[parser].replace("LONG", LONG * times)
    return renderer, None, renderer.encoder.encode_pieces([text], [True])[0].tolist()


@pytest.mark.parametrize("parser", TOOL_PARSERS)
def test_parsers_report_calls_as_they_come(parser: str) -> None:
    """Of every parser; there is no exception."""
    check_reported_as_it_comes(*named_call(parser))


def calls_of_functions(renderer: Any, served: Ids | None, said: Ids) -> float:
    """How many functions are called for a token."""
    parser, number = renderer.stream(served), 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for token in said:
            parser.feed([token])
    finally:
        sys.setprofile(None)
    return number / len(said)


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "glm-5", "kimi-k2", "minimax-m2", "deepseek-v3", "gpt-oss"])
def test_the_work_for_a_token_does_not_grow(family: str) -> None:
    """Four times the tokens take four times the calls of functions, whatever the text is within."""

    def work(times: int) -> float:
        content = "" if family == "gpt-oss" else "a b " * 100 * times
        return calls_of_functions(renderer_of(family), *long_call(family, 2 * times, content))

    assert work(4) < 1.1 * work(1)


@pytest.mark.parametrize("parser", LONG_CALLS)
def test_the_work_for_a_token_does_not_grow_by_parser(parser: str) -> None:
    assert calls_of_functions(*named_call(parser, 8)) < 1.1 * calls_of_functions(*named_call(parser, 2))


def test_the_work_for_a_malformed_call_does_not_grow() -> None:
    """Where no JSON begins, what came before it is not looked at, as the error of Python's decoder does."""
    renderer = renderer_of("qwen3")
    openings = renderer.encoder.encode_pieces(["<tool_call>"], [True])[0].tolist() * 3
    completion = Completion(renderer.encoder, openings, renderer.get_stop_token_ids())
    with pytest.raises(ValueError, match="no JSON value begins here"):
        json_value_at(completion, len("<tool_call>"))
    assert len(renderer.parse_response(openings).tool_calls) == 3


@pytest.mark.parametrize("name", [*CALLERS, *LONG_CALLS])
def test_the_memory_for_a_token_does_not_grow(name: str) -> None:
    """No token of a call copies what came before it, which no count of functions shows."""
    renderer, served, said = named_call(name, 80) if name in LONG_CALLS else (renderer_of(name), *long_call(name, 80))
    parser, used = renderer.stream(served), []
    parser.feed(said[: len(said) // 2])
    tracemalloc.start()
    try:
        for token in said[len(said) // 2 :][:200]:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            parser.feed([token])
            used.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert median(used) < len(LONG * 80) / 4


@pytest.mark.slow
@families
def test_many_more_streams(family: str) -> None:
    check_streams(renderer_of(family), family, 3000, seed=6)
