"""Duplicates across sources: found in one pass over all rows, and then left out by `Duplicates`, a check of rows.

::

    sources --> for each row: a hash of all it says, and the MinHash of its word n-grams (`ngrams`)
    equal hashes          exact duplicates; the first row stays
    equal bands           candidates; where enough of two MinHashes agree, they are near duplicates
    a group of duplicates the first row stays, the others are listed in FOLDER/left_out.jsonl

Everything that grows with the rows is in files: see `ngrams`, and 20 bytes for each row's hash, source and place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError, MessageError, UsageError, storage_errors
from niels_gpt.messages import Conversation, Message, weight_of
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import NGRAM_WORDS
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.curation.filters import Reason
from niels_gpt.sources.curation.ngrams import Groups, MinHashes, minhashes_of
from niels_gpt.store.files import HashedWriter, map_npy

ROWS_AT_ONCE: Final = 1024
LIST_NAME: Final = "left_out.jsonl"
NEAR, EXACT = "near_duplicate", "duplicate"


@dataclass(frozen=True, kw_only=True)
class DuplicateOptions:
    """The definition of a duplicate.

    Attributes:
        exact: whether rows with the same messages and tools are duplicates.
        near: the Jaccard similarity of word n-grams, 0.5 to 1, from which rows are near duplicates; `None`: never.
        words: how many words an n-gram has.
        roles: whose messages are compared for near duplicates; without "system", since rows often share that prompt.

    Raises:
        UsageError: a number out of range, or nothing to look for.
    """

    exact: bool = True
    near: float | None = None
    words: int = 5
    roles: tuple[str, ...] = ("user", "assistant")

    def __post_init__(self) -> None:
        NGRAM_WORDS.whole(self.words)
        if self.near is not None and not 0.5 <= self.near <= 1:
            raise UsageError(f"near is {self.near!r}; expected a similarity from 0.5 to 1, such as 0.8")
        if not self.exact and self.near is None:
            raise UsageError("exact is false and near is not set, so nothing would be found; set one of them")
        if not self.roles:
            raise UsageError("roles is empty, so no text would be compared; name at least one")


@dataclass(frozen=True)
class Duplicates:
    """The rows of one source that are left out as duplicates, as a check of conversations.

    Args:
        folder: where `find_duplicates` wrote them.
        source: the name of the source.
        digest: sha256 of what was found, so that a build with others is another build.
        files: the addresses of the source's files, by which the places of its rows are numbered.
    """

    folder: Path
    source: str
    digest: str
    options: DuplicateOptions
    files: tuple[str, ...]

    def describe(self) -> dict[str, Any]:
        """See `RowCheck`."""
        return {"duplicates": {**asdict(self.options), "roles": list(self.options.roles), "sha256": self.digest}}

    def reasons(self, chats: Sequence[Conversation]) -> list[Reason | None]:
        """See `RowCheck`."""
        places = np.array([place_of(chat.where, self._numbers) for chat in chats], dtype=np.int64)
        table = _table(self.folder, self.source)
        # Past the end of the table there is no place; any other serves, because the next line compares.
        at = np.minimum(np.searchsorted(table["place"], places), max(0, len(table) - 1))
        hit = table["place"][at] == places if len(table) else np.zeros(len(places), np.bool_)
        return [
            (EXACT if table["exact"][n] else NEAR, f"a duplicate; {LIST_NAME} says of which row") if is_hit else None
            for n, is_hit in zip(at.tolist(), hit.tolist(), strict=True)
        ]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return _numbered(self.files)


TABLE: Final = np.dtype([("place", "<i8"), ("exact", "?")])


def table_path(folder: Path, source: str) -> Path:
    """The file with the places of a source's rows that are left out."""
    return folder / f"{source}.npy"


def _table(folder: Path, source: str) -> npt.NDArray[Any]:
    path, again = table_path(folder, source), f"Remove {folder}; the next build writes it again"
    try:
        table = map_npy(path)
    except InputError as error:
        raise InputError(f"{error}. {again}") from error
    if table.dtype != TABLE or table.ndim != 1:
        raise InputError(f"{path}: {table.dtype} of shape {table.shape}; expected {TABLE}, in a row. {again}")
    return table


def place_of(where: str, numbers: Mapping[str, int]) -> int:
    """A number for the place of a row: its file's number in bits 40 to 63, its own in 0 to 38.

    Bit 39 is set for a line: `b.jsonl:17` is 1 * 2**40 + 2**39 + 17 where `numbers` has 1 for b.jsonl.

    Raises:
        UsageError: the place names no row of these files.
    """
    is_line = where.rpartition(":")[2].isdigit()
    file, _, number = where.rpartition(":" if is_line else " row ")
    if file not in numbers or not number.isdigit():
        raise UsageError(f"{where}: not a row of {', '.join(numbers)}; duplicates are searched in files only")
    return numbers[file] << 40 | is_line << 39 | int(number)


def _numbered(files: Sequence[str]) -> dict[str, int]:
    """The number of each file. A row's file is looked up here: a search among thousands of files would take longer."""
    return {file: number for number, file in enumerate(files)}


def where_of(place: int, files: Sequence[str]) -> str:
    """The place of a row as text: the inverse of `place_of`."""
    # Bits 40 and above are the file, bit 39 says whether it is a line, the rest is its number.
    number = place & (1 << 39) - 1
    return f"{files[place >> 40]}:{number}" if place >> 39 & 1 else f"{files[place >> 40]} row {number}"


def find_duplicates(
    sources: Mapping[str, ChatSource],
    files: Mapping[str, Sequence[str]],
    options: DuplicateOptions,
    folder: Path,
    progress: Progress = SILENT,
) -> dict[str, Duplicates]:
    """Find the duplicates within and across sources, and write which rows are left out.

    Of duplicates the first stays, in the order of the sources and of their rows. The same rows and options give the
    same files.

    Args:
        files: the addresses of each source's files, as the places of its rows name them.
        folder: an existing directory; it gets `left_out.jsonl`, a table for each source, and working files that are
            deleted at the end.

    Raises:
        MissingExtra: near duplicates without rensa. InputError, SourceError: reading failed. StorageError: the disk
            refused.
    """
    with storage_errors("writing", folder):
        seen = _Seen(folder, options)
        try:
            for number, (name, source) in enumerate(sources.items()):
                progress.begin(f"looking for duplicates in {name}", unit="rows")
                seen.read(number, source, tuple(files[name]), progress)
            seen.close()
            groups = Groups(folder, seen.rows)
            # Exact ones first: of a group of equal rows only the first is compared with other rows afterwards.
            if options.exact:
                groups.join_exact(folder, seen.mapped("hashes", "<u8"))
            if seen.minhashes is not None and options.near is not None:
                seen.minhashes.join_similar(groups, options.near, progress)
            found = _Found(list(sources), [tuple(files[name]) for name in sources], seen, groups)
            digest = found.write_list(folder)
            found.write_tables(folder)
            return {name: Duplicates(folder, name, digest, options, tuple(files[name])) for name in sources}
        finally:
            seen.delete()


class _Seen:
    """Hash, place and MinHash of every row, in files."""

    def __init__(self, folder: Path, options: DuplicateOptions) -> None:
        self._options, self.folder, self.rows = options, folder, 0
        self._paths = {name: folder / f".{name}.tmp" for name in ("hashes", "places", "sources")}
        self._files = {name: path.open("wb") for name, path in self._paths.items()}
        self.minhashes = None if options.near is None else MinHashes(folder)

    def read(self, number: int, source: ChatSource, files: Sequence[str], progress: Progress) -> None:
        # A row that no build can use must not be the one that stays, in place of one that can be used.
        rows = (row for row in source.iterate() if isinstance(row, Conversation) and _is_trained(row.messages))
        before, numbers = self.rows, _numbered(files)  # `before`: rows of earlier sources
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            self._write("hashes", np.array([_hash_of(chat) for chat in batch], dtype="<u8"))
            self._write("places", np.array([place_of(chat.where, numbers) for chat in batch], dtype="<i8"))
            self._write("sources", np.full(len(batch), number, dtype="<i4"))
            if self.minhashes is not None:
                messages = [chat.messages for chat in batch]
                self.minhashes.add(minhashes_of(messages, self._options.words, self._options.roles))
            self.rows += len(batch)
            progress.advance(len(batch))
            if fraction := source.fraction_read():
                progress.expect(int((self.rows - before) / fraction))

    def _write(self, name: str, values: npt.NDArray[Any]) -> None:
        self._files[name].write(values.tobytes())

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def mapped(self, name: str, dtype: str) -> npt.NDArray[Any]:
        """The values of all rows, shape (rows,)."""
        # An empty file cannot be mapped.
        path = self._paths[name]
        return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype=dtype)

    def delete(self) -> None:
        self.close()
        if self.minhashes is not None:
            self.minhashes.close()
        for path in self._paths.values():
            path.unlink(missing_ok=True)


def _is_trained(messages: Sequence[Message]) -> bool:
    try:
        return any(message["role"] == "assistant" and weight_of(message) > 0 for message in messages)
    except MessageError:  # a weight that is none: the build names it
        return False


def _hash_of(chat: Conversation) -> int:
    """A 64-bit hash of the contents of a conversation: messages and tools, not the place it is from."""
    # Rows of one hash count as equal. Among 100 million different rows two have the same 64 bits by chance in one of
    # some 3,700 runs, so their texts are not compared.
    contents = json.dumps([chat.messages, chat.tools], sort_keys=True, ensure_ascii=False, default=str)
    return int.from_bytes(hashlib.blake2b(contents.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


# ---- results


@dataclass(frozen=True)
class _Found:
    """The result of a search, and how it is written.

    Attributes:
        names, files: the names of the sources, and the addresses of the files of each.
    """

    names: list[str]
    files: list[tuple[str, ...]]
    seen: _Seen
    groups: Groups

    def write_list(self, folder: Path) -> str:
        """Write `left_out.jsonl`: each row that is left out, and the row that it duplicates. Returns the list's sha256.

        The hash is of numbers of sources and rows, not of paths, so that it is the same elsewhere.
        """
        sources, places = self.seen.mapped("sources", "<i4"), self.seen.mapped("places", "<i8")
        digest = hashlib.sha256()
        out = HashedWriter(folder / LIST_NAME)
        try:
            for row in (row for rows in self.groups.left_out() for row in rows.tolist()):
                both = [(int(sources[one]), int(places[one])) for one in (row, int(self.groups.original[row]))]
                where, first = (where_of(place, self.files[source]) for source, place in both)
                similarity = round(float(self.groups.similarity[row]), 4)
                digest.update(json.dumps([both, similarity]).encode())
                line = {"where": where, "duplicate_of": first, "similarity": similarity}
                # The name of a file may have bytes that are no UTF-8.
                out.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))
            out.close()
        finally:
            out.abandon()
        return digest.hexdigest()

    def write_tables(self, folder: Path) -> None:
        """Write the places of each source's rows that are left out, sorted, for `Duplicates`."""
        rows = np.concatenate([np.zeros(0, np.int64), *self.groups.left_out()])
        sources, places = self.seen.mapped("sources", "<i4")[rows], self.seen.mapped("places", "<i8")[rows]
        hashes = self.seen.mapped("hashes", "<u8")
        exact = hashes[rows] == hashes[self.groups.original[rows]]
        # A table for each source, also an empty one: `Duplicates` opens it.
        for number, name in enumerate(self.names):
            of_source = sources == number
            table = np.zeros(np.count_nonzero(of_source), dtype=TABLE)
            table["place"], table["exact"] = places[of_source], exact[of_source]
            np.save(table_path(folder, name), np.sort(table, order="place"), allow_pickle=False)
