"""All formats that can be imported, by name."""

from __future__ import annotations

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.imports.formats import ImportFormat
from niels_gpt.imports.hf import HF
from niels_gpt.imports.megatron import MEGATRON
from niels_gpt.imports.nanogpt import NANOGPT
from niels_gpt.imports.olmo import OLMO

FORMATS: dict[str, ImportFormat] = {"hf": HF, "megatron": MEGATRON, "nanogpt": NANOGPT, "olmo": OLMO}


def format_named(name: str) -> ImportFormat:
    """The format of this name.

    Raises:
        UsageError: there is none; the nearest name is suggested.
    """
    if name not in FORMATS:
        raise UsageError(f"{name!r} cannot be imported; {', '.join(FORMATS)} can{did_you_mean(name, FORMATS)}")
    return FORMATS[name]
