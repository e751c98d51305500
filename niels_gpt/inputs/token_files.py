"""Token files of other programs as an input that is judged: their format, what they do not say, their rows in slices.

Which program wrote a file is seen from its name and its first bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from niels_gpt.errors import UsageError, storage_errors
from niels_gpt.inputs.arrays import NO_ID, NUMPY_HEADER, SNIFFED, TOKENS, ids_of, is_text, token_dtype_of, width_of
from niels_gpt.inputs.megatron import MEGATRON
from niels_gpt.inputs.parts import SLICE_BYTES, SLICE_ROWS, Slice, Tokens
from niels_gpt.inputs.rows import Int64s
from niels_gpt.inputs.token_formats import Ids, SplitFiles, TokenOptions, files_below, map_file
from niels_gpt.progress import SILENT
from niels_gpt.tokenizer.pieces import PieceEncoder

# Without the id that ends documents a stream is cut into rows of so many tokens.
WINDOW: Final = 4096
ENDS_OF_TEXT: Final = ("<|endoftext|>", "<|end_of_text|>")
_FORMATS: Final = {form.name: form for form in (MEGATRON, TOKENS)}


def token_format_of(path: Path) -> str | None:
    """The name of the token format of a file or directory; `None` if it is none of these.

    Megatron leaves out the suffix of its two files, so such a path need not exist.
    """
    if path.is_file():
        is_megatron = path.suffix == ".idx" or (path.suffix == ".bin" and path.with_suffix(".idx").is_file())
        if is_megatron:
            return MEGATRON.name
        # Rows or a text named .bin are read as such, as by builds: name and content decide together.
        return TOKENS.name if path.suffix == ".npy" or (path.suffix == ".bin" and not is_text(_head(path))) else None
    if all(path.with_name(f"{path.name}{suffix}").is_file() for suffix in (".idx", ".bin")):
        return MEGATRON.name
    if not path.is_dir():  # a pipe or device, which others refuse
        return None
    if any(path.glob("*.idx")):  # beside .bin files, which are no raw ids
        return MEGATRON.name
    file = next((file for pattern in ("*.npy", "*/*.npy", "*.bin") for file in path.glob(pattern)), None)
    return None if file is None else token_format_of(file)


def _head(path: Path) -> bytes:
    with storage_errors("reading", path), path.open("rb") as file:
        return file.read(256)


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
        form: the format. split: only rows of this one.
        ends: ids of the tokenizer that may end documents; streams are cut at the first of them that they hold. Without
            one, streams are cut every `WINDOW` tokens.
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
        file = _first_file(self.path) if self.form == TOKENS.name else None
        if file is not None:
            dtype = _dtype_of(file)
            ids = ids_of(file, dtype).reshape(-1)[:SNIFFED]
            # Several ids of the tokenizer may end texts: it is the first one that occurs among the first ids.
            eos_id = next((end for end in self.ends if (ids == end).any()), eos_id)
            if eos_id > np.iinfo(ids.dtype).max:  # the tokenizer is another, which rules report
                eos_id = NO_ID
        found = _FORMATS[self.form].open(self.path, TokenOptions(eos_id, dtype))
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
        number = 0  # of the next row, through all splits
        for split, files in self.splits().items():
            name, before = f"{self.path} {split}", number
            for rows in files.read():
                # Without separators a stream has no known documents, so it is examined in windows.
                lengths = _in_windows(rows.lengths) if files.eos_id == NO_ID else rows.lengths
                ends = np.concatenate(([0], np.cumsum(lengths)))
                for start, stop in pairwise(_cuts(lengths)):
                    numbers, tokens = np.arange(number + start, number + stop), slice(ends[start], ends[stop])
                    trained = None if rows.trained is None else rows.trained[tokens]
                    part = Ids(rows.ids[tokens], lengths[start:stop], trained)
                    is_chosen = np.ones(len(numbers), np.bool_) if chosen is None else np.isin(numbers, chosen)
                    if is_chosen.any():
                        yield numbers[is_chosen], Tokens(name, before, part.select(is_chosen))
                number += len(lengths)


def _in_windows(lengths: Int64s) -> Int64s:
    """The lengths of streams that are cut every `WINDOW` tokens: 10,000 are 4096, 4096 and 1808."""
    cut = [np.diff(np.append(np.arange(0, n, WINDOW), n)) for n in lengths.tolist()]
    return np.concatenate(cut).astype(np.int64) if cut else lengths


def _cuts(lengths: Int64s) -> Iterator[int]:
    """Where slices of about `SLICE_ROWS` rows or `SLICE_BYTES` bytes of ids end; 0 first."""
    yield 0
    start = size = 0
    for row, length in enumerate(lengths.tolist(), start=1):
        # Four bytes an id, whatever the dtype of the files is.
        size += 4 * length
        if row - start >= SLICE_ROWS or size >= SLICE_BYTES or row == len(lengths):
            yield row
            start, size = row, 0


def _first_file(path: Path) -> Path | None:
    """The file, or the first file of ids in a directory that is not empty."""
    files = [path] if path.is_file() else files_below(path, (".bin", ".npy"), SILENT)
    return next((file for file in files if file.is_file() and file.stat().st_size), None)


def _dtype_of(file: Path) -> str | None:
    """The dtype of ids without a header, as the first ones look; `None` if there is a header, which says it."""
    with file.open("rb") as opened:
        if opened.read(len(NUMPY_HEADER)) == NUMPY_HEADER or token_dtype_of(file) is not None:
            return None
    return f"uint{8 * width_of(map_file(file, '<u2'))}"
