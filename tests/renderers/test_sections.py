"""Calls in sections of their own: DeepSeek's cycles beside its template, MiniMax's block, both read when damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.parsers import get_tool_parser
from niels_gpt.renderers.registry import FAMILIES, config_of
from tests.assets import ASSETS, needs_assets
from tests.renderers.chats import TOOLS
from tests.renderers.test_template import official
from tests.renderers.tiny_families import renderer_of

ASKED = {"role": "user", "content": "a"}


def asking(*names: str, content: str | None = None) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": name, "arguments": '{"k": 1}'}} for name in names]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


# ---- DeepSeek V3, whose template is right about calls in one case, and not available through Transformers 5


def deepseek_template(messages: Any, gen: bool) -> str:
    """The official template, with `content: None` kept, which Transformers 5 drops."""
    jinja2 = pytest.importorskip("jinja2")
    held = json.loads((ASSETS / "deepseek-v3" / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(held["chat_template"])
    return str(template.render(messages=messages, add_generation_prompt=gen, bos_token="<｜begin▁of▁sentence｜>"))


@needs_assets
@pytest.mark.parametrize("gen", [False, True])
def test_deepseeks_first_two_calls_are_as_in_its_template(gen: bool) -> None:
    cycle = [ASKED, asking("f", "g"), result("x"), result("y")]
    answered = [*cycle, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    renderer = renderer_of("deepseek-v3")
    for messages in (cycle[:2], cycle[:3], cycle, answered):
        if len(messages) == 2 and gen:
            continue  # a header behind calls that nobody answered
        ours = renderer.text(messages, add_generation_prompt=gen)
        assert ours == deepseek_template(messages, gen)


@needs_assets
@pytest.mark.parametrize(
    ("messages", "lost"),
    [
        ([ASKED, asking("f")], "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"),
        ([ASKED, asking("f", content="b")], "<｜tool▁calls▁begin｜>"),
        ([ASKED, asking("f", "g"), result("x"), ASKED], "<｜tool▁outputs▁end｜>"),
        ([*([ASKED, asking("f", "g"), result("x"), result("y")] * 2)], "<｜tool▁outputs▁begin｜>"),
    ],
    ids=["one call", "beside a content", "a user behind results", "a second cycle"],
)
def test_what_deepseeks_template_loses(messages: Any, lost: str) -> None:
    """Were the template repaired, these would fail, and ours be compared with it."""
    ours, theirs = renderer_of("deepseek-v3").text(messages), deepseek_template(messages, False)
    assert ours.count(lost) == theirs.count(lost) + 1


# ---- MiniMax M2's system block


@needs_assets
@pytest.mark.parametrize("content", ["s", "", None])
def test_minimaxs_system_block(content: str | None) -> None:
    """What the model is told of time and place, and who it is where nobody says so."""
    system = {"role": "system", "content": content, "current_date": "2026-01-01", "current_location": "Oslo"}
    folder = ASSETS / "minimax-m2.5"
    for identity in ({}, {"model_identity": "You are M2."}):
        config: Any = config_of({"name": "minimax-m2", **identity})
        renderer = FAMILIES["minimax-m2"](folder, config)
        for messages in ([system, ASKED], [ASKED]):
            for tools in (None, TOOLS):
                expected = official(folder).apply_chat_template(messages, tools=tools, tokenize=False, **identity)
                assert renderer.text(messages, tools=tools) == expected


# ---- reading


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ('<invoke name="f">\n</invoke>\n', [("f", {}, Status.OK)]),
        ('<invoke name="f"><parameter name="k">1</parameter></invoke>', [("f", {"k": 1}, Status.OK)]),
        ('<invoke name="f">\n<parameter name="k">a\nb</parameter>\n</invoke>', [("f", {"k": "a\nb"}, Status.OK)]),
        ('<invoke name="">\n</invoke>', [(None, {}, Status.MISSING_NAME)]),
        ('<invoke name="f\n</invoke>', [(None, {}, Status.MALFORMED_STRUCTURE)]),
        ('<invoke name="f">\nno\n</invoke>', [("f", {}, Status.MALFORMED_STRUCTURE)]),
        ('<invoke name="f">\n<parameter name="k">1', [("f", {}, Status.UNCLOSED_BLOCK)]),
        ('<invoke name="f">\n<invoke name="g">\n</invoke>', [("f", {}, Status.UNCLOSED_BLOCK), ("g", {}, Status.OK)]),
        ('<invoke name="f">\n<parameter name="k"><invoke name="g"></parameter>\n</invoke>',
         [("f", {"k": '<invoke name="g">'}, Status.OK)]),
    ],
)  # fmt: skip
def test_invocations(inside: str, expected: list[tuple[str | None, Any, Status]]) -> None:
    assert read("minimax-m2", f"r</think>b\n<minimax:tool_call>\n{inside}</minimax:tool_call>") == ("b", expected)


@pytest.mark.parametrize("tag", ["<minimax:tool_call>", "</minimax:tool_call>", "</think>"])
def test_invocations_about_tags(tag: str) -> None:
    inside = f'<invoke name="f">\n<parameter name="k">a {tag}</parameter>\n</invoke>\n'
    text = f"r</think><minimax:tool_call>\n{inside}{inside}</minimax:tool_call>"
    assert read("minimax-m2", text) == ("", [("f", {"k": f"a {tag}"}, Status.OK)] * 2)


_CALL, _SEP, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (f"{_CALL}function{_SEP}f\n```json\n{{}}\n```{_END}", [("f", {}, Status.OK)]),
        (f'{_CALL}function{_SEP}f\n```\n{{"k": [1]}}```\n{_END}\n', [("f", {"k": [1]}, Status.OK)]),
        (f"{_CALL}function{_SEP}\n```json\n{{}}\n```{_END}", [(None, {}, Status.MISSING_NAME)]),
        (f"{_CALL}function{_SEP}f\n```json\n[1]\n```{_END}", [("f", "[1]", Status.MALFORMED_STRUCTURE)]),
        (f"{_CALL}function{_SEP}f\n```json\n{{\n```{_END}", [("f", None, Status.INVALID_JSON)]),
        (f"{_CALL}function{_SEP}f\n{{}}{_END}", [(None, None, Status.MALFORMED_STRUCTURE)]),
        (f"{_CALL}f{_END}", [(None, None, Status.MALFORMED_STRUCTURE)]),
        (f"{_CALL}function{_SEP}f\n```json\n{{}}\n", [("f", None, Status.UNCLOSED_BLOCK)]),
        (f"{_CALL}function{_SEP}f\n```json\n" + "[" * 100_000, [("f", None, Status.UNCLOSED_BLOCK)]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_fenced_calls(inside: str, expected: list[tuple[str | None, Any, Status]]) -> None:
    text = f"b<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>c"
    assert read("deepseek-v3", text) == ("bc", expected)


def test_every_section_is_read() -> None:
    one, two = (f"{_CALL}function{_SEP}{name}\n```json\n{{}}\n```{_END}" for name in "fg")
    text = f"a<｜tool▁calls▁begin｜>{one}<｜tool▁calls▁begin｜>{two}<｜tool▁calls▁end｜>b<｜tool▁calls▁begin｜>{one}"
    content, calls = read("deepseek-v3", text)
    assert content == "ab"
    assert [name for name, _, _ in calls] == ["f", "g", "f"]


@pytest.mark.parametrize(
    ("family", "parser"), [("laguna-xs.2", "glm"), ("minimax-m2", "minimax-m2"), ("deepseek-v3", "deepseek-v3")]
)
def test_parsers_by_name_read_what_families_write(family: str, parser: str) -> None:
    renderer = renderer_of(family)
    arguments = {"city": "ü\nb", "days": 2, "more": [1, {"x": None}]}
    call = {"function": {"name": "f", "arguments": arguments}}
    pieces = renderer.emit([ASKED, {"role": "assistant", "content": "b", "tool_calls": [call, call]}]).pieces()
    said = [piece for piece in pieces if piece.msg == 1 and piece.sampled]
    ids = renderer.encoder.encode_pieces([p.text for p in said], [p.scaffold for p in said])[0].tolist()
    rest, calls = get_tool_parser(parser, renderer.encoder).extract(ids[:-1])
    assert [(one.name, one.arguments, one.status) for one in calls] == [("f", arguments, Status.OK)] * 2
    assert renderer.encoder.decode(rest).strip() == "b"


def read(family: str, text: str) -> tuple[str, list[tuple[str | None, Any, Status]]]:
    renderer = renderer_of(family)
    ids = renderer.encoder.encode_pieces([text], [True])[0].tolist()
    parsed = renderer.parse_response(ids)
    return parsed.content, [(call.name, call.arguments, call.status) for call in parsed.tool_calls]
