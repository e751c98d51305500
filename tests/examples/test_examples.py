"""Every example runs as it stands, in its smallest form."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.export.sources import episodes, random_rows
from tests.renderers.test_client import Server, server

pytest.importorskip("torch")
pytestmark = [pytest.mark.filterwarnings("ignore")]  # of trainers, about what a CPU lacks
__all__ = ["server"]

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example as a program in this process, and returns what it printed."""

    def program(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(REPOSITORY / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return program


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return episodes(tmp_path / "episodes", random_rows(60, longest=40))


def test_torch_loop(run: Run, dataset: Path, tmp_path: Path) -> None:
    small = ("--block-size", 48, "--accumulate", 2)
    whole = run("torch_loop.py", dataset, *small, "--steps", 5, "--checkpoint", tmp_path / "whole.pt")
    first = run("torch_loop.py", dataset, *small, "--steps", 3, "--checkpoint", tmp_path / "parts.pt")
    rest = run("torch_loop.py", dataset, *small, "--steps", 5, "--checkpoint", tmp_path / "parts.pt")
    counts = [[line.split()[-1] for line in text.splitlines()] for text in (whole, first + rest)]
    assert counts[0] == counts[1]
    assert len(counts[0]) == 5


def test_transformers_trainer(run: Run, dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    small = (dataset, "--block-size", 48, "--save-steps", 2, "--out", tmp_path / "run")
    assert "2 steps" in run("transformers_trainer.py", *small, "--steps", 2)
    assert "3 steps" in run("transformers_trainer.py", *small, "--steps", 3, "--resume")


def test_trl_sft(run: Run, dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from tests.renderers.tiny_families import folder_of

    told = run(
        "trl_sft.py",
        dataset,
        "--tokenizer",
        folder_of("qwen3"),
        "--steps",
        2,
        "--max-length",
        64,
        "--out",
        tmp_path / "o",
    )
    assert "padding_free=True" in told
    assert "2 steps" in told


def test_dpo_loop(run: Run, tmp_path: Path) -> None:
    from tests.preferences.made import built, pairs

    out = built(tmp_path, pairs(20))
    whole = run("dpo_loop.py", out, "--steps", 5, "--max-length", 64, "--checkpoint", tmp_path / "whole.pt")
    first = run("dpo_loop.py", out, "--steps", 2, "--max-length", 64, "--checkpoint", tmp_path / "parts.pt")
    rest = run("dpo_loop.py", out, "--steps", 5, "--max-length", 64, "--checkpoint", tmp_path / "parts.pt")
    assert whole == first + rest
    assert len(whole.splitlines()) == 5


def test_grpo_loop(run: Run, tmp_path: Path) -> None:
    from tests.renderers.tiny_families import folder_of

    rows = [{"prompt": f"the quick {k}", "answer": "fox"} for k in range(5)]
    prompts = tmp_path / "math.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    small = (prompts, "--tokenizer", folder_of("qwen3"), "--renderer", "qwen3", "--prompts-per-step", 2)
    small += ("--max-new-tokens", 6, "--sequence-length", 96)
    whole = run("grpo_loop.py", *small, "--steps", 3, "--out", tmp_path / "whole")
    first = run("grpo_loop.py", *small, "--steps", 1, "--out", tmp_path / "parts")
    rest = run("grpo_loop.py", *small, "--steps", 3, "--out", tmp_path / "parts")
    assert whole == first + rest
    assert len(whole.splitlines()) == 3


def test_tokenize_in_pipelines(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from tests.renderers.small import assistant, user
    from tests.renderers.tiny_families import folder_of

    rows = [{"messages": [user(f"question {k}"), assistant("answer " * k)]} for k in range(1, 30)]
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    told = run(
        "tokenize_in_pipelines.py", chats, "--tokenizer", folder_of("qwen3"), "--renderer", "qwen3", "--pack", 300
    )
    lines = told.splitlines()
    assert lines[0].endswith("columns input_ids, labels, seq_lengths")
    assert lines[1].split()[1] == lines[2].split()[1]


def test_lightning_fit(run: Run, dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    small = (dataset, "--block-size", 48, "--out", tmp_path / "run")
    assert "2 steps" in run("lightning_fit.py", *small, "--steps", 2)
    assert "4 steps" in run("lightning_fit.py", *small, "--steps", 4, "--resume")


def test_rollouts(run: Run, server: Server) -> None:
    from tests.renderers.test_template import tokenizer_folder

    told = run(
        "rollouts.py",
        "--url",
        server.url,
        "--model",
        server.model,
        "--tokenizer",
        tokenizer_folder(),
        "--renderer",
        "qwen3",
    )
    sampled = 2 * len(server_reply())
    assert told.endswith(f"tokens, {sampled} sampled\n")


def server_reply() -> list[int]:
    from tests.renderers.test_client import ids_of

    return ids_of("hello world<|im_end|>")
