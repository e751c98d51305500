"""Several files in one build: in the order given, each row under its file's name, also in units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.episodes import build_episodes
from niels_gpt.sources.chat_files import ChatFiles, chat_files, describe_dialects
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.store.kinds import open_manifest
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import run_cli
from tests.scale.builds import write_chats


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of different kinds and dialects; the bad rows of the first two are at lines 7 and 2."""
    folder = tmp_path / "in"
    folder.mkdir()
    write_chats(folder / "b.jsonl", 40)
    turns = [{"from": "human", "value": "a question"}, {"from": "gpt", "value": "an answer"}]
    rows = [json.dumps({"conversations": turns, "source": source}) for source in ("forum", "", None)]
    (folder / "a.jsonl").write_text("\n".join([rows[0], "{broken", *rows[1:]]))
    pairs = [{"prompt": f"p{n}", "completion": f"c{n}"} for n in range(9)]
    (folder / "c.json").write_text(json.dumps(pairs))
    return folder


def named(folder: Path, *names: str) -> ChatFiles:
    source = chat_files([folder / name for name in names])
    assert isinstance(source, ChatFiles)
    return source


def test_a_row_without_source_is_told_by_its_file(folder: Path) -> None:
    source = named(folder, "a.jsonl", "c.json")
    sources = [row.metadata["source"] for row in source if not isinstance(row, Rejected)]
    assert sources == ["forum", "a", "a", *["c"] * 9]


@pytest.mark.parametrize(
    ("slice_bytes", "kinds"),
    [
        (1, {("lines", "b.jsonl"), ("lines", "a.jsonl"), ("whole", "c.json")}),
        (1000, {("lines", "b.jsonl"), ("files", "a.jsonl")}),
        (1 << 30, {("files", "b.jsonl")}),
    ],
)
def test_slices_in_order_are_the_files_and_small_files_go_together(
    folder: Path, slice_bytes: int, kinds: set[tuple[str, str]]
) -> None:
    """The second and the third file have a few hundred bytes each, the first many more."""
    source = named(folder, "b.jsonl", "a.jsonl", "c.json")
    resolved = source.resolved()
    parts = list(resolved.slices(slice_bytes))
    assert [row for part in parts for row in resolved.read(part)] == list(source)
    assert {(part.kind, Path(part.path).name) for part in parts} == kinds
    assert (len(parts) == 1) == (slice_bytes == 1 << 30)
    shares = [part.read for part in parts]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_the_manifest_names_every_file(folder: Path, tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    source = named(folder, "b.jsonl", "a.jsonl", "c.json")
    given: dict[str, Any] = {"source_name": source.name, "source_config": source.config(), "max_bad_rows": 9}
    build_episodes(source, tmp_path / "out", encoder=tokenizer, **given)
    manifest = open_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest["dataset_name"] == "b + 2 more"
    inputs = manifest["dataset_config"]["inputs"]
    assert [one["name"] for one in inputs] == ["b.jsonl", "a.jsonl", "c.json"]
    assert [one["dialect"] for one in inputs] == ["messages", "sharegpt", "prompt_completion"]
    assert all(len(one["sha256"]) == 64 for one in inputs)
    assert describe_dialects(source, source.config()).startswith(
        "3 files: 1 as messages, 1 as sharegpt, 1 as prompt_completion"
    )


def test_the_command_lines(folder: Path, tmp_path: Path, tokenizer_dir: Path) -> None:
    common = ["in/b.jsonl", "in/[ac].*", "--tokenizer", tokenizer_dir, "--max-bad-rows", 9, "--json"]
    for kind, more in ((["build", "--kind", "sft"], []), (["build"], ["--workers", 2, "--unit-bytes", 4_000])):
        done = run_cli(*kind, *common, "--out", kind[-1], *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "3 files: 1 as messages" in done.stderr
        lines = (tmp_path / kind[-1] / "rejected.jsonl").read_text().splitlines()
        assert [json.loads(line)["where"] for line in lines] == ["in/b.jsonl:7", "in/b.jsonl:20", "in/a.jsonl:2"]
