"""The files of a cache: names and dtypes.

Tokens are little-endian and headerless. An index (`*_idx.npy`) holds where each example starts, in tokens::

    tokens   a a a b b c c c c          idx  [0 3 5]
    lengths  3 2 4                      the last example ends at the end of the file
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import numpy as np

from niels_gpt.errors import CacheError, UsageError, shown, storage_errors
from niels_gpt.store.manifests import REPAIR

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


def tokens_name(split: str) -> str:
    """The file name of a split's SFT tokens."""
    return f"{split}_tokens.bin"


def mask_name(split: str) -> str:
    """The file name of a split's loss mask: uint8, 0 or 1 per token. Only caches built by a renderer have one."""
    return f"{split}_mask.bin"


def index_name(split: str) -> str:
    """The file name of a split's SFT index."""
    return f"{split}_idx.npy"


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
