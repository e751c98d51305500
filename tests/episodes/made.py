"""Small datasets written by hand, byte by byte as docs/formats.md describes them, and loaders of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.store.checksums import file_record

GAP = 4_000_000_000  # an id that lies between episodes and must never be seen
PAD = 99


def write_shard(
    folder: Path,
    tokens: Sequence[int],
    records: Sequence[tuple[int, int]],
    *,
    mask: Sequence[float] | None = None,
    mask_dtype: str = "u1",
    segments: Sequence[int] | None = None,
    segment_dtype: str = "<u2",
) -> Path:
    """One folder of files, with no check of what goes in."""
    folder.mkdir(parents=True, exist_ok=True)
    np.array(tokens, dtype="<u4").tofile(folder / "tokens.bin")
    np.array(records, dtype="<u8").reshape(-1, 2).tofile(folder / "episodes.idx")
    if mask is not None:
        np.array(mask, dtype=mask_dtype).tofile(folder / "mask.bin")
    if segments is not None:
        np.array(segments, dtype=segment_dtype).tofile(folder / "segment_ids.bin")
    return folder


def write_split(
    folder: Path,
    episodes: list[list[int]],
    masks: list[list[float]] | None = None,
    *,
    mask_dtype: str = "u1",
    segments: list[list[int]] | None = None,
    segment_dtype: str = "<u2",
    shards: int = 1,
    gap: int = 0,
) -> Path:
    """Episodes in order, with `gap` foreign tokens around each; with `shards` > 1 in so many folders."""
    for number, part in enumerate(np.array_split(np.arange(len(episodes)), shards)):
        mine = part.tolist()
        starts = [gap * (i + 1) + sum(len(episodes[n]) for n in mine[:i]) for i in range(len(mine))]
        write_shard(
            folder / f"shard_{number:05d}" if shards > 1 else folder,
            joined([episodes[n] for n in mine], gap, GAP),
            [(start, len(episodes[n])) for start, n in zip(starts, mine, strict=True)],
            mask=None if masks is None else joined([masks[n] for n in mine], gap, 1),
            mask_dtype=mask_dtype,
            segments=None if segments is None else joined([segments[n] for n in mine], gap, 0),
            segment_dtype=segment_dtype,
        )
    return folder


def joined(parts: list[list[Any]], gap: int, fill: Any) -> list[Any]:
    """The parts in a row, `gap` times `fill` around each."""
    flat = [fill] * gap
    for part in parts:
        flat += [*part, *[fill] * gap]
    return flat


def write_manifest(dataset: Path, **changes: Any) -> Path:
    """An `episodes.json` that fits the files that are there."""
    paths = sorted(path for path in dataset.rglob("*") if path.suffix in (".bin", ".idx"))
    manifest = {
        "format_version": 1,
        "kind": "episodes",
        "token_dtype": "uint32",
        "mask_dtype": None,
        "vocab_size": 1000,
        "splits": {},
        "files": {path.relative_to(dataset).as_posix(): file_record(path).to_json() for path in paths},
    }
    target = dataset / "episodes.json"
    target.write_text(json.dumps(manifest | changes))
    return target


def config(**settings: Any) -> SimpleNamespace:
    """Any object with the attributes that the loader reads; small batches on the CPU unless told."""
    return SimpleNamespace(**({"batch_size": 2, "block_size": 4, "device": "cpu", "pad_token_id": PAD} | settings))


def loader(dataset: Path, tokenizer: Any = None, *, keywords: dict[str, Any] | None = None, **settings: Any) -> Any:
    """A loader with `settings` in its config and `keywords` in its call."""
    return GPTEpisodeDataLoader(config(**settings), tokenizer, dataset, **(keywords or {}))


def epoch_of(opened: GPTEpisodeDataLoader, split: str = "train") -> list[Batch]:
    """The batches of one epoch, from where the loader stands, by `next_batch`."""
    return [opened.next_batch(split) for _ in range(opened.steps_per_epoch(split))]


def numbered(lengths: Sequence[int]) -> list[list[int]]:
    """Episodes of these lengths in which every token tells where it stands: 100 101 102, 200 201, ..."""
    return [[100 * (number + 1) + at for at in range(length)] for number, length in enumerate(lengths)]


def one_line(error: BaseException) -> str:
    """An error's message, which must be one line."""
    assert "\n" not in str(error)
    return str(error)


def batches_by_get_batch(opened: GPTEpisodeDataLoader, n: int) -> Iterator[tuple[Any, ...]]:
    """`n` batches as lists."""
    for _ in range(n):
        yield tuple(tensor.tolist() for tensor in opened.get_batch())


# ---- episodes of chosen lengths: the token at place i of episode e is 100 * e + i + 1

LENGTHS = [5, 9, 3, 12, 7, 4, 10, 6, 11, 8, 3, 5, 13, 4, 9, 6, 7, 12, 3, 10, 5, 8, 4]  # 23, of which one is too long
TYPES = ["chat", "code", "chat", "math", "chat"]  # repeats, so there are groups of different sizes


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
    ids = [[100 * number + 1 + at for at in range(length)] for number, length in enumerate(lengths, first)]
    write_split(folder / split, ids, [[int(token % 3 > 0) for token in one] for one in ids] if masked else None)
    if columns:
        write_metadata(folder, split=split, **columns)
    return folder


def write_metadata(folder: Path, *, split: str = "train", **columns: Sequence[Any]) -> None:
    """`episodes.parquet` with these columns."""
    import pyarrow.parquet

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
    return GPTEpisodeDataLoader(config, None, dataset_dir, pad_token_id=0, **with_sampling(options))


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
