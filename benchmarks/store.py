"""Training from a store: `python -m benchmarks.store`; beside litdata, and mosaicml-streaming if it is installed.

The store is a process on this machine that answers the requests of S3 clients for files below a directory, each after
10 ms, as a bucket nearby does. All ways read the same rows (ids and mask, 2049 tokens each) in shards of the same size,
in one process without workers, each in its own shuffled order, into batches of x, y and mask. Ways take turns. A cold
pass begins with an empty cache and includes opening; a warm one reads a dataset that is in the cache beside the same
one on the disk.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import torch

SHARDS, ROWS, WIDTH, BATCH = 24, 1024, 2049, 8
SHARD_TOKENS = ROWS * WIDTH
COLD_ROUNDS, WARM_ROUNDS = 3, 5
PAD = 3
LATENCY = 0.01  # seconds


def main() -> None:
    """Print seconds of each way in every round, and ratios."""
    folder = Path(tempfile.mkdtemp(prefix="bench-store-"))
    dataset, url = _write(folder / "bucket"), "s3://bucket"
    server = _start_server(folder)
    try:
        ways: dict[str, Callable[[Path], int]] = {
            "ours": lambda cache: sum(len(batch.x) for batch in _loader(f"{url}/chats", cache))
        }
        with suppress(ModuleNotFoundError):
            ways["litdata"] = _litdata(folder, dataset, url)
        with suppress(ModuleNotFoundError):
            ways["mosaicml-streaming"] = _mosaic(folder, dataset, url)
        _report("cold", _cold(folder, ways))
        _report("warm", _warm(folder, dataset, f"{url}/chats"))
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _cold(folder: Path, ways: dict[str, Callable[[Path], int]]) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(COLD_ROUNDS):
        for way, run in ways.items():
            cache = folder / f"cache-{way}-{number}"
            started = time.perf_counter()
            rows = run(cache)
            taken[way].append(time.perf_counter() - started)
            assert rows == SHARDS * ROWS, (way, rows)
            shutil.rmtree(cache, ignore_errors=True)
    return taken


def _warm(folder: Path, dataset: Path, url: str) -> dict[str, list[float]]:
    """The first pass of each fills caches, also those of the system."""
    ways = {"from the cache": _loader(url, folder / "warm"), "from the disk": _loader(dataset, None)}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(WARM_ROUNDS + 1):
        for way, loader in ways.items():
            started = time.perf_counter()
            for batch in loader:
                del batch
            if number:
                taken[way].append(time.perf_counter() - started)
    return taken


def _report(case: str, taken: dict[str, list[float]]) -> None:
    first = next(iter(taken))
    tokens = SHARDS * SHARD_TOKENS
    for way, times in taken.items():
        ratio = median(theirs / mine for theirs, mine in zip(times, taken[first], strict=True))
        rounds = " ".join(f"{seconds:.2f}" for seconds in times)
        print(f"{case:5} {way:20} {rounds} s; {tokens / median(times) / 1e6:.1f} M tokens/s; {ratio:.2f} x {first}")


def _start_server(root: Path) -> subprocess.Popen[bytes]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    os.environ |= {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "S3_ENDPOINT_URL": address}
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.store", str(port), str(root)])
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.05)
    return server


class _Bucket(BaseHTTPRequestHandler):
    """GET and HEAD of files, with ranges."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    root = Path()

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        """As GET, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        """The file, or the part that is asked for."""
        time.sleep(LATENCY)
        file = self.root / unquote(urlsplit(self.path).path).lstrip("/")
        if not file.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = file.stat().st_size
        first, stop = 0, size
        if span := self.headers.get("Range"):
            # bytes=10-19 are 10 bytes, 10..20; bytes=10- are all from 10 on.
            begin, _, last = span.removeprefix("bytes=").partition("-")
            first, stop = int(begin), min(size, int(last) + 1) if last else size
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {first}-{stop - 1}/{size}")
        self.send_header("ETag", f'"{size:x}"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("Content-Length", str(stop - first))
        self.end_headers()
        if self.command == "GET":
            self.wfile.flush()
            with file.open("rb") as body:
                while first < stop:
                    first += os.sendfile(self.connection.fileno(), body.fileno(), first, stop - first)


def _write(folder: Path) -> Path:
    from niels_gpt.episodes import EpisodeWriter
    from niels_gpt.store.files import json_bytes, write_atomic

    dataset = folder / "chats"
    writer = EpisodeWriter(dataset, "train", shard_bytes=4 * SHARD_TOKENS)
    draw = np.random.default_rng(1)
    for _ in range(SHARDS):
        ids = draw.integers(0, 150_000, SHARD_TOKENS)
        writer.write(ids, np.full(ROWS, WIDTH), ids % 2)
    writer.close()
    counts = {"train": writer.counts(), "val": {"episodes": 0, "tokens": 0, "trained_tokens": 0}}
    facts = {"format_version": 1, "kind": "episodes", "token_dtype": "uint32", "mask_dtype": "uint8"}
    files = {name: record.to_json() for name, record in writer.files.items()}
    manifest = {**facts, "vocab_size": 200_000, "splits": counts, "files": files}
    write_atomic(dataset / "episodes.json", json_bytes(manifest))
    return dataset


def _loader(path: str | Path, cache: Path | None) -> Any:
    import niels_gpt as ng
    from niels_gpt.episodes import Sampling

    options: dict[str, Any] = {} if cache is None else {"cache_dir": cache}
    shape: dict[str, Any] = {"batch_size": BATCH, "sequence_length": WIDTH - 1, "pad_token_id": PAD}
    return ng.loader(path, sampling=Sampling(shuffle_shards=4), **shape, **options)


def _items(dataset: Path) -> Iterable[dict[str, Any]]:
    for folder in sorted((dataset / "train").iterdir()):
        ids = np.fromfile(folder / "tokens.bin", "<u4").reshape(-1, WIDTH)
        mask = np.fromfile(folder / "mask.bin", "u1").reshape(-1, WIDTH)
        for row, weights in zip(ids, mask, strict=True):
            yield {"ids": row, "mask": weights}


def _collate(rows: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids = torch.from_numpy(np.stack([np.asarray(row["ids"]) for row in rows]).astype(np.int64))
    mask = torch.from_numpy(np.stack([np.asarray(row["mask"]) for row in rows]).astype(np.float32))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), mask[:, 1:].contiguous()


def _litdata(folder: Path, dataset: Path, url: str) -> Callable[[Path], int]:
    import litdata
    from litdata.streaming.writer import BinaryWriter

    written = folder / "bucket" / "litdata"
    written.mkdir()
    writer = BinaryWriter(str(written), chunk_bytes=5 * SHARD_TOKENS)
    for number, item in enumerate(_items(dataset)):
        writer.add_item(number, item)
    writer.done()
    writer.merge()

    def run(cache: Path) -> int:
        rows = litdata.StreamingDataset(f"{url}/litdata", cache_dir=str(cache), shuffle=True, drop_last=False)
        loader = litdata.StreamingDataLoader(rows, batch_size=BATCH, num_workers=0, collate_fn=_collate)
        return sum(len(x) for x, _, _ in loader)

    return run


def _mosaic(folder: Path, dataset: Path, url: str) -> Callable[[Path], int]:
    import streaming

    written, columns = (
        folder / "bucket" / "mosaic",
        {"ids": f"ndarray:uint32:{WIDTH}", "mask": f"ndarray:uint8:{WIDTH}"},
    )
    with streaming.MDSWriter(out=str(written), columns=columns, size_limit=5 * SHARD_TOKENS) as out:
        for item in _items(dataset):
            out.write(item)

    def run(cache: Path) -> int:
        streaming.base.util.clean_stale_shared_memory()
        rows = streaming.StreamingDataset(
            remote=f"{url}/mosaic", local=str(cache), shuffle=True, batch_size=BATCH, num_canonical_nodes=1
        )
        loader = torch.utils.data.DataLoader(rows, batch_size=BATCH, num_workers=0, collate_fn=_collate)
        return sum(len(x) for x, _, _ in loader)

    return run


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _Bucket.root = Path(sys.argv[2])
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Bucket).serve_forever()
    else:
        main()
