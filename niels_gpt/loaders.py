"""`loader_of`: the arguments of `ng.loader` -> the loader for the kind of dataset that is there.

::

    episodes, a recipe's build   GPTEpisodeDataLoader     pretraining caches   WindowLoader
    preferences                  PreferenceLoader
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.mixture import Mixture, mixture_for
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.episodes.split_loader import SplitLoader
from niels_gpt.episodes.windows import WindowLoader, are_token_caches
from niels_gpt.errors import UsageError
from niels_gpt.preferences.loader import PreferenceLoader
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.store.kinds import kind_of
from niels_gpt.store.shard_cache import MAX_BYTES, ShardCache

# Parameters of the loaders' classes for which `ng.loader` has a parameter of its own.
_OTHER_NAMES: Final = {
    "dataset_dir": "path",
    "paths": "path",
    "config": "batch_size, sequence_length and device",
    "block_size": "sequence_length",
    "epoch_seed": "seed",
    "epoch_shuffle": "shuffle",
    "shard_cache": "cache_dir and cache_bytes",
}


@dataclass(frozen=True)
class LoaderRequest:
    """The arguments of `ng.loader` that concern the rows; see there. `None`: not passed."""

    path: str | Path | Sequence[str | Path] | Mapping[str | Path, float]
    batch_size: int
    sequence_length: int | None
    packing: bool | None
    seed: int | None
    shuffle: bool
    sampling: Sampling | None
    pad_token_id: int | None
    device: str
    cache_dir: str | Path | None
    cache_bytes: int | None
    options: Mapping[str, Any]

    @property
    def of_preferences(self) -> dict[str, Any]:
        """The keywords of the loader of preferences."""
        return {
            "batch_size": self.batch_size,
            "sequence_length": self.sequence_length,
            "device": self.device,
            "pad_token_id": self.pad_token_id,
            "seed": DEFAULT_SEED if self.seed is None else self.seed,
            "shuffle": self.shuffle,
        }

    def refuse(self, kind: str, *names: str) -> None:
        """Raise `UsageError` for an argument that is set, of which this kind of dataset has none."""
        # packing=False is what such a dataset does anyway.
        if passed := [name for name in names if getattr(self, name) not in (None, False)]:
            raise UsageError(f"{self.path}: a dataset of {kind}, which have no {' or '.join(passed)}; leave it out")


def loader_of(asked: LoaderRequest) -> SplitLoader[Any]:
    """The loader of a dataset, opened.

    Raises:
        CacheError: no such dataset.
        UsageError: no row length, an option that this kind of dataset does not have, or another name of an argument.
    """
    for name in asked.options:
        if name in _OTHER_NAMES:
            raise UsageError(f"found {name}; ng.loader takes {_OTHER_NAMES[name]} in its place")
    if isinstance(asked.path, Iterator):  # the first directory, which shows the kind, is looked at more than once
        asked = replace(asked, path=list(asked.path))
    # A recipe's build comes first: it is a directory of datasets with its own mixture, row length and packing.
    too_long = asked.options.get("too_long")
    mixture = mixture_for(asked.path, sequence_length=asked.sequence_length, packing=asked.packing, too_long=too_long)
    if mixture is None and asked.sequence_length is None:
        raise UsageError("sequence_length is missing; pass the number of inputs of a row (only recipes record it)")
    if mixture is not None:
        return _episode_loader(asked, mixture)
    kind = kind_of(asked.path)
    if kind == "preferences":
        asked.refuse("preferences", "packing", "sampling", "cache_dir", "cache_bytes")
        paths: Any = asked.path
        return PreferenceLoader(paths, **asked.of_preferences, **asked.options)
    if are_token_caches(asked.path, _shard_cache(asked)):
        asked.refuse("windows", "packing")
        return WindowLoader(_sizes(asked, asked.sequence_length), dataset_dir=asked.path, **_settings(asked, None))
    return _episode_loader(asked, None)


def _episode_loader(asked: LoaderRequest, mixture: Mixture | None) -> GPTEpisodeDataLoader:
    """The loader of episodes; what a recipe built (`mixture`) names its folders, row length and packing itself."""
    settings, path, length = _settings(asked, mixture), asked.path, asked.sequence_length
    packing = False if asked.packing is None else asked.packing
    if mixture is not None:
        path, length, packing = list(mixture.folders), mixture.sequence_length, mixture.packing
    return GPTEpisodeDataLoader(_sizes(asked, length), dataset_dir=path, packing=packing, **settings)


def _sizes(asked: LoaderRequest, length: int | None) -> dict[str, Any]:
    # The contract's name of the sequence length is block_size.
    return {"batch_size": asked.batch_size, "block_size": length, "device": asked.device}


def _settings(asked: LoaderRequest, mixture: Mixture | None) -> dict[str, Any]:
    """Order, proportions, padding and the cache of shards as keywords; order and proportions default to the recipe's.

    Raises:
        UsageError: `sampling` beside `seed` or `shuffle`.
    """
    if asked.sampling is not None and (asked.seed is not None or not asked.shuffle):
        raise UsageError("found sampling and seed or shuffle; put all of it into the Sampling")
    order: dict[str, Any] = {"sampling": asked.sampling}
    if mixture is not None:
        seed = mixture.seed if asked.seed is None else asked.seed
        chosen = asked.sampling or Sampling(seed=seed, shuffle=asked.shuffle, phases=mixture.phases)
        order = {"sampling": chosen, "too_long": mixture.too_long}
    elif asked.sampling is None:
        order = {"epoch_shuffle": asked.shuffle, "epoch_seed": DEFAULT_SEED if asked.seed is None else asked.seed}
    shards = {"pad_token_id": asked.pad_token_id, "shard_cache": _shard_cache(asked)}
    return {**asked.options, **order, **shards}


def _shard_cache(asked: LoaderRequest) -> ShardCache | None:
    """The local cache of the shards of datasets in a store.

    Raises:
        UsageError: the size of a cache without its directory.
    """
    if asked.cache_dir is not None:
        return ShardCache(Path(asked.cache_dir), MAX_BYTES if asked.cache_bytes is None else asked.cache_bytes)
    if asked.cache_bytes is not None:
        raise UsageError(f"cache_bytes is {asked.cache_bytes!r} without a cache_dir; pass the directory of the cache")
    return None
