"""Compares a family with a chat template in random conversations: what differs, how often, and the shortest example.

::

    python -m tests.renderers.compare FAMILY TEMPLATE.jinja --number 200 --special bos_token='<s>' \
        --option enable_thinking=false

The tokenizer is the family's tiny one (`TOKENS` in `tiny_families.py`), so only the template is needed. A conversation
that the template or the family refuses is counted and left out.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from niels_gpt.cli.terminal import run
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.template.renderer import TemplateRenderer, load_template
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.values import name_and_value, option_value
from tests.renderers.chats import Wanted, conversation
from tests.renderers.sweeps import wanted
from tests.renderers.tiny_families import folder_of, renderer_of

KINDS = ("text", "ids", "facts")
SHOWN = 60  # characters before and after the first difference


@dataclass
class Comparison:
    """What was found.

    Attributes:
        counts: by kind, of equal and different renderings; `no facts`: the template does not show whose a token is.
        shortest: the shortest conversation that differs, by kind, with what is to be printed of it.
        refused: the first refusal of each side, and how many there were.
    """

    counts: Counter[str] = field(default_factory=Counter)
    shortest: dict[str, tuple[int, str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """The report."""
        for kind in KINDS:
            yield f"{kind:6} {self.counts[f'{kind} equal']} equal, {self.counts[f'{kind} differ']} differ"
        yield f"the template does not show whose the tokens are: {self.counts['no facts']}"
        for side, reason in self.refused.items():
            yield f"refused by the {side}: {self.counts[f'refused by the {side}']}, the first: {reason}"
        for kind, (_, example) in self.shortest.items():
            yield f"\nthe shortest conversation whose {kind} differ{'s' if kind == 'text' else ''}\n{example}"


def compare(family: Family, template: TemplateRenderer, number: int, **held: Any) -> Comparison:
    """Compare random conversations, each with and without a generation prompt.

    Args:
        held: what conversations may hold (`Wanted`), where that is not what the family's tests hold.
    """
    found, rng = Comparison(), random.Random(f"{family.name} compared")
    for _ in range(number):
        messages, tools = conversation(rng, wanted(family.name, parts=False, nones=False, text_arguments=False, **held))
        for gen in (False, True):
            _compare_one(family, template, (messages, tools, gen), found)
    return found


def _compare_one(family: Family, template: TemplateRenderer, chat: tuple[Any, Any, bool], found: Comparison) -> None:
    messages, tools, gen = chat
    made: list[tuple[str, RenderedTokens]] = []
    for side, renderer in (("family", family), ("template", template)):
        try:
            rendered = renderer.render(messages, tools=tools, add_generation_prompt=gen)
            made.append((renderer.text(messages, tools=tools, add_generation_prompt=gen), rendered))
        except MessageError as error:
            found.refused.setdefault(side, f"{error}\n  {json.dumps(messages, ensure_ascii=False)}")
            found.counts[f"refused by the {side}"] += 1
            return
    (text, ours), (their_text, theirs) = made
    shows_facts = theirs.attribution == "full"
    kind, difference = "", ""
    if text != their_text:
        kind, difference = "text", _first_difference(text, their_text)
    elif ours.token_ids != theirs.token_ids:
        kind, difference = "ids", _first_difference(*(map(repr, (ours.token_ids, theirs.token_ids))))
    elif shows_facts and (at := _first_other_fact(ours, theirs)) >= 0:
        kind, difference = "facts", _token(family, ours, theirs, at)
    found.counts["no facts"] += not kind and not shows_facts
    for each in KINDS[: KINDS.index(kind) if kind else 2 + shows_facts]:
        found.counts[f"{each} equal"] += 1
    if kind:
        found.counts[f"{kind} differ"] += 1
        offered = " with tools," if tools else ""
        shown = f"{json.dumps(messages, ensure_ascii=False)}\n {offered} add_generation_prompt={gen}\n{difference}"
        found.shortest[kind] = min(found.shortest.get(kind, (len(shown), shown)), (len(shown), shown))


def _first_difference(ours: str, theirs: str) -> str:
    pairs = zip(ours, theirs, strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))
    before = max(0, at - SHOWN)
    return f"  family    {ours[before : at + SHOWN]!r}\n  template  {theirs[before : at + SHOWN]!r}"


def _facts(rendered: RenderedTokens) -> list[tuple[int, bool, bool]]:
    return [*zip(rendered.message_indices, rendered.sampled_mask, rendered.is_content, strict=True)]


def _first_other_fact(ours: RenderedTokens, theirs: RenderedTokens) -> int:
    """The first token with other facts, -1 for none. The first token's owner may be -1 or 0 (docs/attribution.md)."""
    pairs = enumerate(zip(_facts(ours), _facts(theirs), strict=True))
    return next((at for at, (one, other) in pairs if one[not at :] != other[not at :]), -1)


def _token(family: Family, ours: RenderedTokens, theirs: RenderedTokens, at: int) -> str:
    near = (family.encoder.decode(part) for part in (ours.token_ids[max(0, at - 12) : at], ours.token_ids[at : at + 1]))
    before, token = near
    sides = [
        f"  {side:9} message {owner}, sampled {sampled}, content {content}"
        for side, (owner, sampled, content) in (("family", _facts(ours)[at]), ("template", _facts(theirs)[at]))
    ]
    return "\n".join([f"  the token {token!r} after {before!r}", *sides])


def _pairs(flag: str, texts: list[str]) -> dict[str, Any]:
    return dict(name_and_value(flag, text) for text in texts)


def main(arguments: list[str] | None = None) -> int:
    """Print the report.

    Returns:
        The exit code: 1 if anything differs.

    Raises:
        UsageError: a wrong argument, or no conversation that both sides accept. TemplateError: no template there.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.renderers.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("family", choices=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("template", type=Path, metavar="TEMPLATE")
    parser.add_argument("--number", type=int, default=200, help="conversations; default 200")
    parser.add_argument("--special", action="append", default=[], metavar="NAME=TOKEN", help="such as bos_token='<s>'")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of family and template")
    switches = [each.name for each in fields(Wanted) if each.type == "bool"]
    without = "what conversations are to be without, such as tools (see `Wanted` in tests/renderers/chats.py)"
    parser.add_argument("--without", action="append", default=[], choices=switches, metavar="FIELD", help=without)
    parser.add_argument("--date", default="2026-01-01", help="what the template gets as the date, in any format")
    given = parser.parse_args(arguments)
    if given.number < 1:
        raise UsageError(f"--number is {given.number}; expected 1 conversation or more")
    special = _pairs("--special", given.special)
    options = {name: option_value(value) for name, value in _pairs("--option", given.option).items()}
    family = renderer_of(given.family, *options.items())
    template = TemplateRenderer(
        folder_of(given.family),
        template=load_template(given.template),
        clock=lambda form: given.date,
        stops=family.stops[:1],
        **special,
        **options,
    )
    found = compare(family, template, given.number, **dict.fromkeys(given.without, False))
    print(*found.lines(), sep="\n")
    differs = any(found.counts[f"{kind} differ"] for kind in KINDS)
    if not differs and not found.counts["text equal"]:
        raise UsageError("no conversation was compared: one side refused each; see its reason above")
    return int(differs)


if __name__ == "__main__":
    run(lambda: sys.exit(main()))
