"""Reading files of which it is not certain that they are files.

A pipe that nothing writes to makes `open` wait for ever, and a device may never end. Every file of a dataset, an export
or a tokenizer is opened by these functions, which refuse all but regular files and links to them.

::

    is_regular      whether an optional file is there
    open_regular    an open file, for whatever reads or maps it
    read_regular    the bytes of a small file
    map_regular     an array on the disk
    map_npy         the same, of a file that `numpy.save` wrote
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError, StorageError, storage_errors

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_regular(path: Path) -> bool:
    """Whether a file is there; false where nothing is.

    Raises:
        StorageError: something else has this name, such as a pipe, a directory or a dead link; or the path cannot be
            examined.
    """
    with storage_errors("reading", path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            if not path.is_symlink():  # `stat` follows links, so a dead one looks like nothing
                return False
            raise _no_file(path, "a link to nothing") from None
        except NotADirectoryError:  # a part of the path is a file, so nothing is below it
            return False
        except ValueError:
            raise StorageError(f"{path}: holds a NUL character, which no path does; check the path") from None
    if not stat.S_ISREG(mode):
        raise _no_file(path, _KINDS.get(stat.S_IFMT(mode), "no regular file"))
    return True


def _no_file(path: Path, found: str) -> StorageError:
    return StorageError(f"{path}: {found}; expected a file. Remove it, and copy or build the file again")


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading, at its beginning; never waits for a writer.

    Raises:
        StorageError: it is missing, no regular file, or cannot be read.
    """
    is_regular(path)  # first, because opening a device may have effects
    with storage_errors("reading", path):
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was replaced at this moment
        file.close()
        raise _no_file(path, "no regular file")
    return file


def _open_at_once(path: str, flags: int) -> int:
    # Between the check and this call a pipe may have taken the file's name; for files O_NONBLOCK means nothing.
    return os.open(path, flags | os.O_NONBLOCK)


def named_below(folder: Path, name: str) -> list[Path]:
    """Everything of this name below a directory, sorted by path; also a dead link, which `Path.rglob` leaves out."""
    return sorted(Path(root) / name for root, folders, files in os.walk(folder) if name in files or name in folders)


def read_regular(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        StorageError: as `open_regular`.
    """
    with storage_errors("reading", path), open_regular(path) as file:
        return file.read()


def map_regular(
    path: Path, dtype: npt.DTypeLike, *, offset: int = 0, shape: tuple[int, ...] | None = None
) -> npt.NDArray[Any]:
    """A file's values, mapped and read-only; those from byte `offset` on, of this shape (default: all, in a row).

    Raises:
        StorageError: as `open_regular`. ValueError: the file is shorter, or not a whole number of values.
    """
    with storage_errors("mapping", path), open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == offset and shape is None:  # nothing, which cannot be mapped
            return np.empty(0, dtype=dtype)
        # A plain array: each part of a `memmap` is one, too, and making those takes longer than reading some values.
        return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape).view(np.ndarray)


def map_npy(path: Path) -> npt.NDArray[Any]:
    """The array of a `.npy` file, mapped and read-only, so that a large one takes no memory.

    Raises:
        StorageError: as `open_regular`. InputError: it is not an array that `numpy.save` wrote, or a damaged one.
    """
    open_regular(path).close()  # refuses a pipe, for which numpy would wait
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header raises what its parser raises
        raise InputError(f"{path}: {type(error).__name__}: {error}; expected an array that numpy.save wrote") from error
    if not isinstance(array, np.ndarray):  # an archive of several (.npz)
        raise InputError(f"{path}: {type(array).__name__}; expected one array that numpy.save wrote")
    return array
