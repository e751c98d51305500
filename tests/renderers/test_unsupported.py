"""Fields that a format has no place for are found, in every family and in templates."""

from __future__ import annotations

from typing import Any

import pytest

from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.renderers.unsupported import UnsupportedField, UnsupportedFields
from tests.assets import ASSETS, needs_assets
from tests.renderers.small import CHATML, assistant, call, family, result, user
from tests.renderers.tiny_families import TOKENS, folder_of, renderer_of

THOUGHT = [user(), assistant(reasoning_content="the lazy dog")]
TOOLS = [{"type": "function", "function": {"name": "get", "description": "d", "parameters": {"type": "object"}}}]


def found(renderer: Any, messages: list[dict[str, Any]], tools: Any = None) -> list[str]:
    return [str(field) for field in UnsupportedFields(renderer).of(messages, tools)]


@pytest.mark.parametrize("name", TOKENS)
def test_reasoning_is_found_where_the_text_of_the_rendering_has_none(name: str) -> None:
    """Checked against what the family writes, not against what the probe says."""
    renderer = renderer_of(name)
    written = "the lazy dog" in renderer.text(THOUGHT)

    # Kimi's templates keep the reasoning of calls, and empty the block of an answer, also of the last one.
    assert written == (TOKENS[name].reasons and not TOKENS[name].empties)
    assert UnsupportedFields(renderer).writes_reasoning == written
    assert found(renderer, THOUGHT) == ([] if written else ["message 1: reasoning_content"])


@pytest.mark.parametrize(
    ("name", "options"),
    [("kimi-k2.5", {"thinking": False}), ("laguna-xs.2", {"render_assistant_messages_raw": True})],
)
def test_an_option_that_takes_the_place_of_reasoning_away(name: str, options: dict[str, bool]) -> None:
    assert not UnsupportedFields(renderer_of(name, *options.items())).writes_reasoning


def test_reasoning_beside_calls_is_a_case_of_its_own() -> None:
    renderer = renderer_of("kimi-k2.5")

    assert found(renderer, [user(), assistant("", tool_calls=[call()], reasoning_content="why")]) == []
    kept = renderer_of("kimi-k2.5", ("preserve_all_thinking", True))
    assert found(kept, THOUGHT) == []


def test_reasoning_under_its_other_names() -> None:
    for key in ("thinking", "reasoning"):
        assert found(renderer_of("llama-3"), [user(), assistant(**{key: "x"})]) == ["message 1: reasoning_content"]


def test_reasoning_that_is_dropped_from_history_alone_has_a_place() -> None:
    assert found(renderer_of("qwen3"), [*THOUGHT, user(), assistant()]) == []


WITHOUT_TOOLS = ("deepseek-v3", "deepseek-r1", "deepseek-r1-0528")  # they have calls all the same


@pytest.mark.parametrize("name", [name for name in TOKENS if TOKENS[name].holds.get("tools", True)])
def test_calls_are_written_by_every_family_that_takes_them_and_tools_by_nearly_all(name: str) -> None:
    number = TOKENS[name].holds.get("call_id", lambda name, number: f"functions.{name}:{number}")("get", 0)
    calls = [{**call(), "id": number}]
    chat = [user(), assistant("", tool_calls=calls), {**result(), "tool_call_id": number}, assistant()]

    assert found(renderer_of(name), chat, TOOLS) == (["tools"] if name in WITHOUT_TOOLS else [])


def test_a_template_that_looks_at_contents_alone() -> None:
    renderer = family("template")
    chat = [user(name="Anna"), assistant("beside", tool_calls=[call()], reasoning_content="why"), result(), assistant()]

    assert UnsupportedFields(renderer).of(chat, TOOLS) == [
        UnsupportedField("tools", -1),
        UnsupportedField("name", 0),
        UnsupportedField("reasoning_content", 1),
        UnsupportedField("tool_calls", 1),
    ]


def test_a_template_that_writes_calls_without_the_text_beside_them() -> None:
    template = CHATML.replace(
        "m.content", "(m.tool_calls[0].function.name if m.tool_calls is defined else (m.content or ''))"
    )
    renderer = TemplateRenderer(folder_of("qwen3"), template=template)

    assert found(renderer, [user(), assistant("beside", tool_calls=[call()])]) == ["message 1: content"]
    assert found(renderer, [user(), assistant("", tool_calls=[call()])]) == []


def test_a_template_that_wants_a_system_message_is_asked_with_one() -> None:
    template = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML

    assert not UnsupportedFields(TemplateRenderer(folder_of("qwen3"), template=template)).writes_reasoning


def test_a_format_that_refuses_the_field_is_left_to_its_own_error() -> None:
    renderer = renderer_of("ngpt")

    assert found(renderer, THOUGHT) == []


def test_texts_alone_cost_no_probe() -> None:
    class Never:
        def render(self, messages: Any, *, tools: Any = None) -> Any:
            raise AssertionError("nothing to ask")

    assert UnsupportedFields(Never()).of([user(), assistant()]) == []


@needs_assets
@pytest.mark.parametrize(
    ("folder", "name", "writes"), [("llama-3.1-8b-instruct", "llama-3", False), ("qwen3-8b", "qwen3", True)]
)
def test_families_and_official_templates_agree(folder: str, name: str, writes: bool) -> None:
    from niels_gpt.renderers.registry import create_renderer

    clock = {"date_string": "26 Jul 2024"} if name == "llama-3" else {}
    template = create_renderer(ASSETS / folder, {"name": "template", **clock})
    for renderer in (create_renderer(ASSETS / folder, name), template):
        assert UnsupportedFields(renderer).writes_reasoning == writes
