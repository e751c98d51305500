"""`megatron`: IndexedDataset files (.bin and .idx), with a mask if `niels-gpt export` wrote them.

The layout is described in `niels_gpt.export.megatron`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from niels_gpt.errors import InputError, storage_errors
from niels_gpt.inputs.rows import Int64s
from niels_gpt.inputs.token_formats import (
    Ids,
    SplitFiles,
    TokenFormat,
    TokenOptions,
    all_or_none,
    by_split,
    map_file,
    rows_from,
)
from niels_gpt.progress import Progress
from niels_gpt.store.files import map_array

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
# Megatron's codes of integer dtypes.
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
HEADER_BYTES = 34  # 9 magic, 8 version, 1 dtype code, 8 sequences, 8 documents


def _open(path: Path, options: TokenOptions) -> dict[str, SplitFiles]:
    if path.is_dir():
        found = by_split(path, (file for file in path.glob("*.idx") if not file.stem.endswith("_mask")), ".idx file")
    else:  # a path without its suffix, as Megatron takes it; a single file is train, whatever its name is
        index = path.with_name(f"{path.name.removesuffix('.idx').removesuffix('.bin')}.idx")
        if not index.is_file():
            raise InputError(f"{index}: no such file; expected an index of Megatron. Check the path and the format")
        found = {"train": [index]}
    splits = {}
    for split, files in found.items():
        has_mask = all_or_none({file: os.path.lexists(_mask_of(file)) for file in files})  # also a dead link
        indexes = [*files, *(_mask_of(file) for file in files if has_mask)]
        # Some of a .bin may be missing, which is reported when it is read.
        listed = [*indexes, *(file for file in (index.with_suffix(".bin") for index in indexes) if file.is_file())]
        read = partial(_read, files, has_mask, options.progress)
        splits[split] = SplitFiles(listed, has_mask, read, sum(map(_tokens_of, files)))
    return splits


def _mask_of(index: Path) -> Path:
    """The index of the mask, which our own exports put beside the tokens."""
    return index.with_name(f"{index.stem}_mask.idx")


def _tokens_of(index: Path) -> int:
    """How many tokens a file has; 0 where it is damaged, which is reported when it is read."""
    with storage_errors("reading", index), index.open("rb") as file:
        data, tokens = file.read(HEADER_BYTES), index.with_suffix(".bin")
    code = data[len(MAGIC) + 8] if len(data) == HEADER_BYTES else 0  # after the version
    return tokens.stat().st_size // np.dtype(DTYPES[code]).itemsize if code in DTYPES and tokens.is_file() else 0


def _read(files: list[Path], masked: bool, progress: Progress) -> Iterator[Ids]:
    """The documents of files; with `masked` each has a mask beside it, of the same documents."""
    for file in files:
        code, starts, lengths = read_index(file)
        tokens = map_file(file.with_suffix(".bin"), DTYPES[code])
        # Documents follow each other, so the end of the last one is the end of all.
        stop = int(starts[-1] + lengths[-1]) if len(starts) else 0
        if stop != len(tokens):
            raise InputError(
                f"{file}: ends at token {stop:,}, but {file.with_suffix('.bin').name} has {len(tokens):,}; the files "
                "do not belong together, or one of them is cut. Copy both again"
            )
        mask = None
        if masked:
            mask_file = _mask_of(file)
            mask_code, _, mask_lengths = read_index(mask_file)
            # A dataset like the tokens, with a value for each of them.
            mask = map_file(mask_file.with_suffix(".bin"), DTYPES[mask_code])
            if not np.array_equal(mask_lengths, lengths) or len(mask) != len(tokens):
                raise InputError(f"{mask_file}: other lengths than {file.name}; mask and tokens do not belong together")
        # Megatron's builder also writes documents without tokens, which have nothing to train.
        filled = lengths > 0
        if not filled.all():
            progress.note(f"{file}: left out {int((~filled).sum()):,} documents without tokens")
        yield from rows_from(tokens, mask, starts[filled], lengths[filled], file)


def read_index(path: Path) -> tuple[int, Int64s, Int64s]:
    """The dtype code, and start and length of each document in tokens.

    Sequences of lengths 3 2 4 with the document list 0 2 3 are documents of 5 and 4 tokens; 0 2 2 3 also has an
    empty one.

    Raises:
        InputError: another kind of file, a newer version, or a file that is cut.
    """
    with storage_errors("reading", path), path.open("rb") as file:
        data = file.read(HEADER_BYTES)
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise InputError(f"{path}: does not begin as a Megatron index; expected the .idx of an IndexedDataset")
    version, code, n, entries = struct.unpack("<QBQQ", data[len(MAGIC) :])
    if version != VERSION or code not in DTYPES:
        raise InputError(f"{path}: version {version} with dtype code {code}; this reads version {VERSION} of integers")
    size = HEADER_BYTES + 12 * n + 8 * entries
    if path.stat().st_size < size:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes, but its header requires {size:,}; it is cut")
    lengths = map_array(path, "<i4", offset=HEADER_BYTES, shape=(n,)).astype(np.int64)
    pointers = map_array(path, "<i8", offset=HEADER_BYTES + 4 * n, shape=(n,)).astype(np.int64)
    documents = map_array(path, "<i8", offset=HEADER_BYTES + 12 * n, shape=(entries,)).astype(np.int64)
    if not entries or documents[0] != 0 or documents[-1] != n or (np.diff(documents) < 0).any() or (lengths < 0).any():
        raise InputError(f"{path}: its documents do not cover its {n:,} sequences; the index is damaged")
    # Pointers are in bytes. Rows are read as runs, from a first sequence to a last one, so there may be no gaps.
    starts = pointers // np.dtype(DTYPES[code]).itemsize
    if (starts != np.cumsum(lengths) - lengths).any():
        raise InputError(
            f"{path}: sequences do not follow each other in the .bin; expected files of Megatron's builder"
        )
    # Sequences of 3 2 4 end at 0 3 5 9; documents 0 2 2 3 begin at 0 5 5 and have 5 0 4 tokens.
    ends = np.concatenate(([0], np.cumsum(lengths)))[documents]
    return code, ends[:-1], np.diff(ends)


MEGATRON = TokenFormat("megatron", ".bin and .idx of Megatron", _open)
