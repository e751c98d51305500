"""Small builds, of files with good and bad rows, for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.episodes import build_episodes
from niels_gpt.portions import SERIAL, Engine
from niels_gpt.samples import chats_file
from niels_gpt.scale.engine import UnitEngine
from niels_gpt.scale.local import LocalRunner
from niels_gpt.sources.chat_file import ChatFile

BAD_EVERY = 41


def write_chats(path: Path, rows: int, *, bad: bool = True) -> Path:
    """So many of the sample chats, with types, sources, weights, and a bad row now and then."""
    samples = [json.loads(line) for line in chats_file().read_text(encoding="utf-8").splitlines()]
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            row = samples[number % len(samples)] | {"type": f"t{number % 3}", "weight": number % 5 / 4}
            file.write(json.dumps(row, ensure_ascii=number % 2 == 0) + "\n")
            if bad and number % BAD_EVERY == 5:
                file.write("{broken\n")
            if bad and number % BAD_EVERY == 17:
                file.write(json.dumps({"messages": [{"role": "user", "content": f"no answer to {number}"}]}) + "\n\n")
    return path


def build(kind: str, source: ChatFile, out: Path, tokenizer: Any, engine: Engine = SERIAL, **options: Any) -> None:
    """One of the kinds of builds, of whatever there are."""
    given = {"source_name": source.name, "source_config": source.config(), "max_bad_rows": 1_000_000} | options
    if kind == "sft":
        build_sft_cache(source, str(out), tokenizer=tokenizer, val_frac=0.1, seed=1, engine=engine, **given)
        return
    made: dict[str, Any] = {
        "episodes": {"metadata": True},
        "shards": {"shard_bytes": 20_000},
        "weights": {"mask_dtype": "float32", "metadata": True},
        "no mask": {"mask_dtype": None},
    }[kind]
    build_episodes(source, out, encoder=tokenizer, engine=engine, **made | given)


KINDS = ("sft", "episodes", "shards", "weights", "no mask")


def units(slice_bytes: int, workers: int = 1) -> UnitEngine:
    """The local engine."""
    return UnitEngine(LocalRunner(workers), slice_bytes=slice_bytes)
