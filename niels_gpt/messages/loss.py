"""Whether a message is trained, and how much: `train` and `weight`, under any of the names in use."""

from __future__ import annotations

from collections.abc import Sequence
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


def read_flags(fields: dict[str, Any], where: str, notes: Notes) -> dict[str, Any]:
    """A message with its flags as `train`, true or false.

    Raises:
        MessageError: a flag is neither true, false, 1 nor 0 (`wrong_flag`), or two contradict each other
            (`train_twice`).
    """
    found: dict[str, bool] = {}
    for name, trained in keys.FLAGS.items():
        value = fields.get(name)
        if value is None:
            continue
        # 1 and 0, also as JSON's 1.0; numpy's booleans are none of Python's, and equal them.
        if isinstance(value, str | bytes | list | dict) or not (value == 0 or value == 1):
            raise MessageError("wrong_flag", f"{where}{name} is {shown(value)}; expected true or false, or 1 or 0")
        found[name] = bool(value) is trained
    if not found:
        return fields
    if len(set(found.values())) > 1:
        both = " and ".join(f"{name} {fields[name]}" for name in found)
        raise MessageError("train_twice", f"{where}{both} contradict each other; drop one")
    if type(fields.get("train")) is bool and len(found) == 1:
        return fields
    notes.changes["loss_flag_read"] += 1
    rest = {key: value for key, value in fields.items() if key not in found}
    return {**rest, "train": next(iter(found.values()))}


def read_weights(fields: dict[str, Any], where: str, notes: Notes) -> dict[str, Any]:
    """A message with its share in the loss as `weight`, a float.

    Raises:
        MessageError: it is no number of 0 or more (`wrong_type`, `wrong_weight`), or two differ (`weight_twice`).
    """
    found = {name: fields[name] for name in keys.WEIGHTS if name in fields}
    for name, value in found.items():
        if not isinstance(value, int | float):
            raise wrong_type(where + name, value, "a number of 0 or more")
        # Written so that nan is refused, for which every comparison is false.
        if not 0 <= value <= MOST_WEIGHT:
            raise MessageError("wrong_weight", f"{where}{name} is {value}; expected a number of 0 or more")
    if not found:
        return fields
    if len(set(found.values())) > 1:
        both = " and ".join(f"{name} {value}" for name, value in found.items())
        raise MessageError("weight_twice", f"{where}{both} contradict each other; drop one")
    if found.keys() != {"weight"}:
        notes.changes["loss_flag_read"] += 1
    rest = {key: value for key, value in fields.items() if key not in found or key == "weight"}
    return {**rest, "weight": float(next(iter(found.values())))}
