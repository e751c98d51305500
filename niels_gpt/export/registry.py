"""All export formats, by the name that `--to` takes."""

from __future__ import annotations

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.export.formats import Format
from niels_gpt.export.hf import HF, TRL
from niels_gpt.export.megatron import MEGATRON
from niels_gpt.export.megatron_bridge import MEGATRON_BRIDGE
from niels_gpt.export.preferences import PREFERENCE_FORMATS, PreferenceFormat

FORMATS: dict[str, Format] = {
    "hf": HF,
    "trl": TRL,
    "megatron-bridge": MEGATRON_BRIDGE,
    "megatron": MEGATRON,
}


def format_named(name: str) -> Format | PreferenceFormat:
    """The format of this name, of conversations or of preferences.

    Raises:
        UsageError: there is none; the nearest name is suggested.
    """
    formats: dict[str, Format | PreferenceFormat] = {**FORMATS, **PREFERENCE_FORMATS}
    if name not in formats:
        raise UsageError(f"no format {name!r}; there are {', '.join(formats)}{did_you_mean(name, formats)}")
    return formats[name]
