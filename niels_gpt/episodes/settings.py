"""What a loader is told: the config's attributes, keywords that win over them, and what a tokenizer knows."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import fields
from typing import Any, Protocol, runtime_checkable

import numpy as np

from niels_gpt.config import TrainingConfig
from niels_gpt.errors import UsageError


@runtime_checkable
class HashableTokenizer(Protocol):
    """A tokenizer whose hash datasets record."""

    def encode(self, text: str) -> list[int]: ...

    def special_token_ids(self) -> Mapping[str, int]: ...


def resolve(config: Any, mode: str, given: Mapping[str, Any]) -> tuple[TrainingConfig, int, int]:
    """The settings of document 002: a keyword if given, else the config's attribute, else the default.

    Returns:
        The settings, batch size and block size.

    Raises:
        UsageError: a value out of range, or no batch_size or block_size.
    """
    told = config if isinstance(config, Mapping) else _Attributes(config)
    found = {field.name: told.get(field.name) for field in fields(TrainingConfig)}
    found |= {name: value for name, value in given.items() if value is not None}
    values: dict[str, Any] = {name: _plain(value) for name, value in found.items() if value is not None}
    device = values.get("device", "cpu")
    values["device"] = f"cuda:{device}" if isinstance(device, int) else str(device)
    settings = TrainingConfig(**values | {"dataset_mode": mode})
    for name, value in (("batch_size", settings.batch_size), ("block_size", settings.block_size)):
        if value is None:
            raise UsageError(f"the config has no {name}; expected a positive whole number")
    return settings, settings.batch_size or 0, settings.block_size or 0


class _Attributes:
    """Any object's attributes as a mapping's `get`."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def get(self, name: str) -> Any:
        return getattr(self._held, name, None)


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def flag(value: bool) -> str:
    """As the log lines of document 002 write it."""
    return "true" if value else "false"


def known_vocab_size(given: int | None, config: Any, tokenizer: Any | None, recorded: int | None) -> int | None:
    """The first that is known of: the argument, the config's, the tokenizer's, the dataset's."""
    told = config if isinstance(config, Mapping) else _Attributes(config)
    for value in (given, told.get("vocab_size"), _ids_of(tokenizer)):
        if isinstance(value, int) and not isinstance(value, bool):
            if value < 1:
                raise UsageError(f"vocab_size is {value}; expected at least 1")
            return value
    return recorded


def _ids_of(tokenizer: Any | None) -> int | None:
    """How many ids a tokenizer has; `vocab_size` of Hugging Face's leaves out the added ones, which `len` counts."""
    size = getattr(tokenizer, "vocab_size", None)
    return max(size, len(tokenizer)) if isinstance(size, int) and isinstance(tokenizer, Sized) else size


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
