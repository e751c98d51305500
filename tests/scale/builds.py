"""Small builds, of files with good and bad rows, for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.episodes import build_episodes
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.sources.text_files import TextFiles, text_files

BAD_EVERY = 41


def write_chats(path: Path, rows: int, *, bad: bool = True) -> Path:
    """So many of the sample chats, with types, sources, weights, and a bad row now and then."""
    samples = [json.loads(line) for line in chats_file().read_text(encoding="utf-8").splitlines()]
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            row = samples[number % len(samples)] | {"type": f"t{number % 3}"}
            file.write(json.dumps(row, ensure_ascii=number % 2 == 0) + "\n")
            if bad and number % BAD_EVERY == 5:
                file.write("{broken\n")
            if bad and number % BAD_EVERY == 17:
                file.write(json.dumps({"messages": [{"role": "user", "content": f"no answer to {number}"}]}) + "\n\n")
    return path


def write_texts(folder: Path, rows: int) -> Path:
    """A folder of notes, one of them not UTF-8, and documents in a JSON-lines and a parquet file, with bad ones."""
    folder.mkdir()
    notes = [path.read_text(encoding="utf-8") for path in sorted(notes_dir().rglob("*.md"))]
    for number, note in enumerate(notes[:12]):
        (folder / f"{number:02d}.md").write_text(note[:1500], encoding="utf-8")
    (folder / "07.txt").write_bytes(b"not \xff UTF-8")
    documents = [{"text": notes[n % len(notes)][n % 50 :][: 100 + 37 * n % 700], "n": n} for n in range(rows)]
    with (folder / "20.jsonl").open("w", encoding="utf-8") as file:
        for number, document in enumerate(documents):
            file.write(json.dumps(document, ensure_ascii=number % 2 == 0) + "\n")
            if number % BAD_EVERY == 5:
                file.write('{"text": ""}\n{broken\n')
    pq.write_table(pa.Table.from_pylist([*documents[: rows // 2], {"text": None, "n": 1}]), folder / "30.parquet")
    return folder


def source_of(kind: str, path: Path) -> ChatFiles | TextFiles:
    """What such a build reads from a file of chats, or a folder of texts."""
    return text_files([path]) if kind == "pretrain" else chat_files([path])


def build(
    kind: str, source: Any, out: Path, tokenizer: Any, executor: UnitExecutor | None = None, **options: Any
) -> None:
    """One of the kinds of builds, of whatever there are; without an executor of rows one by one, not in units."""
    given = {"max_bad_rows": 1_000_000} | options
    if "source_config" not in given:
        given |= {"source_name": source.name, "source_config": source.config()}
    if executor is None:
        source = source.iterate()
    if kind == "pretrain":
        budgets: dict[str, Any] = {"max_train_tokens": 1 << 40, "max_val_tokens": 1 << 40, "val_frac": 0.1}
        more = {"shard_bytes": 20_000, "seed": 1, "shuffle_buffer": 20}
        build_pretrain_cache(source, str(out), tokenizer=tokenizer, executor=executor, **budgets | more | given)
        return
    if kind == "sft":
        build_sft_cache(source, str(out), tokenizer=tokenizer, val_frac=0.1, seed=1, executor=executor, **given)
        return
    made: dict[str, Any] = {
        "episodes": {"metadata": True},
        "shards": {"shard_bytes": 20_000},
        "weights": {"mask_dtype": "float32", "metadata": True},
        "no mask": {"mask_dtype": None},
    }[kind]
    build_episodes(source, out, encoder=tokenizer, executor=executor, **made | given)


KINDS = ("sft", "episodes", "shards", "weights", "no mask")


def units(slice_bytes: int, workers: int = 1) -> UnitExecutor:
    """The local engine."""
    return UnitExecutor(LocalRunner(workers), slice_bytes=slice_bytes)
