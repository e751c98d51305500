"""What of a conversation a template passes over: `rendered.unwritten`, and `by_format` for dropped reasoning."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import needs_assets
from tests.renderers.every_template import renderer_of
from tests.renderers.small import CHATML, assistant, made, system, user

Found = list[tuple[int, str, str]]
Messages = list[dict[str, Any]]
FIRST_SYSTEM = CHATML.replace("{{ '<|im_start|>'", "{% if loop.first or m.role != 'system' %}{{ '<|im_start|>'", 1)
FIRST_SYSTEM = FIRST_SYSTEM.replace("{% endfor %}", "{% endif %}{% endfor %}", 1)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"{name}12345"[:9], "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, description: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"place": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TWO_TOOLS = [tool("look", "Looks up a place."), tool("walk", "Walks to a place.")]
LATE: Messages = [system("be brief"), user("Hi"), assistant("Hello."), system("be kind"), user("So?")]
ROLES: Messages = [{"role": "developer", "content": "rules"}, user("Hi"), {"role": "critic", "content": "Hello."}]
PARTS: Messages = [
    {"role": "user", "content": [{"type": "text", "text": "one part"}, {"type": "text", "text": "two"}]},
    assistant("Hello."),
]
TWO_CALLS: Messages = [
    user("where?"),
    assistant("", tool_calls=[call("look", place="mill"), call("walk", goal="weir")]),
    {"role": "tool", "content": "by the river", "tool_call_id": "look12345"},
    {"role": "tool", "content": "done", "tool_call_id": "walk12345"},
]
THOUGHTS: Messages = [
    user("one?"),
    assistant("One.", reasoning_content="hm, one"),
    user("two?"),
    assistant("Two.", reasoning_content="hm, two"),
]
FIRST, SECOND = (1, "reasoning_content", "hm, one"), (3, "reasoning_content", "hm, two")


def of(renderer: TemplateRenderer, messages: Messages, tools: Any = None) -> tuple[Found, Found]:
    rendered = renderer.lists_unwritten().render(messages, tools=tools)
    unwritten, by_format = ([tuple(one) for one in found] for found in (rendered.unwritten, rendered.by_format))
    return sorted(unwritten), sorted(by_format)  # type: ignore[return-value]


def test_letters_of_a_text_s_own_hide_nothing() -> None:
    chat = [user("Hi \ue000"), assistant("Hello.", reasoning_content="hm, one"), system("late"), user("So?")]
    renderer = made(FIRST_SYSTEM)
    rendered = renderer.lists_unwritten().render(chat)
    assert (rendered.attribution, rendered.attribution_route) == ("full", "gaps")
    assert of(renderer, chat) == ([(1, "reasoning_content", "hm, one"), (2, "content", "late")], [])


OFFICIAL: dict[tuple[str, str], tuple[Messages, Any, Found, Found]] = {
    ("qwen3-8b", "roles"): (ROLES, None, [(2, "content", "Hello.")], []),
    ("qwen3-8b", "parts"): (PARTS, None, [], []),
    ("qwen3-8b", "reasoning"): (THOUGHTS, None, [], [FIRST]),
    ("qwen3-8b", "calls"): (TWO_CALLS, TWO_TOOLS, [], []),
    ("qwen2.5-0.5b-instruct", "reasoning"): (THOUGHTS, None, [FIRST, SECOND], []),
    ("gpt-oss-20b", "roles"): (ROLES[:2], None, [], []),
    ("gpt-oss-20b", "reasoning"): (THOUGHTS, None, [], [FIRST]),
    ("gpt-oss-20b", "late system"): (LATE, None, [(3, "content", "be kind")], []),
    ("gpt-oss-20b", "calls"): (
        TWO_CALLS,
        TWO_TOOLS,
        [(1, "tool_calls", "walk")],
        [],
    ),
    ("llama-3.1-8b-instruct", "tools"): ([user("Hi"), assistant("Hello.")], TWO_TOOLS, [], []),
    ("llama-3.1-8b-instruct", "reasoning"): (THOUGHTS, None, [FIRST, SECOND], []),
    ("deepseek-v3", "tools"): (
        [user("Hi"), assistant("Hello.")],
        TWO_TOOLS,
        [(-1, "tools", "look"), (-1, "tools", "walk")],
        [],
    ),
    ("glm-4.7-flash", "reasoning"): (THOUGHTS, None, [], [FIRST]),
}


@needs_assets
@pytest.mark.parametrize(("name", "what"), OFFICIAL)
def test_what_an_official_template_passes_over(name: str, what: str) -> None:
    messages, tools, unwritten, by_format = OFFICIAL[name, what]
    renderer = renderer_of(name)
    assert of(renderer, messages, tools) == (unwritten, by_format)
    # And what is said to be unwritten is not there.
    written = renderer.text(messages, tools=tools)
    # Names are in declarations too.
    found = [one for one in (*unwritten, *by_format) if one[1] not in ("tools", "tool_calls")]
    assert not [text for _, _, text in found if text in written]


@needs_assets
def test_a_late_system_message_is_written_refused_or_named() -> None:
    for name in ("qwen3-8b", "glm-4.7-flash", "deepseek-v3", "kimi-k2", "mistral-nemo-instruct-2407", "minimax-m2.5"):
        renderer = renderer_of(name)
        try:
            is_written = "be kind" in renderer.text(LATE)
        except MessageError:
            continue
        assert of(renderer, LATE)[0] == ([] if is_written else [(3, "content", "be kind")]), name
