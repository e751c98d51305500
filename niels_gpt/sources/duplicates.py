"""Duplicates across sources: found in one pass over all rows, and then left out by `Duplicates`, a check of rows.

::

    sources --> for each row: a hash of all it says, and the MinHash of its word n-grams (library rensa)
    equal hashes          exact duplicates; the first row stays
    equal bands           candidates; where enough of two MinHashes agree, they are near duplicates
    a group of duplicates the first row stays, the others are listed in FOLDER/left_out.jsonl

A MinHash has `PERMUTATIONS` numbers, of which the share p is equal where the share p of the n-grams is (their Jaccard
similarity). It is cut into bands; rows that agree in a whole band are compared. Bands are as long as they can be while
a pair at the threshold is found with a probability of at least `FOUND`.

Everything that grows with the rows is in files: 512 bytes for each row's MinHash, 33 for its hash, place and group. One
band after the other is sorted, in parts of some `ROWS_OF_BUCKET` rows, so memory grows only with the largest group.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MissingExtra, UsageError, storage_errors
from niels_gpt.forks import cached_property
from niels_gpt.messages import Conversation, Message
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import NGRAM_WORDS
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.filters import Reason, texts_of
from niels_gpt.sources.ngrams import mixed, ngrams
from niels_gpt.storage.files import HashedWriter

PERMUTATIONS: Final = 128
FOUND: Final = 0.95
SEED: Final = 42  # of the MinHash; another one would find other pairs near the threshold
ROWS_AT_ONCE: Final = 1024
KEYS_AT_ONCE: Final = 1 << 13
ROWS_OF_BUCKET: Final = 1 << 17
MOST_BUCKET_BITS: Final = 8  # each bucket is an open file
PAIRS_AT_ONCE: Final = 4096
LIST_NAME: Final = "left_out.jsonl"
NEAR, EXACT = "near_duplicate", "duplicate"

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DuplicateOptions:
    """What counts as a duplicate.

    Attributes:
        exact: rows with the same messages and tools.
        near: rows whose word n-grams have at least this Jaccard similarity, 0.5 to 1; `None`: only exact ones.
        words: of an n-gram.
        roles: whose messages are compared for near duplicates; a system prompt that all rows share is not.

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
        places = np.array([place_of(chat.where, self.files) for chat in chats], dtype=np.int64)
        table = _table(self.folder, self.source)
        at = np.minimum(np.searchsorted(table["place"], places), max(0, len(table) - 1))
        hit = table["place"][at] == places if len(table) else np.zeros(len(places), np.bool_)
        return [
            (EXACT if table["exact"][n] else NEAR, f"a duplicate; {LIST_NAME} says of which row") if is_hit else None
            for n, is_hit in zip(at.tolist(), hit.tolist(), strict=True)
        ]


TABLE: Final = np.dtype([("place", "<i8"), ("exact", "?")])


def _table(folder: Path, source: str) -> npt.NDArray[Any]:
    path = folder / f"{source}.npy"
    with storage_errors("reading", path):
        table: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return table


def place_of(where: str, files: Sequence[str]) -> int:
    """A number for the place of a row: its file's number in bits 40 to 63, its own in 0 to 38.

    Bit 39 is set for a line: `b.jsonl:17` of the files a.jsonl and b.jsonl is 1 * 2**40 + 2**39 + 17.

    Raises:
        UsageError: the place names no row of these files.
    """
    is_line = where.rpartition(":")[2].isdigit()
    file, _, number = where.rpartition(":" if is_line else " row ")
    if file not in files or not number.isdigit():
        raise UsageError(f"{where}: not a row of {', '.join(files)}; duplicates are looked for in files only")
    return files.index(file) << 40 | is_line << 39 | int(number)


def where_of(place: int, files: Sequence[str]) -> str:
    """The place of a row as text: the inverse of `place_of`."""
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
            groups = _Groups(folder, seen.rows)
            _find(seen, groups, options, progress)
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
        self._paths = {name: folder / f".{name}.tmp" for name in ("hashes", "places", "sources", "minhashes")}
        self._files = {name: path.open("wb") for name, path in self._paths.items()}

    def read(self, number: int, source: ChatSource, files: Sequence[str], progress: Progress) -> None:
        rows = (row for row in source.iterate() if isinstance(row, Conversation))
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            self._write("hashes", np.array([_hash_of(chat) for chat in batch], dtype="<u8"))
            self._write("places", np.array([place_of(chat.where, files) for chat in batch], dtype="<i8"))
            self._write("sources", np.full(len(batch), number, dtype="<i4"))
            if self._options.near is not None:
                self._write("minhashes", _minhashes(batch, self._options))
            self.rows += len(batch)
            progress.advance(len(batch))

    def _write(self, name: str, values: npt.NDArray[Any]) -> None:
        self._files[name].write(values.tobytes())

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def mapped(self, name: str, dtype: str) -> npt.NDArray[Any]:
        """The values of all rows, shape (rows,)."""
        path = self._paths[name]
        return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype=dtype)

    def minhashes(self, start: int, most: int) -> npt.NDArray[np.uint32]:
        """Those of at most so many rows, uint32, shape (rows, PERMUTATIONS).

        They are read, not mapped: with its neighbours each row would bring up to megabytes into memory.
        """
        width = 4 * PERMUTATIONS
        data = os.pread(self._reading.fileno(), most * width, start * width)
        return np.frombuffer(data, dtype="<u4").reshape(-1, PERMUTATIONS)

    def minhashes_of(self, rows: Int64s) -> npt.NDArray[np.uint32]:
        """Those of some rows."""
        file, width = self._reading.fileno(), 4 * PERMUTATIONS
        data = b"".join([os.pread(file, width, at) for at in (rows * width).tolist()])
        return np.frombuffer(data, dtype="<u4").reshape(-1, PERMUTATIONS)

    @cached_property
    def _reading(self) -> IO[bytes]:
        return self._paths["minhashes"].open("rb")

    def delete(self) -> None:
        self.close()
        self._reading.close()
        for path in self._paths.values():
            path.unlink(missing_ok=True)


def _hash_of(chat: Conversation) -> int:
    """64 bits of a hash of all that a conversation says: messages and tools, not where it is from."""
    said = json.dumps([chat.messages, chat.tools], sort_keys=True, ensure_ascii=False, default=str)
    return int.from_bytes(hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _minhashes(chats: Sequence[Conversation], options: DuplicateOptions) -> npt.NDArray[np.uint32]:
    """The MinHash of each conversation, uint32, shape (n, PERMUTATIONS); zeros where it has no words."""
    try:
        from rensa import RMinHash
    except ModuleNotFoundError as error:
        raise MissingExtra("rensa") from error
    texts = ["\n".join(_texts(chat.messages, options.roles)) for chat in chats]
    found = ngrams(texts, options.words)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        found.hashes, found.offsets.astype(np.uint64), PERMUTATIONS, SEED
    )
    rows = np.array(matrix.to_rows(), dtype="<u4").reshape(len(chats), PERMUTATIONS)
    rows[np.diff(found.offsets) == 0] = 0
    return rows


def _texts(messages: Sequence[Message], roles: Sequence[str]) -> Iterator[str]:
    for message in messages:
        if message["role"] in roles:
            yield from texts_of(message)


# ---- groups


def _find(seen: _Seen, groups: _Groups, options: DuplicateOptions, progress: Progress) -> None:
    """Put each row into the group of the first row that it duplicates."""
    hashes = seen.mapped("hashes", "<u8")
    n = len(hashes)
    if options.exact:
        with _Buckets(seen.folder, n) as buckets:
            for at in range(0, n, ROWS_OF_BUCKET):
                part = hashes[at : at + ROWS_OF_BUCKET]
                buckets.add(part, np.arange(at, at + len(part)))
            for keys, rows in buckets:
                groups.original[rows] = rows[_firsts(keys)]
    if options.near is None:
        return
    length = band_length(options.near)
    progress.begin("comparing rows", total=PERMUTATIONS // length, unit="bands")
    groups.close_exact()  # exact duplicates need not be compared again
    for band in range(PERMUTATIONS // length):
        with _Buckets(seen.folder, n) as buckets:
            for at in range(0, n, KEYS_AT_ONCE):
                own = np.flatnonzero(groups.is_first[at : at + KEYS_AT_ONCE])
                keys = _keys(seen.minhashes(at, KEYS_AT_ONCE)[own, band * length : (band + 1) * length])
                buckets.add(keys[keys != 0], at + own[keys != 0])
            for keys, rows in buckets:
                for first, second in _pairs(keys, rows):
                    groups.join(seen, first, second, options.near)
        progress.advance(1)
    groups.shorten()


class _Groups:
    """Of each row the row that it duplicates, in files: 13 bytes a row.

    Attributes:
        original: int64, the row that each duplicates, itself if none; in steps (2 to 1, 1 to 0) until `shorten`.
        similarity: float32, of the two; 1 for exact ones.
        is_first: bool, after `close_exact`: no exact duplicate of a row before it.
    """

    def __init__(self, folder: Path, n: int) -> None:
        self.original, self.similarity = _array_in(folder, n, np.int64), _array_in(folder, n, np.float32)
        self.is_first = _array_in(folder, n, np.bool_)
        for at in range(0, n, ROWS_OF_BUCKET):
            part = slice(at, min(n, at + ROWS_OF_BUCKET))
            self.original[part], self.similarity[part] = np.arange(part.start, part.stop), 1

    def close_exact(self) -> None:
        """All exact duplicates are found."""
        for at in range(0, len(self.original), ROWS_OF_BUCKET):
            part = self.original[at : at + ROWS_OF_BUCKET]
            self.is_first[at : at + len(part)] = part == np.arange(at, at + len(part))

    def join(self, seen: _Seen, a: Int64s, b: Int64s, threshold: float) -> None:
        """Join the groups of those pairs whose MinHashes agree often enough; a group is named by its first row."""
        rows, places = np.unique(np.concatenate([a, b]), return_inverse=True)
        minhashes = seen.minhashes_of(rows)[places]
        shares = (minhashes[: len(a)] == minhashes[len(a) :]).mean(axis=1, dtype=np.float32)
        # 128 numbers give the similarity in steps of 1/128, so the threshold is met to half a step.
        for one, other, share in zip(a.tolist(), b.tolist(), shares.tolist(), strict=True):
            if share < threshold - 0.5 / PERMUTATIONS:
                continue
            first, second = sorted((self._first(one), self._first(other)))
            if first != second:
                self.original[second], self.similarity[second] = first, share

    def _first(self, row: int) -> int:
        while self.original[row] != row:
            row = int(self.original[row])
        return row

    def shorten(self) -> None:
        """Every row's first row, where groups were joined in steps: 0 0 1 -> 0 0 0."""
        for at in range(0, len(self.original), ROWS_OF_BUCKET):
            part = self.original[at : at + ROWS_OF_BUCKET]
            while (following := self.original[part]).tobytes() != part.tobytes():
                part[:] = following

    def left_out(self) -> Iterator[Int64s]:
        """The rows that duplicate another, in ascending order, some at a time."""
        for at in range(0, len(self.original), ROWS_OF_BUCKET):
            part = self.original[at : at + ROWS_OF_BUCKET]
            yield at + np.flatnonzero(part != np.arange(at, at + len(part)))


def _array_in(folder: Path, n: int, dtype: type[Any]) -> npt.NDArray[Any]:
    """An array of zeros in a file without a name, which is gone with the array."""
    if not n:
        return np.zeros(0, dtype=dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(n * np.dtype(dtype).itemsize)
        return np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=dtype)


class _Buckets:
    """Keys with their rows, in files by the first bits of the keys, so that only one part is sorted at a time.

    Iterating gives the parts, sorted by key and of equal keys by row; parts come in the order of their keys. With one
    bit, the keys 1 and 3 of 2 bits are in the files 0 and 1.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self._bits = min(MOST_BUCKET_BITS, (max(0, rows - 1) // ROWS_OF_BUCKET).bit_length())
        with storage_errors("creating a file in", folder):
            self._files = [tempfile.TemporaryFile(dir=folder) for _ in range(1 << self._bits)]  # noqa: SIM115  # `__exit__`

    def __enter__(self) -> _Buckets:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()

    def add(self, keys: UInt64s, rows: Int64s) -> None:
        """More keys; rows ascend from call to call."""
        bucket = (keys >> np.uint64(64 - self._bits)) if self._bits else np.zeros(len(keys), np.uint64)
        order = np.argsort(bucket, kind="stable")
        both = np.stack([keys, rows.view(np.uint64)], axis=1)[order]
        bounds = bucket[order].searchsorted(np.arange(len(self._files) + 1, dtype=np.uint64)).tolist()
        for file, a, b in zip(self._files, bounds, bounds[1:], strict=False):
            if a < b:
                file.write(both[a:b].tobytes())

    def __iter__(self) -> Iterator[tuple[UInt64s, Int64s]]:
        for file in self._files:
            file.seek(0)
            both = np.frombuffer(file.read(), dtype=np.uint64).reshape(-1, 2)
            order = np.argsort(both[:, 0], kind="stable")
            yield both[order, 0], both[order, 1].view(np.int64)


def band_length(threshold: float) -> int:
    """Numbers of a band: as many as still find a pair at the threshold with a probability of `FOUND`.

    A pair of similarity s agrees in a band of r numbers with probability s**r, and in none of b bands with
    (1 - s**r)**b: at 0.8, 16 bands of 8 find 94.7 of 100 pairs, and 32 bands of 4 all but one in ten million.
    """
    lengths = [r for r in (16, 8, 4, 2) if 1 - (1 - threshold**r) ** (PERMUTATIONS // r) >= FOUND]
    return lengths[0] if lengths else 1


def _firsts(values: UInt64s) -> Int64s:
    """The place of the first equal value, for sorted values: 3 3 5 9 9 9 -> 0 0 2 3 3 3."""
    begins = np.concatenate([[True], values[1:] != values[:-1]]) if len(values) else np.zeros(0, np.bool_)
    return np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))


def _keys(numbers: npt.NDArray[np.uint32]) -> UInt64s:
    """A hash of each row's numbers in a band; 0 for a row without words, which has nothing to compare."""
    keys = np.zeros(len(numbers), dtype=np.uint64)
    for column in numbers.astype(np.uint64).T:
        keys = mixed(keys ^ column)
    return np.where(numbers.any(axis=1), np.maximum(keys, 1), 0)


def _pairs(keys: UInt64s, rows: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Rows of one key, each with the first row of its group and with the one before it, some at a time."""
    firsts = _firsts(keys)
    later = np.flatnonzero(firsts != np.arange(len(rows)))
    for at in range(0, len(later), PAIRS_AT_ONCE):
        some = later[at : at + PAIRS_AT_ONCE]
        yield rows[firsts[some]], rows[some]
        other = some[firsts[some] != some - 1]
        yield rows[other - 1], rows[other]


# ---- results


@dataclass(frozen=True)
class _Found:
    """What was found.

    Attributes:
        names, files: of the sources, and of their files.
    """

    names: list[str]
    files: list[tuple[str, ...]]
    seen: _Seen
    groups: _Groups

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
        for number, name in enumerate(self.names):
            own = sources == number
            table = np.zeros(np.count_nonzero(own), dtype=TABLE)
            table["place"], table["exact"] = places[own], exact[own]
            np.save(folder / f"{name}.npy", np.sort(table, order="place"), allow_pickle=False)
