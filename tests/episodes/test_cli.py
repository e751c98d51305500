"""The commands on episodes, run as a user runs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.samples import chats_file
from tests.conftest import run_cli
from tests.episodes.made import write_split


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """The samples as episodes, built once from the command line."""
    out = tmp_path_factory.mktemp("cli") / "chats"
    done = run_cli("build", chats_file(), "--tokenizer", tokenizer_dir, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "read as messages" in done.stderr
    assert "is complete" in done.stdout
    return out


def test_build_reports_as_json_and_is_not_repeated(dataset: Path, tokenizer_dir: Path) -> None:
    again = run_cli("build", chats_file(), "--tokenizer", tokenizer_dir, "--out", dataset, "--json")
    assert again.returncode == 0
    assert "already built" in again.stderr
    report = json.loads(again.stdout)
    assert report["splits"]["train"]["episodes"] == 90
    other = run_cli("build", chats_file(), "--tokenizer", tokenizer_dir, "--out", dataset, "--seed", 1)
    assert other.returncode == 2
    assert "seed 42, now 1" in other.stderr


def test_info_counts_and_foresees_packing(dataset: Path) -> None:
    shown = json.loads(run_cli("info", dataset, "--sequence-length", 512, "--json").stdout)
    assert shown["sequence_length"] == 512
    train = shown["splits"]["train"]
    records = np.fromfile(dataset / "train" / "episodes.idx", dtype="<u8").reshape(-1, 2)
    assert train["episodes"] == len(records) == 90
    assert train["tokens"] == records[:, 1].sum()
    assert (train["shortest"], train["longest"]) == (records[:, 1].min(), records[:, 1].max())
    assert train["too_long"] == (records[:, 1] > 513).sum()
    assert train["packed_filled"] > train["filled"]
    table = run_cli("info", dataset)
    assert "packed: filled" in table.stdout


def test_verify_finds_a_flipped_byte(dataset: Path, tmp_path: Path) -> None:
    fine = run_cli("verify", dataset)
    assert fine.returncode == 0
    assert "as they were written" in fine.stdout
    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    data = bytearray((copy / "train" / "mask.bin").read_bytes())
    data[1234] ^= 1
    (copy / "train" / "mask.bin").write_bytes(data)
    found = run_cli("verify", copy, "--json")
    assert found.returncode == 3
    report = json.loads(found.stdout)
    assert not report["ok"]
    assert "mask.bin: damaged: its sha256" in report["findings"][0]


def test_verify_without_manifest_looks_at_every_value(tmp_path: Path) -> None:
    write_split(tmp_path / "train", [[1, 2, 3], [4, 5, 600]], [[0, 1, 1], [0, 1, 1]])
    assert run_cli("verify", tmp_path).returncode == 0
    (tmp_path / "train" / "mask.bin").write_bytes(bytes([0, 1, 1, 0, 7, 1]))
    found = run_cli("verify", tmp_path, "--vocab-size", 600)
    assert found.returncode == 3
    assert "token 5 is 600; the vocabulary has 600" in found.stdout
    assert "value 4 is 7" in found.stdout
    (tmp_path / "train" / "mask.bin").write_bytes(bytes(5))
    assert "5 bytes for 6 tokens" in run_cli("verify", tmp_path).stdout


def test_show_an_episode_and_a_packed_row(dataset: Path, tokenizer_dir: Path) -> None:
    one = json.loads(run_cli("show", dataset, 3, "--tokenizer", tokenizer_dir, "--json").stdout)
    assert "episode 3 of 90" in one["title"]
    kinds = {token["kind"] for token in one["tokens"]}
    assert kinds == {"trained", "context", "scaffold"}
    trained = [token for token in one["tokens"] if token["target_trained"]]
    assert trained[-1]["target_text"] == "<eot>"
    packed = run_cli("show", dataset, 0, "--packed", "--sequence-length", 2000, "--json")
    row = json.loads(packed.stdout)
    assert "row 0 of" in row["title"]
    assert {token["segment"] for token in row["tokens"]} > {1}
    for before, after in zip(row["tokens"], row["tokens"][1:], strict=False):
        if after["segment"] != before["segment"]:
            assert not before["target_trained"]  # nothing is predicted across a seam
    shown = run_cli("show", dataset, 3, "--sequence-length", 40, "--tokenizer", tokenizer_dir)
    assert shown.returncode == 0
    assert "<sys>" in shown.stdout
    missing = run_cli("show", dataset, 90)
    assert missing.returncode == 2
    assert "episodes 0 to 89" in missing.stderr


def test_mistakes_are_one_line(tmp_path: Path, tokenizer_dir: Path) -> None:
    for arguments, code, said in (
        (("info", tmp_path), 3, "no episodes"),
        (("verify", tmp_path), 3, "no episodes"),
        (("show", tmp_path), 3, "no episodes"),
        (
            ("build", tmp_path / "no.jsonl", "--out", tmp_path / "o", "--tokenizer", tokenizer_dir),
            3,
            "no such file",
        ),
    ):
        done = run_cli(*arguments)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("building", [False, True])
def test_neither_info_nor_build_loads_torch(dataset: Path, tokenizer_dir: Path, tmp_path: Path, building: bool) -> None:
    build = ["build", str(chats_file()), "--tokenizer", str(tokenizer_dir), "--out", str(tmp_path / "out")]
    program = (
        "import sys; from niels_gpt.cli.main import app\n"
        f"assert not app({build if building else ['info', str(dataset)]})\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
