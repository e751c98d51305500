"""A pretraining cache built by one worker, by two, and by two of Ray: `python -m benchmarks.workers --megabytes 180`.

Each way is a command of its own. Beside the time by the clock, which tells nothing where other programs run, the
processor time of the command's first process and of all others is counted, from the kernel's account of every process
below it. Two free cores cannot be faster than half of both together::

    at most = time of one worker / max(half of all processors' time, time of the first process)
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import pretrain, texts

WAYS = {
    "1 worker": [],
    "2 workers": ["--workers", "2"],
    "2 Ray workers": ["--workers", "2", "--engine", "ray"],
}
PAUSE = 0.1  # seconds between looks: what a process does after the last is not counted
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Time all ways in turns, and print each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=180, help="of JSON lines, documents of 4 kB")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = _source(Path(folder), given.megabytes * 1_000_000)
        for _ in range(given.rounds):
            one = 0.0
            for way, options in WAYS.items():
                clock, first, others = _build(source, Path(folder), options)
                one = one or first + others
                bound = one / max((first + others) / 2, first) if options else 1.0
                print(
                    f"{given.megabytes} MB, {way}: {clock:.1f} s by the clock; of processors: first process "
                    f"{first:.1f} s, others {others:.1f} s; at most {bound:.2f} times as fast",
                    flush=True,
                )


def _source(folder: Path, size: int) -> Path:
    """Paragraphs in ever new orders: no two documents are alike, though their words are."""
    spans = [span for spans in texts.pools(random.Random(1)).values() for span in spans]
    shuffler, written, path = random.Random(2), 0, folder / "texts.jsonl"
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            shuffler.shuffle(spans)
            for at in range(0, len(spans), pretrain.SPANS[1]):
                written += file.write(pretrain.line_of("\n\n".join(spans[at : at + pretrain.SPANS[1]])))
                if written >= size:
                    break
    return path


def _build(source: Path, folder: Path, options: list[str]) -> tuple[float, float, float]:
    """Seconds by the clock, and of processors: of the first process and of all others."""
    command = [sys.executable, "-m", "niels_gpt", "build", "--kind", "pretrain", source]
    command += [
        "--tokenizer",
        pretrain.TOKENIZER,
        "--out",
        folder / "out",
        "--overwrite",
        "--max-train-tokens",
        1 << 40,
        "--max-val-tokens",
        0,
        *options,
    ]
    began, used = time.perf_counter(), dict[int, float]()
    with subprocess.Popen(
        [*map(str, command)], env=os.environ | {"RAYON_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL
    ) as started:
        while started.poll() is None:
            used |= _times_below(started.pid)
            time.sleep(PAUSE)
    if started.returncode:
        raise SystemExit(f"{command}: exit code {started.returncode}")
    return time.perf_counter() - began, used.pop(started.pid), sum(used.values())


def _times_below(root: int) -> dict[int, float]:
    """Processor seconds of a process and of all below it."""
    parents, times = dict[int, int](), dict[int, float]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name of the process, which is in parentheses and may contain some: state, parent, ...; 11 and 12
            # are the ticks in user mode and in the system.
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid], times[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    return {pid: taken for pid, taken in times.items() if _is_below(pid, root, parents)}


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != root:
        pid = parents[pid]
    return pid == root


if __name__ == "__main__":
    main()
