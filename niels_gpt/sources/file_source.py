"""`FileSource`: the rows of the user's files, whatever they are. Subclasses say what one record or text becomes.

::

    ChatFiles         records  ->  conversations        chat_files.py
    PreferenceFiles   records  ->  preferences          preference_files.py
    TextFiles         records and texts  ->  documents  text_files.py
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, ClassVar, Self, TypeVar

from niels_gpt.errors import MessageError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.base import Source
from niels_gpt.sources.files.hashed_files import HashedFiles
from niels_gpt.sources.files.inputs import ReadProgress, Record, Rejected, existing_file
from niels_gpt.sources.files.listing import FileList
from niels_gpt.sources.files.records import read_records
from niels_gpt.sources.files.slices import Slice, read_slice, slice_file, slice_files
from niels_gpt.store.remote import AnyFile, address

Row = TypeVar("Row")


@dataclass(frozen=True)
class FileSource(Source[Row]):
    """Rows of files, in the order of the files.

    Attributes:
        listing: the files, and what was passed over.
        shapes: of the rows of each file, once they are known.
        shares_slices: small files of rows share a slice, because a unit of a build has costs of its own.
    """

    listing: FileList
    count: ReadProgress = field(default_factory=ReadProgress, compare=False, repr=False, kw_only=True)
    hashed: HashedFiles = field(default_factory=HashedFiles, compare=False, repr=False, kw_only=True)
    shapes: tuple[str | None, ...] = field(default=(), compare=False, kw_only=True)

    shares_slices: ClassVar[bool] = True

    @property
    def files(self) -> tuple[AnyFile, ...]:
        """The files that are read."""
        return self.listing.taken

    @property
    def name(self) -> str:
        """The name of the first file up to its first dot, and the number of the others: `a + 2 more`."""
        more = len(self.files) - 1
        return self.files[0].name.partition(".")[0] + (f" + {more} more" if more else "")

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Name, bytes and sha256 of each file, and what was passed over. Reads every file once."""
        inputs = self.hashed.fingerprint([existing_file(file) for file in self.files], progress)
        return {"inputs": inputs, **self.listing.recorded(progress)}

    def fraction_read(self) -> float | None:
        """See `Source`: the fraction of the bytes."""
        return self.count.fraction()

    def iterate(self, *, start: int = 0) -> Iterator[Row | Rejected]:
        """The rows of the first file, then of the second, ..., from row `start` on; `Rejected` for unusable ones."""
        self.count.begin(self.files)
        return chain.from_iterable(self._from(start))

    def _from(self, start: int) -> Iterator[Iterator[Row | Rejected]]:
        for file in self.files:
            items = self.items_of(file, self.count)
            # What is skipped is not converted: with 10 rows in the first file, row 12 is row 2 of the second.
            start -= sum(1 for _ in islice(items, start))
            yield self.hashed.checked(self.converted(file, items), [file])

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        below = slice_bytes if self.shares_slices and len(self.files) > 1 else 0  # one has no neighbours to share with
        slices = slice_files(self.files, slice_bytes, lambda file: self.cut(file, slice_bytes), whole_below=below)
        return self.hashed.checked(slices, self.files)

    def read(self, part: Slice) -> Iterator[Row | Rejected]:
        self.count.begin(())  # nothing yet: what counts is the slice, not its file
        if part.kind == "files":
            files = self.files[part.start : part.stop]
            rows = (self.converted(file, self.items_of(file, None)) for file in files)
            return self.hashed.checked(chain.from_iterable(rows), files)
        file = next(file for file in self.files if address(file) == part.path)
        return self.hashed.checked(self.converted(file, self.items_in(file, part)), [file])

    def resolved(self) -> Self:
        """See `Sliceable`: with a counter of its own, because this process and a worker read at the same time."""
        return replace(self, shapes=self.shapes or self.detected(self.files), count=ReadProgress())

    def shape_of(self, file: AnyFile) -> str | None:
        """The shape of a file's rows; detected now if it is not known."""
        return self.shapes[self.files.index(file)] if self.shapes else self.detected([file])[0]

    def converted(self, file: AnyFile, items: Iterator[Any]) -> Iterator[Row | Rejected]:
        """The rows of a file, of what `items_of` or `items_in` read of it."""
        shape = self.shape_of(file)
        return (item if isinstance(item, Rejected) else self.row_of(item, shape) for item in items)

    # ---- what subclasses say

    @abstractmethod
    def row_of(self, item: Any, shape: str | None) -> Row | Rejected:
        """What an item of a file with rows of this shape becomes."""

    def detected(self, files: Sequence[AnyFile]) -> tuple[str | None, ...]:
        """The shapes of the rows of some of the files; `None` where there is but one, or none is seen."""
        return (None,) * len(files)

    def items_of(self, file: AnyFile, count: ReadProgress | None) -> Iterator[Any]:
        """What a file holds: its records."""
        return read_records(file, count)

    def items_in(self, file: AnyFile, part: Slice) -> Iterator[Any]:
        """What a slice of a file holds."""
        return read_slice(file, part, self.count)

    def cut(self, file: AnyFile, slice_bytes: int) -> Iterator[Slice] | None:
        """The slices of a file; `None` if it is read whole."""
        return slice_file(file, slice_bytes)


def read_record(record: Record, read: Callable[[Mapping[str, Any]], Row], column: str = "") -> Row | Rejected:
    """What `read` makes of a record; `Rejected` where it is no object, or `read` raises `MessageError`.

    Args:
        column: one that the object should have, for the message.
    """
    row, where = record.value, record.where
    if not isinstance(row, Mapping):
        expected = f"an object with {column!r}" if column else "an object"
        return Rejected(where, "row_not_an_object", f"{where}: the row is a {type(row).__name__}; expected {expected}")
    try:
        return read(row)
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
