"""Rows of our own caches and episodes, mapped from their files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPES, index_name, mask_name, tokens_name
from niels_gpt.cache.meta import open_meta
from niels_gpt.cache.mmap import ExampleIndex, map_tokens
from niels_gpt.doctor.rows import Int64s, TokenRows
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import open_manifest
from niels_gpt.format.masks import assistant_mask


def _manifest(folder: Path, form: str) -> Mapping[str, Any]:
    return open_manifest(folder) or {} if form == "episodes" else open_meta(folder)


def sentinels_of(folder: Path, form: str) -> dict[str, int]:
    """The four sentinels that a dataset records; empty if it records none."""
    manifest = _manifest(folder, form)
    special = manifest.get("special_token_ids") or {}
    return dict(special) if set(special) == {"sys", "usr", "asst", "eot"} else {}


def vocab_of(folder: Path, form: str) -> int | None:
    """The size of the vocabulary that a dataset records."""
    manifest = _manifest(folder, form)
    size = manifest.get("vocab_size")
    return None if size is None else int(size)


def recorded_tokenizer(folder: Path, form: str) -> str | None:
    """The sha256 of the tokenizer that a dataset was built with; `None` if it does not say."""
    manifest = _manifest(folder, form)
    told = manifest.get("tokenizer_sha256")
    return None if told is None else str(told)


def count_rows(folder: Path, split: str, form: str) -> int:
    """How many examples a split has, or how many documents the meta counts.

    Raises:
        CacheError: damaged files.
    """
    if form == "episodes":
        return len(_episodes(folder, split))
    if form == "documents":
        return int(open_meta(folder)["splits"].get(split, {}).get("documents", 0))
    return len(_examples(folder, split)[1])


@lru_cache(maxsize=4)
def _episodes(folder: Path, split: str) -> EpisodeSplit:
    return EpisodeSplit([folder], split)


@lru_cache(maxsize=4)
def _examples(folder: Path, split: str) -> tuple[Any, ExampleIndex, Any]:
    meta = open_meta(folder)
    tokens = map_tokens(folder / tokens_name(split), TOKEN_DTYPES[meta["token_dtype"]])
    mask_path = folder / mask_name(split)
    mask = map_tokens(mask_path, "|u1") if mask_path.is_file() else None
    return tokens, ExampleIndex(folder / index_name(split), len(tokens)), mask


def read_rows(folder: Path, split: str, form: str, own: Int64s, numbers: Int64s) -> TokenRows:
    """Some examples.

    Args:
        own: their numbers in the split. numbers: in the input.
    """
    if form == "episodes":
        return _read_episodes(folder, split, own, numbers)
    tokens, index, mask = _examples(folder, split)
    starts, stops = index.spans(own)
    ids, edges = _gathered(tokens, starts, stops)
    special = sentinels_of(folder, form)
    trained = _by_sentinels(ids, edges, special) if mask is None else _gathered(mask, starts, stops)[0] > 0
    return TokenRows(numbers, [f"{folder} {split} example {at}" for at in own.tolist()], ids, edges, trained)


def _by_sentinels(ids: Int64s, edges: Int64s, special: dict[str, int]) -> Any:
    """The mask that the loader would derive, row by row because spans end with rows."""
    named = {f"{name}_id": token for name, token in special.items()}
    spans = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return np.concatenate([np.zeros(0, np.bool_), *(assistant_mask(ids[a:b], **named) for a, b in spans)])


def _read_episodes(folder: Path, split: str, own: Int64s, numbers: Int64s) -> TokenRows:
    opened = _episodes(folder, split)
    shard, starts, lengths = opened.locate(opened.kept[own])
    ids, masks, edges = [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)], np.concatenate(([0], np.cumsum(lengths)))
    for at, start, stop in zip(shard.tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True):
        held = opened.shards[at]
        ids.append(held.tokens[start:stop].astype(np.int64))
        if held.mask is not None:
            masks.append(np.asarray(held.mask[start:stop]) > 0)
    trained = np.concatenate(masks) if opened.has_mask else None
    wheres = [f"{folder} {split} episode {at}" for at in own.tolist()]
    return TokenRows(numbers, wheres, np.concatenate(ids), edges, trained)


def _gathered(values: Any, starts: Int64s, stops: Int64s) -> tuple[Any, Int64s]:
    """Spans of a mapped file one after the other, int64, and their edges."""
    parts = [values[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    ids = np.concatenate([np.zeros(0, np.int64), *(part.astype(np.int64) for part in parts)])
    return ids, np.concatenate(([0], np.cumsum(stops - starts)))
