"""The files of a cache: names, dtypes, and writers that stream.

Tokens are little-endian and headerless. An index (`*_idx.npy`) holds where each example starts, in tokens::

    tokens   a a a b b c c c c          idx  [0 3 5]
    lengths  3 2 4                      the last example ends at the end of the file
"""

from __future__ import annotations

import ast
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import CacheError, UsageError, shown, storage_errors
from niels_gpt.storage.checksums import FileRecord
from niels_gpt.storage.files import HashedWriter
from niels_gpt.storage.manifests import REPAIR

FORMAT_VERSION: Final = 1
SPLITS: Final = ("train", "val")
META_NAME: Final = "meta.json"

# Name in meta.json -> numpy's name; and the name that callers pass -> the name in meta.json.
TOKEN_DTYPES: Final = {"uint16-le": "<u2", "uint32-le": "<u4"}
SHORT_DTYPES: Final = {"uint16": "uint16-le", "uint32": "uint32-le"}

# The defaults of the cache format; each is an argument of the builders and an option of the command line.
DEFAULT_SHARD_BYTES: Final = 128 * 1024 * 1024
MAX_TRAIN_TOKENS: Final = 200_000_000
MAX_VAL_TOKENS: Final = 5_000_000
UNLIMITED_TOKENS: Final = 1 << 62
DEFAULT_VAL_FRAC: Final = 0.10

MOST_HEADER_BYTES: Final = 10_000  # of an .npy header; numpy's own limit
_COPY_ITEMS = 1 << 17


def dtype_for(token_dtype: str | None, vocab_size: int) -> str:
    """The name in `meta.json` of `token_dtype` ("uint16" or "uint32"), after a check that all ids fit.

    `None` means the smaller one that holds all ids.

    Raises:
        UsageError: unknown name, or a vocabulary that is too large for it.
    """
    if token_dtype is None:
        token_dtype = "uint16" if vocab_size <= np.iinfo("<u2").max + 1 else "uint32"
    if token_dtype not in SHORT_DTYPES:
        raise UsageError(f"token_dtype is {token_dtype!r}; expected 'uint16' or 'uint32'")
    name = SHORT_DTYPES[token_dtype]
    most = np.iinfo(TOKEN_DTYPES[name]).max + 1
    if vocab_size > most:
        raise UsageError(
            f'the vocabulary has {vocab_size:,} ids but {token_dtype} holds {most:,}; pass token_dtype="uint32" '
            "(--token-dtype uint32)"
        )
    return name


def shard_name(number: int) -> str:
    """The file name of a pretrain shard: 3 -> `shard_00003.bin`."""
    return f"shard_{number:05d}.bin"


def tokens_name(split: str) -> str:
    """The file name of a split's SFT tokens."""
    return f"{split}_tokens.bin"


def mask_name(split: str) -> str:
    """The file name of a split's loss mask: uint8, 0 or 1 per token. Only caches built by a renderer have one."""
    return f"{split}_mask.bin"


def index_name(split: str) -> str:
    """The file name of a split's SFT index."""
    return f"{split}_idx.npy"


class ShardWriter:
    """Writes a stream of tokens as `shard_00000.bin`, `shard_00001.bin`, ... of at most `shard_bytes` each."""

    def __init__(self, folder: Path, dtype: str, shard_bytes: int) -> None:
        self.folder = folder
        self.tokens = 0
        self.files: dict[str, FileRecord] = {}
        self._dtype = np.dtype(dtype)
        self._shard_tokens = shard_bytes // self._dtype.itemsize
        if self._shard_tokens < 1:
            raise UsageError(f"shard_bytes is {shard_bytes}; expected room for a token ({self._dtype.itemsize} bytes)")
        self._room = 0
        self._shard: HashedWriter | None = None
        # Also for a split without tokens: readers tell a split that got none from a path that is wrong.
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, ids: npt.NDArray[Any]) -> None:
        """Append tokens; a full shard is closed and the next one begun."""
        self.tokens += len(ids)
        while len(ids):
            # Only now, when there is a token for it: a split without tokens has no shard.
            if self._room == 0:
                self._close_shard()
                self._shard = HashedWriter(self.folder / shard_name(len(self.files)))
                self._room = self._shard_tokens
            assert self._shard is not None
            # With room for 1 of 3 ids, the first ends this shard and the other two begin the next.
            part, ids = ids[: self._room], ids[self._room :]
            self._shard.write(part.astype(self._dtype))
            self._room -= len(part)

    def _close_shard(self) -> None:
        if self._shard is not None:
            self.files[f"{self.folder.name}/{self._shard.path.name}"] = self._shard.close()
            self._shard = None

    def close(self) -> None:
        """Close the last shard. A split without tokens has no shards."""
        self._close_shard()

    def abandon(self) -> None:
        """Delete an unfinished shard; does nothing after `close`."""
        if self._shard is not None:
            self._shard.abandon()


class ExampleWriter:
    """Writes one split of an SFT cache: the tokens at once, the index at the end."""

    def __init__(self, folder: Path, split: str, dtype: str, *, masked: bool = False) -> None:
        self._mask = HashedWriter(folder / mask_name(split)) if masked else None
        self.tokens = 0
        self.examples = 0
        self.files: dict[str, FileRecord] = {}
        self._dtype = np.dtype(dtype)
        self._tokens = HashedWriter(folder / tokens_name(split))
        # The header of an `.npy` holds the number of entries, which is known only at the end, and memory must not grow
        # with the number of examples: so their lengths are in a temporary file until then.
        self._lengths = HashedWriter(folder / f"{split}_lengths.partial")
        self._index_path = folder / index_name(split)

    def write(
        self, ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Append examples: their tokens concatenated, their lengths, and with `masked` which tokens are trained."""
        if self._mask is not None:
            assert mask is not None
            self._mask.write(mask.astype(np.uint8))
        self._tokens.write(ids.astype(self._dtype))
        self._lengths.write(lengths)
        self.tokens += len(ids)
        self.examples += len(lengths)

    def close(self) -> None:
        """Close the tokens and write the index."""
        self.files[self._tokens.path.name] = self._tokens.close()
        if self._mask is not None:
            self.files[self._mask.path.name] = self._mask.close()
        self._lengths.close()
        header, index = BytesIO(), HashedWriter(self._index_path)
        shape = (self.examples,)
        np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
        index.write(header.getvalue())
        offset = 0
        with self._lengths.path.open("rb") as file:
            while data := file.read(8 * _COPY_ITEMS):
                lengths = np.frombuffer(data, dtype=np.int64)
                ends = offset + np.cumsum(lengths)
                index.write((ends - lengths).astype("<i8"))  # lengths 3 2 4 from offset 0: ends 3 5 9, starts 0 3 5
                offset = int(ends[-1])
        self.files[self._index_path.name] = index.close()
        self._lengths.path.unlink()

    def abandon(self) -> None:
        """Delete unfinished files; does nothing after `close`."""
        self._tokens.abandon()
        if self._mask is not None:
            self._mask.abandon()
        self._lengths.abandon()


def index_header(path: Path) -> tuple[int, int]:
    """The number of offsets in an index, and the byte at which they begin.

    Raises:
        CacheError: the file is not a one-dimensional int64 `.npy`, or its size differs from its header.
    """
    # numpy's own reader is not used: on a damaged header it raises many different errors.
    if not path.is_file():
        raise CacheError(f"{path}: no such file; expected an index of example offsets")
    with storage_errors("reading", path), path.open("rb") as file:
        begin = file.read(8)
        # Version 1 of the format declares the length of its header in two bytes, later versions in four.
        length_bytes = 2 if begin[6:7] == b"\x01" else 4
        length = int.from_bytes(file.read(length_bytes), "little")
        text = file.read(length) if length <= MOST_HEADER_BYTES else b""
        size = path.stat().st_size
    # Magic string, version, and a header of the length that it declares.
    complete = begin[:6] == b"\x93NUMPY" and begin[6:] in (b"\x01\0", b"\x02\0", b"\x03\0") and len(text) == length
    try:
        header = ast.literal_eval(text.decode("latin-1")) if complete else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        header = None
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise CacheError(f"{path}: not a complete .npy file; it is truncated, damaged or of another format. {REPAIR}")
    shape = header["shape"]
    one_dimension = isinstance(shape, tuple) and len(shape) == 1 and type(shape[0]) is int and shape[0] >= 0
    if header["descr"] != "<i8" or not one_dimension or not isinstance(header["fortran_order"], bool):
        what = f"{shown(header['descr'])} of shape {shown(shape)}"
        raise CacheError(f"{path}: {what}; expected int64 of one dimension ('<i8'). {REPAIR}")
    start = len(begin) + length_bytes + length
    if size != start + 8 * shape[0]:
        raise CacheError(
            f"{path}: not a complete .npy file: {size:,} bytes, but the {shape[0]:,} offsets of its header need "
            f"{start + 8 * shape[0]:,}. {REPAIR}"
        )
    return shape[0], start
