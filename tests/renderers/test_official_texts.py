"""Families against what official templates made of conversations; see `official_texts.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.renderers.registry import FAMILIES
from tests.renderers.official_texts import FILE, SOURCES
from tests.renderers.small import assistant, call, family, result, user
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
    for messages, tools, flags, gen, official in rows:
        renderer = named or renderer_of(name, *flags.items())
        assert renderer.text(messages, tools=TOOLS if tools else None, add_generation_prompt=gen) == official


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
