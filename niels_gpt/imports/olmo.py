"""`olmo`: token_ids_part_*.npy with masks and .csv.gz files, as OLMo-core and open-instruct write them.

The layout is described in `niels_gpt.export.olmo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError, UsageError
from niels_gpt.export.rows import Rows
from niels_gpt.imports.formats import (
    ImportFormat,
    ImportOptions,
    SplitFiles,
    all_or_none,
    by_split,
    map_file,
    require,
    rows_from,
)
from niels_gpt.sources.files.inputs import open_bytes

LINES = 1 << 16  # of a .csv.gz that are parsed at once
# The first two columns, quoted or not; at most 18 digits, so that they fit into int64.
_TWO_NUMBERS = re.compile(rb'\s*"?(\d{1,18})"?\s*,\s*"?(\d{1,18})\b')


def _open(path: Path, options: ImportOptions) -> dict[str, SplitFiles]:
    found = require(path, by_split(path, path.rglob("token_ids_part_*.npy")), "token_ids_part_*.npy")
    splits = {}
    for split, files in found.items():
        has_mask = all_or_none({file: _mask_of(file).is_file() for file in files})
        beside = [other for file in files for other in (_mask_of(file), _documents_of(file)) if other.is_file()]
        # Known before anything is read, so that a missing --token-dtype is refused before files are hashed.
        dtypes = {
            file: _dtype(file, _mask_of(file).stat().st_size if has_mask else None, options.token_dtype)
            for file in files
        }
        splits[split] = SplitFiles([*files, *beside], has_mask, partial(_read, dtypes, has_mask))
    return splits


def _mask_of(file: Path) -> Path:
    """The mask of a part, a bool for each token."""
    return file.with_name(file.name.replace("token_ids", "labels_mask"))


def _documents_of(file: Path) -> Path:
    """The list of a part's documents."""
    return file.with_suffix(".csv.gz")


def _read(dtypes: dict[Path, str], masked: bool) -> Iterator[Rows]:
    """The documents of parts, whose tokens have these dtypes."""
    for file, dtype in dtypes.items():
        mask = map_file(_mask_of(file), "?") if masked else None
        tokens = map_file(file, dtype)
        if mask is not None and len(mask) != len(tokens):
            raise InputError(
                f"{_mask_of(file)}: {len(mask):,} entries for {len(tokens):,} tokens; expected one for each"
            )
        lines = _documents_of(file)
        if not lines.is_file():
            raise InputError(f"{lines}: no such file; expected the start and end of every document, a line for each")
        with open_bytes(lines) as packed:
            at = 0
            # Some lines at a time: a part may have millions of documents.
            while chunk := list(islice(packed, LINES)):
                bounds = _bounds(chunk, lines, at)
                at += len(chunk)
                lengths = bounds[:, 1] - bounds[:, 0]
                if lengths.min() < 1 or bounds.min() < 0 or bounds.max() > len(tokens):
                    raise InputError(f"{lines}: documents outside the {len(tokens):,} tokens of {file.name}, or empty")
                yield from rows_from(tokens, mask, bounds[:, 0], lengths, file)


def _bounds(chunk: list[bytes], file: Path, before: int) -> npt.NDArray[np.int64]:
    """Start and end of each document, the first two numbers of each line; int64 of shape (lines, 2).

    Args:
        before: how many lines of the file come before these.

    Raises:
        InputError: a line does not begin with two numbers.
    """
    matches = [_TWO_NUMBERS.match(line) for line in chunk]
    pairs = [match.groups() for match in matches if match]
    if len(pairs) < len(chunk):
        where = f"{file}:{before + matches.index(None) + 1}"
        raise InputError(f"{where}: expected the start and end of a document, two numbers")
    # numpy parses the digits of an array of bytes at once.
    return np.array(pairs).astype(np.int64)


def _dtype(file: Path, entries: int | None, token_dtype: str | None) -> str:
    """The dtype of the tokens, as passed, or from the mask: it has one byte for each token.

    Args:
        entries: of the mask.
    """
    if token_dtype is not None:
        return {"uint16": "<u2", "uint32": "<u4"}[token_dtype]
    widths = {2: "<u2", 4: "<u4"}
    size = file.stat().st_size
    if not size and not entries:
        return "<u2"  # no tokens, which are the same in any dtype
    # The mask has a byte for each token: 1000 entries and 4000 bytes of tokens are uint32.
    if entries and size % entries == 0 and size // entries in widths:
        return widths[size // entries]
    if entries is not None:
        raise InputError(
            f"{_mask_of(file)}: {entries:,} entries for {size:,} bytes of tokens; expected one for every 2 bytes "
            "(uint16) or 4 bytes (uint32). One of the two files is cut; copy both again"
        )
    raise UsageError(
        f"{file}: has no mask from which the token dtype follows; pass token_dtype (--token-dtype uint16 or uint32)"
    )


OLMO = ImportFormat("olmo", "token_ids_part_*.npy of OLMo-core and open-instruct", _open)
