"""`TemplateRenderer.render` beside transformers' rendering and our encoding of its text, one conversation at a time.

::

    bare     template.render(messages, tools)  ->  encode_strings([[text]])       no attribution
    ours     renderer.render(messages, tools=tools)
    goal     ours <= 3 bare, or at most 15 us a message above bare

`python -m benchmarks.templates [NAME...]` prints a line for each template and kind of conversation: chats of 2, 6 and
20 turns, and chats with random tools. Both ways take turns on one core, and processor time counts (`fresh.py`). No text
comes twice, but for the column "again": there every gap is known, and the encoder knows every word. Conversations that
a template refuses are left out of both, and so is the first block, on which a renderer learns the template. The first
conversation of a kind is timed on new renderers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import TemplateError

from benchmarks.corpus import Chats, Corpus
from benchmarks.fresh import Block, Way, one_core, ratios, seconds_of, take_turns
from niels_gpt.errors import NielsError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import SCAFFOLD
from tests.assets import ASSETS
from tests.renderers.every_template import encoder as tiny_encoder

BLOCKS, CHARACTERS, FIRSTS = 8, 60_000, 5  # blocks of a case, about the characters of a block, new renderers
TURNS = (2, 6, 20)
MOST, MOST_ABOVE = 3.0, 15e-6  # the goal: times bare, or seconds a message above it
# Folders with a tokenizer; the other templates have a tiny tokenizer, which has the tokens that they write.
FOLDERS = (
    *("qwen3-8b", "llama-3.1-8b-instruct", "gpt-oss-20b", "glm-4.5-air", "glm-5", "deepseek-v3"),
    *("mistral-nemo-instruct-2407", "kimi-k2"),
)
LONE = {  # name -> template, the tokens that end its turns
    "phi-3": ("templates/trl-phi3", ("<|end|>",)),
    "gemma-4": ("templates_wild/ik--google-gemma-4-31B-it", ("<turn|>",)),
    "command-a": ("templates_wild/ik--CohereForAI-c4ai-command-r7b-12-2024-tool_use", ("<|END_OF_TURN_TOKEN|>",)),
}
# How a template refuses a conversation: ours by an error of its own, plain Jinja by `raise_exception` or by an
# operation that Python refuses (a key that is missing, a text added to a list).
REFUSALS = (NielsError, TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)

Render = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Subject:
    """A template and how to make a renderer of it, with nothing learned."""

    name: str
    new: Callable[[], TemplateRenderer]

    def bare(self, renderer: TemplateRenderer) -> Render:
        """What transformers renders, encoded as one text."""
        from transformers.utils.chat_template_utils import _compile_jinja_template

        template, encoder = _compile_jinja_template(renderer.source), renderer.encoder
        template.globals["strftime_now"] = _clock
        variables = dict(encoder.special_tokens)

        def render(chat: Any, tools: Any) -> Any:
            text = template.render(messages=chat, tools=tools, add_generation_prompt=False, **variables)
            return encoder.encode_strings([[text]], [[SCAFFOLD]])

        return render


def _clock(form: str) -> str:
    return "26 Jul 2024"


def subjects() -> Iterator[Subject]:
    """The templates that the goal names."""
    for name in FOLDERS:
        yield folder_subject(ASSETS / name)
    for name, (path, stops) in LONE.items():
        source = (ASSETS / f"{path}.jinja").read_text(encoding="utf-8")
        yield Subject(
            name,
            lambda source=source, stops=stops: TemplateRenderer(  # type: ignore[misc]
                tiny_encoder(), template=source, stops=stops, clock=_clock
            ),
        )


def folder_subject(folder: Path) -> Subject:
    """The template of a folder with its tokenizer."""
    encoder = open_encoder(folder)
    return Subject(folder.name, lambda: TemplateRenderer(encoder, clock=_clock))


# ---- conversations


def cases(corpus: Corpus) -> dict[str, Callable[[int], Chats]]:
    """Kinds of conversations: a name, and what makes so many of them."""
    plain = {f"{turns} turns": lambda n, turns=turns: corpus.of_turns(n, turns) for turns in TURNS}  # type: ignore[misc]
    return plain | {"tools": lambda n: corpus.take(n, tools=1.0, reasoning=0.0, as_text=False)}


def accepted(take: Callable[[int], Chats], ways: Sequence[Render], known: dict[Any, bool]) -> Chats:
    """A block of conversations that all ways take, tried on one of the same kind; empty if there are none."""
    found: Chats = []
    for _ in range(50):
        for chat, tools in take(4):
            kind = (*((message["role"], *sorted(message)) for message in chat), bool(tools))
            if kind not in known:
                known[kind] = all(_takes(way, chat, tools) for way in ways)
            elif known[kind]:
                found.append((chat, tools))
        if sum(len(message["content"]) for chat, _ in found for message in chat) > CHARACTERS:
            break
    return found


def _takes(way: Render, chat: Any, tools: Any) -> bool:
    try:
        way(chat, tools)
    except REFUSALS:
        return False
    return True


# ---- measuring


def measured(subject: Subject, case: str, take: Callable[[int], Chats]) -> str:
    """The line of one template and kind of conversation."""
    renderer = subject.new().lists_unwritten()
    bare = subject.bare(renderer)

    def ours(chat: Any, tools: Any) -> Any:
        return renderer.render(chat, tools=tools)

    known: dict[Any, bool] = {}
    learned, *chats = (accepted(take, (bare, ours), known) for _ in range(BLOCKS + 1))
    for chat, tools in learned:
        ours(chat, tools)
    if not all(chats):
        return f"| {subject.name} | {case} | refused | | | | | | | |"
    times = take_turns({"bare": _way(bare), "ours": _way(ours)}, [Block(data, []) for data in chats])
    ratio, least, most = ratios(times["ours"].fresh, times["bare"].fresh)
    again = ratios(times["ours"].again, times["bare"].again)[0]
    messages = [sum(len(chat) for chat, _ in data) for data in chats]
    costs = {
        name: median(seconds / messages[number] for number, seconds in taken.fresh.items())
        for name, taken in times.items()
    }
    above = costs["ours"] - costs["bare"]
    last = [renderer.render(chat, tools=tools) for chat, tools in chats[-1]]
    share = sum(rendered.attribution_route == "oracle" for rendered in last) / len(last)
    first = 1e3 * median(_first(subject, chats[-1], number) for number in range(FIRSTS))
    holds = "yes" if ratio <= MOST or above <= MOST_ABOVE else "no"
    return (
        f"| {subject.name} | {case} | {costs['bare'] * 1e6:.1f} | {ratio:.2f} | {least:.2f} to {most:.2f} "
        f"| {again:.2f} | {above * 1e6:.1f} | {holds} | {share:.0%} | {first:.1f} |"
    )


def _way(render: Render) -> Way:
    return Way(lambda block: [render(chat, tools) for chat, tools in block.data])


def _first(subject: Subject, chats: Chats, number: int) -> float:
    """Seconds of the first conversation of a new renderer."""
    renderer = subject.new().lists_unwritten()
    chat, tools = chats[number % len(chats)]
    with one_core():
        return seconds_of(lambda messages: renderer.render(messages, tools=tools), chat)


def main() -> None:
    """Print the table."""
    named, corpus = sys.argv[1:], Corpus()
    print("| template | chats | bare, µs a message | ours / bare | least and most | again ", end="")
    print("| above, µs a message | goal | oracle | first, ms |\n|---|---|---:|---:|---:|---:|---:|---|---:|---:|")
    for subject in subjects():
        if not named or subject.name in named:
            for case, take in cases(corpus).items():
                print(measured(subject, case, take), flush=True)


if __name__ == "__main__":
    main()
