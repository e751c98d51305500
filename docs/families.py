"""Writes docs/families.md from the golden texts and the families themselves: python -m docs.families

Everything comes from the repository: the conversations from `tests/golden`, the families over the tiny tokenizers of
`tests/renderers/tiny_families.py`.
"""

from __future__ import annotations

import re
from collections.abc import Container
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP
from tests.golden import FOLDER
from tests.renderers.tiny_families import renderer_of

PAGE = Path(__file__).parent / "families.md"
INTRODUCTION = """\
# The families

How every family writes a conversation. The blocks show the same conversation line below line, so that versions can be
compared: a line break is `⏎`, and text between ⟦ and ⟧ is what the model itself writes, which is trained by default.

The name of a family in a table leads to its golden texts, `tests/golden/FAMILY`: some thirty conversations, piece by
piece, with the kind and the message of each piece (systems, tools, parallel calls, reasoning, options, samples).
Options: [renderers](renderers.md). What differs from the official templates: [deviations](deviations.md). A family of
your own: [add a family](add_a_family.md). This page is written by `python -m docs.families`.

* *end of turn*: the token that the model writes at the end; sampling stops at all that are named.
* *prompt*: the generation prompt, which serving writes before the model's turn.
* *reasoning*: whether `reasoning_content` of earlier turns is written again.
"""
MAKERS = {
    "Qwen": ("qwen",),
    "DeepSeek": ("deepseek",),
    "GLM": ("glm",),
    "Kimi": ("kimi",),
    "Mistral": ("mistral",),
    "Llama, Gemma, gpt-oss, Nemotron, MiniMax, Laguna, Inkling": ("",),
}
QUESTION = [{"role": "user", "content": "a"}]
REASONED = [*QUESTION, {"role": "assistant", "content": "b", "reasoning_content": "First."}]
CALLED = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "First.",
    "tool_calls": [{"id": "nowaaaaa0", "type": "function", "function": {"name": "now", "arguments": {}}}],
}
_LINE = re.compile(r"(?:([A-Z]+) +(-|\d+) | {13})\| (.*)")
_WRITTEN_BY_THE_MODEL = ("REPLY", "MARKUP", "STOP", "OPENER")


def one_line(golden: str, messages: Container[str] | None = None) -> str:
    """A golden text as one line, of all messages or of those named, with what the model writes between brackets.

    Example:
        the pieces ``TEMPLATE <user>\\n``, ``CONTEXT Hi``, ``STOP </s>`` become ``<user>⏎Hi⟦</s>⟧``
    """
    kind = message = ""
    pieces: list[tuple[bool, str]] = []
    for found in filter(None, map(_LINE.fullmatch, golden.splitlines())):
        if found[1]:
            kind, message = found[1], found[2]
        if messages is None or message in messages:
            pieces.append((kind in _WRITTEN_BY_THE_MODEL, found[3]))
    text = ""
    for sampled, run in groupby(pieces, key=itemgetter(0)):
        joined = "".join(text for _, text in run)
        text += f"⟦{joined}⟧" if sampled else joined
    return text.replace(r"\n", "⏎").replace(r"\x20", " ")


def block(names: list[str], case: str, messages: Container[str] | None = None) -> str:
    """A conversation as the families write it, line below line; families that refuse it are left out."""
    texts = {name: one_line((FOLDER / name / f"{case}.txt").read_text(encoding="utf-8"), messages) for name in names}
    width = max(map(len, texts)) + 2
    return "\n".join(f"{name:{width}}{text}" for name, text in texts.items() if text)


def facts(name: str) -> list[str]:
    """The cells of a family's row."""
    renderer = renderer_of(name)
    prompt = Emitter()
    prompt.scaffold("")
    renderer.generation_prompt(ConversationView(QUESTION, renderer.roles, renderer.name), prompt)
    models = [model for model, family in MODEL_RENDERER_MAP.items() if family == name]
    calls = (type(renderer.calls).__doc__ or "").split("\n")[0] if renderer.calls else "none"
    return [
        f"[{name}](../tests/golden/{name}/plain.txt)",
        ", ".join(models),
        ", ".join(code(renderer.encoder.decode([stop])) for stop in renderer.get_stop_token_ids()),
        code("".join(prompt.texts)),
        reasoning(renderer),
        calls,
    ]


def reasoning(renderer: Family) -> str:
    """Where a message's reasoning is written: in the last turn, and in earlier ones."""
    if renderer.name == "ngpt" or "First." not in renderer.text(REASONED):
        called = renderer.calls and "First." in renderer.text([*QUESTION, CALLED])
        return "beside calls, in the last turn" if called else "no place"
    kept = "First." in renderer.text([*REASONED, *QUESTION])
    return "kept" if kept else "dropped once a user speaks again"


def code(text: str) -> str:
    """A text as code, newlines visible."""
    return f"`{text.replace(chr(10), '⏎')}`" if text else ""


def section(maker: str, names: list[str]) -> str:
    """The families of a maker: what they are, and what they write."""
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in facts(name))} |" for name in names]
    head = "| family | models | end of turn | prompt | reasoning | calls |\n|---|---|---|---|---|---|"
    blocks = f"```text\n{block(names, 'plain')}\n```\n"
    callers = [name for name in names if renderer_of(name).calls is not None]
    if callers:
        blocks += f"\nA call, its result, and the answer:\n\n```text\n{block(callers, 'one_call', '123')}\n```\n"
    return "\n".join([f"## {maker}", "", head, *rows, "", blocks])


def page() -> str:
    """The page as markdown."""
    left, sections = list(FAMILIES), []
    for maker, beginnings in MAKERS.items():
        names = [name for name in left if name.startswith(beginnings)]
        left = [name for name in left if name not in names]
        sections.append(section(maker, names))
    return "\n".join([INTRODUCTION, *sections])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
