"""`pack`: packed rows on disk, by the command, and what is refused; its batches are in test_reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from niels_gpt.cli.main import app
from niels_gpt.datasets import open_dataset
from niels_gpt.episodes import EpisodeWriter
from niels_gpt.episodes.build import pack_episodes
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.store.verify import verify_dataset
from tests.episodes.made import open_loader, write_dataset

LENGTHS = [4, 7, 12, 3, 9, 5, 2, 13, 6, 8]


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "source", LENGTHS)


def test_the_command_writes_what_packing_at_load_gives(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "packed"
    done = CliRunner().invoke(app, ["pack", str(source), "--sequence-length", "12", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    train = json.loads(done.stdout)["splits"]["train"]
    assert train["tokens"] == sum(LENGTHS)
    assert train["episodes"] < len(LENGTHS)
    assert list(verify_dataset(out)) == []
    found, expected = (list(opened.batches()) for opened in (open_loader(out), open_loader(source, packing=True)))
    assert [one.x.tolist() for one in found] == [one.x.tolist() for one in expected]
    assert [one.tensors().keys() for one in found] == [one.tensors().keys() for one in expected]


def test_what_is_refused_writes_nothing(tmp_path: Path, source: Path) -> None:
    for block_size in (0, 1.5, "8"):
        wrong: Any = block_size
        with pytest.raises(UsageError, match="block_size is"):
            pack_episodes(source, tmp_path / "packed", block_size=wrong)
    with pytest.raises(CacheError, match=r"record 2: 12 tokens do not fit into rows of 9"):
        pack_episodes(source, tmp_path / "packed", block_size=8)
    assert not (tmp_path / "packed").exists()


def test_segment_ids_of_one_byte(tmp_path: Path) -> None:
    """MyPT writes `segment_ids.bin` as uint8."""
    writer = EpisodeWriter(tmp_path, "train", segments_dtype="uint16")
    writer.write(np.arange(6), np.array([6]), np.ones(6), segments=np.array([0, 0, 1, 1, 1, 2]))
    writer.close()
    np.array([0, 0, 1, 1, 1, 2], np.uint8).tofile(tmp_path / "train" / "segment_ids.bin")
    row = open_dataset(tmp_path).split("train").row(0)
    assert row.segment_ids is not None
    assert row.segment_ids.tolist() == [0, 0, 1, 1, 1, 2]
