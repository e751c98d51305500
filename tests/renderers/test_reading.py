"""What holds when completions are read and bridged: for every family, clean and cut (damaged: `test_damage`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.completions.parsed import ParsedToolCall, ToolCallParseStatus
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES
from tests.renderers.chats import TOOLS, plain_text
from tests.renderers.damage import check_reading
from tests.renderers.sweeps import Options, answered, cases, families, nfc, reasons, served_and_said, text_of
from tests.renderers.tiny_families import TOKENS, renderer_of

# ---- reading


@cases
def test_completions_are_read_back(family: str, options: Options) -> None:
    if dict(options).get("render_assistant_messages_raw"):
        pytest.skip("contents are completions")
    renderer = renderer_of(family, *options)
    for messages, tools in answered(family, 20, seed=1):
        _, said = served_and_said(renderer, messages, tools)
        for ids in (said, [*said, renderer.get_stop_token_ids()[-1], *said]):  # nothing behind a stop is read
            parsed = renderer.parse_response(ids, tools=TOOLS)
            reasoning, content = expected_texts(family, messages[-1])
            if family in TOKENS and TOKENS[family].empties and not keeps_reasoning(options, messages[-1]):
                reasoning = ""
            if family.startswith("deepseek-v4") and not dict(options).get("thinking", True):
                reasoning = ""  # outside of thinking mode there is no place for it
            assert_same(nfc(family, content), parsed.content)
            assert_same(nfc(family, reasoning), parsed.reasoning_content or "")
            assert parsed.reasoning_content != ""
            check_calls(renderer, family, messages[-1], parsed.tool_calls, ids)


def assert_same(written: str, read: str) -> None:
    """Equal up to white space at the ends, which formats strip, and equal where there is none."""
    assert read.strip() == written.strip()
    assert read == written or written != written.strip()


def expected_texts(family: str, message: dict[str, Any]) -> tuple[str, str]:
    """Reasoning and content, told apart without the package."""
    content, reasoning = plain_text(message["content"]), message.get("reasoning_content") or ""
    if isinstance(message["content"], list) and family in FAMILIES and "assistant" not in FAMILIES[family].parts:
        texts = [part["text"] for part in message["content"] if part.get("text")]
        content = "\n".join(texts)  # as servers join the parts for such formats
    if family in TOKENS and TOKENS[family].content_as_reasoning and message.get("tool_calls"):
        return reasoning or content, ""
    if "</think>" in content and reasons(family):
        before, _, content = content.rpartition("</think>")
        reasoning = before.removeprefix("<think>")
    if reasons(family):
        return reasoning, content
    if family == "kimi-k2" and "</think>" in content:  # its template does not know the tags, its reader does
        before, _, content = content.rpartition("</think>")
        return before.removeprefix("<think>"), content
    return "", content


def keeps_reasoning(options: Options, message: dict[str, Any]) -> bool:
    """Kimi writes the reasoning of a turn that calls; an answer is history at once."""
    given = dict(options)
    preserved = given.get("preserve_all_thinking") or given.get("preserve_thinking_between_tool_calls")
    return bool(preserved or (message.get("tool_calls") and given.get("thinking", True)))


def check_calls(
    renderer: Family, family: str, message: dict[str, Any], read: list[ParsedToolCall], ids: list[int]
) -> None:
    asked = message.get("tool_calls") or []
    assert len(read) == len(asked)
    end = 0
    for call, parsed in zip(asked, read, strict=True):
        arguments = call["function"]["arguments"]
        assert parsed.status is ToolCallParseStatus.OK
        assert parsed.name == call["function"]["name"]
        expected = json.loads(arguments) if isinstance(arguments, str) else arguments
        assert parsed.arguments == json.loads(nfc(family, json.dumps(expected, ensure_ascii=False)))
        opening, closing = TOKENS[family].call
        start, stop = parsed.token_span or (-1, -1)
        assert end <= start < stop <= len(ids)
        own = text_of(renderer, ids[start:stop])
        assert (own if opening else own.strip(" ,]")) == opening + parsed.raw + closing
        end = stop
        if parsed.id is not None:
            assert parsed.id == call["id"]


@families
def test_texts_in_arguments_may_hold_any_tag(family: str) -> None:
    """JSON tells where it ends, so that a call about tags is read whole; formats of bare values cannot tell."""
    if family not in ("qwen2.5", "qwen3", "deepseek-v3"):
        pytest.skip("values stand bare, or between tags alone")
    renderer = renderer_of(family)
    for tag in renderer.encoder.added_ids:
        call = {"function": {"name": "get_weather", "arguments": {"city": f"a {tag} b", "days": 1}}}
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call, call]},
        ]
        _, said = served_and_said(renderer, messages, TOOLS)
        read = renderer.parse_response(said).tool_calls
        assert [one.arguments for one in read] == [call["function"]["arguments"]] * 2, tag


@families
def test_cut_completions_are_read_as_far_as_they_go(family: str) -> None:
    """Every prefix of a completion: no error, and content and reasoning only grow as the model speaks."""
    renderer = renderer_of(family).lists_unwritten()
    for messages, tools in answered(family, 5, seed=2):
        _, said = served_and_said(renderer, messages, tools)
        for length in range(0, len(said), max(1, len(said) // 40)):
            parsed = renderer.parse_response(said[:length], tools=tools)
            check_reading(renderer, said[:length], parsed)
            finished = [call for call in parsed.tool_calls if call.status is ToolCallParseStatus.OK]
            assert len(finished) <= len(messages[-1].get("tool_calls") or [])
            if family in TOKENS and TOKENS[family].call[0]:
                opened, closed = (text_of(renderer, said[:length]).count(tag) for tag in TOKENS[family].call)
                assert len(finished) == closed
                last = parsed.tool_calls[-1].status if opened > closed else None
                assert last in (None, ToolCallParseStatus.UNCLOSED_BLOCK)
                cut = [call.status for call in parsed.tool_calls[opened:]]  # a section that was cut before its calls
                assert cut in ([], [ToolCallParseStatus.UNCLOSED_BLOCK])
                assert not (cut and opened)


# ---- particular completions
