"""`Unit`: a finished unit of a build, checked and read in chunks.

A unit of 5 rows, with rejected rows after 2 and after 4 of them, is read as::

    Chunk (rows 0 1), Rejected, Chunk (rows 2 3), Rejected, Chunk (row 4)

so that the build records each rejected row in its place. What is in the files: `units.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.tasks import Chunk
from niels_gpt.builds.units import GROUPS_NAME, MANIFEST_NAME, METADATA_NAME
from niels_gpt.errors import CacheError, DataError
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import REJECTED_NAME
from niels_gpt.storage.checksums import file_record
from niels_gpt.storage.files import map_array
from niels_gpt.storage.manifests import check_file_records, check_keys, check_manifest_hash, read_manifest

REQUIRED_KEYS: Final = ("rows", "tokens", "whole", "files")
# Of a chunk: the finisher makes Python objects of its rows, and arrays of its tokens, whatever the size of a unit.
ROWS_AT_ONCE: Final = 4096
TOKENS_AT_ONCE: Final = 1 << 20


class Unit:
    """A finished unit. Every byte is checked when it is opened.

    Attributes:
        rows, tokens: number of usable rows and of their ids.
        changed, unread: see `Rejections`.

    Raises:
        DataError: a file is missing or differs from what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest_path = path / MANIFEST_NAME
        try:
            manifest = read_manifest(manifest_path)
            check_keys(manifest_path, manifest, REQUIRED_KEYS, "unit")
            check_file_records(manifest_path, manifest)
            check_manifest_hash(manifest_path, manifest)
        except CacheError as error:
            raise DataError(f"{error}; the unit is built again") from error
        for name, record in manifest["files"].items():
            file = path / name
            if not file.is_file() or file_record(file).sha256 != record["sha256"]:
                raise DataError(f"{file}: differs from what was written; the unit is built again")
        self.rows: int = manifest["rows"]
        self.tokens: int = manifest["tokens"]
        self.changed: dict[str, int] = manifest["changed"]
        self.unread: dict[str, int] = manifest["unread_keys"]
        self._weights_dtype = "u1" if manifest["whole"] else "<f4"

    def contents(self) -> Iterator[Chunk | Rejected]:
        """Chunks of about a million tokens, memory-mapped, with the rejected rows in their places between them."""
        with ExitStack() as files:
            rows, taken = _Rows(self.path, self._weights_dtype, files), 0
            # Rejections after 2 and after 4 of 5 rows take 2, 2 and 1 rows.
            for before, rejected in map(json.loads, _json_lines(self.path / REJECTED_NAME, files)):
                yield from rows.take(before - taken)
                taken = before
                yield Rejected(**rejected)
            yield from rows.take(self.rows - taken)


class _Rows:
    """Reads the rows of a unit from the first to the last."""

    def __init__(self, folder: Path, weights_dtype: str, files: ExitStack) -> None:
        self._ids, self._weights, self._lengths = (
            map_array(folder / f"{name}.bin", dtype)
            for name, dtype in (("ids", "<u4"), ("weights", weights_dtype), ("lengths", "<i8"))
        )
        self._metadata = _json_lines(folder / METADATA_NAME, files)
        self._groups = _json_lines(folder / GROUPS_NAME, files)
        self._row = self._token = 0

    def take(self, n: int) -> Iterator[Chunk]:
        """The next `n` rows."""
        for lengths in _parts(self._lengths[self._row : self._row + n]):
            end = self._token + int(lengths.sum())
            metadata = _values(self._metadata, len(lengths))
            groups = _values(self._groups, len(lengths)) or [None] * len(lengths)
            token, self._token = self._token, end
            yield Chunk(self._ids[token:end], lengths, self._weights[token:end], groups, metadata)
        self._row += n


def _json_lines(path: Path, files: ExitStack) -> Iterator[bytes]:
    """The lines of a JSON-lines file; none if it does not exist."""
    return files.enter_context(path.open("rb")) if path.is_file() else iter(())


def _values(lines: Iterator[bytes], n: int) -> list[Any]:
    """The values of the next `n` lines, or as many as there are; read together in a fifth of the time."""
    values: list[Any] = json.loads(b"[%b]" % b",".join(islice(lines, n)))
    return values


def _parts(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Cut lengths into parts of at most `TOKENS_AT_ONCE` tokens; a longer row is a part of its own.

    With 8 tokens at once, lengths 3 4 2 have the ends 3 7 9, of which two are at most 8: parts [3 4] and [2].
    """
    for first in range(0, len(lengths), ROWS_AT_ONCE):
        rows = np.array(lengths[first : first + ROWS_AT_ONCE])
        while len(rows):
            # At least one row, so that a row that alone is longer makes progress.
            fit = max(1, int(np.searchsorted(np.cumsum(rows), TOKENS_AT_ONCE, side="right")))
            yield rows[:fit]
            rows = rows[fit:]
