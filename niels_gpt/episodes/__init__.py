"""Episodes: whole conversations as batches of fixed shape (document 002).

::

    writer.py    conversations -> a dataset, whole or absent                       (needs what renders)
    encoders.py  conversations -> ids and weights: sentinels, or any renderer
    shards.py    the files of one split, as they are written
    packed.py    packed rows -> a dataset of their own
    cli.py       niels-gpt episodes build | pack | info | verify | show | config
    summary.py   a dataset in numbers            verify.py   what is wrong with one
    ---------------------------------------------------------------------------------------------------
    loader.py    GPTEpisodeDataLoader: what a training script opens                (numpy and torch alone)
    stream.py    GPTDataLoader: random windows of a token stream; make_data_loader chooses
    settings.py  config, keywords, tokenizer -> settings       ranks.py  which rank of how many
    views.py     the same batches for torch's DataLoader, and from a background thread
    opening.py   directories and settings -> a feed
    feed.py      place -> batch and next place, a pure function
    batch.py     what a batch carries            state.py    a place as a checkpoint keeps it
    reading.py   pieces of episodes -> rows of ids, weights and texts, checked
    schedule.py  which row comes at which position: every row, random, by weight
    groups.py    the same group by group         mixture.py  how much each group gives   members.py  rows as spans
    plans.py     packing plans, and counts.py    trained tokens, kept beside the dataset in files of planfile.py
    metadata.py  type, source and weight of each episode
    gather.py    pieces of files -> rows of an array
    dataset.py   one split, opened, checked      kept.py     and filtered
    format.py    names, records, manifest
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_gpt.episodes.batch import EpisodeBatch
    from niels_gpt.episodes.format import is_episode_indexed_dataset
    from niels_gpt.episodes.loader import GPTEpisodeDataLoader
    from niels_gpt.episodes.stream import GPTDataLoader, make_data_loader
    from niels_gpt.episodes.writer import EpisodeWriter, build_episodes

# Where each public name lives: whoever builds or inspects a dataset should not wait for torch, nor a training job load
# what only builders need.
_HOMES = {
    "EpisodeBatch": "batch",
    "EpisodeWriter": "writer",
    "GPTDataLoader": "stream",
    "GPTEpisodeDataLoader": "loader",
    "build_episodes": "writer",
    "is_episode_indexed_dataset": "format",
    "make_data_loader": "stream",
}

__all__ = [
    "EpisodeBatch",
    "EpisodeWriter",
    "GPTDataLoader",
    "GPTEpisodeDataLoader",
    "build_episodes",
    "is_episode_indexed_dataset",
    "make_data_loader",
]


def __getattr__(name: str) -> Any:
    """Import a public name's module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
