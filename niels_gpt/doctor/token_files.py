"""Token files of other programs as an input: Megatron, nanoGPT, llm.c, OLMo, numpy, MosaicML Streaming, litData.

`imports` reads them. Which program wrote a file is seen from its name and its first bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.rows import Int64s
from niels_gpt.doctor.slices import SLICE_BYTES, SLICE_ROWS, Slice
from niels_gpt.errors import UsageError
from niels_gpt.imports.arrays import is_token_file
from niels_gpt.imports.formats import ImportOptions, SplitFiles
from niels_gpt.imports.run import FORMATS
from niels_gpt.imports.samples import read_index

# Without the id that ends documents a stream is cut into rows of so many tokens.
WINDOW = 4096
STREAMS = ("nanogpt", "llmc", "npy")


@dataclass(frozen=True)
class Concatenated:
    """Rows of ids as they stand in a token file.

    Attributes:
        ids: shape (tokens,). lengths: tokens of each row, int64 of shape (rows,).
        trained: bool of shape (tokens,); `None` where the files hold no mask.
        wheres: the place of each row.
    """

    ids: npt.NDArray[Any]
    lengths: Int64s
    trained: npt.NDArray[np.bool_] | None
    wheres: list[str]


def format_of(path: Path) -> str | None:
    """The name of the import format of a file or directory; `None` if it is none of these."""
    if path.is_file():
        return _format_of_file(path)
    if not path.is_dir():  # a pipe or device, which others refuse
        return None
    if any(path.glob("*.idx")):
        return "megatron"
    if next(path.rglob("token_ids_part_*.npy"), None) is not None:
        return "olmo"
    index = next(
        (file for folder in (path, *sorted(path.iterdir())) for file in [folder / "index.json"] if file.is_file()), None
    )
    if index is not None:
        held = read_index(index)
        return "mds" if isinstance(held, Mapping) and "shards" in held else "litdata"
    file = next((file for pattern in ("*.npy", "*/*.npy", "*.bin") for file in sorted(path.glob(pattern))), None)
    return None if file is None else _format_of_file(file)


def _format_of_file(path: Path) -> str | None:
    if path.suffix == ".npy":
        return "npy"
    if path.suffix == ".idx" or (path.suffix == ".bin" and path.with_suffix(".idx").is_file()):
        return "megatron"
    return None if path.suffix != ".bin" else "llmc" if is_token_file(path) else "nanogpt"


@dataclass(frozen=True)
class TokenFiles:
    """Token files, and what they do not say.

    Attributes:
        form: the import format. split: only rows of this one.
        eos_id: the id that ends documents, of the tokenizer; `None`: streams are cut every `WINDOW` tokens.
        vocab_size: of the tokenizer; with more than 65,536 ids streams are read as uint32.
    """

    path: Path
    form: str
    split: str | None = None
    eos_id: int | None = None
    vocab_size: int | None = None

    def splits(self) -> dict[str, SplitFiles]:
        """The files of each split.

        Raises:
            InputError: files that are missing, damaged or of another kind. UsageError: no such split.
        """
        # No id ends a document where none is known: 2**32 is not in any file.
        eos_id = 1 << 32 if self.eos_id is None else self.eos_id
        dtype = "uint32" if self.form == "nanogpt" and (self.vocab_size or 0) > 1 << 16 else None
        found = FORMATS[self.form].open(self.path, ImportOptions(eos_id, dtype))
        if self.split is not None and self.split not in found:
            raise UsageError(f"{self.path}: no split {self.split!r}; it has {', '.join(found)}")
        return {name: files for name, files in found.items() if self.split in (None, name)}

    def tokens(self) -> int | None:
        """How many tokens all files have; `None` where that is not known before they are read."""
        counts = [files.tokens for files in self.splits().values()]
        return None if None in counts else sum(filter(None, counts))

    def slices(self, chosen: Int64s | None) -> Iterator[Slice]:
        """The rows in slices, in order, numbered through all splits.

        Args:
            chosen: only rows with these numbers, sorted; `None` for all.
        """
        number = 0
        for split, files in self.splits().items():
            base = number
            for rows in files.read():
                lengths = rows.lengths
                if self.eos_id is None and self.form in STREAMS:
                    lengths = _windows(lengths)
                trained = rows.trained if files.has_mask else None
                for start, stop in _parts(lengths):
                    first, last = int(lengths[:start].sum()), int(lengths[:stop].sum())
                    own = np.arange(number + start, number + stop)
                    part = Concatenated(
                        rows.ids[first:last],
                        lengths[start:stop],
                        None if trained is None else trained[first:last],
                        [f"{self.path} {split} row {n - base}" for n in own.tolist()],
                    )
                    if chosen is None:
                        yield own, part
                    else:
                        yield from _chosen(own, part, chosen)
                number += len(lengths)


def _windows(lengths: Int64s) -> Int64s:
    """Rows of at most `WINDOW` tokens: 10,000 tokens are 4096, 4096 and 1808."""
    whole, rest = np.divmod(lengths, WINDOW)
    parts = [np.append(np.full(n, WINDOW), r) if r else np.full(n, WINDOW) for n, r in zip(whole, rest, strict=True)]
    return np.concatenate(parts).astype(np.int64) if parts else lengths


def _parts(lengths: Int64s) -> Iterator[tuple[int, int]]:
    """First row, and one past the last, of slices of about `SLICE_ROWS` rows or `SLICE_BYTES` bytes of ids."""
    start = size = 0
    for row, length in enumerate(lengths.tolist()):
        size += 4 * length
        if row + 1 - start >= SLICE_ROWS or size >= SLICE_BYTES:
            yield start, row + 1
            start, size = row + 1, 0
    if start < len(lengths):
        yield start, len(lengths)


def _chosen(numbers: Int64s, part: Concatenated, chosen: Int64s) -> Iterator[Slice]:
    keep = np.isin(numbers, chosen)
    if keep.any():
        tokens = np.repeat(keep, part.lengths)
        trained = None if part.trained is None else part.trained[tokens]
        wheres = [where for where, kept in zip(part.wheres, keep.tolist(), strict=True) if kept]
        yield numbers[keep], Concatenated(part.ids[tokens], part.lengths[keep], trained, wheres)
