"""Sources to export, and what must come out: slow, obvious, without the package's own reading."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from tests.conftest import EOT, IDS, FakeTokenizer
from tests.episodes.made import write_manifest, write_split
from tests.references import mask_reference

VOCABULARY = 300


@dataclass(frozen=True)
class Row:
    """A row as it must come out."""

    ids: list[int]
    weights: list[float]

    @property
    def labels(self) -> list[int]:
        return [token if weight > 0 else -100 for token, weight in zip(self.ids, self.weights, strict=True)]


def random_rows(n: int, *, seed: int = 0, longest: int = 30, weighted: bool = False) -> list[Row]:
    """Rows of 1 to `longest` tokens; about half of them trained."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        length = int(draw.integers(1, longest + 1))
        weights = draw.integers(0, 2, length).astype(float)
        if weighted:
            weights *= draw.choice([0.25, 0.5, 1.0, 2.0], length)
        rows.append(Row(draw.integers(0, VOCABULARY, length).tolist(), weights.tolist()))
    return rows


def episodes(
    folder: Path,
    rows: list[Row],
    val: list[Row] | None = None,
    *,
    shards: int = 1,
    mask_dtype: str = "u1",
    gap: int = 2,
) -> Path:
    """An episodes dataset with gaps between its episodes, which must never come out."""
    for name, part in (("train", rows), ("val", val or [])):
        if part:
            write_split(
                folder / name,
                [row.ids for row in part],
                [row.weights for row in part],
                mask_dtype=mask_dtype,
                shards=shards,
                gap=gap,
            )
    write_manifest(
        folder,
        vocab_size=VOCABULARY,
        mask_dtype="uint8" if mask_dtype == "u1" else "float32",
        special_token_ids={"eot": EOT},
    )
    return folder


def untrained_first(row: Row) -> Row:
    """Nothing predicts a text's first token."""
    return Row(row.ids, [0.0, *row.weights[1:]])


def as_written(rows: list[Row]) -> list[tuple[list[int], list[float]]]:
    """The ids and weights of each row, as an export writes them."""
    return [(row.ids, row.weights) for row in map(untrained_first, rows)]


def flat(rows: list[Row]) -> tuple[list[int], list[float]]:
    """The same, joined."""
    ids, weights = zip(*as_written(rows), strict=True)
    return list(chain(*ids)), list(chain(*weights))


def sft_cache(folder: Path) -> tuple[Path, list[Row]]:
    """An SFT cache with sentinels, and the rows of its train split."""
    chats = [
        [
            {"role": "user", "content": f"question {number} " + "so " * (number % 4)},
            {"role": "assistant", "content": f"answer {number} " + "yes " * (number % 7)},
        ]
        for number in range(20)
    ]
    build_sft_cache(chats, str(folder), tokenizer=FakeTokenizer(), val_frac=0.2, seed=1)
    tokens = np.fromfile(folder / "train_tokens.bin", dtype="<u2").tolist()
    starts = [*np.load(folder / "train_idx.npy").tolist(), len(tokens)]
    rows = []
    for start, stop in pairwise(starts):
        ids = tokens[start:stop]
        rows.append(Row(ids, [float(trained) for trained in mask_reference(ids, **IDS)]))
    return folder, rows


def pretrain_cache(folder: Path, n: int = 40, *, shard_bytes: int = 60) -> tuple[Path, list[Row]]:
    """A pretrain cache of small shards, and the documents of its train split."""
    texts = [" ".join(f"w{(number * 7 + at) % 50}" for at in range(1 + number % 9)) for number in range(n)]
    build_pretrain_cache(
        texts,
        str(folder),
        tokenizer=FakeTokenizer(),
        max_train_tokens=1000,
        max_val_tokens=20,
        shard_bytes=shard_bytes,
        seed=1,
        shuffle_buffer=None,
    )
    stream = np.concatenate([np.fromfile(path, dtype="<u2") for path in sorted((folder / "train").glob("*.bin"))])
    documents: list[list[int]] = [[]]
    for token in stream.tolist():
        documents[-1].append(token)
        if token == EOT:
            documents.append([])
    return folder, [Row(ids, [0.0] + [1.0] * (len(ids) - 1)) for ids in documents if ids]
