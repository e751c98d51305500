"""What is exported: one split of a cache or of episodes, as rows of ids and weights.

Three kinds of directory are read. Episodes and SFT caches have rows that can be read in any order; a pretrain cache is
one stream, whose rows are its documents, each up to and with its end-of-turn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.formats import META_NAME, TOKEN_DTYPES, index_name, mask_name, tokens_name
from niels_gpt.cache.meta import Meta, open_meta
from niels_gpt.cache.mmap import ExampleIndex, Tokens, map_tokens
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import is_episode_indexed_dataset
from niels_gpt.episodes.reading import check_whole
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.export.rows import Bools, Int64s, Rows, rows_of, runs
from niels_gpt.format.masks import spans_after

PORTION_TOKENS = 1 << 20
PORTION_ROWS = 1 << 15


@dataclass(frozen=True)
class Facts:
    """What is known of a split before it is read.

    Attributes:
        kind: "episodes", "sft" or "pretrain".
        vocab_size: ids are below it; `None` if that is not recorded.
        has_mask: the source says which tokens are trained; else all are.
        has_weights: the mask is float32, so weights may lie between.
        several_texts: a row may hold several texts.
        special_token_ids, tokenizer_sha256: as recorded.
        fingerprint: tells two sources apart.
    """

    path: Path
    kind: str
    split: str
    n_tokens: int
    vocab_size: int | None
    has_mask: bool
    has_weights: bool
    several_texts: bool
    special_token_ids: dict[str, int]
    tokenizer_sha256: str | None
    fingerprint: str


class Source(Protocol):
    """Rows in the source's own order."""

    facts: Facts

    def portions(self) -> Iterator[Rows]:
        """All rows, about a million tokens at a time."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows that can be read in any order.

    Attributes:
        lengths: the length of rows, by number.
        read: rows by number, in that order.
    """

    facts: Facts
    n: int
    lengths: Callable[[Int64s], Int64s]
    read: Callable[[Int64s], Rows]

    def portions(self) -> Iterator[Rows]:
        """As `Source`."""
        return self.in_order(lambda places: places, self.n)

    def in_order(self, order: Callable[[Int64s], Int64s], n: int) -> Iterator[Rows]:
        """`n` rows in portions; `order` says which row comes at which place."""
        for first in range(0, n, PORTION_ROWS):
            numbers = order(np.arange(first, min(first + PORTION_ROWS, n)))
            for part in portions_of(self.lengths(numbers)):
                yield self.read(numbers[part])


def portions_of(lengths: Int64s) -> Iterator[slice]:
    """Rows in slices of about `PORTION_TOKENS` tokens; a longer row has one of its own."""
    ends = np.cumsum(lengths)
    first, before = 0, 0
    while first < len(lengths):
        stop = max(first + 1, int(np.searchsorted(ends, before + PORTION_TOKENS, side="right")))
        yield slice(first, stop)
        first, before = stop, int(ends[stop - 1])


def splits_of(path: Path) -> list[str]:
    """The splits of a cache or of episodes that hold something.

    Raises:
        CacheError: neither.
    """
    if is_episode_indexed_dataset(path):
        return [split for split in ("train", "val") if EpisodeSplit([path], split).n_episodes]
    meta = _meta(path)
    return [name for name, counts in meta["splits"].items() if counts.get("tokens")]


def open_source(path: Path, split: str) -> Examples | Stream:
    """One split of a cache or of episodes.

    Raises:
        CacheError: not there, unfinished or damaged, or without such a split.
    """
    if split not in splits_of(path):
        raise CacheError(f"{path}: nothing in split {split!r}; there is {', '.join(splits_of(path)) or 'nothing'}")
    if is_episode_indexed_dataset(path):
        return _episodes(path, split)
    meta = _meta(path)
    return _sft(path, split, meta) if meta["kind"] == "sft" else Stream(path, split, meta)


def _meta(path: Path) -> Meta:
    if path.is_dir() and not (path / META_NAME).is_file():
        raise CacheError(f"{path}: neither episodes (train/tokens.bin) nor a cache ({META_NAME}); nothing to export")
    return open_meta(path)


def _episodes(path: Path, split: str) -> Examples:
    opened = EpisodeSplit([path], split, min_tokens=1)
    manifest = opened.manifests[0] or {}
    weighted = [shard.mask.dtype != np.uint8 for shard in opened.shards if shard.mask is not None]
    if len(set(weighted)) > 1:  # together they are read as float32, where 255 would pass
        check_whole(opened)
    facts = Facts(
        path=path,
        kind="episodes",
        split=split,
        n_tokens=opened.n_tokens,
        vocab_size=opened.vocab_size,
        has_mask=opened.has_mask,
        has_weights=opened.has_mask and any(weighted),
        several_texts=opened.has_segments,
        special_token_ids=dict(manifest.get("special_token_ids") or {}),
        tokenizer_sha256=manifest.get("tokenizer_sha256"),
        fingerprint=opened.fingerprint,
    )
    reader = _EpisodeReader(opened, facts)
    return Examples(facts, len(opened), reader.lengths, reader.read)


class _EpisodeReader:
    """Reads episodes by position."""

    def __init__(self, split: EpisodeSplit, facts: Facts) -> None:
        self._split, self._facts = split, facts

    def lengths(self, numbers: Int64s) -> Int64s:
        return self._split.locate(self._split.kept[numbers])[2]

    def read(self, numbers: Int64s) -> Rows:
        episodes = self._split.kept[numbers]
        shard, starts, lengths = self._split.locate(episodes)
        ids = self._gather([s.tokens for s in self._split.shards], shard, starts, lengths)
        weights = begins = None
        if self._facts.has_mask:
            weights = self._gather([s.mask for s in self._split.shards], shard, starts, lengths)
        if self._facts.several_texts:
            segments = [np.zeros(0, np.uint8) if s.segments is None else s.segments for s in self._split.shards]
            found = self._gather(segments, shard, starts, lengths)
            begins = np.zeros(len(ids), dtype=np.bool_)
            begins[1:] = found[1:] != found[:-1]
        rows = rows_of(ids, lengths, weights, begins)
        _check(rows, self._facts, lambda row: self._split.describe(int(episodes[row])))
        return rows

    def _gather(self, files: list[Any], shard: Int64s, starts: Int64s, lengths: Int64s) -> npt.NDArray[Any]:
        """Runs of several files, in the order asked for."""
        used = np.unique(shard).tolist()
        if len(used) == 1:
            return _of(files[used[0]], starts, lengths)
        places = np.cumsum(lengths) - lengths
        values = np.empty(int(lengths.sum()), dtype=np.result_type(*(files[number] for number in used)))
        everywhere = np.arange(len(values))
        for number in used:
            here = shard == number
            values[runs(everywhere, places[here], lengths[here])] = _of(files[number], starts[here], lengths[here])
        return values


def _of(file: npt.NDArray[Any], starts: Int64s, lengths: Int64s) -> npt.NDArray[Any]:
    """Runs of a file; zeros of an optional file that a shard does not have."""
    return runs(file, starts, lengths) if len(file) else np.zeros(int(lengths.sum()), dtype=file.dtype)


def _facts_of_cache(path: Path, split: str, meta: Meta) -> Facts:
    special = {name: int(token) for name, token in meta["special_token_ids"].items()}
    sums = {name: record["sha256"] for name, record in meta["files"].items() if name.startswith(split)}
    return Facts(
        path=path,
        kind=meta["kind"],
        split=split,
        n_tokens=int(meta["splits"][split]["tokens"]),
        vocab_size=int(meta["vocab_size"]),
        has_mask=meta["kind"] == "sft",
        has_weights=False,
        several_texts=False,
        special_token_ids=special,
        tokenizer_sha256=meta["tokenizer_sha256"],
        fingerprint=hashlib.blake2b(json.dumps(sums, sort_keys=True).encode(), digest_size=16).hexdigest(),
    )


def _sft(path: Path, split: str, meta: Meta) -> Examples:
    facts = _facts_of_cache(path, split, meta)
    tokens = map_tokens(path / tokens_name(split), TOKEN_DTYPES[meta["token_dtype"]])
    index = ExampleIndex(path / index_name(split), len(tokens))
    mask = map_tokens(path / mask_name(split), "|u1") if "mask_dtype" in meta else None

    def lengths(numbers: Int64s) -> Int64s:
        starts, stops = index.spans(numbers)
        return stops - starts

    def read(numbers: Int64s) -> Rows:
        starts, stops = index.spans(numbers)
        ids = runs(tokens, starts, stops - starts)
        if mask is None:
            weights = _by_sentinels(ids, stops - starts, facts.special_token_ids).view(np.uint8)
        else:
            weights = runs(mask, starts, stops - starts)
        rows = rows_of(ids, stops - starts, weights)
        _check(rows, facts, lambda row: f"{index.path}: example {int(numbers[row]):,}")
        return rows

    return Examples(facts, len(index), lengths, read)


def _by_sentinels(ids: npt.NDArray[Any], lengths: Int64s, special: dict[str, int]) -> Bools:
    """`format.masks.spans_after` in every row; a break of its own behind each keeps rows apart.

    ::

        ids     A x E | A y | z          with breaks  A x E . A y . z .
        mask    . # #   . #   .
    """
    ends = np.cumsum(lengths)
    apart = np.insert(ids.astype(np.int64), ends, -1)
    others = [special[name] for name in ("sys", "usr") if name in special]
    mask = spans_after(apart, opens=[special["asst"]], closes=[special["eot"]], breaks=[*others, -1])
    return mask[apart >= 0]


class Stream:
    """A pretrain cache's split, as documents."""

    def __init__(self, path: Path, split: str, meta: Meta) -> None:
        self.facts = _facts_of_cache(path, split, meta)
        names = sorted(name for name in meta["files"] if name.startswith(f"{split}/"))
        self._shards: list[Tokens] = [map_tokens(path / name, TOKEN_DTYPES[meta["token_dtype"]]) for name in names]
        self._eot = self.facts.special_token_ids["eot"]

    def portions(self) -> Iterator[Rows]:
        """As `Source`. A document may go on in the next shard; the last one may have been cut by the token budget.

        ::

            a b E c | d E e        (E ends a document, | a portion)        a b E    c d E    e
        """
        begun: list[Tokens] = []  # of a document that goes on
        for part in self._parts():
            ends = np.flatnonzero(part == self._eot) + 1
            if not len(ends):
                begun.append(part)
                continue
            last = int(ends[-1])
            whole = np.concatenate([*begun, part[:last]])
            ends += len(whole) - last
            yield self._rows(whole, np.diff(ends, prepend=0))
            begun = [part[last:]]
        rest = np.concatenate(begun) if begun else np.empty(0, dtype=np.uint16)
        if len(rest):
            yield self._rows(rest, np.array([len(rest)]))

    def _parts(self) -> Iterator[Tokens]:
        for shard in self._shards:
            for start in range(0, len(shard), PORTION_TOKENS):
                yield shard[start : start + PORTION_TOKENS]

    def _rows(self, ids: Tokens, lengths: Int64s) -> Rows:
        rows = rows_of(ids, lengths, None)
        _check(rows, self.facts, lambda row: f"{self.facts.path / self.facts.split}: a document")
        return rows


def _check(rows: Rows, facts: Facts, where: Callable[[int], str]) -> None:
    """Raise `CacheError` for ids outside the vocabulary and weights that are none."""
    limit = facts.vocab_size
    if limit is not None and rows.ids.size and rows.ids.max() >= limit:
        at = int(np.argmax(rows.ids >= limit))
        raise CacheError(
            f"{where(_row(rows, at))}: id {int(rows.ids[at])} is outside the vocabulary of {limit:,}; the files are "
            "damaged, or of another tokenizer. Restore them, or build again"
        )
    weights = rows.weights
    good = weights <= 1 if weights.dtype == np.uint8 else np.isfinite(weights) & (weights >= 0)
    if not good.all():
        at = int(np.argmin(good))
        expected = "0 or 1" if weights.dtype == np.uint8 else "a weight of 0 or more"
        raise CacheError(f"{where(_row(rows, at))}: mask {weights[at]}; expected {expected}. Build the dataset again")


def _row(rows: Rows, token: int) -> int:
    return int(np.searchsorted(rows.starts, token, side="right")) - 1


def checked_split(split: str | None) -> list[str] | None:
    """A split that the caller names, as a list.

    Raises:
        UsageError: no such split.
    """
    if split is None:
        return None
    if split not in ("train", "val"):
        raise UsageError(f"split is {split!r}; expected 'train' or 'val', or None for both")
    return [split]
