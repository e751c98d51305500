"""From an S3 server to shards and back to batches: commands that read a bucket, and a loader that trains from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
import fsspec

import niels_gpt as ng
from niels_gpt.episodes import Sampling
from tests.conftest import run_cli
from tests.scale.builds import write_chats
from tests.test_cache_determinism import digests


def uploaded(folder: Path, url: str) -> None:
    fs = fsspec.filesystem("s3")
    for path in folder.rglob("*"):
        if path.is_file():
            fs.pipe_file(f"{url}/{path.relative_to(folder)}", path.read_bytes())


def built(out: Path, *command: Any) -> dict[str, str]:
    """The digests of a finished build; bad rows are named by their place, so those lines differ."""
    done = run_cli(*command, "--out", out, cwd=out.parent)
    assert done.returncode == 0, done.stderr
    return {name: digest for name, digest in digests(out).items() if Path(name).suffix in (".bin", ".idx", ".npy")}


def test_episodes_from_a_bucket_to_a_bucket_to_batches(s3: str, tmp_path: Path, tokenizer_dir: Path) -> None:
    """Chats of the bucket become shards, which are published there, from where two workers train."""
    (tmp_path / "raw").mkdir()
    write_chats(tmp_path / "raw" / "chats.jsonl", 60, bad=False)
    uploaded(tmp_path / "raw", f"{s3}/chats")
    what = ("build", "--tokenizer", tokenizer_dir, "--shard-bytes", 80_000)
    local = built(tmp_path / "local", *what, tmp_path / "raw" / "chats.jsonl")
    remote = built(tmp_path / "remote", *what, f"{s3}/chats/*.jsonl", "--workers", 2, "--unit-bytes", 9_000)
    assert remote == local
    published = run_cli("publish", tmp_path / "remote", f"{s3}/episodes/chats", cwd=tmp_path)
    assert published.returncode == 0, published.stderr
    shape: dict[str, Any] = {
        "batch_size": 4,
        "sequence_length": 64,
        "pad_token_id": 0,
        "sampling": Sampling(shuffle_shards=2),
    }
    ours = ng.loader(f"{s3}/episodes/chats", cache_dir=tmp_path / "cache", num_workers=2, **shape)
    theirs = ng.loader(tmp_path / "local", **shape)
    batches = [(batch.x, batch.y, batch.mask) for batch in theirs]
    found = [(batch.x, batch.y, batch.mask) for batch in ours]
    assert len(found) == len(batches) > 5
    assert all(a.equal(b) for one, other in zip(found, batches, strict=True) for a, b in zip(one, other, strict=True))
