"""Renderers: conversations to token ids, with the message that every token came from.

::

    registry.py       which renderer for which model: `create_renderer`;  known_models.py: names on the hub
    configs.py        the options of every renderer;  options.py: those of families, and their checks
    choice.py         a renderer from what a user names: options as text, a template file, a date
    types.py          what renderers return: `RenderedTokens`, `RenderedBatch`, ...;  the protocol `Renderer`
    loss.py           which tokens are trained: `LossOn`;  masks.py: weights and training samples
    display.py        how a rendering is shown in a terminal and a notebook

    base_renderer.py  `BaseRenderer`: rendering and reading, the same for families and templates. Start reading here
    family.py         `Family`: what all grammars share
    families/         one file per model family: its grammar and its options; all_families.py: the list of them
    conversation.py   what a grammar reads;  emitter.py: what it writes on
    encode.py         emitters to ids and facts
    completions/      what models sampled: reasoning, content, calls, at once or while they are sampled
    dialects/         how tool calls and tool declarations are written and read
    bridges.py        the prompt of the next turn, after ids that were sampled
    images/           images in messages;  image_family.py: what families with images share
    unsupported.py    fields that a format has no place for

    template/         `TemplateRenderer`: any Jinja chat template, with attribution

    client.py         completions from an inference server;  server_answers.py: what it answers
    pool.py           one renderer for many threads, with the interface of a pool
    base.py           the public names in one module, as in the `renderers` package

The modules of the `renderers` package can be imported under its names too (`niels_gpt.renderers.qwen3`): `_ALIASES`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from niels_gpt.renderers.base import *  # noqa: F403  # what these modules list in `__all__`, for type checkers
    from niels_gpt.renderers.client import *  # noqa: F403
    from niels_gpt.renderers.configs import *  # noqa: F403
    from niels_gpt.renderers.families.all_families import *  # noqa: F403
    from niels_gpt.renderers.registry import *  # noqa: F403

# Searched in this order by `__getattr__`.
_PUBLIC_MODULES = ("base", "configs", "registry", "client", "families.all_families")

# Module names of the `renderers` package -> the modules that hold the same names here.
_ALIASES: Final = {
    "parsers": "template.parsers",
    "default": "template.renderer",
    **{
        name: f"families.{name}"
        for name in (
            *("deepseek_v3", "glm45", "glm5", "gpt_oss", "kimi_k2", "kimi_k25", "laguna_xs2", "minimax_m2"),
            *("nemotron3", "qwen3", "qwen35", "qwen36", "qwen3_vl"),
        )
    },
}


class _AliasFinder(MetaPathFinder, Loader):
    """Imports `niels_gpt.renderers.NAME` as the very module that `_ALIASES` names, not as a copy of it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A spec for the names in `_ALIASES`; all other modules are left to the other finders."""
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == __name__ and name in _ALIASES else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the real module in the place of the empty one that is being imported."""
        name = module.__name__.rpartition(".")[2]
        sys.modules[module.__name__] = import_module(f"{__name__}.{_ALIASES[name]}")


# At the end, so that modules which exist are found as usual.
sys.meta_path.append(_AliasFinder())


def __getattr__(name: str) -> Any:
    """A public name of one of the modules above (PEP 562)."""
    # `from niels_gpt.renderers import qwen3` asks for an attribute first; an AttributeError makes Python import the
    # module.
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is None:
        for module in _PUBLIC_MODULES:
            public = import_module(f"{__name__}.{module}")
            if name in public.__all__:
                return getattr(public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion."""
    public = (import_module(f"{__name__}.{module}").__all__ for module in _PUBLIC_MODULES)
    return sorted({*globals(), *(name for names in public for name in names)})
