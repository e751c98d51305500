"""`npy`, `llmc` and `nanogpt`: arrays of ids, as numpy saves them, token files of llm.c, and those of nanoGPT.

An array of two dimensions is rows; one of one dimension, and a token file, is a stream that is cut into documents after
every end-of-text token. nanoGPT's train.bin and val.bin are uint16 tokens without a header.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError, UsageError
from niels_gpt.export.llmc import HEADER, MAGIC_AND_VERSION
from niels_gpt.export.rows import Rows, rows_of
from niels_gpt.imports.formats import ImportFormat, ImportOptions, SplitFiles, as_ids, by_split, map_file, require
from niels_gpt.storage.regular import map_npy, map_regular, open_regular

PORTION_TOKENS = 1 << 20
NO_ID = 1 << 32  # in no file, since ids have at most 32 bits: nothing ends documents
HEADER_BYTES = 4 * HEADER
DTYPES = {magic: dtype for dtype, (magic, _) in MAGIC_AND_VERSION.items()}


def _open_arrays(path: Path, options: ImportOptions) -> dict[str, SplitFiles]:
    files = [path] if path.is_file() else sorted(path.rglob("*.npy"))
    found = require(path, by_split(path.parent if path.is_file() else path, files), ".npy file")
    splits = {}
    for split, paths in found.items():
        tokens = 0
        for file in paths:
            # Refused now, as far as headers show it: files are hashed before they are read, which may take hours.
            ids = array_of(file)
            tokens += ids.size
            if ids.ndim == 1:
                required(options.eos_id, file)
        splits[split] = SplitFiles(paths, False, partial(_read_arrays, paths, options.eos_id), tokens)
    return splits


def _read_arrays(files: list[Path], eos_id: int | None) -> Iterator[Rows]:
    """Rows of arrays of two dimensions, documents of those of one."""
    for file in files:
        # Mapped: files may be larger than memory.
        ids = array_of(file)
        if ids.ndim == 1:
            yield from documents_of(ids, required(eos_id, file), file)
            continue
        # So many rows at a time; rows without columns have no ids, and are left out.
        n = max(1, PORTION_TOKENS // max(1, ids.shape[1]))
        for start in range(0, len(ids) if ids.shape[1] else 0, n):
            part = ids[start : start + n]
            yield rows_of(as_ids(part.reshape(-1), file), np.full(len(part), ids.shape[1]), None)


def array_of(file: Path) -> npt.NDArray[Any]:
    """The array of a file, mapped.

    Raises:
        InputError: not an array of integers of one or two dimensions.
    """
    ids = map_npy(file)
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2):
        raise InputError(f"{file}: {ids.dtype} of shape {ids.shape}; expected ids, in rows or not")
    return ids


def required(eos_id: int | None, file: Path) -> int:
    """The id that ends documents.

    Raises:
        UsageError: none was passed.
    """
    if eos_id is None:
        raise UsageError(f"{file} does not record where documents end; pass the id that ends them (--eos-id)")
    return eos_id


def has_array_header(file: Path) -> bool:
    """Whether the file begins as `numpy.save` writes arrays."""
    with open_regular(file) as opened:
        return opened.read(6) == b"\x93NUMPY"


def is_token_file(file: Path) -> bool:
    """Whether the file begins as llm.c's token files do."""
    with open_regular(file) as opened:
        return int.from_bytes(opened.read(4), "little") in DTYPES


def _open_token_files(path: Path, options: ImportOptions) -> dict[str, SplitFiles]:
    files = [path] if path.is_file() else sorted(path.glob("*.bin"))
    found = require(path, by_split(path.parent if path.is_file() else path, files), ".bin file")
    eos_id = required(options.eos_id, files[0])
    splits = {}
    for split, paths in found.items():
        # By their sizes; a file whose header announces another number is refused when it is read.
        widths = [np.dtype(token_dtype_of(file)).itemsize for file in paths]
        sizes = [max(0, file.stat().st_size - HEADER_BYTES) for file in paths]
        tokens = sum(size // width for size, width in zip(sizes, widths, strict=True))
        splits[split] = SplitFiles(paths, False, partial(_read_token_files, paths, eos_id), tokens)
    return splits


def token_dtype_of(file: Path) -> str:
    """The dtype of the ids of a token file of llm.c; uint16 for other files."""
    with open_regular(file) as opened:
        magic = np.fromfile(opened, dtype="<i4", count=1)
    return DTYPES.get(int(magic[0]) if len(magic) else 0, "<u2")


def _read_token_files(files: list[Path], eos_id: int) -> Iterator[Rows]:
    """The documents of token files, whose headers must announce as many tokens as there are."""
    for file in files:
        with open_regular(file) as opened:
            header = np.fromfile(opened, dtype="<i4", count=HEADER)
        if len(header) < HEADER or int(header[0]) not in DTYPES:
            raise InputError(f"{file}: does not begin as a token file of llm.c; check the format")
        dtype, count = DTYPES[int(header[0])], int(header[2])
        size = file.stat().st_size
        # More bytes than announced are no tokens of this format, either.
        if HEADER_BYTES + count * np.dtype(dtype).itemsize != size:
            raise InputError(f"{file}: {size:,} bytes, but its header announces {count:,} tokens; it is cut")
        tokens = map_regular(file, dtype, offset=HEADER_BYTES)
        yield from documents_of(tokens, eos_id, file)


NPY = ImportFormat("npy", ".npy arrays of ids", _open_arrays)
LLMC = ImportFormat("llmc", "token files (.bin) of llm.c and speed-run repositories", _open_token_files)


def _open_nanogpt(path: Path, options: ImportOptions) -> dict[str, SplitFiles]:
    files = [path] if path.is_file() else [*path.glob("*.bin")]
    # Dolma's tokenizer writes the same under another name; files with numpy's header are of the format npy.
    if not files:
        files = [file for file in path.rglob("*.npy") if not has_array_header(file)]
    found = require(path, by_split(path.parent if path.is_file() else path, files), ".bin file")
    if options.eos_id is None:
        raise UsageError(
            "nanogpt files do not record where documents end; pass the id that ends them (--eos-id, 50256 for GPT-2)"
        )
    eos_id = options.eos_id
    dtype = {None: "<u2", "uint16": "<u2", "uint32": "<u4"}[options.token_dtype]

    def read(files: list[Path]) -> Iterator[Rows]:
        for file in files:
            yield from documents_of(map_file(file, dtype), eos_id, file)

    width = np.dtype(dtype).itemsize
    return {
        split: SplitFiles(files, False, partial(read, files), sum(file.stat().st_size for file in files) // width)
        for split, files in found.items()
    }


def documents_of(tokens: npt.NDArray[Any], eos_id: int, file: Path) -> Iterator[Rows]:
    """The documents of a stream; what follows the last end-of-text token is a document, too.

    ::

        a b E c | d E e        (E ends a document, | a portion)        a b E    c d E    e

    Args:
        file: where they are, for messages.
        eos_id: E; `NO_ID`: every portion is a document, so that a long stream does not fill memory.
    """
    if eos_id == NO_ID:
        for start in range(0, len(tokens), PORTION_TOKENS):
            part = tokens[start : start + PORTION_TOKENS]
            yield rows_of(as_ids(part, file), np.array([len(part)]), None)
        return
    begun = 0  # where the document that is being read begins
    # In the example, portions begin at 0 4: ends 3 and 6, so spans 0:3, 3:6 and, after the last end-of-text, 6:7.
    for start in range(0, len(tokens), PORTION_TOKENS):
        ends = start + np.flatnonzero(tokens[start : start + PORTION_TOKENS] == eos_id) + 1
        if len(ends):
            yield rows_of(as_ids(tokens[begun : ends[-1]], file), np.diff(ends, prepend=begun), None)
            begun = int(ends[-1])
    if begun < len(tokens):
        yield rows_of(as_ids(tokens[begun:], file), np.array([len(tokens) - begun]), None)


NANOGPT = ImportFormat("nanogpt", "train.bin and val.bin of nanoGPT", _open_nanogpt)
