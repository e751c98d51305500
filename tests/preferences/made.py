"""Rows of preferences of every form, and datasets built from them with a tiny Qwen3 tokenizer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from niels_gpt.preferences import build_preferences
from niels_gpt.sources.preference_files import preference_files
from tests.renderers.tiny_families import renderer_of

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dogs",
    "and",
    "then",
    "again",
    "it",
    "sleeps",
    "a",
    "while",
]


def text(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def pairs(n: int, seed: int = 0, *, most: int = 12) -> list[dict[str, Any]]:
    """TRL's explicit form: a prompt and two sides as texts."""
    draw = random.Random(seed)
    return [
        {"prompt": text(draw, 2, 9), "chosen": text(draw, 1, most), "rejected": text(draw, 1, most)} for _ in range(n)
    ]


def labelled(n: int) -> list[dict[str, Any]]:
    """KTO's form."""
    draw = random.Random(1)
    return [
        {"prompt": text(draw, 2, 6), "completion": text(draw, 1, 9), "label": bool(number % 3)} for number in range(n)
    ]


def ranked(n: int) -> list[dict[str, Any]]:
    """Nectar's form: a transcript, and 2 to 5 answers with ranks."""
    draw = random.Random(2)
    rows = []
    for _ in range(n):
        ranks = draw.sample(range(1, 6), draw.randint(2, 5))
        answers = [{"answer": text(draw, 1, 9), "rank": float(rank)} for rank in ranks]
        rows.append({"prompt": f"\n\nHuman: {text(draw, 2, 6)}\n\nAssistant: ", "answers": answers})
    return rows


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def built(folder: Path, rows: Iterable[Any], **options: Any) -> Path:
    """A dataset of these rows in `folder / "out"`."""
    source = preference_files([str(write_rows(folder / "rows.jsonl", rows))])
    options = {"encoder": renderer_of("qwen3"), "source_config": source.config(), **options}
    build_preferences(source, folder / "out", **options)
    return folder / "out"
