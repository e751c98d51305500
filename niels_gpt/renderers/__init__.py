"""Renderers: conversations to token ids, with the message that every token came from.

`docs/architecture.md` lists the modules by floors, and follows a conversation through them. Start reading with
`base_renderer.py`, which families and templates share; then `family.py` and one of `families/`, or `template/`.

`base`, `client`, `configs`, `default` and `parsers` are named as in the `renderers` package; the classes of families
come from here: `from niels_gpt.renderers import Qwen3Renderer`.
"""

# ruff: noqa: F403

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from niels_gpt.renderers.families.all_families import PLACES, class_named

if TYPE_CHECKING:
    # What these modules define, for type checkers.
    from niels_gpt.renderers.base import *
    from niels_gpt.renderers.client import *
    from niels_gpt.renderers.configs import *
    from niels_gpt.renderers.families.chatml import *
    from niels_gpt.renderers.families.deepseek_r1 import *
    from niels_gpt.renderers.families.deepseek_v3 import *
    from niels_gpt.renderers.families.deepseek_v4 import *
    from niels_gpt.renderers.families.deepseek_v31 import *
    from niels_gpt.renderers.families.gemma import *
    from niels_gpt.renderers.families.glm5 import *
    from niels_gpt.renderers.families.glm45 import *
    from niels_gpt.renderers.families.glm52 import *
    from niels_gpt.renderers.families.gpt_oss import *
    from niels_gpt.renderers.families.inkling import *
    from niels_gpt.renderers.families.kimi_k2 import *
    from niels_gpt.renderers.families.kimi_k25 import *
    from niels_gpt.renderers.families.laguna_xs2 import *
    from niels_gpt.renderers.families.llama3 import *
    from niels_gpt.renderers.families.minimax_m2 import *
    from niels_gpt.renderers.families.mistral import *
    from niels_gpt.renderers.families.mistral_tekken import *
    from niels_gpt.renderers.families.nemotron3 import *
    from niels_gpt.renderers.families.ngpt import *
    from niels_gpt.renderers.families.qwen3 import *
    from niels_gpt.renderers.families.qwen3_vl import *
    from niels_gpt.renderers.families.qwen25 import *
    from niels_gpt.renderers.families.qwen35 import *
    from niels_gpt.renderers.families.qwen36 import *
    from niels_gpt.renderers.families.qwen38 import *
    from niels_gpt.renderers.families.raw import *
    from niels_gpt.renderers.registry import *

# Searched in this order by `__getattr__`, after the families. The last one imports all families.
_PUBLIC_MODULES = ("base", "registry", "client", "configs")


def __getattr__(name: str) -> Any:
    """A family's class or config, or a public name of one of the modules above (PEP 562)."""
    if (found := class_named(name)) is not None:
        return found
    # `from niels_gpt.renderers import base` asks for an attribute first; after an AttributeError Python imports it.
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is None:
        for module in _PUBLIC_MODULES:
            public = import_module(f"{__name__}.{module}")
            if name in public.__all__:
                return getattr(public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion."""
    public = (import_module(f"{__name__}.{module}").__all__ for module in _PUBLIC_MODULES)
    families = (kind for _, kind in PLACES.values())
    return sorted({*globals(), *families, *(name for names in public for name in names)})
