"""The user's own conversations: every shape, every kind of file."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

import niels_gpt as ng
from niels_gpt.errors import DataError, InputError, UsageError
from niels_gpt.messages import Conversation
from niels_gpt.sources.chat_files import chat_files, from_dataset
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.records import read_records
from niels_gpt.sources.mapping import RowMapping
from niels_gpt.sources.rejections import Rejections

pyarrow = pytest.importorskip("pyarrow", reason="the extra 'hub' is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

ASK = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "short"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": None}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}

ROWS: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("messages", {"messages": [SYSTEM, ASK, ANSWER]}, [SYSTEM, ASK, ANSWER]),
    (
        "messages",
        {"messages": [ASK, {**ANSWER, "train": False, "weight": 0.5, "reasoning_content": "easy"}]},
        [ASK, {**ANSWER, "train": False, "weight": 0.5, "reasoning_content": "easy"}],
    ),
    ("messages", {"messages": [{**ANSWER, "trainable": False}]}, [{**ANSWER, "train": False}]),
    ("messages", {"messages": [ASK, {**ANSWER, "loss": False}]}, [ASK, {**ANSWER, "train": False}]),  # ms-swift
    ("messages", {"messages": [ASK, {**ANSWER, "masked": True}]}, [ASK, {**ANSWER, "train": False}]),  # torchtune
    ("messages", {"messages": [ASK, {**ANSWER, "step_loss_mask": 0}]}, [ASK, {**ANSWER, "train": False}]),  # slime
    (
        "messages",
        {"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
        [ASK, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
    ),
    (
        "sharegpt",
        {"system": "short", "conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        [SYSTEM, ASK, ANSWER],
    ),
    (
        "sharegpt",
        {
            "conversations": [
                {"from": "function_call", "value": json.dumps({"name": "add", "arguments": {"a": 2, "b": None}})},
                {"from": "observation", "value": "4"},
                {"from": "gpt", "value": "4", "weight": 0},
            ]
        },
        [
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "4"},
            {**ANSWER, "weight": 0},
        ],
    ),
    (
        "sharegpt",
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4", "trainable": False}]},
        [ASK, {**ANSWER, "train": False}],
    ),
    (
        "sharegpt",
        {"system": "short", "conversations": [{"from": "system", "value": "short"}, {"from": "gpt", "value": "4"}]},
        [SYSTEM, ANSWER],
    ),
    ("alpaca", {"instruction": "2 + 2?", "input": "", "output": "4", "system": "short"}, [SYSTEM, ASK, ANSWER]),
    (
        "alpaca",
        {"instruction": "Add", "input": "2, 2", "output": "4", "history": [["2 + 2?", "4"]]},
        [ASK, ANSWER, {"role": "user", "content": "Add\n\n2, 2"}, ANSWER],
    ),
    ("prompt_completion", {"prompt": "2 + 2?", "completion": "4"}, [ASK, ANSWER]),
    (
        "prompt_completion",
        {"prompt": [ASK, ANSWER, ASK], "completion": [ANSWER]},
        [ASK, {**ANSWER, "train": False}, ASK, ANSWER],
    ),
    (
        "prompt_completion",
        {"prompt": [{**ANSWER, "loss": True}, ASK], "completion": [{**ANSWER, "loss": False}]},
        [{**ANSWER, "train": False}, ASK, {**ANSWER, "train": False}],
    ),
]


def conversations(path: Path, dialect: str | None = None) -> list[Any]:
    return [row.messages if isinstance(row, Conversation) else row for row in chat_files([path], dialect).iterate()]


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(("dialect", "row", "expected"), ROWS)
def test_every_dialect_becomes_messages(
    tmp_path: Path, dialect: str, row: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    file = write(tmp_path / "chats.jsonl", row)
    assert chat_files([file]).dialect_of(file) == dialect
    assert conversations(file) == conversations(file, dialect) == [expected]


def test_answers_in_a_prompt_are_known_by_what_their_role_means(tmp_path: Path) -> None:
    """The history of a pair is not trained, whatever the rows call its roles."""
    turns = [{"role": "human", "content": "2 + 2?"}, {"role": "bot", "content": "4"}]
    mapping = RowMapping.of({}, {"human": "user", "bot": "assistant"})
    file = write(tmp_path / "c.jsonl", {"prompt": [*turns, turns[0]], "completion": turns[1:]})
    (found,) = chat_files([file], "prompt_completion", mapping).iterate()
    assert found.messages == [ASK, {**ANSWER, "train": False}, ASK, ANSWER]


def test_tools_and_everything_else_of_a_row_are_kept(tmp_path: Path) -> None:
    rows = [
        {"messages": [ANSWER], "tools": tools, "topic": "maths"} for tools in ([TOOL], json.dumps([TOOL]), None, "")
    ]
    found = list(chat_files([write(tmp_path / "c.jsonl", *rows)]).iterate())
    assert [row.tools for row in found] == [[TOOL], [TOOL], None, None]
    assert all(row.metadata == {"topic": "maths"} for row in found)
    assert [row.where for row in found] == [f"{tmp_path}/c.jsonl:{n}" for n in (1, 2, 3, 4)]


def test_the_dialect_can_be_overridden(tmp_path: Path) -> None:
    both = {"messages": [ANSWER], "prompt": "2 + 2?", "completion": "4"}
    file = write(tmp_path / "c.jsonl", both)
    readings = (
        r"jsonl:1 can be read in two ways, as messages: assistant '4'; as prompt_completion: user '2 \+ 2\?', assist"
    )
    with pytest.raises(UsageError, match=readings):
        conversations(file)
    assert conversations(file, "messages") == [[ANSWER]]
    assert conversations(file, "prompt_completion") == [[ASK, ANSWER]]
    alike = write(tmp_path / "alike.jsonl", {"messages": [ASK, ANSWER], "prompt": "2 + 2?", "completion": "4"})
    assert conversations(alike) == [[ASK, ANSWER]], "both readings are the same"
    with pytest.raises(UsageError, match="no format 'x'; known: messages, sharegpt, alpaca, prompt_completion"):
        chat_files([file], "x")


def test_completions_with_a_label_of_kto_are_no_conversations_unless_the_format_is_named(tmp_path: Path) -> None:
    bad = {"prompt": "2 + 2?", "completion": "4", "label": False}
    file = write(tmp_path / "kto.jsonl", {**bad, "label": None}, bad)
    with pytest.raises(UsageError, match=r"kto\.jsonl:2 has a prompt, a completion, and a label .*--format unpaired"):
        conversations(file)
    with pytest.raises(UsageError, match=r"--format prompt_completion \(.*\) to train every completion"):
        ng.build(file, tmp_path / "out", "no tokenizer is needed to say so")
    assert not (tmp_path / "out").exists()
    assert conversations(file, "prompt_completion") == [[ASK, ANSWER]] * 2
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    with pytest.raises(UsageError, match="row 1 has a prompt, a completion, and a label"):
        list(from_dataset(rows))
    assert len(list(from_dataset(rows, "prompt_completion"))) == 2
    topics = write(tmp_path / "topics.jsonl", {**bad, "label": "maths"}, {**bad, "label": 0})
    assert conversations(topics) == [[ASK, ANSWER]] * 2, "a label that is no truth value is metadata"


SHAREGPT = {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}
WHOLE = [
    ({"messages": [ASK, ANSWER]}, "messages"),
    (SHAREGPT, "sharegpt"),
    ({"instruction": "2 + 2?", "input": "", "output": "4"}, "alpaca"),
]


@pytest.mark.parametrize(("row", "format_"), WHOLE)
def test_whole_conversations_with_a_tag_of_kto(tmp_path: Path, row: dict[str, Any], format_: str) -> None:
    """LLaMA-Factory's column."""
    tagged = {**row, "kto_tag": False}
    file = write(tmp_path / "kto.jsonl", tagged)
    with pytest.raises(UsageError, match=rf"a conversation \({format_}\), and a kto_tag that .*--format {format_} "):
        conversations(file)
    with pytest.raises(UsageError, match="columns prompt, completion and label"):
        list(from_dataset([tagged]))
    assert conversations(file, format_) == [[ASK, ANSWER]]


@pytest.mark.parametrize(
    ("row", "reason", "says"),
    [
        ([1], "row_not_an_object", "expected an object with 'messages'"),
        ({"conversation": []}, "no_messages", "no 'messages' in the row, or it is null; columns found: 'conversation'"),
        ({"messages": "hi"}, "messages_not_a_list", "messages is a str"),
        ({"messages": [ANSWER], "tools": "{"}, "wrong_tools", "expected JSON"),
        ({"messages": [ANSWER], "tools": 5}, "wrong_tools", "tools is a int"),
    ],
)
def test_bad_rows_come_out_in_their_place(tmp_path: Path, row: Any, reason: str, says: str) -> None:
    first, bad, last = chat_files(
        [write(tmp_path / "c.jsonl", {"messages": [ANSWER]}, row, {"messages": [ASK]})]
    ).iterate()
    assert isinstance(first, Conversation)
    assert isinstance(last, Conversation)
    assert isinstance(bad, Rejected)
    assert (bad.reason, bad.where) == (reason, f"{tmp_path}/c.jsonl:2")
    assert bad.detail.startswith(bad.where) and says in bad.detail  # noqa: PT018


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"conversations": [{"from": "bot", "value": "x"}]},
            "message 0: from is 'bot'; expected one of system, ",
        ),
        ({"conversations": [{"value": "x"}]}, "message 0: role is missing"),
        ({"conversations": [{"from": "function_call", "value": "f("}]}, "message 0: function_call is 'f('"),
        ({"instruction": "a", "output": "b", "history": [["q"]]}, "history 0: expected a pair"),
        ({"instruction": "a", "output": "b", "history": True}, "history is a bool; expected a list of pairs"),
        ({"contents": [], "systemInstruction": {"parts": 1}}, "message 0: content is {'parts': 1}"),
    ],
)
def test_bad_turns_are_named(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    (bad,) = chat_files([write(tmp_path / "c.jsonl", row)]).iterate()
    assert isinstance(bad, Rejected)
    assert says in bad.detail


def test_every_kind_of_file_gives_the_same_conversations(tmp_path: Path) -> None:
    rows = [{"messages": [ASK, {**ANSWER, "content": f"é {n}"}]} for n in range(5)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    array = json.dumps(rows, indent=2).encode()
    compress = {"": bytes, ".gz": gzip.compress, ".zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True)}
    files = []
    for packed, pack in compress.items():
        for name, data in (("lines.jsonl", lines), ("array.json", array), ("lines.json", lines)):
            files.append(tmp_path / (name + packed))
            files[-1].write_bytes(pack(data))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    files.append(tmp_path / "t.parquet")
    expected = [row["messages"] for row in rows]
    for file in files:
        assert conversations(file) == expected, file.name
        assert [row.messages for row in chat_files([file]).iterate(start=3)] == expected[3:], file.name


@pytest.mark.parametrize("text", ['[{"a": 1}, {"b": ', "[1, 2", '[{"a": 1} x]', '[{"a": 1}, \xff]'])
def test_a_broken_array_names_the_row(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.json( row [12]|:1): "):
        list(read_records(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('{"x": ' + "1" * 5000 + "}", "row 1: holds an integer of more than 4300 digits"),
        ('{"x": 1, "x": ' + "1" * 5000 + "}", "row 1: holds an integer of more than 4300 digits"),
        ("[" * 100_000, "row 1: JSON nested too deeply to read"),
    ],
)
def test_a_row_of_an_array_that_python_cannot_read(tmp_path: Path, row: str, says: str) -> None:
    """It is not taken for an incomplete one, for which the file would be read on."""
    path = tmp_path / "a.json"
    path.write_text(f'[{{"messages": []}}, {row}')
    with pytest.raises(InputError, match=says):
        list(chat_files([path], "messages").iterate())


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        with pytest.raises(InputError, match=r"2 columns are called 'a'; expected one"):
            list(read_records(tmp_path / name))


@pytest.mark.parametrize("writer", [pyarrow.ipc.new_stream, pyarrow.ipc.new_file])
def test_arrow_s_two_formats(tmp_path: Path, writer: Any) -> None:
    path, rows = tmp_path / "a.arrow", [{"n": n} for n in range(2500)]
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.OSFile(str(path), "wb") as file, writer(file, table.schema) as out:
        out.write_table(table, max_chunksize=700)
    assert [record.value for record in read_records(path)] == rows
    data = path.read_bytes()
    for damaged in (data[:-40], data[: len(data) // 2], data[:3], b"ARROW1"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.arrow: not a whole Arrow file"):
            list(read_records(path))


@pytest.mark.parametrize("ending", ["jsonl.gz", "json.gz", "jsonl.zst", "json.zst"])
def test_cut_archives_are_refused_wherever_the_cut_is(tmp_path: Path, ending: str) -> None:
    """Rows before the cut must not pass for the whole file."""
    rows = [{"messages": [ASK, {**ANSWER, "content": random.Random(n).randbytes(30).hex()}]} for n in range(300)]
    array = json.dumps(rows) if ending.startswith("json.") else "".join(json.dumps(row) + "\n" for row in rows)
    pack = gzip.compress if ending.endswith("gz") else lambda data: pyarrow.compress(data, "zstd", asbytes=True)
    packed, path = pack(array.encode()), tmp_path / f"cut.{ending}"
    ends = [1, 2, 3, 4, 5, 9, 13, len(packed) // 2, *(len(packed) - n for n in (9, 8, 5, 4, 3, 1))]
    for data in [packed[:end] for end in ends] + [packed + packed[:end] for end in ends] + [packed + b"more"]:
        path.write_bytes(data)
        # A second array, also a part of one, is refused for what it is.
        with pytest.raises(InputError, match=rf"cut\.{ending}: (not a whole \.(gz|zst) file|after the array)"):
            list(read_records(path))


@pytest.mark.parametrize("name", ["a.json", "a.parquet"])
def test_rows_are_counted_from_0_and_errors_say_so(tmp_path: Path, name: str) -> None:
    rows = [{"messages": [ASK, ANSWER]}, {"messages": []}]
    if name.endswith(".json"):
        (tmp_path / name).write_text(json.dumps(rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
    row = list(chat_files([tmp_path / name]).iterate())[1]
    assert isinstance(row, Rejected)
    assert row.where == f"{tmp_path / name} row 1"
    assert row.detail == f"{row.where}: {row.why}"
    with pytest.raises(DataError, match=r"Rows are counted from 0\. Unusable: 1 of all 1 rows; allowed: 0\n"):
        refuse(tmp_path, row)


def refuse(folder: Path, row: Rejected) -> None:
    rejections = Rejections(folder, 0)
    rejections.record([row])
    rejections.check()


def test_a_parquet_row_that_is_not_utf8_is_one_bad_row(tmp_path: Path) -> None:
    texts = ["one", "two", "three", "four", "five"]
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"instruction": texts, "output": texts})
    parquet.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"three", b"th\xffee"))

    rows = list(chat_files([path]).iterate())

    assert [isinstance(row, Rejected) for row in rows] == [False, False, True, False, False]
    assert isinstance(rows[2], Rejected)
    assert rows[2].reason == "invalid_utf8"
    assert rows[2].detail.startswith(f"{path} row 2: holds a text with invalid UTF-8")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pyarrow.array([1, 10**18, 2], pyarrow.timestamp("us")), "'x' ('timestamp[us]') cannot be read: date value"),
        (pyarrow.array([1, 10**8, 2], pyarrow.date32()), "'x' ('date32[day]') cannot be read: date value out of range"),
        (
            pyarrow.StructArray.from_arrays([pyarrow.array([1, 2, 3])] * 2, names=["a", "a"]).filter(
                pyarrow.array([False, True, False])
            ),
            "'x' ('struct<a: int64, a: int64>') cannot be read",
        ),
    ],
    ids=["time", "day", "keys"],
)
def test_a_value_that_python_cannot_hold_is_one_bad_row(
    tmp_path: Path, suffix: str, values: pyarrow.Array, says: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    texts = ["text"] * len(values)
    table = pyarrow.table({"instruction": texts, "output": texts, "x": values})
    if suffix == "parquet":
        parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)

    rows = list(chat_files([path]).iterate())

    bad = [number for number, row in enumerate(rows) if isinstance(row, Rejected)]
    assert bad == [len(values) // 2]
    assert isinstance(row := rows[bad[0]], Rejected)
    assert (row.reason, row.where) == ("unreadable_value", f"{path} row {bad[0]}")
    assert says in row.detail


def damaged(data: bytes, seed: int) -> bytes:
    rng = random.Random(seed)
    cut = bytearray(data[: rng.randrange(1, len(data))] if rng.random() < 0.25 else data)
    cut[rng.randrange(len(cut))] ^= 1 << rng.randrange(8)
    return bytes(cut)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.jsonl.zst", "a.json.gz"])
def test_damaged_files_end_in_an_error_that_names_them(tmp_path: Path, name: str) -> None:
    rows = [{"messages": [{**ASK, "content": f"{n}?"}, ANSWER]} for n in range(200)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "whole.parquet")
    whole = {
        "a.parquet": (tmp_path / "whole.parquet").read_bytes(),
        "a.jsonl.gz": gzip.compress(lines),
        "a.jsonl.zst": pyarrow.compress(lines, "zstd", asbytes=True),
        "a.json.gz": gzip.compress(json.dumps(rows).encode()),
    }[name]
    failed = unnamed = 0
    for seed in range(60):
        path = tmp_path / name
        path.write_bytes(damaged(whole, seed))
        try:
            list(chat_files([path]).iterate())
        except InputError as error:
            failed += str(path) in str(error)
            unnamed += str(path) not in str(error)
    assert failed > 10
    assert not unnamed
