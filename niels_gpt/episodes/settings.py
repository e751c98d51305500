"""What a loader is configured with: config, keywords, tokenizer, rank, dataset directories.

A setting may come from three places. A keyword of the loader's constructor wins over the config's attribute, which wins
over the default; what neither names may follow from the tokenizer (pad id, vocabulary size), from the dataset's
manifest (vocabulary size) or from `torch.distributed` (rank and world size).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from niels_gpt.config import TrainingConfig
from niels_gpt.errors import UsageError, did_you_mean, shown, without_passwords
from niels_gpt.format.collate import checked_device
from niels_gpt.ranges import RANK, TOKEN_ID, VOCAB_SIZE, WORLD_SIZE
from niels_gpt.required_torch import torch
from niels_gpt.store.published import StreamedDataset, is_url, open_streamed
from niels_gpt.store.shard_cache import ShardCache
from niels_gpt.store.split import IndexedSplit
from niels_gpt.store.tokenizer_hash import check_built_with

MODES: Final = ("token_stream", "sft_episode")

Dirs = str | Path | Sequence[str | Path] | Mapping[str | Path, float] | Mapping[str, float]


@runtime_checkable
class HashableTokenizer(Protocol):
    """A tokenizer whose hash dataset manifests record."""

    def encode(self, text: str) -> list[int]: ...

    def special_token_ids(self) -> Mapping[str, int]: ...


def attribute(config: Any, name: str) -> Any:
    """A config's value of `name`: a mapping's item or an object's attribute; `None` if there is none.

    Every loader reads its config through this function, so mappings and objects mean the same everywhere.
    """
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def dataset_mode(config: Any, keyword: Any = None) -> str:
    """The `dataset_mode` keyword, else the config's, else "token_stream".

    Raises:
        UsageError: the mode does not exist.
    """
    mode = attribute(config, "dataset_mode") if keyword is None else keyword
    if mode is None:
        return "token_stream"
    if not isinstance(mode, str) or mode not in MODES:
        near = did_you_mean(mode, MODES) if isinstance(mode, str) else ""
        raise UsageError(f"dataset_mode is {shown(mode)}; expected {' or '.join(MODES)}{near}")
    return mode


def check_keywords(name: str, given: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The keywords of a loader that were passed, without those that are `None`.

    Raises:
        UsageError: the loader has no such keyword.
    """
    if unknown := [keyword for keyword in given if keyword not in known]:
        near = did_you_mean(unknown[0], known)
        raise UsageError(f"{name} has no {unknown[0]!r}; its keywords are {', '.join(known)}{near}")
    return {keyword: value for keyword, value in given.items() if value is not None}


def resolve(config: Any, mode: str, keywords: Mapping[str, Any]) -> tuple[TrainingConfig, int, int]:
    """The training settings: each a keyword that is not `None`, else the config's attribute, else the default.

    A config with the other, existing mode is accepted: the caller chose by calling this loader's constructor.

    Returns:
        The settings, the batch size and the block size.

    Raises:
        UsageError: a value out of range, an unknown keyword or mode, or no batch_size or block_size.
    """
    dataset_mode(config, keywords.get("dataset_mode"))  # raises for a mode that does not exist
    found = {name: attribute(config, name) for name in TrainingConfig.model_fields}
    # Keywords last, because they win over the config.
    found |= {name: value for name, value in keywords.items() if value is not None}
    # A numpy scalar becomes the Python number that `TrainingConfig` expects.
    values: dict[str, Any] = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in found.items()
        if value is not None
    }
    # Checked here: torch would fail at the first batch, deep inside training.
    values["device"] = str(checked_device(values.get("device", "cpu")))
    settings = TrainingConfig(**values | {"dataset_mode": mode})
    for name, value in (("batch_size", settings.batch_size), ("block_size", settings.block_size)):
        if value is None:
            raise UsageError(f"the config has no {name}; expected a positive whole number")
    return settings, settings.batch_size or 0, settings.block_size or 0


def parse_dataset_dirs(dataset_dir: Dirs | None) -> tuple[list[str], dict[str, float] | None]:
    """The datasets' names (directories or URLs, as weights refer to them), and the proportions of a mixture.

    Raises:
        UsageError: there is no directory, or one is named twice.
    """
    if dataset_dir is None:
        raise UsageError("no dataset_dir; pass the directory that holds train/ and val/")
    # bytes can also be iterated, and would become a list of numbers.
    if isinstance(dataset_dir, bytes) or not isinstance(dataset_dir, Path | Iterable):
        raise UsageError(
            f"dataset_dir is {shown(dataset_dir)}; expected a directory, several, or a mapping from directories to "
            "proportions"
        )
    names = [str(dataset_dir)] if isinstance(dataset_dir, str | Path) else [str(name) for name in dataset_dir]
    if not names:
        raise UsageError("dataset_dir is empty; pass at least one directory that holds train/ and val/")
    # Weights refer to names, and a state to positions in this list. Without `normpath`, a and a/ would be two.
    if len(set(map(os.path.normpath, names))) < len(names):
        raise UsageError(f"dataset_dir names a directory twice: {', '.join(names)}; name each once, with a proportion")
    mixture = None
    if isinstance(dataset_dir, Mapping):
        mixture = {str(name): share for name, share in dataset_dir.items()}
    return names, mixture


def open_urls(names: list[str], cache: ShardCache | None) -> tuple[list[Path], dict[Path, StreamedDataset]]:
    """The directory of each dataset, and those of them whose tokens are in a store.

    Raises:
        UsageError: a URL without a cache, or a cache without a URL. Else see `open_streamed`.
    """
    urls = [name for name in names if is_url(name)]
    if urls and cache is None:
        raise UsageError(
            f"{without_passwords(urls[0])} is a URL, and there is no cache_dir; pass the local directory that keeps "
            "its shards: ng.loader(..., cache_dir=...), or to a loader's class shard_cache=ShardCache(...)"
        )
    if cache is None:
        return [Path(name) for name in names], {}
    if not urls:
        raise UsageError(f"found a cache of shards, and no URL among {', '.join(names)}; leave cache_dir out")
    opened = {name: open_streamed(name, cache) for name in urls}
    dirs = [opened[name].folder if name in opened else Path(name) for name in names]
    return dirs, {dataset.folder: dataset for dataset in opened.values()}


def ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: the arguments, else those of torch.distributed if it is initialised, else 0 and 1.

    Raises:
        UsageError: only one of the two is passed, or the rank is outside 0 to world_size - 1.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {rank} and world_size {world_size}; expected both or neither")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1
    # Both passed: a program may have its own groups of processes, so these need not be torch.distributed's.
    rank, world_size = RANK.whole(rank), WORLD_SIZE.whole(world_size)
    if rank >= world_size:
        raise UsageError(f"rank is {rank} of world_size {world_size}; expected a whole number below the world size")
    return rank, world_size


def check_tokenizer(split: IndexedSplit, tokenizer: Any | None) -> None:
    """Raise `Mismatch` if a dataset was built with another tokenizer; one that cannot be hashed is not checked."""
    if not isinstance(tokenizer, HashableTokenizer):
        return
    for dataset, manifest in zip(split.datasets, split.manifests, strict=True):
        # Other programs write no manifest; and encoders that cannot be hashed leave the hash out.
        recorded = manifest.get("tokenizer_sha256") if manifest else None
        if recorded is not None:
            check_built_with(recorded, tokenizer, dataset)


def resolve_vocab_size(argument: int | None, config: Any, tokenizer: Any | None, recorded: int | None) -> int | None:
    """The vocabulary size: the argument, else the config's, the tokenizer's, or the one that the dataset records.

    Raises:
        UsageError: the argument's or the config's is not a positive whole number.
    """
    for value in (argument, attribute(config, "vocab_size")):
        if value is not None:
            return VOCAB_SIZE.whole(value)
    # SentencePiece has it as a method, transformers as an attribute, other tokenizers not at all.
    size = getattr(tokenizer, "vocab_size", None)
    size = size() if callable(size) else size
    if not isinstance(size, int):
        return recorded
    # In transformers, vocab_size leaves out the added tokens, which len() counts.
    return max(size, len(tokenizer)) if isinstance(tokenizer, Sized) else size


def resolve_pad_id(setting: int | None, tokenizer: Any | None, recorded: int | None, vocab_size: int | None) -> int:
    """The pad id: the keyword's or config's, else the end-of-sequence id of the tokenizer or of the dataset's manifest.

    Raises:
        UsageError: there is none, or the id is outside the vocabulary or above 32 bits.
    """
    pad = setting
    if pad is None:
        pad = _eos_id(tokenizer)
    if pad is None:
        pad = recorded
    if pad is None:
        raise UsageError(
            "no pad_token_id, no tokenizer with an eos, and no eos in the dataset's manifest; pass pad_token_id=. Any "
            "id of the vocabulary will do: padding is masked by its position, never by its value"
        )
    TOKEN_ID.whole(pad, "pad_token_id")
    # A model looks up the embedding of padding like that of any other id.
    if vocab_size is not None and pad >= vocab_size:
        raise UsageError(f"pad_token_id is {pad} but the vocabulary has {vocab_size:,} ids; pass one of them")
    return pad


def _eos_id(tokenizer: Any | None) -> int | None:
    for name in ("eos_id", "eos_token_id"):  # SentencePiece has the former as a method, transformers the latter
        value = getattr(tokenizer, name, None)
        value = value() if callable(value) else value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:  # SentencePiece's -1: there is none
            return value
    if isinstance(tokenizer, HashableTokenizer):
        return tokenizer.special_token_ids().get("eot")  # our own tokenizer has no eos; eot ends every turn
    return None


def flag(value: bool) -> str:
    """A bool as the loaders' log lines write it."""
    return "true" if value else "false"


_logger = logging.getLogger("niels_gpt")


class _StderrHandler(logging.Handler):
    """Prints messages to the current `sys.stderr`, unless the root logger has a handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr)


def ensure_log_output() -> None:
    """Send the package's log lines to stderr if the program has not set up logging; may be called repeatedly."""
    # Python drops lines below WARNING unless logging is set up, which few training scripts do, and the loaders' lines
    # about epochs are meant to be seen. A program that sets up logging, even later (a handler, or a level of the logger
    # "niels_gpt"), decides for itself.
    if not _logger.hasHandlers() and _logger.level == logging.NOTSET:
        _logger.addHandler(_StderrHandler())
        _logger.setLevel(logging.INFO)
