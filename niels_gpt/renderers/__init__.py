"""Conversations -> ids, with the origin of every token (DESIGN 2).

::

    what one calls      base.py       everything that document 003 names, in one place
                        registry.py   which renderer for which model; opening.py, options.py: from a command line
                        training.py   samples with masks; loss.py: which tokens count
                        client.py     completions from an inference server; limits.py: how long a prompt may be
                        pool.py       several renderers behind one

    families            one file and one grammar each: qwen25 qwen3 qwen3_vl qwen35 qwen36 glm45 glm5 kimi_k2 kimi_k25
                        minimax_m2 deepseek_v3 nemotron3 laguna_xs2 llama3 gemma mistral phi gpt_oss chatml raw ngpt;
                        configs.py: their options
      and their engine  engine.py     rendering, parsing and bridging, written once
                        script.py     what a grammar writes on;  chat.py: what it reads
                        calls.py      dialects of tool calls, written and read side by side; hermes.py, tags.py,
                        bare_json.py, sections.py, harmony.py   more of them;  json_values.py: JSON in completions
                        typescript.py, harmony_tools.py: tools as TypeScript;  refusals.py
                        thinking.py   reasoning in tags
                        images.py     images in messages; vision.py, processors.py: as tokens
                        shapes.py     what a grammar writes around texts, learned once; kinds.py, stand_ins.py,
                        odd_texts.py  how it is learned and when it holds; filling.py: texts filled in;
                        runs.py, apart.py: those that are encoded alone, where they touch nothing else
                        completion.py sampled ids as text, each character with its token
                        bridge.py     the next prompt behind what was sampled

    any template        template.py   TemplateRenderer; default.py: from a config, with parsers.py
                        jinja.py      the environment that templates run in
                        traced.py     text that remembers where it came from
                        ownership.py  which message every character belongs to
                        turns.py      which part of an assistant's turn the model itself would emit

    values              rendered.py   RenderedTokens, RenderedBatch;  parsing.py: ParsedResponse
                        protocol.py   what a renderer can do
                        batch.py      many scripts as ids in one go;  segments.py: attribution without a renderer

Every name of `base.py`, every config and every renderer of a family can be imported from here; a name is looked up in
its module when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_gpt.renderers.base import *  # noqa: F403  # what these modules list in `__all__`, for type checkers
    from niels_gpt.renderers.client import *  # noqa: F403
    from niels_gpt.renderers.configs import *  # noqa: F403
    from niels_gpt.renderers.registry import *  # noqa: F403

_HOLD_NAMES = ("base", "configs", "registry", "client")  # in this order


def __getattr__(name: str) -> Any:
    """A public name of one of the modules above (PEP 562)."""
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is None:
        for module in _HOLD_NAMES:
            held = import_module(f"{__name__}.{module}")
            if name in held.__all__:
                return getattr(held, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion."""
    held = (import_module(f"{__name__}.{module}").__all__ for module in _HOLD_NAMES)
    return sorted({*globals(), *(name for names in held for name in names)})
