"""Recipes whose sources are in a store: a hub of ours on 127.0.0.1, and S3."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
import fsspec

from niels_gpt.recipes import build_recipe, read_lock, read_recipe
from tests.conftest import run_python
from tests.hub import Hub, Repository
from tests.scale.stores import s3_server

NAME = "own/chats"
RECIPE = """\
out = "made"
[tokenizer]
path = {tokenizer}
[sequence]
length = 64
[[sources]]
name = "chats"
files = [{file}]
"""


def rows(answer: str) -> bytes:
    made: list[Any] = [
        {"messages": [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": f"{answer} {n}"}]}
        for n in range(20)
    ]
    return "".join(json.dumps(row) + "\n" for row in made).encode()


def write_recipe(folder: Path, tokenizer: Path, file: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(tokenizer=json.dumps(str(tokenizer)), file=json.dumps(file)))
    return path


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*.bin") if "packing" not in path.parts)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_lock_reads_the_commit_that_was_read(tmp_path: Path, tokenizer_dir: Path) -> None:
    """The recipe follows the branch, the lock names the commit, so that it makes the same bytes after a push."""
    pytest.importorskip("huggingface_hub", reason="the extra 'hub' is not installed")
    earlier, later = {"data/a.jsonl": rows("first")}, {"data/a.jsonl": rows("second")}
    recipe = write_recipe(tmp_path, tokenizer_dir, f"hf://datasets/{NAME}/data/*.jsonl")

    def build(repository: Repository, file: Path, out: str) -> dict[str, str]:
        with Hub({NAME: repository}) as hub:
            environment = hub.environment(tmp_path / out / "hf", longest_sleep=0.02)
            command = ["-m", "niels_gpt", "build", file, "--set", f"out={out}/made"]
            done = run_python(*command, environment=environment, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        return digests(tmp_path / out / "made")

    (tmp_path / "one").mkdir()
    first = build(Repository(earlier), recipe, "one")
    lock = tmp_path / "recipe.lock.json"
    commit = Repository(earlier).shas[0]
    assert f"hf://datasets/{NAME}@{commit}/data/*.jsonl" in lock.read_text()
    kept = lock.read_bytes()
    pushed = Repository(later, history=[earlier])
    (tmp_path / "two").mkdir()
    assert build(pushed, recipe, "two") != first
    lock.write_bytes(kept)
    (tmp_path / "three").mkdir()
    assert build(pushed, lock, "three") == first


def test_files_of_a_bucket(tmp_path: Path, tokenizer_dir: Path) -> None:
    """The same bytes as from the disk; an object that was replaced does not fit the lock."""
    from niels_gpt.errors import Mismatch

    (tmp_path / "a.jsonl").write_bytes(rows("first"))
    local = tmp_path / "local"
    local.mkdir()
    build_recipe(read_recipe(write_recipe(local, tokenizer_dir, str(tmp_path / "a.jsonl"))))
    remote = tmp_path / "remote"
    remote.mkdir()
    with s3_server() as bucket:
        store = fsspec.filesystem("s3")
        store.pipe_file(f"{bucket}/data/a.jsonl", rows("first"))
        recipe = write_recipe(remote, tokenizer_dir, f"{bucket}/data/*.jsonl")
        build_recipe(read_recipe(recipe))
        assert digests(remote / "made") == digests(local / "made")
        loaded, lock = read_lock(remote / "recipe.lock.json", ["out=again"])
        build_recipe(loaded, locked=lock)
        assert digests(remote / "again") == digests(local / "made")
        store.pipe_file(f"{bucket}/data/a.jsonl", rows("second"))
        loaded, lock = read_lock(remote / "recipe.lock.json", ["out=third"])
        with pytest.raises(Mismatch, match="inputs are not those of the lock"):
            build_recipe(loaded, locked=lock)
        assert not (remote / "third").exists()
