"""Small datasets of every kind, written through public doors; `frozen/` holds the bytes that they had before the store.

`python -m tests.store.written FOLDER` writes them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.episodes import EpisodeWriter
from niels_gpt.episodes.build import build_episodes, pack_episodes
from niels_gpt.preferences import build_preferences
from niels_gpt.sources.rows.preference_rows import to_preference
from tests.conftest import FakeTokenizer

TEXTS = [f"document {number} " + "word " * (number % 7) for number in range(23)]
CHATS: list[list[dict[str, Any]]] = [
    [
        *([{"role": "system", "content": "Be brief."}] if number % 3 == 0 else []),
        {"role": "user", "content": f"What is {number}?"},
        {"role": "assistant", "content": "A number" + "!" * (number % 5)},
    ]
    for number in range(17)
]
LENGTHS = (3, 4, 2, 5, 1, 9, 2, 2, 7)
GROUPS = (0, 1, 0, 1, 2, 0, 0, 1, 2)


def write_all(folder: Path) -> None:
    """One directory for each dataset."""
    _episodes(folder / "one_file", mask_dtype="uint8")
    _episodes(folder / "no_mask", mask_dtype=None)
    _episodes(folder / "shards", mask_dtype="float32", shard_bytes=32)
    _episodes(folder / "segments16", mask_dtype="uint8", segments_dtype="uint16", shard_bytes=40)
    _episodes(folder / "segments32", mask_dtype="float32", segments_dtype="uint32")
    _episodes(folder / "groups", mask_dtype="uint8", with_completions=True, shard_bytes=40)
    _episodes(folder / "images", mask_dtype="uint8", with_images=True, shard_bytes=48)
    _episodes(folder / "parquet", mask_dtype="uint8", with_metadata=True, shard_bytes=64)
    _caches(folder)
    _builds(folder)


def _episodes(folder: Path, **files: Any) -> None:
    """Episodes in two calls, the second in the middle of a shard."""
    from niels_gpt.store.schema import COMPLETION, PlacedImage

    random, writer = np.random.default_rng(7), EpisodeWriter(folder, "train", **files)
    for at, lengths in ((0, LENGTHS[:5]), (5, LENGTHS[5:])):
        n = sum(lengths)
        more: dict[str, Any] = {}
        ids = random.integers(0, 1 << 32, n)
        weights = random.integers(0, 2, n) * (0.5 if files["mask_dtype"] == "float32" else 1)
        if "segments_dtype" in files:
            more["segments"] = random.integers(0, 3, n)
        if "with_completions" in files:
            records = np.zeros(len(lengths), COMPLETION)
            records["number"], records["prompt_length"] = GROUPS[at : at + len(lengths)], 1
            records["rank"], records["score"], records["margin"] = -1, random.random(len(lengths)), np.nan
            more["completions"] = records
        if "with_images" in files:
            more["images"] = [
                [PlacedImage(0, 1, 20 + number, 30, f"ü/{number}.png", f"{number:064x}")] if number % 2 else []
                for number in range(at, at + len(lengths))
            ]
        if "with_metadata" in files:
            rows = [{"type": "ab"[number % 2], "source": None, "weight": 0.5} for number in range(len(lengths))]
            writer.write(ids, np.array(lengths), weights, rows, **more)
        else:
            writer.write(ids, np.array(lengths), weights if files["mask_dtype"] else None, **more)
    writer.close()


def _caches(folder: Path) -> None:
    """Pretraining and SFT caches of both dtypes, with and without shards, val and a shuffle buffer."""
    pretrain: dict[str, Any] = {"tokenizer": FakeTokenizer(), "max_train_tokens": 700, "max_val_tokens": 90, "seed": 3}
    pretrain |= {"source_name": "texts"}
    build_pretrain_cache(TEXTS, str(folder / "pretrain16"), shard_bytes=71, shuffle_buffer=5, **pretrain)
    pretrain |= {"token_dtype": "uint32", "shuffle_buffer": None, "shard_bytes": 1 << 20}
    build_pretrain_cache(TEXTS, str(folder / "pretrain32"), **pretrain)
    sft: dict[str, Any] = {"tokenizer": FakeTokenizer(), "seed": 3, "source_name": "chats"}
    build_sft_cache(CHATS, str(folder / "sft16"), val_frac=0.2, **sft)  # type: ignore[arg-type]
    build_sft_cache(CHATS, str(folder / "sft32"), val_frac=0.0, token_dtype="uint32", **sft)  # type: ignore[arg-type]


def _builds(folder: Path) -> None:
    """Builds of episodes, packed rows, and preferences."""
    common: dict[str, Any] = {"encoder": FakeTokenizer(), "val_frac": 0.2, "seed": 3, "source_name": "chats"}
    build_episodes(CHATS, folder / "built", shard_bytes=400, **common)
    build_episodes(CHATS, folder / "built_float", mask_dtype="float32", **common)
    pack_episodes(folder / "built", folder / "packed", block_size=63, shard_bytes=512)
    shutil.rmtree(folder / "built" / "packing")  # its plans are no part of a dataset
    rows = [
        to_preference({"prompt": f"What is {n}?", "chosen": "Good " * (n % 3 + 1), "rejected": "Bad"}, "preference")
        for n in range(9)
    ]
    build_preferences(rows, folder / "preferences", shard_bytes=200, **common)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
