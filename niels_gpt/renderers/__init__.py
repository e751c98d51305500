"""Renderers: conversations to token ids, with the message that every token came from.

::

    registry.py       which renderer for which model: `create_renderer`;  known_models.py: names on the hub
    automatic.py      what "auto" means for a tokenizer
    options.py        options that all families have, and their checks;  configs.py: config classes in one place
    types.py          what renderers return: `RenderedTokens`, `RenderedBatch`, ...;  kinds.py: what each token is
    protocol.py       what every renderer can do: `Renderer`
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
    notes.py          texts that a format has no place for: listed, and refused or counted (`on_unwritten`)
    left_out.py       what a grammar leaves out
    refusals.py       what a grammar refuses
    round_trip.py     whether a rendering gives its conversation again
    parsers.py        how completions of models that are rendered by template are read

    template/         `TemplateRenderer`: any Jinja chat template, with attribution

    client.py         completions from an inference server;  server_answers.py: what it answers
    pool.py           one renderer for many threads, with the interface of a pool
    base.py           the public names in one module, as in the `renderers` package;  default.py: `DefaultRenderer`

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
