"""`WindowLoader`: a pretraining cache as batches of one fixed shape, on disk or in a store; resumable, on all ranks.

Rows are windows of neighbouring tokens, wherever documents begin or end in them: see `shards` for how a shard is cut.
An epoch has every window once, so every token of a shard but its first is a target once. `PretrainTokenStreamDataset`
and `GPTDataLoader` draw windows at random places instead, with replacement, and have no epochs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.episodes.settings import Dirs
from niels_gpt.errors import UsageError
from niels_gpt.store.kinds import first_of, open_meta
from niels_gpt.store.published import is_url, open_streamed
from niels_gpt.store.schema import META_NAME
from niels_gpt.store.shard_cache import ShardCache
from niels_gpt.store.split import IndexedSplit

# The options of the loader of episodes that windows have, too; others name what windows lack: masks, texts, packing.
ORDER: Final = (
    "batch_sampling_mode",
    "epoch_shuffle",
    "epoch_drop_last",
    "epoch_seed",
    "shuffle_shards",
    "weight_by",
    "weights",
    "temperature",
)


class WindowLoader(GPTEpisodeDataLoader):
    """Batches of shape `(batch_size, block_size)` from pretraining caches, as `niels-gpt cache build-pretrain` makes.

    It has the methods and states of `GPTEpisodeDataLoader`: `next_batch`, `prefetch`, `as_dataloader`, `state_dict`.
    In a batch the numbers in `episodes` are those of windows. Only the last window of a shard may be shorter than a
    row; what fills it is not trained.

    Documents are not separated: a window is one text, without `segment_ids`, and attention sees across the separators.
    Where it must not, the separators say where documents begin; their ids are in `separator_ids` of `meta.json`, the
    `after` each document (eos) and the `before` (bos)::

        ends = torch.isin(batch.x, torch.tensor(meta["separator_ids"]["after"]))
        document = ends.cumsum(1) - ends.int()      # x  a b E c d E    document  0 0 0 1 1 1

    The first token of a document is then a target that its own document does not predict, which `mask` keeps.

    Args:
        config: a mapping or any object with `batch_size`, `block_size` and `device`.
        tokenizer: if passed, the one that the caches must have been built with; its eos id fills rows.
        dataset_dir: the cache's directory or URL, several as a list, or a mixture as a mapping to proportions.
        sampling: order and proportions; the keywords of `GPTEpisodeDataLoader` for these are accepted too.
        pad_token_id, vocab_size, rank, world_size, shard_cache: as for `GPTEpisodeDataLoader`.
        order: `epoch_shuffle`, `epoch_drop_last`, `epoch_seed`, `weights`, `temperature`, `shuffle_shards`.

    Raises:
        UsageError: an argument out of range, or no pad id. CacheError: no such cache, or a damaged one.
        StorageError: a store, or the disk of the cache of shards, refused.
        Mismatch: a cache was built with another tokenizer.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any | None = None,
        dataset_dir: Dirs | None = None,
        *,
        sampling: Sampling | None = None,
        pad_token_id: int | None = None,
        vocab_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        shard_cache: ShardCache | None = None,
        **order: Any,
    ) -> None:
        if unknown := [name for name in order if name not in ORDER]:
            raise UsageError(f"WindowLoader has no {unknown[0]!r}; its options of the order are {', '.join(ORDER)}")
        # Before anything is opened, because the loader of episodes would ask for a file of metadata, which caches lack.
        weight_by = sampling.weight_by if sampling is not None else order.get("weight_by")
        if weight_by not in (None, "dataset"):
            raise UsageError(f"weight_by is {weight_by!r}; windows have no type or source, only a 'dataset'")
        # Masks, texts, packing and images keep their defaults, "none": a cache has no files for them.
        super().__init__(
            config,
            tokenizer,
            dataset_dir,
            sampling=sampling,
            pad_token_id=pad_token_id,
            vocab_size=vocab_size,
            rank=rank,
            world_size=world_size,
            shard_cache=shard_cache,
            **order,
        )

    def _open_split(self, split: str) -> IndexedSplit:
        # Nothing is filtered or too long: a window has two tokens at least, and one row's at most.
        return IndexedSplit(self._dirs, split, streamed=self._streamed, window=self.block_size)

    def _more_of(self, split: IndexedSplit) -> str:
        """What the log says of a split besides its number of windows."""
        return f"tokens={split.n_tokens}"


def are_token_caches(names: Any, cache: ShardCache | None) -> bool:
    """Whether the first of some datasets is a pretraining cache, on this disk or in a store.

    Raises:
        CacheError, StorageError: as `open_streamed` and `open_meta`.
    """
    # The first decides. Where others are of another kind, the loader that is chosen says so when it opens them.
    first = first_of(names)
    if first is None:
        return False
    if is_url(first):
        return cache is not None and open_streamed(str(first), cache).is_token_cache
    return (Path(first) / META_NAME).is_file() and open_meta(Path(first))["kind"] == "pretrain"
