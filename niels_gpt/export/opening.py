"""A directory -> its splits, and each as a source."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.cache.formats import META_NAME
from niels_gpt.cache.meta import Meta, open_meta
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import is_episode_indexed_dataset
from niels_gpt.errors import CacheError
from niels_gpt.export.caches import Stream, sft_examples
from niels_gpt.export.episodes import episodes
from niels_gpt.export.source import Examples


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
        return episodes(path, split)
    meta = _meta(path)
    return sft_examples(path, split, meta) if meta["kind"] == "sft" else Stream(path, split, meta)


def _meta(path: Path) -> Meta:
    if path.is_dir() and not (path / META_NAME).is_file():
        raise CacheError(f"{path}: neither episodes (train/tokens.bin) nor a cache ({META_NAME}); nothing to export")
    return open_meta(path)
