"""`ng.tokenize`: the rows are those of the renderer, in every engine, and equal functions have equal fingerprints."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import niels_gpt as ng
from niels_gpt.errors import DataError, UsageError
from niels_gpt.export.tokenize import Tokenize
from niels_gpt.renderers.base import LossOn
from tests.conftest import REPOSITORY
from tests.renderers.small import CHATML, assistant, conversation, family, user
from tests.renderers.tiny_families import folder_of

Columns = dict[str, list[Any]]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def chats(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows as `datasets` has them, some with calls of tools."""
    rng = random.Random(seed)
    return [{"messages": conversation(rng), "source": f"s{k}"} for k in range(count)]


def columns_of(rows: list[dict[str, Any]]) -> Columns:
    return {name: [row[name] for row in rows] for name in rows[0]}


def expected(renderer: Any, rows: list[dict[str, Any]], loss_on: LossOn | None = None) -> list[tuple[Any, Any]]:
    """Ids and labels of each row by `render`, one after the other."""
    found = []
    for row in rows:
        rendered = renderer.render(row["messages"], tools=row.get("tools"))
        labels = rendered.labels(loss_on or LossOn())
        found.append((tuple(rendered.token_ids), (-100, *labels[1:])))
    return found


def pairs(columns: Columns) -> list[tuple[Any, Any]]:
    return [
        (tuple(map(int, ids)), tuple(map(int, labels)))
        for ids, labels in zip(columns["input_ids"], columns["labels"], strict=True)
    ]


def texts(columns: Columns) -> list[tuple[Any, Any]]:
    """The conversations in packed rows."""
    found = []
    for ids, labels, lengths in zip(columns["input_ids"], columns["labels"], columns["seq_lengths"], strict=True):
        assert sum(lengths) == len(ids) == len(labels)
        at = 0
        for length in map(int, lengths):
            found.append((tuple(map(int, ids[at : at + length])), tuple(map(int, labels[at : at + length]))))
            at += length
    return found


@pytest.mark.parametrize("name", ["qwen3", "template"])
@pytest.mark.parametrize("preset", ["all_assistant_turns", "all_tokens"])
def test_rows_are_those_of_the_renderer(name: str, preset: Any) -> None:
    renderer, loss_on = family(name), LossOn(preset)
    rows = [{"messages": [user(f"question {k}"), assistant("answer " * k)]} for k in range(1, 30)]
    function = ng.tokenize(renderer, loss_on=loss_on, assistant_masks=True)
    columns = function(columns_of(rows))
    assert pairs(columns) == expected(renderer, rows, loss_on)
    assert list(columns) == ["input_ids", "labels", "assistant_masks"]
    for mask, labels in zip(columns["assistant_masks"], columns["labels"], strict=True):
        assert mask.tolist() == (labels != -100).tolist()
    assert pairs(function(rows)) == pairs(columns)  # a list of rows


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(60, 400))
@settings(deadline=None, max_examples=25)
def test_packing_loses_and_repeats_nothing(seed: int, count: int, capacity: int) -> None:
    renderer = family("qwen3")
    rows = chats(count, seed)
    own = expected(renderer, rows)
    if max(len(ids) for ids, _ in own) > capacity:
        with pytest.raises(DataError, match=r"^row \d+ of the batch: \d+ tokens, but a row has at most"):
            ng.tokenize(renderer, pack=capacity)(rows)
        own = [pair for pair in own if len(pair[0]) <= capacity]
    columns = ng.tokenize(renderer, pack=capacity, too_long="skip")(rows)
    assert sorted(texts(columns)) == sorted(own)
    assert all(len(ids) <= capacity for ids in columns["input_ids"])


def test_what_a_format_has_no_place_for_is_logged_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"messages": [user(), assistant("b", reasoning_content="why")]}, {"messages": [user(), assistant("b")]}]
    assert len(Tokenize(family("llama-3"))(rows)["input_ids"]) == 2
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == "used, of 2 rows, but: {'reasoning_content_not_written': 1}"
    with pytest.raises(DataError, match="row 0 of the batch: message 1: reasoning_content is not written"):
        ng.tokenize(family("llama-3"), on_unwritten="error")(rows)


def test_what_is_left_out_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bad = {"messages": [{"role": "bot", "content": "x"}]}
    untrained = {"messages": [user(), assistant() | {"train": False}]}
    rows = [{"messages": [user(), assistant()]}, bad, untrained, {"messages": [user("x " * 99), assistant()]}]
    with pytest.raises(DataError, match=r"^row 1 of the batch: .*'bot'.*Rows are counted from 0.*on_bad_rows=\"drop\""):
        ng.tokenize(family("qwen3"))(rows)
    with pytest.raises(DataError, match=r"^row 701: "):
        ng.tokenize(family("qwen3"))(rows, [700, 701, 702, 703])
    columns = ng.tokenize(family("qwen3"), on_bad_rows="drop", max_length=50, too_long="skip")(rows)
    assert pairs(columns) == expected(family("qwen3"), rows[:1])
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == ("left out 3 of 4 rows: {'unknown_role': 1, 'nothing_trained': 1, 'too_long': 1}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pack": 9, "max_length": 9}, "expected one of them"),
        ({"pack": 0}, "pack is 0"),
        ({"max_length": -1}, "max_length is -1"),
        ({"too_long": "heads"}, "did you mean 'head'"),
        ({"on_bad_rows": "ignore"}, "on_bad_rows is 'ignore'; expected 'error' or 'drop'"),
        ({"format": "sharegtp"}, "did you mean 'sharegpt'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ng.tokenize(family("qwen3"), **options)


@pytest.mark.parametrize("more", [{}, {"source": "s"}, {"source": ["s"]}])
def test_a_single_row_is_no_batch(more: dict[str, Any]) -> None:
    """`datasets.map` without `batched=True`."""
    with pytest.raises(UsageError, match=r"found a single row; expected a batch.*batched=True"):
        ng.tokenize(family("qwen3"))({"messages": [user(), assistant()]} | more)
    with pytest.raises(UsageError, match="found a batch of type int"):
        ng.tokenize(family("qwen3"))(7)


# Fingerprints

PROGRAM = """
import json, sys
from datasets.fingerprint import Hasher
import niels_gpt as ng
from tests.renderers.small import assistant, user
found = []
for name in ("qwen3", "template"):
    for options in ({}, {"pack": 64}, {"loss_on": ng.LossOn(bodies_of_roles={"user", "system", "tool"})}):
        function = ng.tokenize(sys.argv[1], name=name, **options)
        before = Hasher.hash(function)
        function([{"messages": [user(), assistant()]}])
        assert Hasher.hash(function) == before, "use changed the fingerprint"
        found.append(before)
print(json.dumps(found))
"""


def test_fingerprints_are_those_of_another_process(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = shutil.copytree(folder_of("qwen3"), tmp_path / "qwen3")
    (folder / "chat_template.jinja").write_text(CHATML)
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder)],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(REPOSITORY), "PATH": "", "HOME": str(Path.home())},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        for seed in (1, 2)
    ]
    assert all(run.returncode == 0 for run in runs), runs[0].stderr
    one, other = (json.loads(run.stdout) for run in runs)
    assert one == other
    assert len(set(one)) == len(one)


def test_a_pickle_is_equal_and_of_this_version(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ng.tokenize(family("qwen3"), pack=99, too_long="head", loss_on=LossOn("last_message"))
    data = pickle.dumps(function)
    again = pickle.loads(data)
    assert isinstance(again, Tokenize)
    assert (again.pack, again.too_long, again.loss_on) == (99, "head", LossOn("last_message"))
    rows = chats(5)
    assert texts(again(rows)) == texts(function(rows))
    monkeypatch.setattr("niels_gpt.export.tokenize.__version__", "9.9")
    with pytest.raises(UsageError, match=r"pickled by niels_gpt .*, and this process has 9\.9"):
        pickle.loads(data)


# Engines


def test_datasets_map_in_processes_and_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    # With num_proc, `datasets` puts a copy of os.environ in its place; the tests after this one need the original.
    monkeypatch.setattr(os, "environ", os.environ)
    rows = [*chats(20), {"messages": [user(), assistant()], "source": "last"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def mapped(function: Any, **options: Any) -> Any:
        loaded = datasets.load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), cache_dir=str(tmp_path / "c"))
        dataset = loaded["train"]
        return dataset.map(function, batched=True, remove_columns=dataset.column_names, **options)

    renderer = family("qwen3")
    plain = mapped(ng.tokenize(renderer), num_proc=2, with_indices=True)
    # Arrow gives each message the keys of all messages; the nulls are not content.
    assert pairs(plain.to_dict()) == expected(renderer, rows)
    packed = mapped(ng.tokenize(renderer, pack=400), batch_size=8)
    assert sorted(texts(packed.to_dict())) == sorted(expected(renderer, rows))
    again = mapped(ng.tokenize(family("qwen3"), pack=400), batch_size=8)
    assert again.cache_files == packed.cache_files
    other = mapped(ng.tokenize(family("qwen3"), pack=401), batch_size=8)
    assert other.cache_files != packed.cache_files


# Trainers


def test_templates_and_tools() -> None:
    """`tools` is a column beside the messages, as a list or as JSON."""
    renderer = family("qwen3")
    rows: list[dict[str, Any]] = [
        {"messages": [user(), assistant()], "tools": tools} for tools in (None, TOOLS, json.dumps(TOOLS))
    ]
    none, some, text = pairs(ng.tokenize(renderer)(columns_of(rows)))
    assert none != some == text == expected(renderer, [rows[1]])[0]
