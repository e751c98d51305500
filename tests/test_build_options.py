"""`BuildOptions`: the same build as with keywords, and an error that names what is passed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from niels_gpt.builds.build import BuildOptions
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.episodes import build_episodes
from niels_gpt.errors import UsageError
from tests.conftest import FakeTokenizer

CHAT: Any = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
BAD: Any = [{"role": "user", "content": "no answer"}]


def build(kind: str, out: Path, **options: Any) -> None:
    """A small build of one kind, with one bad row among the conversations."""
    if kind == "pretrain":
        sizes: dict[str, Any] = {"max_train_tokens": 100, "max_val_tokens": 0, "shard_bytes": 64}
        rows: Any = ["some text", "bad \0 text"]
        build_pretrain_cache(rows, str(out), tokenizer=FakeTokenizer(), seed=1, shuffle_buffer=None, **sizes, **options)
    elif kind == "sft":
        build_sft_cache([CHAT, BAD], str(out), tokenizer=FakeTokenizer(), val_frac=0, seed=1, **options)
    else:
        build_episodes([CHAT, BAD], out, encoder=FakeTokenizer(), val_frac=0, seed=1, **options)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a build."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["pretrain", "sft", "episodes"])
def test_options_and_keywords_build_the_same_bytes(tmp_path: Path, kind: str) -> None:
    recorded: dict[str, Any] = {"source_name": "x", "source_config": {"a": 1}}
    build(kind, tmp_path / "keywords", **recorded, max_bad_rows=1)
    build(kind, tmp_path / "options", options=BuildOptions(**recorded, max_bad_rows=1))
    build(kind, tmp_path / "both", options=BuildOptions(**recorded), max_bad_rows=1)
    assert contents(tmp_path / "keywords") == contents(tmp_path / "options") == contents(tmp_path / "both")


@pytest.mark.parametrize("kind", ["pretrain", "sft", "episodes"])
def test_a_value_that_is_passed_twice_is_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError, match="max_bad_rows is passed as a keyword and in BuildOptions"):
        build(kind, tmp_path / "out", options=BuildOptions(max_bad_rows=2), max_bad_rows=1)
    assert not (tmp_path / "out").exists()
