"""Episodes: whole conversations, stored as flat files and read as batches of one fixed shape.

How a batch comes about, with the file that does each step::

    place (epoch, position)                          loader.py                where a split has been read to
      -> rows of the global batch, cut by rank       order/order.py           7 2 9 4 | 1 8 3 6
      -> episodes of each row                        packing.py               row 7 holds episodes 12 and 5
      -> spans: file, start, length                  rows.py, store/split.py  (shard 0, 4096, 300), (shard 0, 17, 211)
      -> ids and weights, gathered and checked       rows.py                  arrays of (batch_size, block_size + 1)
      -> Batch: x, y, mask, state, ...               source.py, batch.py      tensors of (batch_size, block_size)

All but the last two steps is arithmetic on (seed, epoch, position), so nothing is replayed on resume. A dataset of 10
episodes, read with batch_size 2 on 2 ranks, hence 4 rows a global batch::

    epoch 0      3 0 7 5 | 8 2 9 1 | 6 4         positions 0 to 9; with drop_last the rows 6 4 are left out
    rank 0       3 0       8 2
    rank 1           7 5       9 1

After the first batch the state is epoch 0, position 4, on both ranks. Resumed on 1 rank with batch_size 2 it continues
with rows 8 2, then 9 1, because positions count rows, not batches.

The other files::

    loader       `Loader`: batch after batch          episode_loader    what a training script opens
    order/       which rows come when: proportions, mixtures, checkpoint states
    settings     config, keywords, ranks              build     conversations or packed rows -> a dataset
    summary      what a dataset holds, in numbers     writer    arrays -> the files of one split, checked
    shard_stream shards of datasets in a store        stream    random windows of a token stream; `make_data_loader`

The files themselves are opened, checked and filtered in `niels_gpt.store`.
docs/episodes.md is for users; the commands are in `niels_gpt.cli.build` and `niels_gpt.cli.datasets`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names

if TYPE_CHECKING:
    from niels_gpt.episodes.batch import Batch
    from niels_gpt.episodes.build import build_episodes
    from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader, WindowLoader
    from niels_gpt.episodes.loader import Loader
    from niels_gpt.episodes.order.sampling import Sampling
    from niels_gpt.episodes.stream import GPTDataLoader, make_data_loader
    from niels_gpt.episodes.writer import EpisodeWriter

# Lazy, because building or inspecting a dataset should not import torch, nor a training job what only builders need.
_MODULES = {
    "Batch": "batch",
    "EpisodeWriter": "writer",
    "GPTDataLoader": "stream",
    "GPTEpisodeDataLoader": "episode_loader",
    "Loader": "loader",
    "Sampling": "order.sampling",
    "WindowLoader": "episode_loader",
    "build_episodes": "build",
    "make_data_loader": "stream",
}

__all__ = [
    "Batch",
    "EpisodeWriter",
    "GPTDataLoader",
    "GPTEpisodeDataLoader",
    "Loader",
    "Sampling",
    "WindowLoader",
    "build_episodes",
    "make_data_loader",
]

if not TYPE_CHECKING:  # else a type checker would accept any name
    __getattr__ = lazy_names(__name__, _MODULES)
