"""The figures that `docs/scale.md` reckons with: `python -m benchmarks.scale TOKENIZER_DIR`.

Seconds are of the processor, not of the clock, so that what else runs on the machine counts little; one thread.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("RAYON_NUM_THREADS", "1")

ROWS = 20_000


def write_rows(path: Path) -> None:
    """Chats of some 700 tokens, made of the sample chats in a seeded order so that few are alike."""
    from niels_gpt.samples import chats_file

    samples = [json.loads(line)["messages"] for line in chats_file().read_text(encoding="utf-8").splitlines()]
    texts = [message["content"] for messages in samples for message in messages]
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(ROWS):
            turns = [" ".join(draw.choices(texts, k=draw.randint(2, 14))) for _ in range(4)]
            roles = ("user", "assistant", "user", "assistant")
            messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
            file.write(json.dumps({"messages": messages}) + "\n")


def timed(what: Callable[[], Any]) -> float:
    """Processor seconds."""
    started = time.process_time()
    what()
    return time.process_time() - started


class _Ready:
    """A runner whose units already exist, so that only the finishing step is measured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, task: Any, source: Any, unit_tasks: Any, progress: Any) -> Iterator[Any]:
        for unit_task in unit_tasks:
            (self._folder / unit_task.path.name).rename(unit_task.path)
            yield unit_task


def figures(folder: Path, tokenizer: Path) -> Iterator[tuple[str, float, str]]:
    """Name, figure, unit."""
    from niels_gpt.builds.conversation_encoders import as_encoder
    from niels_gpt.builds.conversations import ConversationTask
    from niels_gpt.builds.executor import LocalRunner, UnitExecutor, pickled_job
    from niels_gpt.builds.tasks import Chunk
    from niels_gpt.builds.units import Unit, UnitTask, build_unit
    from niels_gpt.episodes import build_episodes
    from niels_gpt.renderers.registry import RendererOptions
    from niels_gpt.sources.chat_files import chat_files
    from niels_gpt.store.checksums import file_record

    chats = folder / "chats.jsonl"
    write_rows(chats)
    size = chats.stat().st_size
    source = chat_files([chats]).resolved()
    task = ConversationTask(as_encoder(RendererOptions().open(tokenizer)), "uint8")
    yield "pickled task and source that a worker loads once", len(pickled_job(task, source)) / 1e6, "MB"
    yield "hashing the input", size / 1e6 / timed(lambda: file_record(chats)), "MB/s"
    parts: list[Any] = []
    yield "planning (finding the cuts)", size / 1e6 / timed(lambda: parts.extend(source.slices(16 << 20))), "MB/s"
    unit_tasks = [UnitTask(number, part, folder) for number, part in enumerate(parts)]
    build_unit(task, source, unit_tasks[0])  # what is loaded at first use
    seconds = timed(lambda: [build_unit(task, source, unit_task) for unit_task in unit_tasks[1:]])
    units = [Unit(unit_task.path) for unit_task in unit_tasks]
    chunks = [[part for part in unit.contents() if isinstance(part, Chunk)] for unit in units]
    first, built = (sum(len(part.ids) for each in some for part in each) for some in (chunks[:1], chunks[1:]))
    tokens, rows = first + built, sum(len(part.lengths) for each in chunks[1:] for part in each)
    yield "tokens in a conversation", tokens / ROWS, "tokens"
    yield "input for a token", size / tokens, "bytes"
    yield "units: tokens for a core", built / seconds, "tokens/s"
    yield "units: conversations for a core", rows / seconds, "/s"
    unit_files = [unit_task.path for unit_task in unit_tasks]
    yield "units for a token, until the end", sum(path.stat().st_size for path in unit_files) / tokens, "bytes"

    def build(out: str, executor: UnitExecutor) -> None:
        build_episodes(source, folder / out, encoder=task.encoder, source_config=source.config(), executor=executor)

    whole = timed(lambda: build("whole", UnitExecutor(LocalRunner(1))))
    finishing = timed(lambda: build("units", UnitExecutor(_Ready(folder))))
    hashing = timed(lambda: file_record(chats))
    yield "finishing (checks, split, files)", tokens / (finishing - hashing), "tokens/s"
    yield "finishing, of a build with one worker", 100 * finishing / whole, "%"
    files = [path for path in (folder / "units").rglob("*") if path.is_file()]
    yield "on disk for a token", sum(path.stat().st_size for path in files) / tokens, "bytes"
    manifest = (folder / "units" / "episodes.json").stat().st_size
    yield "manifest for a GB of tokens", manifest / (4 * tokens / 1e9), "bytes"


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        for name, value, unit in figures(Path(folder), Path(sys.argv[1])):
            print(f"{name:42} {value:>14,.1f} {unit}", flush=True)


if __name__ == "__main__":
    main()
