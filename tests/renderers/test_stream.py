"""A completion that is read as it is sampled is read as `parse_response` reads it, however it comes in chunks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.completions.parsed import (
    CallClosed,
    ContentDelta,
    Event,
    ParsedResponse,
    ReasoningDelta,
    Stopped,
)
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.parsers import REASONING_PARSERS, TOOL_PARSERS
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.chats import TOOLS
from tests.renderers.damage import TEXTS, Ids, damaged, stock_of
from tests.renderers.sweeps import conversations, families, served_and_said
from tests.renderers.test_parsers import PARSER_OF, by_template
from tests.renderers.tiny_families import TOKENS, renderer_of

IN_ALL = 600  # damaged completions, over all families together


def chunks_of(rng: random.Random, ids: Ids) -> list[Ids]:
    """One token at a time, all at once, or anything between."""
    if rng.random() < 0.6:
        return [[token] for token in ids]
    cuts = sorted(rng.randint(0, len(ids)) for _ in range(rng.randint(0, 5)))
    return [ids[lo:hi] for lo, hi in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def streamed(renderer: Any, chunks: Sequence[Ids], prompt: Ids | None, tools: Any) -> tuple[list[Event], Any]:
    parser = renderer.stream(prompt, tools=tools)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return [*events, *parser.finish()], parser.result()


def check_events(events: list[Event], result: ParsedResponse) -> None:
    """What the events tell is what the result holds."""
    assert [type(event) for event in events].count(Stopped) == 1
    assert isinstance(events[-1], Stopped)
    joined = {kind: "".join(e.text for e in events if isinstance(e, kind)) for kind in (ReasoningDelta, ContentDelta)}
    assert joined[ContentDelta] == result.content
    assert joined[ReasoningDelta] == (result.reasoning_content or "")
    assert not any(isinstance(event, ReasoningDelta | ContentDelta) and not event.text for event in events)
    calls = [(event.index, event.call) for event in events if isinstance(event, CallClosed)]
    assert calls == [*enumerate(result.tool_calls)]


def check_streams(renderer: Family | TemplateRenderer, name: str, number: int, seed: int) -> None:
    rng, stock = random.Random(f"{name} {seed}"), stock_of(name)
    for _ in range(number):
        check_stream(renderer, rng, damaged(rng, stock) if rng.random() < 0.7 else rng.choice(stock.completions))


def check_stream(renderer: Family | TemplateRenderer, rng: random.Random, ids: Ids) -> None:
    """A completion in some division into chunks, with or without a stop, tools and a prompt."""
    if rng.random() < 0.5:
        ids = [*ids, renderer.get_stop_token_ids()[0], *ids[:3]]
    end = rng.choice((None, "a", renderer.reasoning_tags[0] + "\n"))
    prompt = None if end is None else renderer.encoder.encode_pieces([end], [True])[0].tolist()
    tools = rng.choice((None, TOOLS)) if renderer.calls else None
    events, result = streamed(renderer, chunks_of(rng, ids), prompt, tools)
    whole = renderer.parse_response(ids, tools=tools, prompt_ids=prompt)
    assert (result, result.pieces) == (whole, whole.pieces)
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
    for reasoning in REASONING_PARSERS:
        renderer = by_template("qwen3", tool_parser=name, reasoning_parser=reasoning)
        dialect = renderer.calls
        assert dialect is not None
        pieces = [
            *renderer.reasoning_tags,
            *[dialect.opening] * 3,
            *dialect.marks,
            *dialect.ends,
            *CALLS,
            *CALLS,
            *TEXTS,
        ]
        for _ in range(number):
            text = "".join(rng.choices(pieces, k=rng.randint(1, 9)))
            scaffold = rng.random() < 0.7  # else the tags are spelled
            check_stream(renderer, rng, renderer.encoder.encode_pieces([text], [scaffold])[0].tolist())


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


def calling(family: str, calls: int, words: int) -> tuple[Ids, Ids]:
    """The prompt and the ids of a turn with calls, whose first argument is long."""
    arguments = {"city": "word " * words, "days": 1}
    ids = [f"functions.get_weather:{at}" if "kimi" in family else f"{at:09d}" for at in range(calls)]
    asked = [{"id": each, "function": {"name": "get_weather", "arguments": arguments}} for each in ids]
    turn = {"role": "assistant", "content": "", "tool_calls": asked}
    if TOKENS[family].opens_block:  # without reasoning, the call would be in the block that the prompt opens
        turn["reasoning_content"] = "hm"
    return served_and_said(renderer_of(family), [{"role": "user", "content": "a"}, turn], TOOLS)


@pytest.mark.parametrize("family", CALLERS)
def test_a_call_is_reported_when_it_closes(family: str) -> None:
    """The first of two, before the second has ended; of formats with one call a turn, with its stop."""
    number = 1 if TOKENS[family].holds.get("one_call") else 2
    served, said = calling(family, number, 30)
    parser = renderer_of(family).stream(served, tools=TOOLS)
    closed = [at for at, token in enumerate(said) for e in parser.feed([token]) if isinstance(e, CallClosed)]
    result = parser.result()
    spans = [call.token_span or (0, 0) for call in result.tool_calls]
    assert len(closed) == number
    assert closed[0] <= spans[0][1] + (1 if number > 1 else 0)
