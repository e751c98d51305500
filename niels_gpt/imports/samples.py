"""`mds` and `litdata`: samples with columns, as MosaicML Streaming and litData store them.

Both keep samples in shards, with a table of where each begins; an index.json names the columns and their types::

    mds      samples | places of samples, one more than samples | configuration as JSON | samples
    litdata  samples | places of samples, one more than samples | samples
    sample   sizes of those columns whose size varies | the columns

The ids are in a column `tokens` or `input_ids`; labels or a mask may be beside them, and `seq_lengths` where a sample
holds several texts, which become rows of their own. Arrays and, as llm-foundry writes them, bytes of int64 are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError
from niels_gpt.export.rows import Rows, rows_of
from niels_gpt.format.masks import IGNORE_INDEX, MASK_COLUMNS
from niels_gpt.imports.formats import (
    ImportFormat,
    ImportOptions,
    SplitFiles,
    all_or_none,
    as_ids,
    by_split,
    map_file,
    require,
)
from niels_gpt.storage.regular import named_below, read_regular

INDEX: Final = "index.json"
IDS: Final = ("tokens", "input_ids")
MASKS: Final = ("mask", *MASK_COLUMNS)
LABELS: Final = "labels"  # where there are any, they decide, as in `hf`
LENGTHS: Final = "seq_lengths"
PORTION_TOKENS: Final = 1 << 20
# litData's tables of dtypes, which its indexes refer to by number: of numpy, and of torch without bfloat16 and complex
# numbers, which hold no ids.
FLOATS: Final = ("float16", "float32", "float64")
NUMPY: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", *FLOATS)
TORCH: Final = {11: "uint8", 12: "int8", 13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64"}

REST: Final = -1  # the size of a column that is all of its sample
Reader = Callable[[memoryview], npt.NDArray[Any]]


@dataclass(frozen=True)
class _Column:
    """A column of samples: its name, its size in bytes (`None` if it varies, `REST`), and how its bytes are read."""

    name: str
    size: int | None
    read: Reader


@dataclass(frozen=True)
class _Shard:
    """A file of samples: where its table of places begins, and its columns in order."""

    path: Path
    columns: tuple[_Column, ...]


def _open(path: Path, options: ImportOptions, shards_of: Callable[[Path], list[_Shard]]) -> dict[str, SplitFiles]:
    """The shards of each split, as `shards_of` reads them from an index."""
    del options
    # Directories such as .cache hold copies of shards.
    indexes = [file for file in named_below(path, INDEX) if not file.relative_to(path).parts[0].startswith(".")]
    found = require(path, by_split(path, indexes), INDEX)
    splits = {}
    for split, files in found.items():
        shards = [shard for index in files for shard in _listed(index, shards_of)]
        # Every shard names its columns, and other programs may have appended shards with others.
        names = [{column.name for column in shard.columns} for shard in shards]
        if not all(set(IDS) & columns for columns in names):
            raise InputError(f"{path}: columns {', '.join(sorted(set().union(*names)))}; expected tokens or input_ids")
        has_mask = all_or_none(
            {shard.path: bool({LABELS, *MASKS} & columns) for shard, columns in zip(shards, names, strict=True)}
        )
        splits[split] = SplitFiles([shard.path for shard in shards], has_mask, partial(_read, shards, has_mask))
    return splits


def _listed(index: Path, shards_of: Callable[[Path], list[_Shard]]) -> list[_Shard]:
    """The shards that an index names."""
    try:
        return shards_of(index)
    except InputError:  # which is a ValueError, and says what is wrong
        raise
    # An index may hold any JSON, in which fields are missing or of another type.
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(f"{index}: {error!r}; expected the index of a dataset, it is damaged or newer") from error


def _read(shards: list[_Shard], masked: bool) -> Iterator[Rows]:
    """Samples as rows, about a million tokens at a time."""
    ids: list[npt.NDArray[Any]] = []
    weights: list[npt.NDArray[Any]] = []
    lengths: list[npt.NDArray[np.int64]] = []
    size = 0
    for shard in shards:
        # In Python, sample by sample: the formats allow each of them another size and, in MDS, another dtype.
        for sample in _samples(shard):
            tokens = next(sample[name] for name in IDS if name in sample).reshape(-1)
            if not len(tokens):
                continue
            ids.append(as_ids(tokens, shard.path))
            # A sample of several texts becomes as many rows.
            texts = sample[LENGTHS].reshape(-1).astype(np.int64) if LENGTHS in sample else np.array([len(tokens)])
            lengths.append(texts)
            masks = [sample[name].reshape(-1) for name in MASKS if name in sample] if masked else []
            fits = int(texts.sum()) == len(tokens) and texts.min() >= 1
            if not fits or any(len(mask) != len(tokens) for mask in masks):
                raise InputError(
                    f"{shard.path}: a sample of {len(tokens)} tokens whose mask or seq_lengths are of others"
                )
            if masked:
                # With several masks (loss and attention), a token is trained only if all say so.
                has_labels = LABELS in sample
                weights.append(
                    _of_labels(tokens, sample[LABELS], shard.path) if has_labels else np.minimum.reduce(masks)
                )
            size += len(tokens)
            if size >= PORTION_TOKENS:
                yield _joined(ids, weights, lengths)
                ids, weights, lengths, size = [], [], [], 0
    if ids:
        yield _joined(ids, weights, lengths)


def _of_labels(ids: npt.NDArray[Any], labels: npt.NDArray[Any], path: Path) -> npt.NDArray[np.uint8]:
    """1 on trained tokens, else 0.

    Raises:
        InputError: labels that are neither -100 nor the id at their position.
    """
    values = labels.reshape(-1).astype(np.int64)
    trained = values != IGNORE_INDEX
    if len(values) != len(ids) or not np.array_equal(values[trained], ids[trained]):
        raise InputError(
            f"{path}: labels differ from the ids of their sample; expected unshifted labels, the id or -100"
        )
    return np.asarray(trained, dtype=np.uint8)


def _joined(ids: list[npt.NDArray[Any]], weights: list[npt.NDArray[Any]], lengths: list[npt.NDArray[np.int64]]) -> Rows:
    """Samples as rows of an export, whose weights are uint8 or float32."""
    mask = np.concatenate(weights) if weights else None
    if mask is not None:
        mask = mask.astype("<f4") if mask.dtype.kind == "f" else mask.astype(np.uint8)
    return rows_of(np.concatenate(ids), np.concatenate(lengths), mask)


def _samples(shard: _Shard) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    """The columns of each sample.

    Raises:
        InputError: places outside of the file, or samples whose columns end elsewhere.
    """
    data = map_file(shard.path, "u1")
    # Two samples have three offsets: the last one is where the second sample ends.
    count = int(data[:4].view("<u4")[0]) if len(data) >= 4 else 0
    fits = 8 + 4 * count <= len(data)
    offsets = data[4 : 8 + 4 * count].view("<u4").astype(np.int64) if fits else np.empty(0, np.int64)
    if not fits or (np.diff(offsets) < 0).any() or int(offsets[-1]) > len(data):
        raise InputError(
            f"{shard.path}: its table of {count:,} samples does not fit its {len(data):,} bytes; it is cut"
        )
    # Sizes are stored for these columns only; the index has those of all others.
    varying = sum(column.size is None for column in shard.columns)
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        # A sample begins with a uint32 for each column whose size varies; then come the columns.
        at, sample = start + 4 * varying, {}
        try:
            sizes = iter(data[start:at].view("<u4").tolist())
            for column in shard.columns:
                size = next(sizes) if column.size is None else stop - at if column.size == REST else column.size
                sample[column.name] = column.read(data[at : at + size].data)
                at += size
        except (ValueError, StopIteration, IndexError) as error:
            raise InputError(f"{shard.path}: a sample at byte {start:,} cannot be read: {error}") from error
        if at != stop:
            raise InputError(f"{shard.path}: a sample at byte {start:,} ends at {at:,}, expected {stop:,}")
        yield sample


def read_index(path: Path) -> Any:
    """The contents of an index.json.

    Raises:
        InputError: it is no JSON.
    """
    try:
        return json.loads(read_regular(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}; expected the index of a dataset") from error


def _plain(data: memoryview, dtype: str) -> npt.NDArray[Any]:
    """Values without a header."""
    return np.frombuffer(data, dtype=dtype)


def _unread(data: memoryview) -> npt.NDArray[Any]:
    """A column that holds neither ids nor a mask, such as a text."""
    del data
    return np.empty(0)


# ---- MosaicML Streaming


def _mosaic_shards(index: Path) -> list[_Shard]:
    """The shards of an index of MosaicML Streaming, each of which has columns of its own."""
    content = read_index(index)
    shards = []
    for entry in content.get("shards", []) if isinstance(content, dict) else []:
        if entry.get("format") != "mds" or entry.get("compression"):
            raise InputError(
                f"{index}: shards of format {entry.get('format')}, compression {entry.get('compression')}; this reads "
                "mds without compression"
            )
        columns = zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True)
        # Only the name: a downloaded index must not lead out of its directory.
        path = index.parent / Path(entry["raw_data"]["basename"]).name
        shards.append(_Shard(path, tuple(_Column(name, size, _mosaic_reader(kind)) for name, kind, size in columns)))
    if not shards:
        raise InputError(f"{index}: lists no shards; expected the index of MosaicML Streaming")
    return shards


def _mosaic_reader(kind: str) -> Reader:
    """How a column of this encoding is read: `ndarray`, `ndarray:uint32`, `ndarray:int64:2048`, `bytes`, ..."""
    name, *parts = kind.split(":")
    if name == "ndarray" and len(parts) == 2:
        return partial(_plain, dtype=parts[0])
    if name == "ndarray":
        return partial(_with_shape, dtype=parts[0] if parts else None)
    # llm-foundry stores ids as the bytes of int64.
    return partial(_plain, dtype="<i8") if name == "bytes" else _unread


def _with_shape(data: memoryview, dtype: str | None) -> npt.NDArray[Any]:
    """An array whose shape is before its values, and its dtype before the shape where the encoding names none.

    ::

        05 | 0c 00 | values        05: one dimension (05 >> 2), of two bytes (1 << (05 & 3)): 12 values
    """
    if dtype is None:
        # MosaicML's own order, which is not litData's.
        names = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", *FLOATS)
        dtype, data = names[data[0]], data[1:]
    # The shape is passed over: ids are read flat, as many as there are.
    dimensions, width = data[0] >> 2, 1 << (data[0] & 3)
    values = data[1 + dimensions * width :]
    return np.frombuffer(values, dtype=dtype)


# ---- litData


def _lightning_shards(index: Path) -> list[_Shard]:
    """The chunks of an index of litData, all with the same columns."""
    content = read_index(index)
    config = content.get("config") if isinstance(content, dict) else None
    if not isinstance(config, dict) or config.get("compression") or config.get("encryption"):
        raise InputError(f"{index}: no chunks of litData without compression and encryption; this reads no others")
    # `data_format` has one entry for each leaf of a sample, in the order of the description below.
    kinds = config["data_format"]
    # The names of a sample's columns are in a description of a tree; samples that are one array have none.
    spec = config.get("data_spec")
    tree = json.loads(spec)[1] if isinstance(spec, str) else {}
    names = json.loads(tree["context"]) if tree.get("context") else [IDS[0]]
    # LitGPT's samples are ids alone, without their size before them.
    size = REST if config.get("item_loader") == "TokensLoader" else None
    columns = tuple(_Column(str(n), size, _lightning_reader(kind)) for n, kind in zip(names, kinds, strict=True))
    return [_Shard(index.parent / Path(chunk["filename"]).name, columns) for chunk in content["chunks"]]


def _lightning_reader(kind: str) -> Reader:
    """How a column of this kind is read: `no_header_numpy:6` are values of the seventh of `NUMPY`."""
    name, _, number = kind.partition(":")
    if name == "no_header_numpy" and int(number) < len(NUMPY):
        return partial(_plain, dtype=NUMPY[int(number)])
    if name == "no_header_tensor" and int(number) in TORCH:
        return partial(_plain, dtype=TORCH[int(number)])
    return _unread


MDS = ImportFormat(
    "mds", "shards of MosaicML Streaming (llm-foundry, Composer)", partial(_open, shards_of=_mosaic_shards)
)
LITDATA = ImportFormat("litdata", "chunks of litData (Lightning, LitGPT)", partial(_open, shards_of=_lightning_shards))
