"""Pretraining caches with Qwen3's vocabulary, from files, beside gigatoken alone on the same texts in memory.

Every round has texts that no way has met, and every way a tokenizer that has met none: gigatoken remembers words.
Loading is not timed; one text that spells a control token is encoded before, so that the general path is loaded too.
"""

from __future__ import annotations

import gc
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gigatoken
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import texts
from benchmarks.pairs import Result
from niels_gpt.builds.document_encoders import DocumentEncoder, document_encoder
from niels_gpt.cache.build_cache import build_pretrain_cache
from niels_gpt.cache.formats import DEFAULT_SHARD_BYTES
from niels_gpt.sources.text_files import TextFiles

ROUNDS = 4
SPANS = 4  # of a document: some paragraphs, or functions
TOKENIZER = Path(os.environ.get("NGPT_ASSETS", "shared/assets")) / "qwen3-8b"


def run(folder: Path) -> list[Result]:
    """JSON lines and parquet to shards, one worker."""
    if not (TOKENIZER / "tokenizer.json").is_file():
        return []
    documents = _documents()
    size = len(documents) // ROUNDS
    taken: dict[str, list[float]] = {"bare gigatoken": [], "build from JSONL": [], "build from parquet": []}
    amounts = []
    for number in range(ROUNDS):
        part = documents[number * size : (number + 1) * size]
        amounts.append(sum(len(text.encode()) for text in part))
        ways = {
            "bare gigatoken": lambda part=part: _bare(part),
            "build from JSONL": lambda part=part: _build(_jsonl(folder, part), folder),
            "build from parquet": lambda part=part: _build(_parquet(folder, part), folder),
        }
        # The order turns, so that no way always comes first.
        for way in sorted(ways, key=lambda way: (list(ways).index(way) + number) % len(ways)):
            gc.collect()
            taken[way].append(ways[way]())
    bare = taken["bare gigatoken"]
    return [
        Result(
            bench="pretrain",
            case=f"{size:,} documents, {median(amounts) / 1e6:.0f} MB, Qwen3",
            way=way,
            value=median(times),
            unit="s",
            rates={"bytes": median(amounts) / median(times)},
            ratio=median(time / least for time, least in zip(times, bare, strict=True)),
        )
        for way, times in taken.items()
    ]


def _documents() -> list[str]:
    pools = texts.pools(random.Random(1))
    spans = [span for spans in pools.values() for span in spans]
    random.Random(2).shuffle(spans)
    return ["\n\n".join(spans[at : at + SPANS]) for at in range(0, len(spans), SPANS)]


def _bare(documents: list[str]) -> float:
    backend: Any = gigatoken.Tokenizer.from_json((TOKENIZER / "tokenizer.json").read_bytes()).backend
    return _timed(lambda: [backend.encode(text.encode()) for text in documents])


def _jsonl(folder: Path, documents: list[str]) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents))
    return path


def _parquet(folder: Path, documents: list[str]) -> Path:
    path = folder / "texts.parquet"
    pq.write_table(pa.table({"text": documents}), path, row_group_size=1000)
    return path


def _build(source: Path, folder: Path) -> float:
    encoder = document_encoder(TOKENIZER)
    encoder.encode(["<|im_end|>", "a"])
    return _timed(lambda: _write(source, folder, encoder))


def _write(source: Path, folder: Path, encoder: DocumentEncoder) -> None:
    build_pretrain_cache(
        TextFiles([source]),
        str(folder / "cache"),
        tokenizer=encoder,
        max_train_tokens=1 << 40,
        max_val_tokens=0,
        shard_bytes=DEFAULT_SHARD_BYTES,
        seed=42,
        shuffle_buffer=None,
        overwrite=True,
    )


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
