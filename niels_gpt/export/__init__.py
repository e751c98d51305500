"""Caches and episodes in the formats of other trainers, and back.

::

    run.py        export(): one directory, whole or absent          fitting.py  rows that are too long
    registry.py   all formats by name                               formats.py  what a format is
    hf.py ...     one file per format
    arranging.py  which rows, in which order, packed how          padding.py  texts padded to a multiple
    opening.py    a directory as its splits                         source.py   one split as rows
    episodes.py, caches.py   what is read                           rows.py     rows of ids, weights and texts
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_gpt.export.registry import FORMATS
    from niels_gpt.export.run import export

# The command line names its options without loading what only an export needs.
_HOMES = {"FORMATS": "registry", "export": "run"}

__all__ = ["FORMATS", "export"]


def __getattr__(name: str) -> Any:
    """Import a public name's module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
