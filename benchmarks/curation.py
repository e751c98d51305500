"""`python -m benchmarks.curation [--rows N]`: duplicates and mixtures at a million rows, time and peak memory.

Rows are windows of real prose; some are repeated, some with a few words changed. Each measurement runs in a process of
its own, so that its peak memory is its own. Shown for a tenth of the rows and for all.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.texts import pools

WORDS_OF_ROW = 80


def write_rows(path: Path, rows: int) -> None:
    """Rows of two messages: of a hundred, 3 repeat an earlier row and 5 are an earlier one with two words changed."""
    rng = random.Random(7)
    words = " ".join(pools(rng)["prose"]).split()
    earlier: list[list[str]] = []
    with path.open("w", encoding="utf-8") as out:
        for number in range(rows):
            kind = number % 100
            if earlier and kind < 8:
                text = list(rng.choice(earlier))
                for _ in range(2 if kind < 5 else 0):
                    text[rng.randrange(len(text))] = "changed"
            else:
                start = rng.randrange(len(words) - WORDS_OF_ROW)
                text = words[start : start + WORDS_OF_ROW]
                if len(earlier) < 2000:
                    earlier.append(text)
            sides = (("user", " ".join(text[:20])), ("assistant", " ".join(text[20:])))
            row = {"messages": [{"role": role, "content": content} for role, content in sides]}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def reading(path: Path) -> str:
    """Read and check every row, which each of the others does too."""
    from niels_gpt.sources.chat_files import chat_files

    return f"{sum(1 for _ in chat_files([str(path)]).iterate()):,} rows"


def duplicates(path: Path, near: float | None) -> str:
    """Find exact duplicates, or near ones too."""
    from niels_gpt.sources.chat_files import chat_files
    from niels_gpt.sources.curation.duplicates import DuplicateOptions, find_duplicates

    with tempfile.TemporaryDirectory() as folder:
        source = chat_files([str(path)])
        find_duplicates({"rows": source}, DuplicateOptions(near=near), Path(folder))
        with (Path(folder) / "left_out.jsonl").open() as lines:
            return f"{sum(1 for _ in lines):,} left out"


def mixing(episodes: int) -> str:
    """Measure two datasets and take the exact rows of a mixture, packed."""
    from niels_gpt.episodes.order.mixture import Proportions, measured, rows_of
    from niels_gpt.episodes.writer import EpisodeWriter

    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / name for name in ("a", "b")]
        for number, place in enumerate(places):
            place.mkdir()
            writer = EpisodeWriter(place, "train", mask_dtype="uint8", shard_bytes=None)
            rng = np.random.default_rng(number)
            for _ in range(0, episodes // 2, 10_000):
                lengths = rng.integers(20, 400, 10_000)
                ids = np.zeros(int(lengths.sum()), dtype=np.uint32)
                writer.write(ids, lengths, (ids + 1).astype(np.float32), [])
            writer.close()
        started = time.perf_counter()
        parts = measured(places, ["a", "b"], sequence_length=4096, packing=True, too_long="skip")
        rows = rows_of(parts, Proportions(weights={"a": 0.7, "b": 0.3}, max_epochs=2))
        return f"{time.perf_counter() - started:.1f} s for {rows['a']:,} and {rows['b']:,} rows"


def _child(task: Callable[..., str], arguments: tuple[Any, ...], queue: Any) -> None:
    started = time.process_time()
    told = task(*arguments)
    # Not getrusage: its maximum includes the parent's memory from before this program was loaded.
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    queue.put((time.process_time() - started, peak, told))


def measure(name: str, rows: int, task: Callable[..., str], *arguments: Any) -> None:
    """Run a task in a new process and print what it took."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_child, args=(task, arguments, queue))
    process.start()
    seconds, peak, told = queue.get()
    process.join()
    print(
        f"{name:<20} {rows:>10,} rows  {seconds / rows * 1e6:7.1f} us a row  peak {peak:6.0f} MiB  {told}", flush=True
    )


def main() -> None:
    """Measure a tenth of the rows, then all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    most = parser.parse_args().rows
    for rows in (most // 10, most):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.jsonl"
            write_rows(path, rows)
            measure("reading", rows, reading, path)
            measure("exact duplicates", rows, duplicates, path, None)
            measure("near duplicates", rows, duplicates, path, 0.8)
        measure("mixing", rows, mixing, rows)


if __name__ == "__main__":
    main()
