"""A completion that is read as it is sampled is read as `parse_response` reads it, however it comes in chunks."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.events import (
    ArgumentDelta,
    CallClosed,
    CallName,
    CallOpened,
    ContentDelta,
    Event,
    ReasoningDelta,
    Stopped,
)
from niels_gpt.renderers.parsing import ParsedResponse, ToolCallParseStatus
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.chats import TOOLS
from tests.renderers.damage import Ids, damaged, stock_of
from tests.renderers.sweeps import families
from tests.renderers.test_parsers import PARSER_OF, by_template
from tests.renderers.tiny_families import renderer_of

IN_ALL = 4000  # damaged completions, over all families together


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
    prompts = [None, *(renderer.encoder.encode_pieces([end], [True])[0].tolist() for end in ("a", "<think>\n"))]
    for _ in range(number):
        ids = damaged(rng, stock) if rng.random() < 0.9 else rng.choice(stock.completions)
        if rng.random() < 0.5:
            ids = [*ids, renderer.get_stop_token_ids()[0], *ids[:3]]
        tools, prompt = rng.choice((None, TOOLS)) if renderer.calls else None, rng.choice(prompts)
        events, result = streamed(renderer, chunks_of(rng, ids), prompt, tools)
        assert result == renderer.parse_response(ids, tools=tools, prompt_ids=prompt)
        check_events(events, result)


@families
def test_streams_of_damaged_completions(family: str) -> None:
    check_streams(renderer_of(family), family, -(-IN_ALL // len(FAMILIES)), seed=5)


@pytest.mark.parametrize("name", PARSER_OF)
def test_streams_read_by_parsers_of_templates(name: str) -> None:
    check_streams(by_template(name), name, 40, seed=7)


@pytest.mark.slow
@families
def test_many_more_streams(family: str) -> None:
    check_streams(renderer_of(family), family, 3000, seed=6)
