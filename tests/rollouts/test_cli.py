"""The commands and `ng.loader`: what they print, the codes they exit with, and that nothing is left half-built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import niels_gpt as ng
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.rollouts import RolloutDataset, RolloutLoader
from tests.preferences.made import built, pairs, write_rows
from tests.rollouts.made import rows, write
from tests.test_cli import run_cli

GOOD: dict[str, Any] = {"prompt_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.5, -1], "reward": 1}


def test_from_lines_to_a_dataset(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from tests.renderers.tiny_families import folder_of

    lines = [
        GOOD,
        {
            **GOOD,
            "completion_ids": [5, 6, 7],
            "logprobs": [-0.5, None, -2.5],
            "completion_mask": [1, 0, 1],
            "reward": 0,
        },
        {
            **GOOD,
            "prompt_ids": [9],
            "group_id": "other",
            "advantage": 0.5,
            "version": 3,
            "note": "x",
            "metadata": {"a": 1},
        },
        {
            "turns": [
                {"prompt_ids": [1], "completion_ids": [2], "completion_logprobs": [-0.25], "version": 6},
                {"prompt_ids": [1, 2, 3], "completion_ids": [4], "logprobs": [-0.125]},
            ],
            "reward": -1.5,
            "version": 7,
        },
    ]
    path, out = write_rows(tmp_path / "sampled.jsonl", lines), tmp_path / "out"
    tokenizer = ["--tokenizer", folder_of("qwen3"), "--renderer", "qwen3"]
    done = run_cli("rollouts", "import", path, "--out", out, *tokenizer, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["rollouts"], told["groups"], told["zero_variance"]) == (4, 3, 2)
    opened = RolloutDataset(out)
    assert opened.groups.tolist() == [0, 0, 1, 2]  # the first two have the same prompt
    assert opened[0].ids.tolist() == [1, 2, 3, 4]
    assert opened[1].mask.tolist() == [False, False, True, False, True]
    assert opened[2].metadata == {"note": "x", "a": 1}
    assert (opened[2].group_id, opened[2].advantage, opened[2].version) == ("other", 0.5, 3)
    assert opened[3].ids.tolist() == [1, 2, 3, 4]
    assert opened[3].mask.tolist() == [False, True, False, True]
    assert opened[3].version == 6
    assert run_cli("rollouts", "import", path, "--out", out, *tokenizer).returncode == 2
    again = run_cli("rollouts", "import", path, "--out", out, "--overwrite")
    assert "is complete: 4 rollouts of 3 groups" in again.stdout

    found = json.loads(run_cli("rollouts", "info", out, "--json").stdout)
    assert (found["longest"], found["lowest_reward"], found["newest_version"]) == (5, -1.5, 6)
    assert "zero variance" in run_cli("rollouts", "info", out).stdout
    shown = json.loads(run_cli("rollouts", "show", out, 1, "--json").stdout)
    assert (shown["ids"], shown["logprobs"]) == ([1, 2, 5, 6, 7], [None, None, -0.5, None, -2.5])
    assert shown["rewards_of_group"] == [1.0, 0.0]
    page = run_cli("rollouts", "show", out, 1).stdout
    assert "-2.5000" in page
    assert "1, 0" in page
    assert run_cli("rollouts", "show", out, 4).returncode == 2
    assert "all as they were written" in run_cli("rollouts", "verify", out).stdout
    assert "4 tokens" in run_cli("show", out, 0, "--no-table").stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"logprobs": [-0.5]}, "turn 0: completion_logprobs: 1 values for 2 tokens"),
        ({"logprobs": [-0.5, None]}, "nan at token 1, which was sampled"),
        ({"logprobs": [-0.5, "x"]}, "logprobs holds 'x'"),
        ({"reward": None}, "reward is None"),
        ({"prompt_ids": ["a"]}, "prompt_ids are"),
        ({"turns": 5}, "turns is 5"),
    ],
)
def test_rows_that_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path, out = write_rows(tmp_path / "sampled.jsonl", [GOOD, {**GOOD, **change}]), tmp_path / "out"
    done = run_cli("rollouts", "import", path, "--out", out)
    assert done.returncode == 3
    assert f"{path}:2: " in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["sampled.jsonl"]


def test_other_mistakes(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "sampled.jsonl", [GOOD])
    path.write_text(path.read_text() + "{broken\n[1]\n", encoding="utf-8")
    done = run_cli("rollouts", "import", path, "--out", tmp_path / "out")
    assert (done.returncode, "sampled.jsonl:2" in done.stderr) == (3, True)
    missing = {name: value for name, value in GOOD.items() if name != "reward"}
    done = run_cli("rollouts", "import", write_rows(path, [missing]), "--out", tmp_path / "out")
    assert (done.returncode, "no reward; found prompt_ids" in done.stderr) == (3, True)
    done = run_cli("rollouts", "import", path, "--out", tmp_path / "out", "--renderer", "qwen3")
    assert done.returncode == 2
    without = {name: value for name, value in GOOD.items() if name != "logprobs"}
    done = run_cli("rollouts", "import", write_rows(path, [without]), "--out", tmp_path / "out", "--no-logprobs")
    assert done.returncode == 0
    assert RolloutDataset(tmp_path / "out").logprobs is None
    assert run_cli("rollouts", "info", tmp_path / "nothing").returncode == 3


def test_verify_finds_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "out", rows(4))
    data = bytearray((path / "train" / "logprobs.bin").read_bytes())
    data[5] ^= 4
    (path / "train" / "logprobs.bin").write_bytes(data)
    for room in ("rollouts", "episodes"):
        done = run_cli(room, "verify", path, "--json")
        assert done.returncode == 3
        (finding,) = json.loads(done.stdout)["findings"]
        assert "logprobs.bin: damaged" in finding


def test_the_loader_of_the_package(tmp_path: Path) -> None:
    path = write(tmp_path / "out", rows(6))
    options: dict[str, Any] = {"batch_size": 6, "sequence_length": 24, "seed": 4, "packing": True, "pad_token_id": 0}
    found = list(ng.loader(path, whole_groups=True, **options))
    expected = list(RolloutLoader(path, whole_groups=True, **options).batches())
    assert [batch.rollouts.tolist() for batch in found] == [batch.rollouts.tolist() for batch in expected]
    assert len(found) > 1
    with pytest.raises(UsageError, match="rollouts, which have no cache_dir"):
        ng.loader(path, cache_dir="x", **options)
    with pytest.raises(UsageError, match="not mixed in proportions"):
        ng.loader({path: 1.0}, **options)
    with pytest.raises(CacheError, match="a dataset of preferences; expected rollouts"):
        RolloutDataset(built(tmp_path / "pairs", pairs(4)))
