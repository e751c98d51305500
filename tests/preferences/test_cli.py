"""The commands: what they print, the codes they exit with, and that nothing is left half-built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from tests.conftest import run_cli
from tests.preferences.made import pairs, write_rows
from tests.renderers.tiny_families import folder_of

GOOD = {"prompt": "a", "chosen": "b", "rejected": "c"}


@pytest.fixture(scope="module")
def tokenizer() -> list[str]:
    return ["--tokenizer", str(folder_of("qwen3")), "--renderer", "qwen3"]


def test_from_rows_to_trl(tmp_path: Path, tokenizer: list[str]) -> None:
    pytest.importorskip("pyarrow")
    rows, out = write_rows(tmp_path / "pairs.jsonl", pairs(30)), tmp_path / "out"
    build = ["build", "--kind", "preferences", rows, *tokenizer, "--out", out]
    told = json.loads(run_cli(*build, "--json").stdout)
    assert (told["kind"], told["splits"]["train"]["groups"], told["splits"]["val"]["groups"]) == ("preferences", 27, 3)
    again = run_cli(*build, "--workers", 2)
    assert again.returncode == 0
    assert "already built" in again.stderr
    assert "all as they were written" in run_cli("verify", out).stdout
    found = json.loads(run_cli("info", out, "--json").stdout)
    assert (found["sequence_length"], found["splits"]["train"]["completions"]) == (1024, 54)
    assert "chosen longer" in run_cli("info", out).stdout
    shown = run_cli("show", out, 1, "--no-table")
    assert "completion 1 of group 0, rank 1" in shown.stdout
    assert "2 rows" not in run_cli("doctor", out, *tokenizer).stderr
    exported = json.loads(run_cli("export", out, "--to", "trl-dpo", "--out", tmp_path / "dpo", "--json").stdout)
    assert exported["splits"]["train"]["rows"] == 27


@pytest.mark.parametrize(
    ("rows", "options", "code", "said"),
    [
        (
            [{"prompt": "a", "chosen": "b"}],
            [],
            3,
            "columns of preferences; found 'prompt', 'chosen'; expected chosen and",
        ),
        ([GOOD, {"prompt": "a", "chosen": "b"}], [], 3, "rows.jsonl:2: no 'rejected' in the row"),
        ([{"messages": []}], [], 3, "no row has the columns of preferences; found 'messages'; expected"),
        ([[1]], [], 3, "no row has the columns of preferences; found no row that is an object; expected"),
        ([GOOD], ["--format", "pairs"], 2, "--format is 'pairs'; expected one of messages"),
        ([GOOD], ["--val-frac", "2"], 2, "val-frac"),
    ],
)
def test_bad_input(
    tmp_path: Path, tokenizer: list[str], rows: list[dict[str, Any]], options: list[str], code: int, said: str
) -> None:
    source = write_rows(tmp_path / "rows.jsonl", rows)
    done = run_cli("build", "--kind", "preferences", source, *tokenizer, "--out", tmp_path / "out", *options)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("error:") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


def test_rows_that_are_left_out(tmp_path: Path, tokenizer: list[str]) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [GOOD, {**GOOD, "rejected": ""}, *pairs(8)])
    done = run_cli("build", "--kind", "preferences", source, *tokenizer, "--out", tmp_path / "out", "--max-bad-rows", 1)
    assert done.returncode == 0
    assert "left out: empty_completion" in done.stdout


def test_other_datasets(tmp_path: Path, tokenizer: list[str]) -> None:
    source = write_rows(tmp_path / "rows.jsonl", pairs(10))
    run_cli("build", "--kind", "preferences", source, *tokenizer, "--out", tmp_path / "out", "--val-frac", 0)
    for command, said in (
        (
            ["export", tmp_path / "out", "--to", "trl", "--out", tmp_path / "no"],
            "its rejected completions would be trained",
        ),
        (["pack", tmp_path / "out", "--out", tmp_path / "no"], "its rejected completions would be trained"),
        (["info", tmp_path], "holds no finished cache and no episodes"),
    ):
        done = run_cli(*command)
        assert done.returncode in (2, 3)
        assert said in done.stderr
        assert not (tmp_path / "no").exists()
