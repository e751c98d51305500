"""Types of manifest fields, and their checks.

Manifests are edited by hand and written by other tools, so every field that the package reads is checked when a
manifest is opened. Unknown keys are not validated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import CacheError, shown

REPAIR: Final = "Restore the file, or build again with --overwrite"
MOST_IDS: Final = 1 << 32  # token ids are at most uint32
_MOST: Final = (1 << 63) - 1  # what fits into int64, as which numpy and torch count


@dataclass(frozen=True)
class Field:
    """The type of a field: a description for messages, and a test."""

    expected: str
    fits: Callable[[Any], bool]

    def or_null(self) -> Field:
        """This type, or null."""
        return Field(f"{self.expected}, or null", lambda value: value is None or self.fits(value))


def integer(least: int = 0, most: int = _MOST) -> Field:
    """An integer from `least` to `most`; true and false are refused, although Python counts them as integers."""
    bounds = f"from {least:,} to {most:,}" if most < _MOST else f"of at least {least:,}"
    fits = lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most  # noqa: E731
    return Field(f"a whole number {bounds}", fits)


def one_of(values: Sequence[str]) -> Field:
    """One of these strings."""
    return Field(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


def objects_of(field: Field) -> Field:
    """An object whose values are all of one type."""

    def fits(value: Any) -> bool:
        return isinstance(value, dict) and all(map(field.fits, value.values()))

    return Field(f"an object in which each is {field.expected}", fits)


COUNT: Final = integer()
TEXT: Final = Field("a text", lambda value: isinstance(value, str))
OBJECT: Final = Field("an object", lambda value: isinstance(value, dict))
COUNTS: Final = objects_of(COUNT)
IDS: Final = objects_of(integer(0, MOST_IDS - 1))
VOCAB_SIZE: Final = integer(1, MOST_IDS)
FILE: Final = {
    "bytes": COUNT,
    "sha256": TEXT,
    "crc32_blocks": Field(
        "a run of eight hex digits for each block",
        lambda value: isinstance(value, str) and re.fullmatch("([0-9a-f]{8})*", value) is not None,
    ),
}


def check_fields(path: Path, values: Mapping[str, Any], fields: Mapping[str, Field], within: str = "") -> None:
    """Raise `CacheError` for the first of `fields` that is present with a wrong value.

    Args:
        path: the manifest, for the message.
        within: where in the manifest the values are, such as `splits.train.`.
    """
    for name, field in fields.items():
        if name in values and not field.fits(values[name]):
            raise CacheError(f"{path}: {within}{name} is {shown(values[name])}; expected {field.expected}. {REPAIR}")


def check_objects(path: Path, manifest: Mapping[str, Any], key: str, fields: Mapping[str, Field]) -> None:
    """Raise `CacheError` unless `manifest[key]` is an object of objects, each with all of `fields`."""
    check_fields(path, manifest, {key: OBJECT})
    for name, part in manifest[key].items():
        check_fields(path, {name: part}, {name: OBJECT}, f"{key}.")
        missing = [field for field in fields if field not in part]
        if missing:
            raise CacheError(f"{path}: {key}.{name} lacks {', '.join(missing)}. {REPAIR}")
        check_fields(path, part, fields, f"{key}.{name}.")
