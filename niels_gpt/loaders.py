"""`loader_of`: the arguments of `ng.loader` -> the loader for the kind of dataset that is there.

::

    episodes, a recipe's build   GPTEpisodeDataLoader     pretraining caches   WindowLoader
    preferences                  PreferenceLoader
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader, WindowLoader, are_token_caches
from niels_gpt.episodes.loader import Loader
from niels_gpt.episodes.order.mixture import Mixture, mixture_for
from niels_gpt.episodes.order.sampling import Sampling
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


def loader_of(path: Any, asked: dict[str, Any], options: dict[str, Any]) -> Loader[Any]:
    """The loader of a dataset, opened.

    Args:
        path, asked: the parameters of `ng.loader` that concern the rows, `None` where they were not passed.
        options: its further options.

    Raises:
        CacheError: no such dataset.
        UsageError: no row length, an option that this kind of dataset does not have, or another name of an argument.
    """
    for name in options:
        if name in _OTHER_NAMES:
            raise UsageError(f"found {name}; ng.loader takes {_OTHER_NAMES[name]} in its place")
    if isinstance(path, Iterator):  # the first directory, which shows the kind, is looked at more than once
        path = list(path)
    length, packing = asked["sequence_length"], asked["packing"]
    # A recipe's build comes first: it is a directory of datasets with its own mixture, row length and packing.
    mixture = mixture_for(path, sequence_length=length, packing=packing, too_long=options.get("too_long"))
    if mixture is None and length is None:
        raise UsageError("sequence_length is missing; pass the number of inputs of a row (only recipes record it)")
    if mixture is None and kind_of(path) == "preferences":
        _refuse(path, "preferences", asked, "packing", "sampling", "cache_dir", "cache_bytes")
        same = {name: asked[name] for name in ("batch_size", "sequence_length", "shuffle", "device", "pad_token_id")}
        return PreferenceLoader(path, seed=DEFAULT_SEED if asked["seed"] is None else asked["seed"], **same, **options)
    cache = _shard_cache(asked)
    keywords = options | _order(asked, mixture) | {"pad_token_id": asked["pad_token_id"], "shard_cache": cache}
    # The contract's name of the sequence length is block_size.
    config = {"batch_size": asked["batch_size"], "block_size": length, "device": asked["device"]}
    if mixture is not None:
        path, config["block_size"] = list(mixture.folders), mixture.sequence_length
        return GPTEpisodeDataLoader(config, None, path, packing=mixture.packing, **keywords)
    if are_token_caches(path, cache):
        _refuse(path, "windows", asked, "packing")
        return WindowLoader(config, None, path, **keywords)
    return GPTEpisodeDataLoader(config, None, path, packing=packing, **keywords)


def _refuse(path: Any, kind: str, asked: dict[str, Any], *names: str) -> None:
    """Raise `UsageError` for an argument that is set, of which this kind of dataset has none."""
    # packing=False is what such a dataset does anyway.
    if passed := [name for name in names if asked[name] not in (None, False)]:
        raise UsageError(f"{path}: a dataset of {kind}, which have no {' or '.join(passed)}; leave it out")


def _order(asked: dict[str, Any], mixture: Mixture | None) -> dict[str, Any]:
    """Order and proportions as keywords of a loader; they default to the recipe's.

    Raises:
        UsageError: `sampling` beside `seed` or `shuffle`.
    """
    sampling, seed, shuffle = asked["sampling"], asked["seed"], asked["shuffle"]
    if sampling is not None and (seed is not None or not shuffle):
        raise UsageError("found sampling and seed or shuffle; put all of it into the Sampling")
    if mixture is not None:
        seed = mixture.seed if seed is None else seed
        chosen = sampling or Sampling(seed=seed, shuffle=shuffle, phases=mixture.phases)
        return {"sampling": chosen, "too_long": mixture.too_long}
    if sampling is not None:
        return {"sampling": sampling}
    return {"epoch_shuffle": shuffle, "epoch_seed": DEFAULT_SEED if seed is None else seed}


def _shard_cache(asked: dict[str, Any]) -> ShardCache | None:
    """The local cache of the shards of datasets in a store.

    Raises:
        UsageError: the size of a cache without its directory.
    """
    folder, room = asked["cache_dir"], asked["cache_bytes"]
    if folder is not None:
        return ShardCache(Path(folder), MAX_BYTES if room is None else room)
    if room is not None:
        raise UsageError(f"cache_bytes is {room!r} without a cache_dir; pass the directory of the cache")
    return None
