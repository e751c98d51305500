"""What reading a conversation notes, and the small functions with which messages are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from niels_gpt.errors import MessageError


class Notes:
    """What became of what the caller wrote; see `Normalised`."""

    __slots__ = ("changes", "unread")

    def __init__(self) -> None:
        # Made for every conversation; a `Counter` takes ten times as long to make.
        self.changes: defaultdict[str, int] = defaultdict(int)
        self.unread: defaultdict[str, int] = defaultdict(int)

    def count_unread(self, owner: str, fields: Mapping[str, Any], known: frozenset[str]) -> None:
        """Count the keys of a message, part, call or tool that are not among the known ones."""
        if not fields.keys() <= known:
            for key in fields:
                if key not in known:
                    self.unread[f"{owner}.{key}"] += 1


def without_nothing(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without nulls, which Arrow adds for every key that any row has, and without empty lists."""
    return {key: value for key, value in fields.items() if value is not None and (value or type(value) is not list)}


def wrong_type(where: str, value: object, expected: str) -> MessageError:
    """The error of a value of a wrong type."""
    return MessageError("wrong_type", f"{where} is {shown(value)}; expected {expected}")


def shown(value: object) -> str:
    """A value as errors quote it: the beginning of its `repr`, and its type."""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
