"""Whether a message is trained, and how much: `train` and `weight`, under any of the names in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.messages import keys
from niels_gpt.messages.notes import Notes, shown, wrong_type
from niels_gpt.messages.types import Message

MOST_WEIGHT: Final = 3.4028234663852886e38  # the largest float32; more would be infinite in a mask


def weight_of(message: Message) -> float:
    """The weight of a normalised message in the loss: its `weight` (default 1), or 0 with `train: false`."""
    return 0.0 if message.get("train") is False else float(message.get("weight", 1.0))


def is_untrained(messages: Sequence[Message]) -> bool:
    """Whether every assistant message is excluded from the loss by `weight: 0` or `train: false`. False without any."""
    weights = [weight_of(message) for message in messages if message["role"] == "assistant"]
    return bool(weights) and not any(weights)


def read_loss(fields: dict[str, Any], where: str, notes: Notes) -> dict[str, Any]:
    """A message with its flags as `train`, true or false, and its share in the loss as `weight`, a float.

    Raises:
        MessageError: a flag is neither true, false, 1 nor 0 (`wrong_flag`), a share no number of 0 or more
            (`wrong_type`, `wrong_weight`), or two of either contradict each other (`train_twice`, `weight_twice`).
    """
    flags = {name: fields[name] for name in keys.FLAGS if fields.get(name) is not None}
    for name, value in flags.items():
        # 1 and 0, also as JSON's 1.0; numpy's booleans are none of Python's, and equal them.
        if isinstance(value, str | bytes | list | dict) or not (value == 0 or value == 1):
            raise MessageError("wrong_flag", f"{where}{name} is {shown(value)}; expected true or false, or 1 or 0")
    shares = {name: fields[name] for name in keys.WEIGHTS if name in fields}
    for name, value in shares.items():
        if not isinstance(value, int | float):
            raise wrong_type(where + name, value, "a number of 0 or more")
        # Written so that nan is refused, for which every comparison is false.
        if not 0 <= value <= MOST_WEIGHT:
            raise MessageError("wrong_weight", f"{where}{name} is {value}; expected a number of 0 or more")
    trained = {name: bool(value) is keys.FLAGS[name] for name, value in flags.items()}
    weights: dict[str, float] = {name: float(value) for name, value in shares.items()}
    fields = _as_one("train", trained, fields, where, notes)
    return _as_one("weight", weights, fields, where, notes)


def _as_one(name: str, found: Mapping[str, Any], fields: dict[str, Any], where: str, notes: Notes) -> dict[str, Any]:
    """The message with one value under its own name, in the place of those that were found under any."""
    if not found:
        return fields
    if len(set(found.values())) > 1:
        both = " and ".join(f"{key} {fields[key]}" for key in found)
        raise MessageError(f"{name}_twice", f"{where}{both} contradict each other; drop one")
    value = next(iter(found.values()))
    if found.keys() != {name} or (name == "train" and type(fields[name]) is not bool):
        notes.changes["loss_flag_read"] += 1
    return {key: one for key, one in fields.items() if key == name or key not in found} | {name: value}
