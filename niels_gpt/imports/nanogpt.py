"""`nanogpt`: train.bin and val.bin of uint16 tokens, cut into episodes after every end-of-text token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError
from niels_gpt.export.rows import Rows, rows_of
from niels_gpt.imports.formats import ImportFormat, ImportOptions, SplitFiles, by_split, map_file, require

PORTION_TOKENS = 1 << 20


def _open(path: Path, options: ImportOptions) -> dict[str, SplitFiles]:
    files = [path] if path.is_file() else path.glob("*.bin")
    found = require(path, by_split(path.parent if path.is_file() else path, files), ".bin file")
    if options.eos_id is None:
        raise UsageError(
            "nanogpt files do not record where documents end; pass the id that ends them (--eos-id, 50256 for GPT-2)"
        )
    dtype = {None: "<u2", "uint16": "<u2", "uint32": "<u4"}[options.token_dtype]
    return {
        split: SplitFiles(
            files,
            False,
            partial(_read, files, dtype, options.eos_id),
            sum(file.stat().st_size for file in files) // np.dtype(dtype).itemsize,
        )
        for split, files in found.items()
    }


def _read(files: list[Path], dtype: str, eos_id: int) -> Iterator[Rows]:
    for file in files:
        yield from documents_of(map_file(file, dtype), eos_id)


def documents_of(tokens: npt.NDArray[Any], eos_id: int) -> Iterator[Rows]:
    """The documents of a stream; what follows the last end-of-text token is a document, too.

    ::

        a b E c | d E e        (E ends a document, | a portion)        a b E    c d E    e
    """
    begun = 0  # where the document that is being read begins
    for start in range(0, len(tokens), PORTION_TOKENS):
        ends = start + np.flatnonzero(tokens[start : start + PORTION_TOKENS] == eos_id) + 1
        if len(ends):
            yield rows_of(tokens[begun : ends[-1]].astype(np.uint32), np.diff(ends, prepend=begun), None)
            begun = int(ends[-1])
    if begun < len(tokens):
        yield rows_of(tokens[begun:].astype(np.uint32), np.array([len(tokens) - begun]), None)


NANOGPT = ImportFormat("nanogpt", "train.bin and val.bin of nanoGPT", _open)
