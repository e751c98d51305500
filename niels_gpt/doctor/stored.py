"""Rows of our own caches and episodes, mapped from their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPES, index_name, mask_name, tokens_name
from niels_gpt.cache.meta import open_meta
from niels_gpt.cache.mmap import ExampleIndex, map_tokens
from niels_gpt.doctor.documents import Run
from niels_gpt.doctor.rows import Int64s, TokenRows
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import open_manifest
from niels_gpt.forks import cached_property
from niels_gpt.format.masks import assistant_mask


class StoredFiles:
    """The files of one of our own datasets, opened once for one diagnosis.

    What is open belongs to this object and goes with it: a dataset that is rebuilt in the same place is opened anew by
    the next diagnosis. A copy in another process opens the files again.

    Args:
        form: cache (of examples), episodes, or documents (a cache of plain text).
    """

    def __init__(self, folder: Path, form: str) -> None:
        self.folder, self.form = folder, form
        self._open: dict[str, Any] = {}

    def __getstate__(self) -> tuple[Path, str]:
        return self.folder, self.form

    def __setstate__(self, state: tuple[Path, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """What the dataset records of itself."""
        return open_manifest(self.folder) or {} if self.form == "episodes" else open_meta(self.folder)

    @property
    def sentinels(self) -> dict[str, int]:
        """The four sentinels that the dataset records; empty if it records none."""
        special = self.manifest.get("special_token_ids") or {}
        return dict(special) if set(special) == {"sys", "usr", "asst", "eot"} else {}

    @property
    def vocab_size(self) -> int | None:
        """The size of the vocabulary that the dataset records."""
        size = self.manifest.get("vocab_size")
        return None if size is None else int(size)

    @property
    def tokenizer_sha256(self) -> str | None:
        """The sha256 of the tokenizer that the dataset was built with; `None` if it does not say."""
        told = self.manifest.get("tokenizer_sha256")
        return None if told is None else str(told)

    def count(self, split: str) -> int:
        """How many examples a split has, or how many documents the meta counts.

        Raises:
            CacheError: damaged files.
        """
        if self.form == "episodes":
            return len(self._episodes(split))
        if self.form == "documents":
            return int(self.manifest["splits"].get(split, {}).get("documents", 0))
        return len(self._examples(split)[1])

    def run(self, split: str) -> Run:
        """The ids of a split of plain text."""
        if split not in self._open:
            self._open[split] = Run.of(self.folder, self.manifest, split)
        held: Run = self._open[split]
        return held

    def _episodes(self, split: str) -> EpisodeSplit:
        if split not in self._open:
            self._open[split] = EpisodeSplit([self.folder], split)
        held: EpisodeSplit = self._open[split]
        return held

    def _examples(self, split: str) -> tuple[Any, ExampleIndex, Any]:
        if split not in self._open:
            tokens = map_tokens(self.folder / tokens_name(split), TOKEN_DTYPES[self.manifest["token_dtype"]])
            mask_path = self.folder / mask_name(split)
            mask = map_tokens(mask_path, "|u1") if mask_path.is_file() else None
            self._open[split] = tokens, ExampleIndex(self.folder / index_name(split), len(tokens)), mask
        held: tuple[Any, ExampleIndex, Any] = self._open[split]
        return held

    def read(self, split: str, own: Int64s, numbers: Int64s) -> TokenRows:
        """Some examples.

        Args:
            own: their numbers in the split. numbers: in the input.
        """
        if self.form == "episodes":
            return self._read_episodes(split, own, numbers)
        tokens, index, mask = self._examples(split)
        starts, stops = index.spans(own)
        ids, edges = _gathered(tokens, starts, stops)
        trained = _by_sentinels(ids, edges, self.sentinels) if mask is None else _gathered(mask, starts, stops)[0] > 0
        wheres = [f"{self.folder} {split} example {at}" for at in own.tolist()]
        return TokenRows(numbers, wheres, ids, edges, trained)

    def _read_episodes(self, split: str, own: Int64s, numbers: Int64s) -> TokenRows:
        opened = self._episodes(split)
        shard, starts, lengths = opened.locate(opened.kept[own])
        ids, masks = [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)]
        edges = np.concatenate(([0], np.cumsum(lengths)))
        for at, start, stop in zip(shard.tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True):
            held = opened.shards[at]
            ids.append(held.tokens[start:stop].astype(np.int64))
            if held.mask is not None:
                masks.append(np.asarray(held.mask[start:stop]) > 0)
        trained = np.concatenate(masks) if opened.has_mask else None
        wheres = [f"{self.folder} {split} episode {at}" for at in own.tolist()]
        return TokenRows(numbers, wheres, np.concatenate(ids), edges, trained)


def _by_sentinels(ids: Int64s, edges: Int64s, special: dict[str, int]) -> Any:
    """The mask that the loader would derive, row by row because spans end with rows."""
    named = {f"{name}_id": token for name, token in special.items()}
    spans = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return np.concatenate([np.zeros(0, np.bool_), *(assistant_mask(ids[a:b], **named) for a, b in spans)])


def _gathered(values: Any, starts: Int64s, stops: Int64s) -> tuple[Any, Int64s]:
    """Spans of a mapped file one after the other, int64, and their edges."""
    parts = [values[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    ids = np.concatenate([np.zeros(0, np.int64), *(part.astype(np.int64) for part in parts)])
    return ids, np.concatenate(([0], np.cumsum(stops - starts)))
