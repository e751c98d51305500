"""Small datasets written by hand, and loaders of them; the token at place i of episode e is 100 * e + i + 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.sampling import Sampling

LENGTHS = [5, 9, 3, 12, 7, 4, 10, 6, 11, 8, 3, 5, 13, 4, 9, 6, 7, 12, 3, 10, 5, 8, 4]  # 23, of which one is too long
TYPES = ["chat", "code", "chat", "math", "chat"]  # repeats, so there are groups of different sizes
PAD = 0


def write_dataset(
    folder: Path,
    lengths: Sequence[int] = LENGTHS,
    *,
    split: str = "train",
    first: int = 0,
    masked: bool = True,
    **columns: Sequence[Any],
) -> Path:
    """A dataset without a manifest, as other programs write them.

    Args:
        first: the number of its first episode, for its tokens.
        columns: of `episodes.parquet`; by default there is none.
    """
    inside = folder / split
    inside.mkdir(parents=True)
    tokens = [100 * (first + number) + 1 + np.arange(length) for number, length in enumerate(lengths)]
    everything = np.concatenate([*tokens, np.empty(0)]).astype("<u4")
    everything.tofile(inside / "tokens.bin")
    starts = np.cumsum([0, *lengths])[:-1]
    np.stack([starts, np.array(lengths)], axis=1).astype("<u8").tofile(inside / "episodes.idx")
    if masked:
        (everything % 3 > 0).astype("u1").tofile(inside / "mask.bin")
    if columns:
        write_metadata(folder, split=split, **columns)
    return folder


def write_metadata(folder: Path, *, split: str = "train", **columns: Sequence[Any]) -> None:
    """`episodes.parquet` with these columns."""
    table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
    pyarrow.parquet.write_table(table, folder / split / "episodes.parquet")


def types_for(lengths: Sequence[int] = LENGTHS) -> list[str]:
    return [TYPES[number % len(TYPES)] for number in range(len(lengths))]


def with_sampling(options: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a loader, in which proportions and windows of shards have become a `Sampling`."""
    names = {"weight_by", "weights", "temperature", "shuffle_shards"} & options.keys()
    order = {"batch_sampling_mode": "mode", "epoch_shuffle": "shuffle", "epoch_drop_last": "drop_last"}
    order |= {"epoch_seed": "seed"} | {name: name for name in names}
    fields = {order[name]: value for name, value in options.items() if name in order and value is not None}
    rest = {name: value for name, value in options.items() if name not in order}
    return {**rest, "sampling": Sampling(**fields)} if names else options


def open_loader(dataset_dir: Any, *, batch_size: int = 2, block_size: int = 12, **options: Any) -> GPTEpisodeDataLoader:
    """A loader of these directories, on the CPU."""
    config = SimpleNamespace(batch_size=batch_size, block_size=block_size, device="cpu")
    return GPTEpisodeDataLoader(config, None, dataset_dir, pad_token_id=PAD, **with_sampling(options))


def numbers(batches: Iterable[Batch]) -> list[int]:
    """Which episodes these batches hold, in order."""
    return [number for batch in batches for number in batch.episodes.tolist()]


def assert_equal(found: Batch, expected: Batch) -> None:
    """The same, tensor by tensor and number by number."""
    assert found.tensors().keys() == expected.tensors().keys()
    for name, tensor in expected.tensors().items():
        assert found.tensors()[name].dtype == tensor.dtype, name
        assert torch.equal(found.tensors()[name], tensor), name
    assert found.episodes.tolist() == expected.episodes.tolist()
    for name in ("num_trained_tokens", "mask_sum", "num_tokens"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.max_seqlen == expected.max_seqlen
    assert found.state == expected.state


def assert_all_equal(found: Sequence[Batch], expected: Sequence[Batch]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)
