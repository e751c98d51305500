"""Laguna's raw mode, in which an assistant's content is its completion."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
from tests.renderers.tiny_families import renderer_of

ASKED = {"role": "user", "content": "a"}


def turn(content: str, **options: Any) -> list[tuple[str, bool]]:
    """The pieces of an assistant's raw turn, and whether they are sampled."""
    renderer = renderer_of("laguna-xs.2", ("render_assistant_messages_raw", True), *options.items())
    pieces = renderer.emit([ASKED, {"role": "assistant", "content": content}]).pieces()
    return [(piece.text, piece.sampled) for piece in pieces if piece.msg == 1 and piece.text]


@pytest.mark.parametrize(
    ("content", "thinks", "expected"),
    [
        ("b", False, ["<assistant>\n", "</think>", "+b", "+\n", "+</assistant>", "\n"]),
        ("</think>b", False, ["<assistant>\n", "</think>", "+b", "+\n", "+</assistant>", "\n"]),
        ("b\n</assistant>", False, ["<assistant>\n", "</think>", "+b\n", "+</assistant>", "\n"]),
        ("b</assistant>\n", False, ["<assistant>\n", "</think>", "+b", "+</assistant>", "\n\n"]),
        ("b\n", False, ["<assistant>\n", "</think>", "+b\n", "+\n", "+</assistant>", "\n"]),
        ("", False, ["<assistant>\n", "</think>", "+\n", "+</assistant>", "\n"]),
        ("<think>r</think>b", True, ["<assistant>\n", "<think>", "+r</think>b", "+\n", "+</assistant>", "\n"]),
        ("r</think>b", True, ["<assistant>\n", "<think>", "+r</think>b", "+\n", "+</assistant>", "\n"]),
    ],
)
def test_raw_contents(content: str, thinks: bool, expected: list[str]) -> None:
    assert ["+" * sampled + text for text, sampled in turn(content, enable_thinking=thinks)] == expected


def test_raw_turns_write_neither_calls_nor_reasoning_beside_the_content() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    plain = {"role": "assistant", "content": "r</think><tool_call>f\n</tool_call>"}
    parsed = plain | {"reasoning_content": "r", "tool_calls": [call]}
    result = {"role": "tool", "content": "4"}
    renderer = renderer_of("laguna-xs.2", ("render_assistant_messages_raw", True), ("enable_thinking", True))
    assert renderer.text([ASKED, parsed]) == renderer.text([ASKED, plain])
    assert "<tool_response>\n4\n</tool_response>" in renderer.text([ASKED, parsed, result])
