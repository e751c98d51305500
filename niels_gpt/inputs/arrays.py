"""`tokens`: ids without masks, as numpy saves arrays, as llm.c writes token files, or as raw values.

An array of two dimensions is rows. One of one dimension, and a file of tokens, is a stream that is cut into documents
after every end-of-text token. What a file is shows in its first bytes::

    .npy of numpy.save              its header names the dtype
    .bin of llm.c, modded-nanogpt   256 int32 of header, from which the dtype follows; then the ids
    nanoGPT's train.bin, Dolma's    ids and nothing else: the user names the dtype (--dtype)
    .npy without numpy's header
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError, UsageError, shown, storage_errors
from niels_gpt.inputs.token_formats import (
    PORTION_TOKENS,
    Ids,
    SplitFiles,
    TokenFormat,
    TokenOptions,
    as_ids,
    by_split,
    files_below,
    map_file,
)
from niels_gpt.store.files import map_array, map_npy

NO_ID = 1 << 32  # in no file, since ids have at most 32 bits: nothing ends documents

# Token files of llm.c begin with 256 int32: a number that also tells the dtype, a version, how many ids follow.
HEADER_BYTES: Final = 1024
HEADER_DTYPES: Final = {20240520: "<u2", 20240801: "<u4"}
NUMPY_HEADER: Final = b"\x93NUMPY"
# How files begin that hold no bare ids, and what to do with them.
OTHER_HEADERS: Final = {
    b"PAR1": "a parquet file; pass --from hf",
    b"MMIDIDX": "an index of Megatron; pass --from megatron",
    b"PK\x03\x04": "an archive, as numpy.savez and torch.save write; write its ids with numpy.save",
    b"\x1f\x8b\x08": "packed by gzip; unpack it",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unpack it",
    b"ARROW1": "an Arrow file; write its rows as parquet, and pass --from hf",
    b"\x80\x02": "a pickle; write its ids with numpy.save",
    b"\x80\x04": "a pickle; write its ids with numpy.save",
    b"version https://git-lfs": "a pointer of Git LFS, without the data itself; run: git lfs pull",
}
# The first ids of a raw file show a wrong dtype: of so many, see `width_of`.
SNIFFED, UPPER, LARGE = 1 << 16, 16, 1 << 20


def _open(path: Path, options: TokenOptions) -> dict[str, SplitFiles]:
    splits = {}
    for split, files in _files(path, options).items():
        # Refused now, as far as headers and sizes show it: files are hashed before they are read, which may take hours.
        arrays = [ids_of(file, options.dtype) for file in files]
        streams = [file for file, ids in zip(files, arrays, strict=True) if ids.ndim == 1]
        if streams and options.eos_id is None:
            raise UsageError(f"{streams[0]}: records not where documents end; pass the id that ends them (--eos-id)")
        for file, ids in zip(files, arrays, strict=True):
            if ids.ndim == 1 and ids.size and NO_ID != (options.eos_id or 0) > np.iinfo(ids.dtype).max:
                raise UsageError(
                    f"{file}: {options.eos_id} is no {ids.dtype.name}, in which its ids are stored, so no document "
                    "would end; pass the id that ends documents (--eos-id)"
                )
        read = partial(_read, files, options)
        tokens = sum(ids.size for ids in arrays)
        splits[split] = SplitFiles(files, False, read, tokens, options.eos_id if streams else None)
    return splits


def _files(path: Path, options: TokenOptions) -> dict[str, list[Path]]:
    """The files of each split."""
    if not path.exists():
        raise InputError(f"{path}: no such file or directory; check the path")
    if path.is_file():
        files = [path]
    else:
        files = files_below(path, (".bin", ".npy"), options.progress)
        if len({file.suffix for file in files}) > 1:
            raise InputError(f"{path}: holds .bin and .npy files; pass a directory with those of one kind, or a file")
    found = by_split(path.parent if path.is_file() else path, files, ".bin or .npy file")
    for file in files:
        if (file.parent / "index.json").is_file():
            raise InputError(
                f"{file}: an index.json lies beside it, as beside the shards of litData; read them with their own "
                "library, and write the ids with numpy.save or EpisodeWriter"
            )
        if file is not path and "mask" in re.split(r"[^a-z]+", file.name.lower()):
            raise InputError(
                f"{file}: a mask by its name. This reads ids alone, and all of them would be trained: write ids and "
                "masks with EpisodeWriter, or pass one file of ids after the other"
            )
    return found


def is_text(head: bytes) -> bool:
    """Whether the first 256 bytes of a file are UTF-8 without control characters: some ids may look so, not so many."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    is_clear = len(head) > 64 or head.lstrip()[:2] in (b'{"', b"[{")  # few bytes, but of rows
    return is_clear and all(character >= " " or character in "\t\n\r" for character in text)


def ids_of(file: Path, dtype: str | None) -> npt.NDArray[Any]:
    """The ids of a file, mapped: files may be larger than memory.

    Args:
        dtype: of ids without a header.

    Raises:
        InputError: no ids, fewer than the header announces, or ids of another dtype. UsageError: a dtype is missing, or
            contradicts the header.
    """
    if file.exists() and not file.is_file():  # a pipe, in which no program may ever write
        raise InputError(f"{file}: a pipe or device; expected a file of ids. Remove it, or copy the file again")
    with storage_errors("reading", file), file.open("rb") as opened:
        head = opened.read(256)
    if not head:
        return np.empty(0, "<u2")
    other = next((what for magic, what in OTHER_HEADERS.items() if head.startswith(magic)), None)
    if other is not None:
        raise InputError(f"{file}: begins as {other}")
    if is_text(head):
        raise InputError(f"{file}: is text ({shown(head[:24])}); expected ids. Build from it: niels-gpt build")
    if head.startswith(NUMPY_HEADER):
        ids = array_of(file)
    elif (header_dtype := token_dtype_of(file)) is not None:
        count, size = int.from_bytes(head[8:12], "little"), file.stat().st_size
        # More bytes than announced are no tokens of this format, either.
        if HEADER_BYTES + count * np.dtype(header_dtype).itemsize != size:
            raise InputError(f"{file}: {size:,} bytes, but its header announces {count:,} tokens; it is cut")
        ids = map_array(file, header_dtype, offset=HEADER_BYTES)
    else:
        if dtype is None:
            raise UsageError(f"{file}: begins as no known format, so it holds ids alone; pass their dtype (--dtype)")
        ids = map_file(file, np.dtype(dtype).newbyteorder("<").str)
        _check_dtype(ids, file)
    if dtype is not None and ids.dtype.name != dtype:
        raise UsageError(f"{file}: its header says {ids.dtype.name}, and dtype {dtype} was passed; leave it out")
    return ids


def array_of(file: Path) -> npt.NDArray[Any]:
    """The array of a file that `numpy.save` wrote, mapped.

    Raises:
        InputError: not an array of integers of one or two dimensions.
    """
    ids = map_npy(file)
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2):
        raise InputError(f"{file}: {ids.dtype} of shape {ids.shape}; expected ids, in rows or not")
    return ids


def token_dtype_of(file: Path) -> str | None:
    """The dtype of the ids of a token file of llm.c; `None` for other files."""
    with storage_errors("reading", file), file.open("rb") as opened:
        return HEADER_DTYPES.get(int.from_bytes(opened.read(4), "little"))


def width_of(ids: npt.NDArray[Any]) -> int:
    """How many bytes an id has, by the first values of a file that are read as `ids`; as many as these, if unknown.

    ::

        uint32  151644 872 198    as uint16  20572 2  872 0  198 0       every second one is small, and the others not
        int64   872 198           as uint16  872 0 0 0  198 0 0 0        of four the last two
        uint16  872 198 21 1140   as uint32  12976984  74711061          above a million, where no vocabulary is
    """
    first, width = ids[:SNIFFED], ids.dtype.itemsize
    # The widest first, because ids of 8 bytes also look like those of 4: half of both is zeros.
    for n in (8, 4, 2):
        if n * width <= 8 and len(first) >= n and not len(ids) % n:
            parts = first[: len(first) - len(first) % n].reshape(-1, n)
            if parts[:, n // 2 :].max() < UPPER <= np.median(parts[:, 0]):
                return n * width
    return width // 2 if width > 2 and len(first) and np.median(first) > LARGE else width


def _check_dtype(ids: npt.NDArray[Any], file: Path) -> None:
    """Raise `InputError` for ids that look like those of another width."""
    if len(ids) >= 64 and (likely := width_of(ids)) != ids.dtype.itemsize:  # fewer are too few to tell
        raise InputError(
            f"{file}: as {ids.dtype.name} its first ids are {', '.join(map(str, ids[:4].tolist()))}; they look like "
            f"uint{8 * likely}. Import them with the dtype in which they were written (--from tokens --dtype)"
        )


def _read(files: list[Path], options: TokenOptions) -> Iterator[Ids]:
    """Rows of arrays of two dimensions, documents of those of one."""
    for file in files:
        ids = ids_of(file, options.dtype)
        if ids.ndim == 1:
            assert options.eos_id is not None
            yield from documents_of(ids, options.eos_id, file)
            continue
        # So many rows at a time; rows without columns have no ids, and are left out.
        n = max(1, PORTION_TOKENS // max(1, ids.shape[1]))
        for start in range(0, len(ids) if ids.shape[1] else 0, n):
            part = ids[start : start + n]
            yield Ids(as_ids(part.reshape(-1), file), np.full(len(part), ids.shape[1]))


def documents_of(tokens: npt.NDArray[Any], eos_id: int, file: Path) -> Iterator[Ids]:
    """The documents of a stream; what follows the last end-of-text token is also a document.

    ::

        a b E c | d E e        (E ends a document, | a portion)        a b E    c d E    e

    Args:
        file: where they are, for messages.
        eos_id: E; `NO_ID`: every portion is a document, so that a long stream does not fill memory.
    """
    if eos_id == NO_ID:
        for start in range(0, len(tokens), PORTION_TOKENS):
            part = tokens[start : start + PORTION_TOKENS]
            yield Ids(as_ids(part, file), np.array([len(part)]))
        return
    begun = 0  # where the document that is being read begins
    # In the example, portions begin at 0 4: ends 3 and 6, so spans 0:3, 3:6 and, after the last end-of-text, 6:7.
    for start in range(0, len(tokens), PORTION_TOKENS):
        ends = start + np.flatnonzero(tokens[start : start + PORTION_TOKENS] == eos_id) + 1
        if len(ends):
            yield Ids(as_ids(tokens[begun : ends[-1]], file), np.diff(ends, prepend=begun))
            begun = int(ends[-1])
    if begun < len(tokens):
        yield Ids(as_ids(tokens[begun:], file), np.array([len(tokens) - begun]))


TOKENS = TokenFormat("tokens", "ids without masks: .npy arrays, token files of llm.c, or raw ids (--dtype)", _open)
