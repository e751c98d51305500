"""An example in the terminal: running text in colour, then a table with ids and targets.

It is printed while it is read, so a row of millions of tokens begins at once and takes little memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice

from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from niels_gpt.explorer.example import ExampleView, Kind, TokenView
from niels_gpt.explorer.looks import MEANINGS, STYLES, printable
from niels_gpt.explorer.table import Seen, Table

_BLOCK = 4096  # characters that are printed at a time, the line in which they end
_LONGEST_LINE = 65_536  # a longer one is printed in parts
_LINES = 1024  # of JSON, printed at a time
_json = json.JSONEncoder(ensure_ascii=False).encode


def show_view(console: Console, view: ExampleView, *, with_table: bool) -> None:
    """Print title, legend, running text and, on request, the table."""
    seen = Seen(view.tokens)
    console.print(Text(view.title, style="bold"), soft_wrap=True)
    if not view.has_text:
        console.print(
            Text("no tokenizer with the cache's hash nearby; pass --tokenizer to see text", style="yellow"),
            soft_wrap=True,
        )
    console.print(legend(seen.kinds), soft_wrap=True)
    console.print()
    for block in flow(view, seen.n_real):
        console.print(block, end="", soft_wrap=not console.is_terminal)  # a file gets the lines as they are
    console.print()
    if with_table:
        console.print()
        for lines in Table(console, seen).lines(view.tokens):
            console.print(Segments([Segment(lines)]), end="", crop=False)


def print_view(view: ExampleView) -> None:
    """Print an example for machines, a line for each token."""
    print(f'{{\n  "title": {_json(view.title)},\n  "tokens": [', end="")
    lines, before = (_json(token.to_json()) for token in view.tokens), ""
    while block := ",\n    ".join(islice(lines, _LINES)):
        print(f"{before}\n    {block}", end="")
        before = ","
    print("\n  ]\n}")


def legend(kinds: Iterable[Kind]) -> Text:
    """What the colours of these kinds mean."""
    found = set(kinds)
    return Text("  ").join(Text(f" {MEANINGS[kind]} ", style=style) for kind, style in STYLES.items() if kind in found)


def _flowing(text: str) -> str:
    text = "\n" if text == "<0x0A>" else text
    shown = "⏎\n".join("".join(map(printable, line)) for line in text.split("\n"))
    return f"{shown}\n" if text == "<eot>" else shown


def flow(view: ExampleView, n_real: int) -> Iterator[Text]:
    """The example as running text, each token in the colour of its kind; ids where there is no text.

    In blocks, to be printed one after the other with nothing between.
    """
    block, size, now = Text(), 0, ""
    run: list[str] = []  # neighbours of one style
    for text, style in _styled(view, n_real):
        if style != now:
            block.append("".join(run), style=now)
            run, now = [], style
        run.append(text)
        size += len(text)
        if size > _LONGEST_LINE or (size > _BLOCK and text.endswith("\n")):
            yield block.append("".join(run), style=now)
            block, size, run = Text(), 0, []
    yield block.append("".join(run), style=now)


def _styled(view: ExampleView, n_real: int) -> Iterator[tuple[str, str]]:
    """Every token's text and style, and what stands between."""
    shown, segment = cache(_flowing), None  # there are few different texts
    for token in islice(view.tokens, n_real):
        if segment is not None and segment != token.segment:
            yield _seam(token), STYLES["padding"]
        segment = token.segment
        yield shown(token.text) if view.has_text else f"{token.id} ", STYLES[token.kind]
    if n_real < len(view.tokens):
        first = view.tokens[n_real]
        yield f"{len(view.tokens) - n_real:,} × {first.text or first.id}", STYLES["padding"]


def _seam(token: TokenView) -> str:
    """What stands between two texts of a row, or two messages of a rendering."""
    return f"\n── {token.segment - 1} {token.role} ──\n" if token.role else "\n──\n"
