"""Ways to iterate over the batches of a split: one after the other, from a thread, from worker processes.

::

    split_iterator   SplitIterator     what a loader holds for each split: the place of the next batch
    lookahead        Lookahead         small batches are made several at a time
    prefetch         Prefetch          a background thread makes batches while the last is used
    iterable         EpisodeIterable   for torch's DataLoader: worker w of W makes batches w, w + W, ...
    pass_starts      SharedStart       where the pass of each worker begins; in memory that all processes share
    workers          EpisodeWorkers    a DataLoader over it that records which batches were used

All give the same batches in the same order, and a state counts the batches that were handed out, never those that wait.
`SplitLoader` (split_loader.py) has a method for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names

if TYPE_CHECKING:
    from niels_gpt.episodes.iterate.iterable import EpisodeIterable
    from niels_gpt.episodes.iterate.lookahead import Lookahead
    from niels_gpt.episodes.iterate.prefetch import Prefetch
    from niels_gpt.episodes.iterate.split_iterator import SplitIterator
    from niels_gpt.episodes.iterate.workers import EpisodeWorkers

# By their names here, under which programs may have imported them when this was one file.
_MODULES = {
    "EpisodeIterable": "iterable",
    "EpisodeWorkers": "workers",
    "Lookahead": "lookahead",
    "Prefetch": "prefetch",
    "SplitIterator": "split_iterator",
}

__all__ = ["EpisodeIterable", "EpisodeWorkers", "Lookahead", "Prefetch", "SplitIterator"]

if not TYPE_CHECKING:  # else a type checker would accept any name
    __getattr__ = lazy_names(__name__, _MODULES)
