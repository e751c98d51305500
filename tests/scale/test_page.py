"""The code of `docs/scale.md`, run as it stands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from niels_gpt.samples import chats_file
from tests.conftest import REPOSITORY
from tests.test_documentation import blocks


def test_the_page_on_scale(tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tokenizer_dir, tmp_path / "tokenizer")
    shutil.copy(chats_file(), tmp_path / "chats.jsonl")
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(REPOSITORY / "docs" / "scale.md")
    exec(compile(block, "docs/scale.md", "exec"), {})  # our own page, run on purpose
    assert (tmp_path / "episodes" / "units" / "episodes.json").is_file()
