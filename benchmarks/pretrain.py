"""Pretraining caches with Qwen3's vocabulary, from files, beside gigatoken alone on the same texts in memory.

All texts are distinct, and in every round every way has a new tokenizer that has met none: gigatoken remembers words.
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

from benchmarks import inputs, texts
from benchmarks.pairs import Result
from niels_gpt.builds.documents import document_encoder
from niels_gpt.sources.text_files import text_files

ROUNDS = 3
SPANS = (4, 16)  # of a document: paragraphs and functions, together about 1 and 4 kB
TOKENIZER = Path(os.environ.get("NGPT_ASSETS", "shared/assets")) / "qwen3-8b"


def run(folder: Path) -> list[Result]:
    """JSON lines and parquet to shards, one worker."""
    if not (TOKENIZER / "tokenizer.json").is_file():
        return []
    return [result for spans in SPANS for result in _results(folder, _documents(spans))]


def _results(folder: Path, documents: list[str]) -> list[Result]:
    size = sum(len(text.encode()) for text in documents)
    jsonl, parquet = folder / "texts.jsonl", folder / "texts.parquet"
    jsonl.write_text("".join(map(line_of, documents)))
    pq.write_table(pa.table({"text": documents}), parquet, row_group_size=1000)
    ways: dict[str, Callable[[], float]] = {
        "bare gigatoken": lambda: _bare(documents),
        "build from JSONL": lambda: _build(jsonl, folder),
        "build from parquet": lambda: _build(parquet, folder),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, run_way in ways.items():
            gc.collect()
            taken[way].append(run_way())
    bare = taken["bare gigatoken"]
    return [
        Result(
            bench="pretrain",
            case=f"{len(documents):,} documents, {size / 1e6:.0f} MB, Qwen3",
            way=way,
            value=median(times),
            unit="s",
            rates={"bytes": size / median(times)},
            ratio=median(time / least for time, least in zip(times, bare, strict=True)),
        )
        for way, times in taken.items()
    ]


def _documents(size: int) -> list[str]:
    pools = texts.pools(random.Random(1))
    spans = [span for spans in pools.values() for span in spans]
    random.Random(2).shuffle(spans)
    return ["\n\n".join(spans[at : at + size]) for at in range(0, len(spans), size)]


def _bare(documents: list[str]) -> float:
    backend: Any = gigatoken.Tokenizer.from_json((TOKENIZER / "tokenizer.json").read_bytes()).backend
    return _timed(lambda: [backend.encode(text.encode()) for text in documents])


def line_of(text: str) -> str:
    """A document as a line of JSON."""
    return json.dumps({"text": text}, ensure_ascii=False) + "\n"


def _build(source: Path, folder: Path) -> float:
    encoder = document_encoder(TOKENIZER)
    encoder.encode(["<|im_end|>", "a"])  # loads the general path, which only such texts need
    return _timed(lambda: inputs.build_whole_cache(text_files([source]), folder / "cache", encoder))


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
