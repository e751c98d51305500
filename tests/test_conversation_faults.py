"""Faults of conversations, each varied over families and templates, fields and positions, at every door it concerns.

The names C1 to C9 are those of the list of faults that the tests were written from: texts that are lost (C1), keys that
are not read (C2), that mean "do not train" (C3), doors that read differently (C4), schemas (C5), names in ids (C6), one
value in several spellings (C7), rows that do not come back (C8), options of rows (C9). What each key means at each
door: `docs/messages.md` and its test. Options of rows: `renderers/test_row_options.py`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
import niels_gpt as ng
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.renderer_encoder import RenderingPolicy
from niels_gpt.datasets import open_dataset
from niels_gpt.episodes.build import build_episodes
from niels_gpt.errors import DataError, MessageError, NielsError
from niels_gpt.renderers.base import RendererPool, build_training_sample, build_training_samples
from niels_gpt.sources.chat_files import chat_files, from_dataset
from tests.assets import FOLDERS
from tests.renderers.every_template import renderer_of as template_of
from tests.renderers.tiny_families import TOKENS, renderer_of

Row = dict[str, Any]
# A template of each way to write conversations; without assets only families are tried.
TEMPLATES = [
    pytest.param(f"template:{name}", marks=pytest.mark.skipif(not FOLDERS, reason="no templates (set NGPT_ASSETS)"))
    for name in ("qwen3-8b", "gpt-oss-20b", "glm-4.7-flash", "kimi-k2", "llama-3.1-8b-instruct", "minimax-m2.5")
]
every_format = pytest.mark.parametrize("name", [*TOKENS, *TEMPLATES])
every_family = pytest.mark.parametrize("name", TOKENS)
DOORS = ("render", "render_many", "pool", "ng.render", "sample", "samples", "tokenize", "from_dataset", "file")


@cache
def renderer(name: str) -> Any:
    kind, _, template = name.partition(":")
    return (
        template_of(template).lists_unwritten() if kind == "template" else renderer_of(name, ("on_unwritten", "drop"))
    )


def id_of(name: str, function: str, number: int) -> str:
    holds = TOKENS[name].holds if name in TOKENS else {}
    made: str = holds.get("call_id", lambda name, number: f"functions.{name}:{number}")(function, number)
    return made


def called(name: str, function: str, number: int, word: str) -> Row:
    arguments = {"place": word, "n": 2}
    return {
        "id": id_of(name, function, number),
        "type": "function",
        "function": {"name": function, "arguments": arguments},
    }


def declared(name: str, word: str) -> Row:
    parameters = {"type": "object", "properties": {"place": {"type": "string"}, "n": {"type": "integer"}}}
    return {"type": "function", "function": {"name": name, "description": word, "parameters": parameters}}


def conversation(name: str, *, late_system: bool = False, both: bool = True) -> Row:
    """A row in which every text is a word of its own: `FIELDMESSAGE`, of calls `callMESSAGEcNUMBER`."""

    def said(role: str, at: int, **more: Any) -> Row:
        return {"role": role, "content": f"content{at}", **more}

    def result(at: int, function: str, number: int) -> Row:
        return said("tool", at, tool_call_id=id_of(name, function, number), name=function)

    functions = ("look", "walk")[: 1 + both]
    calls = [called(name, function, at, f"call2c{at}") for at, function in enumerate(functions)]
    first = said("system", 0)
    messages = [first, said("user", 1)]
    messages.append(said("assistant", 2, tool_calls=calls, reasoning_content="reasoning2") | {"content": ""})
    messages += [result(3 + at, function, at) for at, function in enumerate(functions)]
    at = len(messages)
    messages += [said("assistant", at, reasoning_content=f"reasoning{at}")]
    messages += [said("system", at + 1)] if late_system else []
    at = len(messages)
    messages += [said("user", at), said("assistant", at + 1, reasoning_content=f"reasoning{at + 1}")]
    return {"messages": messages, "tools": [declared("look", "tools0"), declared("walk", "tools1")]}


def words_of(row: Row) -> Iterator[tuple[int, str, str, str]]:
    """Message, field, word, and what a loss of it is named by."""
    for at, message in enumerate(row["messages"]):
        content = message["content"]
        for text in [part["text"] for part in content] if isinstance(content, list) else [content]:
            if text:
                yield at, "content", text, text
        if "reasoning_content" in message:
            yield at, "reasoning_content", message["reasoning_content"], message["reasoning_content"]
        for call in message.get("tool_calls", ()):
            yield at, "tool_calls", call["function"]["arguments"]["place"], call["function"]["name"]
    for tool in row.get("tools") or ():
        yield -1, "tools", tool["function"]["description"], tool["function"]["name"]


def rows_of_c1(name: str) -> dict[str, Row]:
    """Roles, parts and calls in every position."""
    rows = {"plain": conversation(name), "late system": conversation(name, late_system=True)}
    rows["one call"] = conversation(name, both=False)
    for at, message in enumerate(rows["plain"]["messages"]):
        parts, developer = copy.deepcopy(rows["plain"]), copy.deepcopy(rows["plain"])
        if message["content"]:
            texts = [{"type": "text", "text": f"first{at}"}, {"type": "text", "text": f"second{at}"}]
            parts["messages"][at]["content"] = texts
            rows[f"parts in {at}"] = parts
        if message["role"] in ("system", "user"):
            developer["messages"][at]["role"] = "developer"
            rows[f"developer {at}"] = developer
    return rows


def lost_in_silence(one: Any, row: Row) -> list[Any]:
    """The words of a row that are neither in its rendering nor named; `[]` where the format refuses it.

    Of one that could not be attributed the reason may say that it cannot be known.
    """
    try:
        rendered = one.render(row["messages"], tools=row.get("tools"))
    except MessageError:
        return []
    text = one.text(row["messages"], tools=row.get("tools"))
    if "; changed or left out: " in rendered.attribution:
        return []
    named = {(lost.message, lost.field, lost.text) for lost in (*rendered.unwritten, *rendered.by_format)}
    return [
        (at, field, word, rendered.attribution)
        for at, field, word, called in words_of(row)
        if (word in text) == any(key[:2] == (at, field) and called in key[2] for key in named)
    ]


@every_format
def test_c1_every_text_is_written_or_named(name: str) -> None:
    found = {case: lost_in_silence(renderer(name), row) for case, row in rows_of_c1(name).items()}
    assert not {case: lost for case, lost in found.items() if lost}


# ---- C2 to C5 and C7: one meaning, several spellings


def places(row: Row, role: str) -> list[int]:
    return [at for at, message in enumerate(row["messages"]) if message["role"] == role]


def with_fields(row: Row, at: int, fields: Row) -> Row:
    return row | {"messages": [one | fields if at == n else one for n, one in enumerate(row["messages"])]}


def reasoning_spellings(row: Row) -> Iterator[Row]:
    for number, at in enumerate(places(row, "assistant")):
        given = row["messages"][at]["reasoning_content"]
        names: list[Row] = [
            {"reasoning": given},
            {"reasoning": given, "reasoning_content": ""},
            {"thinking": given, "reasoning_content": None},
            {"reasoning_details": [{"type": "reasoning.text", "text": given}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": given}], "reasoning": given},
        ]
        for more in (names[number % len(names)], names[(number + 3) % len(names)]):
            other = copy.deepcopy(row)
            del other["messages"][at]["reasoning_content"]
            other["messages"][at] |= more
            yield other


def argument_spellings(row: Row) -> Iterator[Row]:
    for at in places(row, "assistant"):
        for number, call in enumerate(row["messages"][at].get("tool_calls", ())):
            given = call["function"]["arguments"]
            for text in (json.dumps(given), json.dumps(given, indent=1), json.dumps(given).replace("c", "\\u0063")):
                other = copy.deepcopy(row)
                other["messages"][at]["tool_calls"][number]["function"]["arguments"] = text
                yield other


def schema_spellings(row: Row) -> Iterator[Row]:
    yield row | {"tools": json.dumps(row["tools"])}
    for number, tool in enumerate(row["tools"]):
        function = tool["function"]
        text = function | {"parameters": json.dumps(function["parameters"])}
        for other in (json.dumps(tool), tool | {"function": text}, function, tool | {"function": json.dumps(function)}):
            yield row | {"tools": [other if at == number else one for at, one in enumerate(row["tools"])]}


def empty_spellings(row: Row) -> Iterator[Row]:
    for at in range(len(row["messages"])):
        nothing: Row = {"tool_calls": [], "reasoning": None, "reasoning_details": [], "train": None, "refusal": None}
        messages = [nothing | message if at == n else message for n, message in enumerate(row["messages"])]
        yield row | {"messages": messages}


@every_format
@pytest.mark.parametrize("spellings", [reasoning_spellings, argument_spellings, schema_spellings, empty_spellings])
def test_c2_c5_c7_all_spellings_give_the_same_ids(name: str, spellings: Callable[[Row], Iterator[Row]]) -> None:
    row, one = conversation(name, both=False), renderer(name)
    try:
        wanted = one.render(row["messages"], tools=row["tools"])
    except MessageError:
        row = {"messages": row["messages"], "tools": row["tools"]}
        for other in spellings(row):
            with pytest.raises(MessageError):
                one.render(other["messages"], tools=other["tools"])
        return
    others = list(spellings(row))
    batch = one.render_many([other["messages"] for other in others], tools=[other["tools"] for other in others])
    for found in batch:
        assert found.token_ids == wanted.token_ids
        assert found.sampled_mask == wanted.sampled_mask


# ---- every door


def ids_and_masks(door: str, row: Row, folder: Path) -> Any:
    """What a door makes of a row, with Qwen3: ids, and which are trained where the door says so."""
    one, messages, tools = renderer_of("qwen3"), row["messages"], row.get("tools")
    if door in ("file", "from_dataset"):
        file, out = folder / "rows.jsonl", folder / "out"
        file.write_text(json.dumps(row) + "\n", encoding="utf-8")
        rows = chat_files([file]) if door == "file" else from_dataset([row])
        build_episodes(rows, out, encoder=one, val_frac=0)
        stored = open_dataset(out).split("train").row(0)
        return stored.ids.tolist(), (np.asarray(stored.weights) > 0).tolist()
    if door == "tokenize":
        columns = ng.tokenize(one)([row])
        return columns["input_ids"][0].tolist(), (columns["labels"][0] >= 0).tolist()
    if door == "samples":
        ids, mask = build_training_samples(one, messages, tools=tools)[-1]
        return list(ids), list(mask)
    if door == "sample":
        ids, mask = build_training_sample(one, messages, role_to_mask=None, tools=tools)
        return list(ids), list(mask)
    rendered = {
        "render": lambda: one.render(messages, tools=tools),
        "render_many": lambda: one.render_many([messages], tools=[tools])[0],
        "pool": lambda: RendererPool(lambda: one, 2).render(messages, tools=tools),
        "ng.render": lambda: ng.render(messages, one, tools=tools),
    }[door]()
    return list(rendered.token_ids), None


ANSWERS = (2, 4, 6)  # of `conversation` with one call
FLAGS: list[Row] = [{"loss": 0}, {"trainable": 0.0}, {"masked": 1}, {"loss_mask": 0}, {"train_on_turn": False}]
FLAGS += [{"training": 0}, {"step_loss_mask": 0}, {"loss_weight": 0}, {"loss_scale": 0.0}, {"weight": 0}]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("at", ANSWERS)
def test_c3_every_door_trains_the_same_answers(door: str, at: int, tmp_path: Path) -> None:
    row = conversation("qwen3", both=False)
    for message in row["messages"]:
        message.pop("reasoning_content", None)
    wanted = ids_and_masks(door, with_fields(row, at, {"train": False}), tmp_path / "")
    trained = ids_and_masks("sample", row, tmp_path)[1]
    assert wanted[1] is None or (wanted[1] != trained and any(wanted[1]))
    for number, flag in enumerate(FLAGS):
        (folder := tmp_path / str(number)).mkdir()
        assert ids_and_masks(door, with_fields(row, at, flag), folder) == wanted


WRONG: list[Row] = [{"loss": 0.5}, {"train": True, "masked": 1}, {"reasoning": "one", "reasoning_content": "two"}]


@pytest.mark.parametrize("door", DOORS)
def test_c4_c5_every_door_refuses_what_it_cannot_keep(door: str, tmp_path: Path) -> None:
    """Fields and schemas; docs/messages.md lists all, which its test takes through some doors."""
    row = conversation("qwen3", both=False)
    faults = [(f"message {at}: ", with_fields(row, at, more)) for at, more in zip(ANSWERS, WRONG, strict=True)]
    faults += [(r"tools\[0\]: parameters of ", copy.deepcopy(row))]
    faults[-1][1]["tools"][0]["function"]["parameters"] = {"type": "object", "required": "a"}
    for number, (says, wrong) in enumerate(faults):
        (folder := tmp_path / str(number)).mkdir()
        with pytest.raises(NielsError, match=says) as caught:
            ids_and_masks(door, wrong, folder)
        assert isinstance(caught.value, MessageError | DataError)


# ---- C6 and C8


@pytest.mark.parametrize("name", ["kimi-k2", "kimi-k2-thinking", "kimi-k2.5", *TEMPLATES[3:4]])
@pytest.mark.parametrize("ids", [("call_8fa2", "call_1"), ("", ""), ("functions.walk:0", "x"), ("walk", "look:1")])
def test_c6_calls_and_results_name_their_function(name: str, ids: tuple[str, str]) -> None:
    row, one = conversation(name), renderer(name)

    wanted, messages = one.render(row["messages"], tools=row["tools"]), copy.deepcopy(row["messages"])
    for call, at, own in zip(messages[2]["tool_calls"], places(row, "tool"), ids, strict=True):
        call["id"] = messages[at]["tool_call_id"] = own or None
    rendered = one.render(messages, tools=row["tools"])
    assert rendered.token_ids == wanted.token_ids
    assert rendered.changes["call_ids_named"] == 4


@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize(
    "said",
    [
        {"content": '<tool_call>\n{"name": "look", "arguments": {"place": "x"}}\n</tool_call>'},
        {"content": "fine", "reasoning_content": "so </think> and on"},
    ],
)
def test_c8_a_row_that_does_not_come_back_is_named(said: Row, at: int, tmp_path: Path) -> None:
    messages: list[Row] = [{"role": role, "content": f"content {role}"} for role in ("user", "assistant") * 3]
    messages[at] |= said
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"messages": one}) + "\n" for one in (messages[:at], messages)))
    one = renderer_of("qwen3", ("preserve_all_thinking", True))
    trip = one.round_trip(messages)
    assert not trip.proven
    assert trip.difference is not None
    assert trip.difference.message == at
    encoder = as_encoder(one, policy=RenderingPolicy(prove=True))
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: message {at}: "):
        build_episodes(
            chat_files([rows]), tmp_path / "out", encoder=encoder, val_frac=0, max_bad_rows=0 if at > 1 else 1
        )
