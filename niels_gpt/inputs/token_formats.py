"""Token files of other programs: how those of each split are found (`TokenFormat`), and read as rows (`Ids`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError, UsageError, storage_errors
from niels_gpt.inputs.rows import Bools, Int64s
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.files.listing import FileList, why_not_below
from niels_gpt.store.files import map_array
from niels_gpt.store.gather import gather, slices_of_tokens

MOST_ID = 2**32 - 1  # episodes store ids as uint32
PORTION_TOKENS = 1 << 20  # read at a time
DTYPES = ("uint8", "uint16", "uint32", "uint64", "int16", "int32", "int64")  # in which ids may be stored

# Names of splits in other tools, in file and folder names. Files of a test split are not imported.
SPLIT_WORDS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": None}


@dataclass(frozen=True)
class TokenOptions:
    """Facts that files of other formats may lack, passed by the user.

    Attributes:
        eos_id: the id that ends documents, where the files do not record where documents end.
        dtype: one of `DTYPES`, where the files do not record it.
        progress: gets a note of the files that are passed over.
    """

    eos_id: int | None = None
    dtype: str | None = None
    progress: Progress = SILENT

    def __post_init__(self) -> None:
        if self.dtype not in (None, *DTYPES):
            raise UsageError(f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class Ids:
    """Some rows of a file, concatenated.

    Attributes:
        ids: integers, shape (tokens,).
        lengths: tokens of each row, int64, shape (rows,), each at least 1.
        trained: bool, shape (tokens,); `None` where the files hold no mask.
    """

    ids: npt.NDArray[Any]
    lengths: Int64s
    trained: Bools | None = None

    def select(self, chosen: Bools) -> Ids:
        """The rows where `chosen`, of shape (rows,), is True."""
        if chosen.all():
            return self
        tokens = np.repeat(chosen, self.lengths)
        return Ids(self.ids[tokens], self.lengths[chosen], None if self.trained is None else self.trained[tokens])


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split.

    Attributes:
        files: all that are read, of whatever kind.
        has_mask: they record which tokens are trained.
        read: reads the rows, about a million tokens at a time.
        tokens: how many there are, by the sizes of files and by headers; `None` if these do not show it.
        eos_id: the id that ends documents, where streams are cut after it.
    """

    files: list[Path]
    has_mask: bool
    read: Callable[[], Iterator[Ids]]
    tokens: int | None = None
    eos_id: int | None = None


@dataclass(frozen=True)
class TokenFormat:
    """Files of one kind.

    Attributes:
        title: its files, and the program that writes them, in one line.
        open: finds the files of each split.
    """

    name: str
    title: str
    open: Callable[[Path, TokenOptions], dict[str, SplitFiles]]


def files_below(path: Path, suffixes: Sequence[str], progress: Progress) -> list[Path]:
    """The files in a directory and below whose names end so, sorted; hidden and temporary ones are passed over."""
    found = [file for file in sorted(path.rglob("*")) if file.suffix in suffixes]
    why = {file: why_not_below(file.relative_to(path).as_posix(), None) for file in found}
    FileList((), {str(file): reason for file, reason in why.items() if reason is not None}).recorded(progress)
    return [file for file in found if why[file] is None]


def by_split(path: Path, files: Iterable[Path], what: str) -> dict[str, list[Path]]:
    """Files by the split that their name, or the name of a folder below `path`, contains.

    `data/train-00000-of-00002.parquet` and `train/part_0.npy` are train, `validation.bin` is val. Files without a split
    in their name are train if no file has one.

    Raises:
        InputError: only some files have a split in their name, or there is no file of this kind (`what`).
    """
    found: dict[str, list[Path]] = {}
    unnamed = []
    for file in sorted(files):
        # `data/train-00000-of-00002.parquet` has the words data train of parquet.
        # Whole words of letters, so that `trainer.npy` is not train.
        words = re.split(r"[^a-z]+", file.relative_to(path).as_posix().lower())
        named = [SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS]
        if not named:
            unnamed.append(file)
        # The first word, which is that of the folder; `None` is the test split, which is left out.
        elif named[0] is not None:
            found.setdefault(named[0], []).append(file)
    if unnamed and found:
        raise InputError(
            f"{unnamed[0]}: its name contains no split, while others do; move it away, or import one split at a time"
        )
    if not unnamed and not found:
        raise InputError(f"{path}: holds no {what}; check the path and the format")
    return found or {"train": unnamed}


def all_or_none(has_mask: Mapping[Path, bool]) -> bool:
    """Whether files record which tokens are trained.

    Raises:
        InputError: only some do. Without a mask their rows would be trained whole, and so would the others if masks
            were left out.
    """
    # In the order of the files, so that the message is the same on every machine.
    with_mask, without = ([file for file, has in has_mask.items() if has is wanted] for wanted in (True, False))
    if with_mask and without:
        raise InputError(
            f"{without[0]}: does not record which tokens are trained, while {with_mask[0].name} does; import the files "
            "with masks and those without one by one"
        )
    return bool(with_mask)


def as_ids(values: npt.NDArray[Any], where: object) -> npt.NDArray[np.uint32]:
    """The values as ids; one that uint32 does not hold is never wrapped around.

    Args:
        where: what holds them, for the message.

    Raises:
        InputError: not integers from 0 to 2**32 - 1.
    """
    if values.dtype.kind not in "iu":
        raise InputError(f"{where}: holds {values.dtype}; expected ids, which are integers")
    if values.size and (values.min() < 0 or values.max() > MOST_ID):
        # Searched only for the message.
        bad = int(values[(values < 0) | (values > MOST_ID)][0])
        raise InputError(f"{where}: id {bad}; expected ids from 0 to 2**32 - 1. Check the format and the dtype")
    return values.astype(np.uint32)


def rows_from(
    tokens: npt.NDArray[Any], mask: npt.NDArray[Any] | None, starts: Int64s, lengths: Int64s, where: Path
) -> Iterator[Ids]:
    """Runs of mapped files as rows, about a million tokens at a time.

    Raises:
        InputError: an id that is none, or a mask with other values than 0 and 1.
    """
    for part in slices_of_tokens(lengths, PORTION_TOKENS):
        ids = as_ids(gather(tokens, starts[part], lengths[part]), where)
        trained = None
        if mask is not None:
            stored = gather(mask, starts[part], lengths[part])
            trained = stored == 1
            if (~trained & (stored != 0)).any():
                raise InputError(f"{where}: its mask holds {stored.max()!r}; expected 0 and 1")
        yield Ids(ids, lengths[part], trained)


def map_file(path: Path, dtype: str) -> npt.NDArray[Any]:
    """A file without a header as an array.

    Raises:
        InputError: its size is not a multiple of the item size.
    """
    with storage_errors("reading", path):
        size, width = path.stat().st_size, np.dtype(dtype).itemsize
    # numpy would leave out the bytes of a token that was cut.
    if size % width:
        raise InputError(
            f"{path}: {size:,} bytes are not a whole number of {np.dtype(dtype).name}; it is cut, or of another kind"
        )
    return map_array(path, dtype)
