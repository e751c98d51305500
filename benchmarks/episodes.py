"""`GPTEpisodeDataLoader` beside a loader that loops and stacks, and beside a memory copy of as many bytes.

A padded batch is x, y (int64) and mask (float32): 20 bytes a token. A packed one has segments (int32) and positions
(int64) too: 32 bytes a token. The copy writes arrays of these types into memory that is there already, as loaders do.
It reads them warm, which the loaders, whose rows lie anywhere in files of half a gigabyte, do not: "the rows alone"
reads a batch's rows as the files hold them, ids, mask and segments, 7 bytes a token. All pages of the files are mapped
before; a process that reads a page for the first time waits a microsecond or two for the system.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks import inputs
from benchmarks.pairs import Result, measure
from niels_gpt.config import TrainingConfig
from niels_gpt.episodes.build import pack_episodes
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.order import every_row
from niels_gpt.store.schema import INDEX_NAME, MASK_NAME, SEGMENTS_NAME, TOKENS_NAME

EPISODES = 100_000
MANY_EPISODES = 10_000_000
SHAPES = ((8, 2048), (8, 4096), (32, 1024))
OF_A_BATCH = (np.int64, np.int64, np.float32)
OF_A_PACKED_BATCH = (*OF_A_BATCH, np.int32, np.int64)
PAD = 3
PAGE = 4096  # bytes
Tensors = tuple[torch.Tensor, ...]


def run(folder: Path) -> list[Result]:
    """Episodes of 700 tokens on average: padded or cut to T, packed, packed on disk; then opening ten million."""
    dataset = write_episodes(folder / "episodes", EPISODES)
    results: list[Result] = []
    for B, T in SHAPES:
        results += _padded(dataset, B, T)
    for B, T in SHAPES:
        results += _packed(dataset, B, T)
    for B, T in SHAPES:
        results += _contiguous(dataset, folder / f"packed-{T}", B, T)
    return results + _far(dataset) + _opening(folder / "many")


def _padded(dataset: Path, B: int, T: int) -> list[Result]:
    ours = open_loader(dataset, B, T)
    loop = _Loop(dataset, B, T)
    map_pages(ours)
    own = float(np.minimum(loop.records[:, 1], T).mean()) / T
    return measure(
        "episodes",
        f"padded, B {B} T {T}, {1 - own:.0%} padding",
        {
            "get_batch": ours.get_batch,
            "memory copy, one core": Copies(B, T, OF_A_BATCH),
            "loop and stack": loop.get_batch,
        },
        amounts={"tokens": B * T},
        clock=time.process_time,
    )


def _packed(dataset: Path, B: int, T: int) -> list[Result]:
    """Packed rows carry segments and positions too; the loop reads the same rows and makes the same five tensors."""
    ours = open_loader(dataset, B, T, packing=True, too_long="head")
    loop = _Loop(dataset, B, T)
    batch_source = ours.batch_source("train")
    plan, order = batch_source.plan, batch_source.order
    assert plan is not None
    position = 0

    def rows() -> Tensors:
        nonlocal position
        position = (position + B) % (plan.rows - B)
        drawn = order.rows(0, position, position + B)
        return loop.rows([plan.items[plan.offsets[row] : plan.offsets[row + 1]].tolist() for row in drawn.tolist()])

    map_pages(ours)
    return measure(
        "episodes",
        f"packed, B {B} T {T}, {1 - plan.utilisation:.1%} padding",
        {
            "next_batch": ours.next_batch,
            "memory copy, one core": Copies(B, T, OF_A_PACKED_BATCH),
            "loop and stack": rows,
        },
        amounts={"tokens": B * T},
        clock=time.process_time,
    )


def _contiguous(dataset: Path, packed: Path, B: int, T: int) -> list[Result]:
    """The same batches from `niels-gpt pack`, whose rows lie whole in the files."""
    pack_episodes(dataset, packed, block_size=T, too_long="head")
    ours = open_loader(packed, B, T)
    order = ours.batch_source("train").order
    split = packed / "train"
    starts = np.fromfile(split / INDEX_NAME, dtype="<u8").reshape(-1, 2)[:, 0].astype(np.int64)
    files = [
        np.memmap(split / name, dtype=kind, mode="r").view(np.ndarray)
        for name, kind in ((TOKENS_NAME, "<u4"), (MASK_NAME, "u1"), (SEGMENTS_NAME, "<u2"))
    ]
    windows = [np.lib.stride_tricks.sliding_window_view(values, T + 1) for values in files]
    position = 0

    def rows() -> list[np.ndarray]:
        nonlocal position
        position = (position + B) % (len(starts) - B)
        drawn = starts[order.rows(0, position, position + B)]
        drawn = np.minimum(drawn, len(windows[0]) - 1)  # the file may end with a row that is not full
        return [of_file[drawn] for of_file in windows]

    map_pages(ours)
    return measure(
        "episodes",
        f"packed on disk, B {B} T {T}",
        {
            "next_batch": ours.next_batch,
            "memory copy, one core": Copies(B, T, OF_A_PACKED_BATCH),
            "the rows alone": rows,
        },
        amounts={"tokens": B * T},
        clock=time.process_time,
    )


def _far(dataset: Path) -> list[Result]:
    """Resuming a packed mixture, as rank 3 of 16, at its first row and at row 10**12."""
    config = TrainingConfig(batch_size=8, block_size=2048)
    more = {"packing": True, "too_long": "head", "rank": 3, "world_size": 16, "pad_token_id": PAD}
    loader = GPTEpisodeDataLoader(config, None, {dataset: 1.0}, **more)  # type: ignore[arg-type]

    def resume_at(row: int) -> None:
        loader.seek(row)
        loader.next_batch()

    return measure(
        "episodes",
        "resuming, packed, rank 3 of 16",
        {"row 10**12": lambda: resume_at(10**12), "row 0": lambda: resume_at(0)},
    )


def _opening(folder: Path) -> list[Result]:
    """The token files are sparse; the index of ten million records is checked whole."""
    split = folder / "train"
    split.mkdir(parents=True)
    lengths = inputs.lengths_of_chats(MANY_EPISODES)
    ends = np.cumsum(lengths)
    np.stack([ends - lengths, lengths], axis=1).astype("<u8").tofile(split / INDEX_NAME)
    for name, width in ((TOKENS_NAME, 4), (MASK_NAME, 1)):
        with (split / name).open("wb") as file:
            file.truncate(width * int(ends[-1]))

    def draw() -> Tensors:
        return open_loader(folder, 8, 2048).get_batch()

    return measure(
        "episodes",
        f"opening {MANY_EPISODES:,} episodes, first batch",
        {
            "open and get_batch": draw,
            "read the index once": lambda: np.fromfile(split / INDEX_NAME, dtype="<u8"),
            "shuffle a list of ids": lambda: np.random.default_rng(0).permutation(MANY_EPISODES),
        },
        rounds=5,
    ) + measure(
        "episodes",
        f"an epoch's first batch of {MANY_EPISODES:,}",
        {
            "order": lambda: every_row(MANY_EPISODES, 1, shuffle=True).rows(0, 0, 8),
            "numpy permutation": lambda: np.random.default_rng(0).permutation(MANY_EPISODES)[:8],
        },
        rounds=5,
    )


def open_loader(dataset: Path, B: int, T: int, *, device: str = "cpu", **more: object) -> GPTEpisodeDataLoader:
    """Batches of B rows of T inputs; `more` are arguments of the loader."""
    config = TrainingConfig(batch_size=B, block_size=T, device=device)
    return GPTEpisodeDataLoader(config, None, dataset, pad_token_id=PAD, **more)  # type: ignore[arg-type]


class Copies:
    """Copies arrays of the shape and types of a batch, into memory that takes turns as a loader's does."""

    def __init__(self, B: int, T: int, kinds: Sequence[type[np.generic]]) -> None:
        # Not `zeros`: the system may give one page of zeros for all pages that were never written, which stays in the
        # first cache.
        self._made = [np.ones((B, T), dtype=kind) for kind in kinds]
        self._targets = [[array.copy() for array in self._made] for _ in range(2)]

    def __call__(self) -> None:
        """One batch."""
        self._targets.reverse()
        for array, target in zip(self._made, self._targets[0], strict=True):
            np.copyto(target, array)


def map_pages(loader: GPTEpisodeDataLoader) -> None:
    """Read a value of each page of the train files."""
    for shard in loader.batch_source("train").split.shards:
        for values in (shard.tokens, shard.mask, shard.segments):
            if values is not None:
                values.view(np.uint8)[::PAGE].max()


class _Loop:
    """The usual way: slice, pad, tensor and stack, row by row."""

    def __init__(self, dataset: Path, B: int, T: int) -> None:
        split = dataset / "train"
        self.records = np.fromfile(split / INDEX_NAME, dtype="<u8").reshape(-1, 2).astype(np.int64)
        self._tokens = np.memmap(split / TOKENS_NAME, dtype="<u4", mode="r")
        self._mask = np.memmap(split / MASK_NAME, dtype="u1", mode="r")
        self._B, self._T = B, T
        self._rng = np.random.default_rng(0)

    def get_batch(self) -> Tensors:
        drawn = self._rng.integers(0, len(self.records), self._B).tolist()
        return self.rows([[episode] for episode in drawn])[:3]

    def rows(self, rows: list[list[int]]) -> Tensors:
        columns: list[list[torch.Tensor]] = [[] for _ in range(5)]
        for episodes in rows:
            ids = np.full(self._T + 1, PAD, dtype=np.int64)
            mask = np.zeros(self._T + 1, dtype=np.float32)
            segments, positions = np.zeros(self._T + 1, dtype=np.int32), np.zeros(self._T + 1, dtype=np.int64)
            at = 0
            for number, episode in enumerate(episodes):
                start, length = self.records[episode].tolist()
                n = min(length, self._T + 1 - at)
                ids[at : at + n] = self._tokens[start : start + n]
                mask[at : at + n] = self._mask[start : start + n]
                mask[at] = 0
                segments[at : at + n] = number + 1
                positions[at : at + n] = np.arange(n)
                at += n
            for column, row in zip(columns, (ids[:-1], ids[1:], mask[1:], segments[:-1], positions[:-1]), strict=True):
                column.append(torch.from_numpy(row))
        return tuple(torch.stack(column) for column in columns)


def write_episodes(folder: Path, n: int) -> Path:
    """Episodes of 700 random tokens on average, half of them trained."""
    split = folder / "train"
    split.mkdir(parents=True)
    lengths = inputs.lengths_of_chats(n)
    ends = np.cumsum(lengths)
    rng = np.random.default_rng(5)
    rng.integers(0, 150_000, int(ends[-1]), dtype=np.uint32).tofile(split / TOKENS_NAME)
    rng.integers(0, 2, int(ends[-1]), dtype=np.uint8).tofile(split / MASK_NAME)
    np.stack([ends - lengths, lengths], axis=1).astype("<u8").tofile(split / INDEX_NAME)
    return folder
