"""`TemplateRenderer.render` beside the template in transformers' environment and gigatoken, one conversation at a time.

`python -m benchmarks.templates` prints the table of README.md, for official templates of the test assets, or for the
folders that are named. Both ways take turns on one core, and processor time counts (`fresh.py`). Conversations that a
template refuses are left out of both; Mistral's and Gemma's take turns of users and assistants alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import TemplateError

from benchmarks.corpus import Corpus
from benchmarks.fresh import Block, Way, ratios, take_turns
from niels_gpt.errors import NielsError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import ASSETS

SIZE, BLOCKS = 120, 8  # conversations of a block, before those that a template refuses
OFFICIAL = (
    *("qwen3-8b", "llama-3.1-8b-instruct", "mistral-nemo-instruct-2407", "nemotron-3-nano", "gemma-3-1b-it"),
    "glm-4.5-air",
)
# How a template refuses a conversation: ours by an error of its own, plain Jinja by `raise_exception` or by an
# operation that Python refuses (a key that is missing, a text added to a list).
REFUSALS = (NielsError, TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def measured(folder: Path) -> str:
    """The row of one template."""
    import gigatoken
    from transformers.utils.chat_template_utils import _compile_jinja_template

    renderer = TemplateRenderer(folder, clock=lambda form: "26 Jul 2024")
    template, variables = _compile_jinja_template(renderer.source), dict(renderer.encoder.special_tokens)
    encode = gigatoken.Tokenizer.from_json(renderer.encoder.parts.json_bytes).backend.encode  # type: ignore[attr-defined]

    def bare(chat: Any, tools: Any) -> Any:
        return encode(template.render(messages=chat, tools=tools, add_generation_prompt=False, **variables).encode())

    def way(render: Any) -> Way:
        return Way(lambda block: [render(chat, tools) for chat, tools in block.data])

    def ours(chat: Any, tools: Any) -> Any:
        return renderer.render(chat, tools=tools)

    blocks = _blocks(lambda chat, tools: (bare(chat, tools), ours(chat, tools)))
    next(blocks)  # the certificate is made once for a template and kind of conversation
    times = take_turns({"bare": way(bare), "ours": way(ours)}, blocks)
    (fresh, least, most), (again, _, _) = (
        ratios(times["ours"].fresh, times["bare"].fresh),
        ratios(times["ours"].again, times["bare"].again),
    )
    costs = [median(times[name].fresh.values()) / SIZE * 1e6 for name in times]
    return (
        f"| {folder.name} | {fresh:.2f} | {least:.2f} to {most:.2f} | {again:.2f} | {costs[0]:.0f} | {costs[1]:.0f} |"
    )


def _blocks(accepts: Any) -> Iterator[Block]:
    """Blocks of conversations that both ways take, tried on a conversation of the same kind with other texts."""
    corpus = Corpus()
    known: dict[Any, bool] = {}
    for _ in range(BLOCKS + 1):
        data: list[Any] = []
        while len(data) < SIZE:
            for chat, tools in corpus.take(SIZE):
                kind = (*((message["role"], *sorted(message)) for message in chat), bool(tools))
                if kind not in known:
                    known[kind] = _is_accepted(accepts, chat, tools)
                elif known[kind]:
                    data.append((chat, tools))
        yield Block(data[:SIZE], [])


def _is_accepted(accepts: Any, chat: Any, tools: Any) -> bool:
    try:
        accepts(chat, tools)
    except REFUSALS:
        return False
    return True


def main() -> None:
    """Print the table."""
    print(
        "| template | fresh | least and most of a block | again | bare, µs | ours, µs |\n|---|---:|---:|---:|---:|---:|"
    )
    for folder in [Path(name) for name in sys.argv[1:]] or [ASSETS / name for name in OFFICIAL]:
        print(measured(folder), flush=True)


if __name__ == "__main__":
    main()
