"""Files of arrays: an `.npz` that is written piece by piece and read by mapping it; and the packing plan as one.

An `.npz` is a zip of `.npy` files; stored as they are, without compression, so that each lies in one piece. A plan's::

    items.npy     item numbers, row after row        int32 or int64, (n,)
    offsets.npy   where each row's items begin       int64, (rows + 1,)
    begins.npy    where each group's rows begin      int64, (groups + 1,)
    tokens.npy    the sum of all lengths             int64, ()
    digest.npy    `PackPlan.digest` of the plan      uint8, (16,)

`numpy.load` opens it too.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.members import CHUNK, Int64s

LOCAL_HEADER = 30  # bytes of a zip member's header before its name, whose length is at 26, and more, at 28
MAGIC = b"PK\x03\x04"


class PlanWriter:
    """Writes a plan window by window; the sizes of the rows wait in a file until all items are there.

    Args:
        n: how many items will come.
        dtype: of the item numbers.
    """

    def __init__(self, file: IO[bytes], n: int, dtype: np.dtype[Any]) -> None:
        self._n, self._dtype = n, dtype
        self._archive = zipfile.ZipFile(file, "w")
        self._sizes = tempfile.TemporaryFile()  # noqa: SIM115 closed in __exit__
        self._digest = hashlib.blake2b(digest_size=16)
        self._begins: list[int] = []
        self._rows = self._tokens = 0
        self._items = new_member(self._archive, "items", (n,), dtype)

    def __enter__(self) -> PlanWriter:
        return self

    def begin_group(self) -> None:
        """The next rows are another group's."""
        self._begins.append(self._rows)

    def write(self, items: Int64s, sizes: Int64s, tokens: int) -> None:
        """Append rows: their items, how many each has, and how many tokens all have."""
        self._items.write(items.astype(self._dtype).data)
        self._digest.update(np.ascontiguousarray(items, dtype="<i8").data)
        self._sizes.write(np.ascontiguousarray(sizes, dtype="<i8").data)
        self._rows += len(sizes)
        self._tokens += tokens

    def _finish(self) -> None:
        self._items.close()
        with new_member(self._archive, "offsets", (self._rows + 1,), np.dtype("<i8")) as out:
            self._sizes.seek(0)
            end = np.zeros(1, dtype="<i8")
            self._offsets(out, end)
            while len(sizes := np.frombuffer(self._sizes.read(8 * CHUNK), dtype="<i8")):
                ends = end[-1] + np.cumsum(sizes)
                self._offsets(out, ends)
                end = ends
        self._small("begins", np.array([*self._begins, self._rows], dtype="<i8"))
        self._small("tokens", np.array(self._tokens, dtype="<i8"))
        self._small("digest", np.frombuffer(self._digest.digest(), dtype="u1"))

    def _offsets(self, out: IO[bytes], values: Int64s) -> None:
        out.write(values.data)
        self._digest.update(values.data)

    def _small(self, name: str, values: npt.NDArray[Any]) -> None:
        with new_member(self._archive, name, values.shape, values.dtype) as out:
            out.write(values.tobytes())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._sizes:
            if kind is None:
                self._finish()
            else:
                self._items.close()
            self._archive.close()


def new_member(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> IO[bytes]:
    """A new `.npy` in a zip, its header written, its values to come. Its date never changes: same plan, same bytes."""
    out = archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out


def checked_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an `.npz` by name, mapped, after all of it was read once, in small pieces, to see that it is whole.

    Raises:
        ValueError, EOFError, OSError, zipfile.BadZipFile: it is not.
    """
    with path.open("rb") as file:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
        if damaged:
            raise ValueError(f"{damaged} is damaged")
        return map_arrays(file)


def map_arrays(file: IO[bytes]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an `.npz` by name, mapped; the file may be closed then.

    Raises:
        ValueError, zipfile.BadZipFile: no such file, or a compressed one.
    """
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    return {member.filename.removesuffix(".npy"): _map(file, member) for member in members}


def _map(file: IO[bytes], member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    file.seek(member.header_offset)
    header = file.read(LOCAL_HEADER)
    if not header.startswith(MAGIC) or member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is no stored member of a zip")
    more = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    file.seek(more, 1)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{member.filename} is no .npy of version 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, mode="r", offset=file.tell(), shape=shape).view(np.ndarray)
