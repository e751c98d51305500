"""What of a conversation a template passes over: `rendered.unwritten`, and `by_format` for dropped reasoning."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import needs_assets
from tests.renderers.every_template import renderer_of
from tests.renderers.small import CHATML, assistant, user
from tests.renderers.test_oracle import made, system

Found = list[tuple[int, str, str]]
Messages = list[dict[str, Any]]
KNOWN_ONLY = CHATML.replace(
    "{{ '<|im_start|>'", "{% if m.role in ['system', 'user', 'assistant', 'tool'] %}{{ '<|im_start|>'", 1
)
KNOWN_ONLY = KNOWN_ONLY.replace("{% endfor %}", "{% endif %}{% endfor %}", 1)
FIRST_SYSTEM = CHATML.replace("{{ '<|im_start|>'", "{% if loop.first or m.role != 'system' %}{{ '<|im_start|>'", 1)
FIRST_SYSTEM = FIRST_SYSTEM.replace("{% endfor %}", "{% endif %}{% endfor %}", 1)
TEXT_ONLY = CHATML.replace("m.content", "(m.content if m.content is string else '')", 1)
ONE_CALL = CHATML.replace("m.content", "m.content + (m.tool_calls[0].function | tojson if m.tool_calls else '')", 1)
ALL_CALLS = CHATML.replace("m.content", "m.content + (m.tool_calls | tojson if m.tool_calls else '')", 1)
THOUGHT = "('<think>' + m.reasoning_content + '</think>' if m.reasoning_content CONDITION else '') + m.content"
ALWAYS_THINKS = CHATML.replace("m.content", THOUGHT.replace("CONDITION", ""), 1)
LAST_THINKS = CHATML.replace("m.content", THOUGHT.replace("CONDITION", "and loop.last"), 1)
DECLARES = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML


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
EMPTY_CALL: Messages = [user("where?"), assistant("", tool_calls=[call("look", place="mill"), call("walk")])]
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


@pytest.mark.parametrize(
    ("source", "messages", "unwritten", "by_format"),
    [
        (CHATML, LATE, [], []),
        (CHATML, ROLES, [], []),
        (KNOWN_ONLY, ROLES, [(2, "content", "Hello.")], []),
        (FIRST_SYSTEM, LATE, [(3, "content", "be kind")], []),
        (TEXT_ONLY, PARTS, [], []),
        (
            ONE_CALL,
            TWO_CALLS,
            [(1, "tool_calls", "walk")],
            [],
        ),
        (ONE_CALL, EMPTY_CALL, [(1, "tool_calls", "walk")], []),
        (ALL_CALLS, TWO_CALLS, [], []),
        (ALL_CALLS, EMPTY_CALL, [], []),
        (ALWAYS_THINKS, THOUGHTS, [], []),
        (LAST_THINKS, THOUGHTS, [], [FIRST]),
        (LAST_THINKS, THOUGHTS[:3], [], [FIRST]),
        (CHATML, THOUGHTS, [FIRST, SECOND], []),
    ],
)
def test_what_a_small_template_passes_over(source: str, messages: Messages, unwritten: Found, by_format: Found) -> None:
    assert of(made(source), messages) == (unwritten, by_format)


def test_declarations_that_a_template_passes_over_are_named() -> None:
    chat = [user("Hi"), assistant("Hello.")]
    assert of(made(DECLARES), chat, TWO_TOOLS) == ([], [])
    assert of(made(CHATML), chat, TWO_TOOLS) == ([(-1, "tools", "look"), (-1, "tools", "walk")], [])


def test_an_equal_text_elsewhere_does_not_hide_one() -> None:
    chat = [user("Hi"), assistant("Hi", reasoning_content="Hi"), user("Hi")]
    assert of(made(CHATML), chat) == ([(1, "reasoning_content", "Hi")], [])
    late = [system("Hi"), user("Hi"), system("Hi"), user("Hi")]
    assert of(made(FIRST_SYSTEM), late) == ([(2, "content", "Hi")], [])


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


def test_texts_are_looked_for_where_letters_show_nothing() -> None:
    """The template writes parts alone, and changes the letters of roles."""
    renderer = made(
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] | capitalize + '\n' }}{% for part in m['content'] %}"
        "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    ).lists_unwritten()
    rendered = renderer.render([{"role": "critic", "content": "Bad."}, user("Hi"), assistant("Hello.")])
    assert (rendered.attribution, rendered.attribution_route) == ("full", "oracle")
    assert [one.text for one in rendered.unwritten] == ["Bad.", "Hi", "Hello."]
