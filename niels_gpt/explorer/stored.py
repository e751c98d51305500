"""Caches and episodes by their maps: rows without text until a tokenizer spells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.formats import META_NAME, SPLITS, TOKEN_DTYPES, index_name, mask_name, tokens_name
from niels_gpt.cache.meta import Meta, open_meta
from niels_gpt.cache.mmap import ExampleIndex, map_tokens
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import is_episode_indexed_dataset, open_manifest
from niels_gpt.errors import InputError, Mismatch, UsageError
from niels_gpt.explorer.dataset import About, Filter, Page, RowDetail, RowSummary, check_row, scanned
from niels_gpt.explorer.gallery import Choice
from niels_gpt.explorer.modes import LossMode
from niels_gpt.explorer.strip import stored_strip
from niels_gpt.explorer.tokens import Spelling, spelling_of, view_episode, view_example
from niels_gpt.forks import cached_property
from niels_gpt.format.masks import assistant_mask

RUN_TOKENS = 1024  # of a token stream: what a row of the table holds
PREVIEW_TOKENS = 48

Int64s = npt.NDArray[np.int64]
Part = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class Split:
    """One split, mapped.

    Attributes:
        lengths: tokens of each row, int64.
        read: the first tokens of a row and which are trained; all of them without a limit.
    """

    lengths: Int64s
    read: Callable[[int, int | None], Part]


class StoredRows:
    """A cache (document 001) or an episodes dataset (document 002).

    Args:
        tokenizers: where its tokenizer may be; the first whose checksum fits spells the ids.

    Raises:
        CacheError: damaged. InputError: neither.
    """

    def __init__(self, directory: Path, tokenizers: list[str]) -> None:
        self.directory = directory
        self._episodes = is_episode_indexed_dataset(directory)
        if not self._episodes and not (directory / META_NAME).is_file():
            raise InputError(
                f"{directory}: expected a chat file, a cache with {META_NAME}, or episodes with train/tokens.bin and "
                "train/episodes.idx"
            )
        self.meta: Meta = (open_manifest(directory) or {}) if self._episodes else open_meta(directory)
        self.kind = "episodes" if self._episodes else str(self.meta["kind"])
        self.spelling = _memo(self._spelling(tokenizers))
        self._opened: dict[str, Split] = {}
        if not self.splits:
            raise InputError(f"{directory}: holds no rows; build it with more data")

    def close(self) -> None:
        """Nothing to let go of: maps close themselves."""

    def _spelling(self, tokenizers: list[str]) -> Spelling | None:
        if not self.meta.get("tokenizer_sha256"):
            return None
        for place in tokenizers:
            try:
                return spelling_of(self.directory, self.meta, Path(place))
            except Mismatch:
                continue
        return spelling_of(self.directory, self.meta, None)

    @cached_property
    def splits(self) -> list[str]:
        """Those that hold rows."""
        return [name for name in SPLITS if len(self._split(name).lengths)]

    def _split(self, name: str) -> Split:
        if name not in SPLITS:
            raise UsageError(f"split is {name!r}; expected train or val")
        if name not in self._opened:
            opens = {"episodes": self._open_episodes, "sft": self._open_sft, "pretrain": self._open_stream}[self.kind]
            self._opened[name] = opens(name)
        return self._opened[name]

    def _open_episodes(self, name: str) -> Split:
        split = EpisodeSplit([self.directory], name, min_tokens=1)
        lengths = split.lengths()

        def read(row: int, limit: int | None) -> Part:
            shard, start, length = split.locate(split.kept[np.array([row])])
            here, first = split.shards[int(shard[0])], int(start[0])
            stop = first + min(int(length[0]), limit or int(length[0]))
            ids = here.tokens[first:stop]
            return ids, np.ones(len(ids), np.bool_) if here.mask is None else here.mask[first:stop] > 0

        return Split(lengths, read)

    def _open_sft(self, name: str) -> Split:
        if not (self.directory / tokens_name(name)).is_file():
            return _NOTHING
        tokens = map_tokens(self.directory / tokens_name(name), TOKEN_DTYPES[self.meta["token_dtype"]])
        index = ExampleIndex(self.directory / index_name(name), len(tokens))
        starts, stops = index.spans(np.arange(len(index)))
        mask = map_tokens(self.directory / mask_name(name), "|u1") if "mask_dtype" in self.meta else None
        special = {f"{role}_id": token for role, token in self.meta["special_token_ids"].items()}

        def read(row: int, limit: int | None) -> Part:
            start, stop = int(starts[row]), int(stops[row])
            trained = mask[start:stop] > 0 if mask is not None else assistant_mask(tokens[start:stop], **special)
            return tokens[start:stop][:limit], trained[:limit]

        return Split(stops - starts, read)

    def _open_stream(self, name: str) -> Split:
        shards = [
            map_tokens(path, TOKEN_DTYPES[self.meta["token_dtype"]])
            for path in sorted((self.directory / name).glob("shard_*.bin"))
        ]
        # Shards of 2 500 and 900 tokens are runs of 1024 1024 451 and 899: each needs the token behind it as a target.
        runs = [max(0, len(shard) - 1) for shard in shards]
        lengths = [np.minimum(RUN_TOKENS, n - np.arange(0, n, RUN_TOKENS)) for n in runs]
        first = np.cumsum([0, *map(len, lengths)])

        def read(row: int, limit: int | None) -> Part:
            shard = int(np.searchsorted(first, row, side="right")) - 1
            start = (row - int(first[shard])) * RUN_TOKENS
            ids = shards[shard][
                start : min(start + (limit or RUN_TOKENS), start + int(lengths[shard][row - first[shard]]))
            ]
            return ids, np.ones(len(ids), np.bool_)

        return Split(np.concatenate([*lengths, np.empty(0, np.int64)]).astype(np.int64), read)

    def about(self, split: str) -> About:
        """See `Dataset`."""
        rows = len(self._split(split).lengths)
        told = ("dataset_name", "source_name", "encoder", "token_dtype", "vocab_size", "mask_dtype", "seed")
        facts = {name: self.meta[name] for name in told if self.meta.get(name) is not None}
        facts["tokens"] = int(self._split(split).lengths.sum())
        return About(str(self.directory), self.kind, "tokens", self.splits, rows, 1.0, facts=facts)

    def page(self, split: str, start: int, limit: int, wanted: Filter) -> Page:
        """See `Dataset`."""
        opened = self._split(split)
        end = len(opened.lengths)
        if wanted.empty:
            stop = min(start + limit, end)
            return Page([self._summary(opened, row) for row in range(start, stop)], stop if stop < end else None, stop)
        if wanted.text and self.spelling is None:
            raise UsageError("searching needs text: start with --tokenizer, the one that this data was built with")
        fits = np.ones(end - start if start < end else 0, np.bool_)
        fits &= opened.lengths[start:] >= (wanted.min_size or 0)
        fits &= opened.lengths[start:] <= (end and (wanted.max_size if wanted.max_size is not None else 1 << 62))
        rows: Iterator[int] = iter((start + np.flatnonzero(fits)).tolist())
        return scanned(rows, end, lambda row: self._wanted(opened, row, wanted), limit)

    def _wanted(self, opened: Split, row: int, wanted: Filter) -> RowSummary | None:
        if wanted.text and wanted.text.casefold() not in self._text(opened.read(row, None)[0]).casefold():
            return None
        return self._summary(opened, row)

    def _summary(self, opened: Split, row: int) -> RowSummary:
        ids, trained = opened.read(row, None)
        shown = ids[:PREVIEW_TOKENS]
        preview = self._text(shown) if self.spelling else " ".join(map(str, shown.tolist()))
        return RowSummary(row, f"{self.kind} {row}", preview, len(ids), trained=int(trained.sum()))

    def _text(self, ids: npt.NDArray[Any]) -> str:
        spell = self.spelling
        return "" if spell is None else "".join(spell(token) for token in ids.tolist())

    def detail(self, split: str, row: int, choice: Choice, modes: list[LossMode]) -> RowDetail:
        """See `Dataset`; the row as a training step sees it, whole."""
        check_row(row, len(self._split(split).lengths), 1.0, f"{self.directory} {split}")
        view = (
            view_episode(self.directory, row, split=split, spelling=self.spelling)
            if self._episodes
            else view_example(
                self.directory,
                row,
                split=split,
                T=RUN_TOKENS if self.kind == "pretrain" else None,
                spelling=self.spelling,
            )
        )
        return RowDetail(row, f"{split} {row}", stored_strip(view, self.sentinels))

    @property
    def sentinels(self) -> dict[str, int]:
        """The ids of our own sentinels, where the data has them."""
        return dict(self.meta.get("special_token_ids") or {})

    def sizes(self, split: str, rows: list[int], choice: Choice) -> list[tuple[int, float]]:
        """See `Dataset`."""
        opened = self._split(split)
        parts = [opened.read(row, None)[1] for row in rows]
        return [(len(trained), float(trained.mean()) if len(trained) else 0.0) for trained in parts]

    def tokens(self, split: str, row: int) -> Part:
        """The ids of a row, and which of them are trained."""
        return self._split(split).read(row, None)

    def lengths(self, split: str) -> Int64s:
        """The length of every row: the index tells them all at once."""
        return self._split(split).lengths


_NOTHING = Split(np.empty(0, np.int64), lambda row, limit: (np.empty(0, np.uint32), np.empty(0, np.bool_)))


def _memo(spelling: Spelling | None) -> Spelling | None:
    """Spelling an id costs a call into the tokenizer; most of a row's are common ones."""
    return None if spelling is None else cache(spelling)
