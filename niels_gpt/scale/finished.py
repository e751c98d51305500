"""A finished unit as it is read: checked, mapped, its rows and the bad ones among them in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.checksums import file_record
from niels_gpt.errors import CacheError, DataError
from niels_gpt.inputs import Rejected
from niels_gpt.manifests import Manifest, check_keys, check_listed, check_seal, read_manifest
from niels_gpt.portions import Portion
from niels_gpt.scale.units import FACTS_NAME, GROUPS_NAME, MANIFEST_NAME
from niels_gpt.sources.rejections import REJECTED_NAME

KEYS = ("rows", "tokens", "stopped", "whole", "files")
ROWS_AT_ONCE = 4096
TOKENS_AT_ONCE = 1 << 20


class Unit:
    """A finished unit, every byte of it checked.

    Attributes:
        rows, tokens: how many it holds.
        stopped: it holds more bad rows than the build may have.
        changed: see `Rejections.changed`.

    Raises:
        DataError: a file is missing or not what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = _manifest(path)
        for name, record in manifest["files"].items():
            file = path / name
            if not file.is_file() or file_record(file).sha256 != record["sha256"]:
                raise DataError(f"{file}: not what was written; the unit is built again")
        self.rows: int = manifest["rows"]
        self.tokens: int = manifest["tokens"]
        self.stopped: bool = manifest["stopped"]
        self.changed: dict[str, int] = manifest["changed"]
        self._weights_dtype = "u1" if manifest["whole"] else "<f4"

    def contents(self) -> Iterator[Portion | Rejected]:
        """Portions of about a million tokens, mapped from the disk, and in their places the rows that were left out."""
        with ExitStack() as files:
            rows, taken = _Rows(self.path, self._weights_dtype, files), 0
            for before, rejected in _objects(self.path / REJECTED_NAME, files):
                yield from rows.take(before - taken)
                taken = before
                yield Rejected(**rejected)
            yield from rows.take(self.rows - taken)


class _Rows:
    """Reads the rows of a unit from the first to the last."""

    def __init__(self, folder: Path, weights_dtype: str, files: ExitStack) -> None:
        self._ids, self._weights, self._lengths = (
            _mapped(folder / f"{name}.bin", dtype)
            for name, dtype in (("ids", "<u4"), ("weights", weights_dtype), ("lengths", "<i8"))
        )
        self._facts = _objects(folder / FACTS_NAME, files)
        self._groups = _objects(folder / GROUPS_NAME, files)
        self._row = self._token = 0

    def take(self, n: int) -> Iterator[Portion]:
        """The next `n` rows."""
        for lengths in _parts(self._lengths[self._row : self._row + n]):
            end = self._token + int(lengths.sum())
            facts = list(islice(self._facts, len(lengths)))
            groups = list(islice(self._groups, len(lengths))) or [None] * len(lengths)
            token, self._token = self._token, end
            yield Portion(self._ids[token:end], lengths, self._weights[token:end], groups, facts)
        self._row += n


def _mapped(path: Path, dtype: str) -> npt.NDArray[Any]:
    if path.stat().st_size == 0:  # cannot be mapped
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def _objects(path: Path, files: ExitStack) -> Iterator[Any]:
    """The lines of a JSON-lines file, none if it is not there."""
    if not path.is_file():
        return iter(())
    return map(json.loads, files.enter_context(path.open("rb")))


def _manifest(path: Path) -> Manifest:
    try:
        manifest = read_manifest(path / MANIFEST_NAME)
        check_keys(path / MANIFEST_NAME, manifest, KEYS, "unit")
        check_listed(path / MANIFEST_NAME, manifest)
        check_seal(path / MANIFEST_NAME, manifest)
    except CacheError as error:
        raise DataError(f"{error}; the unit is built again") from error
    return manifest


def _parts(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Lengths 3 4 2 with room for 8 tokens come as 3 4 and 2; one that is too long comes alone."""
    for first in range(0, len(lengths), ROWS_AT_ONCE):
        rows = np.array(lengths[first : first + ROWS_AT_ONCE])
        while len(rows):
            fit = max(1, int(np.searchsorted(np.cumsum(rows), TOKENS_AT_ONCE, side="right")))
            yield rows[:fit]
            rows = rows[fit:]
