"""Token datasets of other programs -> our episodes.

::

    run.py        import_episodes(): a dataset, whole or absent      registry.py   all formats by name
    formats.py    what a format is                                   hf.py ...     one file per format
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_gpt.imports.registry import FORMATS
    from niels_gpt.imports.run import import_episodes

_HOMES = {"FORMATS": "registry", "import_episodes": "run"}

__all__ = ["FORMATS", "import_episodes"]


def __getattr__(name: str) -> Any:
    """Import a public name's module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
