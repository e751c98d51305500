"""The doctor: rows a second of conversations and of another tool's ids, by one process and by two."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from benchmarks.pairs import Result, measure
from niels_gpt.doctor import Report, diagnose
from niels_gpt.messages import Conversation
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.samples import chats_file
from niels_gpt.sources.chat_files import chat_files
from tests.assets import ASSETS, FOLDERS
from tests.renderers.tiny_families import folder_of

COPIES = 1000  # of the bundled conversations, which are 100
ROUNDS = 1
FAMILY = "qwen3"


def run(folder: Path) -> list[Result]:
    """Time whole diagnoses, without loading the tokenizer, of the bundled conversations copied many times over.

    Two processes start only after a few seconds of one, so what takes one process less is as fast by either way.
    """
    official = ASSETS / "qwen3-8b"
    tokenizer = official if official in FOLDERS else folder_of(FAMILY)
    renderer: Any = create_renderer(str(tokenizer), FAMILY)
    made = {"conversations (.jsonl)": _chats(folder), "ids and labels (.parquet)": _ids(folder, renderer)}
    results: list[Result] = []
    for name, (file, amounts) in made.items():
        results += measure(
            "doctor",
            f"{name}, {tokenizer.name}",
            {f"{n} process{'es' * (n > 1)}": partial(_diagnosed, file, renderer, n) for n in (1, 2)},
            amounts=amounts,
            rounds=ROUNDS,
        )
    return results


def _diagnosed(file: Path, renderer: Any, workers: int) -> Report:
    report = diagnose(file, renderer=renderer, workers=workers)
    assert report.rows == 100 * COPIES
    return report


def _bundled() -> list[Conversation]:
    return [chat for chat in chat_files([chats_file()]).iterate() if isinstance(chat, Conversation)]


def _chats(folder: Path) -> tuple[Path, dict[str, float]]:
    path = folder / "chats.jsonl"
    lines = "".join(json.dumps({"messages": chat.messages, "tools": chat.tools}) + "\n" for chat in _bundled())
    path.write_text(lines * COPIES, encoding="utf-8")
    return path, {"rows": 100 * COPIES}


def _ids(folder: Path, renderer: Any) -> tuple[Path, dict[str, float]]:
    path = folder / "ids.parquet"
    rows, tokens = [], 0
    for chat in _bundled():
        made = renderer.render(chat.messages, tools=chat.tools)
        labels = [token if sampled else -100 for token, sampled in zip(made.token_ids, made.sampled_mask, strict=True)]
        rows.append({"input_ids": made.token_ids, "labels": labels})
        tokens += len(made.token_ids)
    block = pa.Table.from_pylist(rows)
    with pyarrow.parquet.ParquetWriter(path, block.schema) as writer:
        for _ in range(COPIES):
            writer.write_table(block)
    return path, {"rows": 100 * COPIES, "tokens": tokens * COPIES}
