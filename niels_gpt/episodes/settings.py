"""What a loader is told: the config's attributes, keywords that win over them, and what a tokenizer knows."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import fields
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from niels_gpt.config import TrainingConfig
from niels_gpt.errors import UsageError, did_you_mean, shown
from niels_gpt.format.collate import checked_device
from niels_gpt.ranges import VOCAB_SIZE

MODES: Final = ("token_stream", "sft_episode")


@runtime_checkable
class HashableTokenizer(Protocol):
    """A tokenizer whose hash datasets record."""

    def encode(self, text: str) -> list[int]: ...

    def special_token_ids(self) -> Mapping[str, int]: ...


def attribute(config: Any, name: str) -> Any:
    """What a config says of `name`: a mapping's value or an object's attribute; `None` if it says nothing.

    Every loader reads its config through this function, so mappings and objects mean the same everywhere.
    """
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def dataset_mode(config: Any, given: Any = None) -> str:
    """The mode that a keyword names, else the config, else "token_stream".

    Raises:
        UsageError: another mode.
    """
    mode = attribute(config, "dataset_mode") if given is None else given
    if mode is None:
        return "token_stream"
    if not isinstance(mode, str) or mode not in MODES:
        near = did_you_mean(mode, MODES) if isinstance(mode, str) else ""
        raise UsageError(f"dataset_mode is {shown(mode)}; expected {' or '.join(MODES)}{near}")
    return mode


def resolve(config: Any, mode: str, given: Mapping[str, Any]) -> tuple[TrainingConfig, int, int]:
    """The settings of document 002: a keyword if given, else the config's attribute, else the default.

    A config that names the other mode is accepted, because who makes a loader of one kind has chosen; a mode that does
    not exist is refused.

    Returns:
        The settings, batch size and block size.

    Raises:
        UsageError: a value out of range, an unknown keyword or mode, or no batch_size or block_size.
    """
    names = [field.name for field in fields(TrainingConfig)]
    for name in given:
        if name not in names:
            raise UsageError(
                f"{name!r} is no option of a loader with dataset_mode {mode!r}; expected one of {', '.join(names)}"
                f"{did_you_mean(name, names)}"
            )
    dataset_mode(config, given.get("dataset_mode"))
    found = {name: attribute(config, name) for name in names}
    found |= {name: value for name, value in given.items() if value is not None}
    values: dict[str, Any] = {name: _plain(value) for name, value in found.items() if value is not None}
    values["device"] = str(checked_device(values.get("device", "cpu")))
    settings = TrainingConfig(**values | {"dataset_mode": mode})
    for name, value in (("batch_size", settings.batch_size), ("block_size", settings.block_size)):
        if value is None:
            raise UsageError(f"the config has no {name}; expected a positive whole number")
    return settings, settings.batch_size or 0, settings.block_size or 0


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def flag(value: bool) -> str:
    """As the log lines of document 002 write it."""
    return "true" if value else "false"


def known_vocab_size(given: int | None, config: Any, tokenizer: Any | None, recorded: int | None) -> int | None:
    """The first that is known of: the argument, the config's, the tokenizer's, the dataset's.

    Raises:
        UsageError: one of the first two is no positive whole number.
    """
    for value in (given, attribute(config, "vocab_size")):
        if value is not None:
            return VOCAB_SIZE.whole(value)
    found = _ids_of(tokenizer)
    return recorded if found is None else found


def _ids_of(tokenizer: Any | None) -> int | None:
    """How many ids a tokenizer has; `vocab_size` of Hugging Face's leaves out the added ones, which `len` counts."""
    size = getattr(tokenizer, "vocab_size", None)
    size = size() if callable(size) else size
    if not isinstance(size, int):
        return None
    return max(size, len(tokenizer)) if isinstance(tokenizer, Sized) else size


def chosen_pad_id(given: int | None, tokenizer: Any | None, vocab_size: int | None) -> int:
    """Document 002: the config's pad id, else the tokenizer's eos."""
    pad = _eos_id(tokenizer) if given is None else given
    if pad is None:
        raise UsageError(
            "no pad_token_id in the config and no tokenizer with an eos; pass pad_token_id=, or the tokenizer"
        )
    if vocab_size is not None and pad >= vocab_size:
        raise UsageError(f"pad_token_id is {pad} but the vocabulary has {vocab_size:,} ids; pass one of them")
    if pad >= 2**32:
        raise UsageError(f"pad_token_id is {pad}; ids have 32 bits")
    return pad


def _eos_id(tokenizer: Any | None) -> int | None:
    """As tokenizers of several libraries spell it; our own ends its turns with `eot`."""
    for name in ("eos_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        value = value() if callable(value) else value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    if isinstance(tokenizer, HashableTokenizer):
        return tokenizer.special_token_ids().get("eot")
    return None
