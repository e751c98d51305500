"""What serving changes before it renders is changed in training, too: roles, parts of contents, ids of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.base import build_training_sample
from tests.assets import ASSETS, needs_assets
from tests.conftest import run_cli
from tests.renderers.every_template import renderer_of as template_of
from tests.renderers.small import CHATML, assistant, family, made, user
from tests.renderers.tiny_families import TOKENS, folder_of, renderer_of

Messages = list[dict[str, Any]]
PARTS = [{"type": "text", "text": "alpha"}, {"type": "text", "text": "omega"}]
READS_STRINGS = CHATML.replace("m.content", "(m.content if m.content is string else '')", 1)
PRINTS = CHATML.replace("m.content", "m.content | string", 1)
READS_PARTS = CHATML.replace(
    "m.content", "(m.content if m.content is string else m.content | map(attribute='text') | join(''))", 1
)
FIRST_PART = CHATML.replace("m.content", "(m.content if m.content is string else m.content[0].text)", 1)
KNOWN = "{% for m in messages if m.role in ['system', 'user', 'assistant', 'tool'] %}"
THREE_ROLES = CHATML.replace("{% for m in messages %}", KNOWN, 1)


def in_role(role: str, content: Any, id_of: Any = lambda name, number: f"functions.{name}:{number}") -> Messages:
    call = {"id": id_of("get", 0), "type": "function", "function": {"name": "get", "arguments": {"city": "x"}}}
    return {
        "system": [{"role": "system", "content": content}, user("question"), assistant("answer")],
        "developer": [{"role": "developer", "content": content}, user("question"), assistant("answer")],
        "user": [user(content), assistant("answer")],
        "assistant": [user("question"), assistant(content)],
        "tool": [
            user("question"),
            assistant("", tool_calls=[call]),
            {"role": "tool", "content": content, "tool_call_id": call["id"], "name": "get"},
            assistant("answer"),
        ],
    }[role]


# What families write between two text parts where that is no newline, as their vendors' templates and libraries do.
BETWEEN: dict[str, dict[str, str]] = {
    **{name: {"": ""} for name in ("qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8", "glm-5.1", "glm-5.2", "glm-5.3")},
    **{name: {"": ""} for name in ("kimi-k2", "kimi-k2-thinking", "kimi-k2.5")},
    **{name: {"": ""} for name in ("mistral-v7", "mistral-v11", "mistral-v13")},
    **{name: {"": "", "tool": "\n"} for name in ("glm-4.5", "glm-5", "minimax-m2")},
    **{name: {"": "\n\n"} for name in ("deepseek-v4", "deepseek-v4-preview", "deepseek-v4.1")},
    "gemma": {"": "", "system": "\n"},
    "inkling": {"": "?"},  # each part is a message of its own
}


@pytest.mark.parametrize("name", TOKENS)
def test_families_join_text_parts_by_a_newline_unless_their_vendor_does_otherwise(name: str) -> None:
    between, renderer = BETWEEN.get(name, {}), renderer_of(name)
    for role in {"system", "user", "assistant", "tool"} & set(renderer.roles):
        joint = between.get(role, between.get("", "\n"))
        if joint == "?":
            continue
        id_of = TOKENS[name].holds.get("call_id", lambda name, number: f"functions.{name}:{number}")
        parts, joined = (in_role(role, content, id_of) for content in (PARTS, f"alpha{joint}omega"))
        rendered = renderer.render(parts)
        assert rendered.token_ids == renderer.render(joined).token_ids
        assert dict(rendered.changes) == ({"text_parts_joined": 1} if joint == "\n" else {})


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize(
    ("source", "joint"), [(READS_STRINGS, "\n"), (PRINTS, "\n"), (CHATML, "\n"), (FIRST_PART, "\n"), (READS_PARTS, "")]
)
def test_templates_that_read_no_parts_get_one_text(source: str, joint: str, role: str) -> None:
    renderer = made(source, on_unwritten="drop")
    rendered = renderer.render(in_role(role, PARTS))
    assert rendered.token_ids == renderer.render(in_role(role, f"alpha{joint}omega")).token_ids
    assert renderer.text(in_role(role, PARTS)) == renderer.text(in_role(role, f"alpha{joint}omega"))
    assert rendered.changes.get("text_parts_joined", 0) == (1 if joint else 0)
    assert not [one for one in rendered.unwritten if one.field == "content"]


def test_thinking_before_parts_is_reasoning() -> None:
    content = [{"type": "thinking", "thinking": "hm"}, *PARTS]
    for renderer in (family("qwen3"), family("chatml")):
        expected = [user(), assistant("alpha\nomega", reasoning_content="hm")]
        assert renderer.render([user(), assistant(content)]).token_ids == renderer.render(expected).token_ids


DEVELOPER: Messages = [{"role": "developer", "content": "rules"}, user("Hi"), assistant("Hello.")]
SYSTEM: Messages = [{"role": "system", "content": "rules"}, *DEVELOPER[1:]]


@pytest.mark.parametrize("name", [*TOKENS, "template"])
def test_a_developer_is_a_system_where_the_format_has_no_such_role(name: str) -> None:
    renderer = family(name) if name != "template" else made(THREE_ROLES)
    rendered = renderer.render(DEVELOPER)
    assert rendered.message_roles == ["developer", "user", "assistant"]
    if name != "template" and "developer" in renderer.roles:
        assert rendered.changes == {}
    else:
        assert rendered.token_ids == renderer.render(SYSTEM).token_ids
        assert rendered.changes == {"developer_as_system": 1}
    assert "rules" in renderer.text(DEVELOPER)
    assert build_training_sample(renderer, DEVELOPER) == build_training_sample(renderer, SYSTEM)


def test_an_answer_of_an_unknown_role_is_refused() -> None:
    chat = [user("Hi"), {"role": "critic", "content": "Hello."}]
    with pytest.raises(MessageError, match="message 1: content is not written"):
        made(THREE_ROLES).render(chat)


def called(*ids: str, results: tuple[str | None, ...] = ()) -> Messages:
    calls = [
        {"type": "function", "function": {"name": name, "arguments": {}}} | ({"id": one} if one else {})
        for name, one in zip(("look", "walk"), ids, strict=False)
    ]
    made_ = [{"role": "tool", "content": "r"} | ({"tool_call_id": one} if one else {}) for one in results]
    return [user(), assistant("", tool_calls=calls), *made_]


GOOD = called("functions.look:0", "functions.walk:1", results=("functions.look:0", "functions.walk:1"))
BY_ID = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.tool_calls or [] %}{{ c.id }} {% endfor %}"
    "{{ m.tool_call_id or '' }}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("name", ["kimi-k2", "kimi-k2-thinking", "kimi-k2.5", "template"])
@pytest.mark.parametrize(
    ("chat", "changed"),
    [
        (GOOD, 0),
        (called("call_8fa2", "call_9", results=("call_8fa2", "call_9")), 4),
        (called("call_8fa2", "functions.walk:1", results=("call_8fa2", "functions.walk:1")), 2),
        (called("functions.walk:0", "1", results=("functions.walk:0", "1")), 4),
        (called("", "", results=(None, None)), 4),
    ],
)
def test_ids_that_must_name_the_function_are_written_so(name: str, chat: Messages, changed: int) -> None:
    renderer = family(name) if name != "template" else made(BY_ID, on_unwritten="drop")
    rendered = renderer.render(chat)
    assert rendered.token_ids == renderer.render(GOOD).token_ids
    assert rendered.changes.get("call_ids_named", 0) == changed


def test_ids_are_numbered_through_the_conversation_and_found_in_any_order() -> None:
    again = called("x", "y", results=("y", "x"))
    kimi = family("kimi-k2")
    text = kimi.text([*called("x", "y", results=("y", "x")), assistant("so"), *again])
    heads = [part.split("\n")[0] for part in text.split("## Return of ")[1:]]
    assert heads == ["functions.walk:1", "functions.look:0", "functions.walk:3", "functions.look:2"]


def test_commands_count_what_is_changed(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    rows = [DEVELOPER, in_role("user", PARTS), in_role("user", "x")]
    chats.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in rows))
    template = tmp_path / "chat.jinja"
    template.write_text(THREE_ROLES.replace("m.content", "(m.content if m.content is string else '')", 1))
    for number, by in enumerate((("--renderer", "qwen3"), ("--template", template))):
        out = tmp_path / f"e{number}"
        given = (chats, "--tokenizer", folder_of("qwen3"), *by, "--val-frac", 0, "--out", out, "--json")
        built = run_cli("build", *given)
        assert built.returncode == 0, built.stderr
        assert json.loads(built.stdout)["changed"] == {"developer_as_system": 1, "text_parts_joined": 1}


@needs_assets
def test_no_template_loses_a_text_in_silence() -> None:
    """All templates at hand: each text of a role or a part is written, or refused with its name."""
    folders = sorted(path.name for path in ASSETS.iterdir() if (path / "tokenizer.json").is_file())
    for name in folders:
        renderer = template_of(name).lists_unwritten()
        for role in ("system", "developer", "user", "assistant", "tool"):
            for content in ("alpha omega", PARTS):
                chat = in_role(role, content)
                try:
                    rendered, text = renderer.render(chat), renderer.text(chat)
                except MessageError:
                    continue
                lost = any(one.field == "content" for one in rendered.unwritten)
                assert ("alpha" in text and "omega" in text) != lost, (name, role, content)
