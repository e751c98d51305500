"""All formats by name."""

from __future__ import annotations

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.export.formats import Format
from niels_gpt.export.hf import HF, TRL

FORMATS: dict[str, Format] = {format.name: format for format in (HF, TRL)}


def format_named(name: str) -> Format:
    """The format of this name.

    Raises:
        UsageError: there is none; the nearest name is suggested.
    """
    if name not in FORMATS:
        raise UsageError(f"no format {name!r}; there are {', '.join(FORMATS)}{did_you_mean(name, FORMATS)}")
    return FORMATS[name]
