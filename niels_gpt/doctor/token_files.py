"""Token files of other programs as an input: Megatron's, arrays of numpy, token files of llm.c, and raw ids.

`imports` reads them. Which program wrote a file is seen from its name and its first bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.slices import SLICE_BYTES, SLICE_ROWS, Slice
from niels_gpt.errors import UsageError
from niels_gpt.imports.arrays import NO_ID, NUMPY_HEADER, SNIFFED, ids_of, token_dtype_of, width_of
from niels_gpt.imports.formats import ImportOptions, SplitFiles, map_file
from niels_gpt.imports.run import FORMATS
from niels_gpt.inputs.rows import Int64s
from niels_gpt.tokenizer.pieces import PieceEncoder

# Without the id that ends documents a stream is cut into rows of so many tokens.
WINDOW = 4096
ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>")


@dataclass(frozen=True)
class Concatenated:
    """Rows of ids of a token file, concatenated.

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
    if _is_megatron_prefix(path):
        return "megatron"
    if not path.is_dir():  # a pipe or device, which others refuse
        return None
    if any(path.glob("*.idx")):  # beside .bin files, which are no raw ids
        return "megatron"
    file = next((file for pattern in ("*.npy", "*/*.npy", "*.bin") for file in path.glob(pattern)), None)
    return None if file is None else _format_of_file(file)


def exists(path: Path) -> bool:
    """Whether the path exists, or is one of Megatron's, which leave out the suffix of their two files."""
    return path.exists() or _is_megatron_prefix(path)


def _is_megatron_prefix(path: Path) -> bool:
    return all(path.with_name(f"{path.name}{suffix}").is_file() for suffix in (".idx", ".bin"))


def _format_of_file(path: Path) -> str | None:
    """The import format of a file, by its suffix or its neighbour."""
    if path.suffix == ".idx" or (path.suffix == ".bin" and path.with_suffix(".idx").is_file()):
        return "megatron"
    return "tokens" if path.suffix in (".bin", ".npy") else None


def ends_of(encoder: PieceEncoder) -> tuple[int, ...]:
    """The ids of a tokenizer that may end documents in token files, which do not record it.

    The eos token of a chat model often ends turns; then another token ends texts.
    """
    # Tokens that end texts first, then eos: `TokenFiles.splits` takes the first of them that the files hold.
    names = (*ENDS_OF_TEXT, encoder.special_tokens.get("eos_token", ""))
    return tuple(encoder.added_ids[name] for name in dict.fromkeys(names) if name in encoder.added_ids)


@dataclass(frozen=True)
class TokenFiles:
    """Token files, and what they do not say.

    Attributes:
        form: the import format. split: only rows of this one.
        ends: ids of the tokenizer that may end documents; streams are cut at the first of them that they hold. Empty:
            streams are cut every `WINDOW` tokens.
    """

    path: Path
    form: str
    split: str | None = None
    ends: tuple[int, ...] = ()

    def splits(self) -> dict[str, SplitFiles]:
        """The files of each split.

        Raises:
            InputError: files that are missing, damaged or of another kind. UsageError: no such split.
        """
        dtype, eos_id = None, self.ends[0] if self.ends else NO_ID
        file = _first_file(self.path) if self.form == "tokens" else None
        if file is not None:
            dtype = _dtype_of(file)
            ids = ids_of(file, dtype).reshape(-1)[:SNIFFED]
            # Several ids of the tokenizer may end texts: it is the first one that occurs among the first ids.
            eos_id = next((end for end in self.ends if (ids == end).any()), eos_id)
            if eos_id > np.iinfo(ids.dtype).max:  # the tokenizer is another, which rules report
                eos_id = NO_ID
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
        # The number of the next row, through all splits; `base` is that of the split's first row, for the names of
        # rows.
        number = 0
        for split, files in self.splits().items():
            base = number
            for rows in files.read():
                lengths = rows.lengths
                if files.eos_id == NO_ID:
                    # Without separators a stream has no known documents, so it is examined in windows of `WINDOW`
                    # tokens: 10,000 are 4096, 4096 and 1808.
                    cut = [np.diff(np.append(np.arange(0, n, WINDOW), n)) for n in lengths.tolist()]
                    lengths = np.concatenate(cut).astype(np.int64) if cut else lengths
                trained = rows.trained if files.has_mask else None
                for start, stop in _slices_of_rows(lengths):
                    first, last = int(lengths[:start].sum()), int(lengths[:stop].sum())
                    numbers = np.arange(number + start, number + stop)
                    part = Concatenated(
                        rows.ids[first:last],
                        lengths[start:stop],
                        None if trained is None else trained[first:last],
                        [f"{self.path} {split} row {n - base}" for n in numbers.tolist()],
                    )
                    if chosen is None:
                        yield numbers, part
                    else:
                        yield from _chosen(numbers, part, chosen)
                number += len(lengths)


def _first_file(path: Path) -> Path | None:
    """The file, or the first file of ids in a directory that is not empty."""
    files = [path] if path.is_file() else sorted(file for kind in ("*.bin", "*.npy") for file in path.rglob(kind))
    return next((file for file in files if file.is_file() and file.stat().st_size), None)


def _dtype_of(file: Path) -> str | None:
    """The dtype of ids without a header, as the first ones look; `None` if there is a header, which says it."""
    with file.open("rb") as opened:
        if opened.read(len(NUMPY_HEADER)) == NUMPY_HEADER or token_dtype_of(file) is not None:
            return None
    return f"uint{8 * width_of(map_file(file, '<u2'))}"


def _slices_of_rows(lengths: Int64s) -> Iterator[tuple[int, int]]:
    """First row, and one past the last, of slices of about `SLICE_ROWS` rows or `SLICE_BYTES` bytes of ids."""
    start = size = 0
    for row, length in enumerate(lengths.tolist()):
        # Four bytes an id, whatever the dtype of the files is.
        size += 4 * length
        if row + 1 - start >= SLICE_ROWS or size >= SLICE_BYTES:
            yield start, row + 1
            start, size = row + 1, 0
    if start < len(lengths):
        yield start, len(lengths)


def _chosen(numbers: Int64s, part: Concatenated, chosen: Int64s) -> Iterator[Slice]:
    """The rows of a slice that are in a sample, if there are any."""
    is_chosen = np.isin(numbers, chosen)
    if is_chosen.any():
        tokens = np.repeat(is_chosen, part.lengths)
        trained = None if part.trained is None else part.trained[tokens]
        wheres = [part.wheres[row] for row in np.flatnonzero(is_chosen).tolist()]
        yield numbers[is_chosen], Concatenated(part.ids[tokens], part.lengths[is_chosen], trained, wheres)
