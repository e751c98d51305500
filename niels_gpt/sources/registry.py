"""The named sources, one line each: what `python -m niels_gpt.cache.cli build-all` builds, in this order."""

from __future__ import annotations

from typing import Final

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.sources.base import ChatSource, SourceOptions, TextSource
from niels_gpt.sources.hub_corpora import Dolly, FineWebEdu, Gutenberg, WikiText
from niels_gpt.sources.oasst1 import OpenAssistant
from niels_gpt.sources.text_files import RoamNotes

SOURCES: Final[dict[str, type[TextSource] | type[ChatSource]]] = {
    "fineweb_edu": FineWebEdu,
    "roam": RoamNotes,
    "wikitext": WikiText,
    "gutenberg": Gutenberg,
    "dolly15k": Dolly,
    "oasst1": OpenAssistant,
}


def check_source_name(name: str) -> None:
    """Raise `UsageError` for a name that is not in `SOURCES`."""
    if name not in SOURCES:
        raise UsageError(f"no source {name!r}; known: {', '.join(SOURCES)}{did_you_mean(name, tuple(SOURCES))}")


def open_source(name: str, options: SourceOptions | None = None) -> TextSource | ChatSource:
    """The source of this name. Nothing is read before its rows are iterated.

    Raises:
        UsageError: an unknown name, or an option out of range.
    """
    check_source_name(name)
    return SOURCES[name].from_options(options or SourceOptions())
