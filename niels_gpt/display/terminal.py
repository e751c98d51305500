"""Rows of tokens as running text in a terminal, in ANSI colours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from niels_gpt.display.rows import (
    COLOURS,
    MEANINGS,
    STYLES,
    Colour,
    Spelling,
    TokenRow,
    cached,
    first_tokens,
    kinds_of,
    printable,
    whole,
)

PREVIEW_TOKENS: Final = 400  # of what `print` shows besides the line of counts
_EOT: Final = "<eot>"  # ends turns of our own format, which writes no line ends: a terminal begins a line after it
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")  # 30 to 37 in ANSI


@cache
def ansi_code(style: str) -> str:
    """The ANSI code of a style in rich's words: `bold black on green` -> `1;30;42`.

    It knows `bold`, the eight colours, their `bright_` forms and `on`. `default` has no code: it is the terminal's own
    colour.
    """
    # Colours are 30 to 37, bright ones 90 to 97; as backgrounds 40 to 47 and 100 to 107.
    codes, background = [], 0
    for word in style.split():
        if word == "bold":
            codes.append(1)
        elif word == "on":
            background = 10
        elif word != "default":
            bright = 60 if word.startswith("bright_") else 0
            codes.append(30 + _NAMES.index(word.removeprefix("bright_")) + bright + background)
    return ";".join(map(str, codes))


def painted(text: str, style: str, colour: bool = True) -> str:
    """A text of one line in a style, if `colour`."""
    code = ansi_code(style) if colour and text else ""
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def in_colour() -> bool:
    """Whether `print` goes to a terminal that should get colours; https://no-color.org is respected."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def terminal_text(
    rows: Sequence[TokenRow], spelling: Spelling | None = None, *, most: int | None = None, colour: bool = True
) -> str:
    """The rows as running text, with a legend in front.

    Args:
        spelling: the text of an id; default the id itself and a space.
        most: show at most so many tokens, and then how many are left out.
        colour: with ANSI codes.
    """
    shown, left_out = first_tokens(rows, most)
    text_of, faint = cached(spelling), STYLES["padding"]
    parts = ["  ".join(painted(f" {MEANINGS[kind]} ", STYLES[kind], colour) for kind in kinds_of(shown)), "\n\n"]
    for row in shown:
        if row.heading:
            parts += [painted(row.heading, faint, colour), "\n"]
        for number, part in enumerate(row.texts()):
            if number:
                parts += ["\n", painted(f"── {row.name(number)} ──", faint, colour), "\n"]
            texts = [text_of(token) for token in row.ids[part].tolist()]
            for text, kind in _runs(texts, row.kinds[part].tolist()):
                parts += [_of_kind(text, kind, colour), "\n" * text.endswith(_EOT)]
        if row.n_padding:
            parts += ["\n", painted(f"{row.n_padding:,} × padding", faint, colour)]
        parts.append("\n")
    if left_out:
        parts += [painted(f"and {left_out:,} more tokens", faint, colour), "\n"]
    return "".join(parts)


def _runs(texts: list[str], kinds: list[int]) -> Iterator[tuple[str, Colour]]:
    """Neighbouring tokens of one kind, joined, up to the end of a turn of our own format.

    ::

        texts  Hi  !  <e>      kinds  context context scaffold   ->   ("Hi!", context), ("<e>", scaffold)
    """
    start = 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at] != kinds[start] or texts[at - 1] == _EOT:
            yield whole("".join(texts[start:at])), COLOURS[kinds[start]]
            start = at


def _of_kind(text: str, kind: Colour, colour: bool) -> str:
    """Text in the colour of its kind; a colour ends before a line does, or terminals paint the rest of the line."""
    lines = (painted("".join(map(printable, line)), STYLES[kind], colour) for line in text.split("\n"))
    return "⏎\n".join(lines)
