"""Families against what official templates made of conversations; see `official_texts.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.renderers.registry import FAMILIES, config_of
from tests.assets import ASSETS, needs_assets
from tests.renderers.chats import TOOLS as CHAT_TOOLS
from tests.renderers.official_texts import FILE, SOURCES
from tests.renderers.small import assistant, call, family, result, user
from tests.renderers.test_template import official
from tests.renderers.tiny_families import folder_of, renderer_of

TOOLS, *ROWS = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())


def folder_named(name: str, directory: Path) -> Path:
    """MiniMax' tiny tokenizer in a folder of this name."""
    folder = directory / name
    folder.mkdir(parents=True)
    for path in folder_of("minimax-m2").iterdir():
        (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize("name", SOURCES)
def test_texts_are_those_of_the_official_template(name: str, tmp_path: Path) -> None:
    rows = [row[1:] for row in ROWS if row[0] == name]
    model = SOURCES[name].name
    named: Any = FAMILIES[name](folder_named(model, tmp_path)) if model else None
    assert len(rows) > 10
    for messages, tools, flags, gen, expected in rows:
        renderer = named or renderer_of(name, *flags.items())
        assert renderer.text(messages, tools=TOOLS if tools else None, add_generation_prompt=gen) == expected


@pytest.mark.parametrize("version", ["M2", "M2.1", "M2.5", "M2.7"])
def test_minimax_is_told_its_version_by_the_name(version: str, tmp_path: Path) -> None:
    renderer: Any = FAMILIES["minimax-m2"](folder_named(f"MiniMax-{version}", tmp_path))
    first = renderer.text([user()]).partition("[e~[")[0]
    assert f"MiniMax-{version}" in first
    assert ("Knowledge cutoff" in first) == (version == "M2")
    assert renderer.config.model_identity in first
    assert (
        FAMILIES["minimax-m2"](renderer.encoder, model_identity="Me.").text([user()]).startswith("]~!b[]~b]system\nMe.")
    )
    assert "MiniMax-M2.5" in family("minimax-m2").text([user()])


# ---- GLM-5.3: results in the order of their calls

ASKING = [user(), assistant("", tool_calls=[call("get", 0), call("put", 1)])]


@pytest.mark.parametrize(
    ("ids", "order"),
    [
        ((0, 1), [0, 1]),
        ((1, 0), [1, 0]),  # sorted: the second message answers the first call
        ((1, 1), [0, 1]),  # two results of one call
        ((1, None), [0, 1]),  # a result without id
    ],
)
def test_results_are_in_the_order_of_their_calls(ids: tuple[int | None, ...], order: list[int]) -> None:
    results = [result(("get", "put")[number or 0], number or 0, f"r{at}") for at, number in enumerate(ids)]
    for message, number in zip(results, ids, strict=True):
        if number is None:
            del message["tool_call_id"]
    renderer = family("glm-5.3")
    text = renderer.text([*ASKING, *results])
    assert text.partition("<|observation|>")[2] == "".join(f"<tool_response>r{at}</tool_response>" for at in order)
    assert text.count("<|observation|>") == 1
    rendered = renderer.render([*ASKING, *results])
    bodies = [owner for owner, body in zip(rendered.message_indices, rendered.is_content, strict=True) if body]
    assert list(dict.fromkeys(owner for owner in bodies if owner > 1)) == [2 + at for at in order]
    unsorted = family("glm-5.2").text([*ASKING, *results])
    assert (
        unsorted.partition("<|observation|>")[2] == "<tool_response>r0</tool_response><tool_response>r1</tool_response>"
    )


ASKED = {"role": "user", "content": "a"}


def answer(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def asking(*names: str, content: str | None = None) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": name, "arguments": '{"k": 1}'}} for name in names]
    return {"role": "assistant", "content": content, "tool_calls": calls}


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
    cycle = [ASKED, asking("f", "g"), answer("x"), answer("y")]
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
        ([ASKED, asking("f", "g"), answer("x"), ASKED], "<｜tool▁outputs▁end｜>"),
        ([*([ASKED, asking("f", "g"), answer("x"), answer("y")] * 2)], "<｜tool▁outputs▁begin｜>"),
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
            for tools in (None, CHAT_TOOLS):
                expected = official(folder).apply_chat_template(messages, tools=tools, tokenize=False, **identity)
                assert renderer.text(messages, tools=tools) == expected
