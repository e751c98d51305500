"""Rows of tokens as running text in a terminal, in ANSI colours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
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

_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")  # 30 to 37 in ANSI


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


_ANSI: Final = {kind: ansi_code(style) for kind, style in STYLES.items()}


def in_colour() -> bool:
    """Whether `print` goes to a terminal that should get colours; https://no-color.org is respected."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def terminal_text(rows: Sequence[TokenRow], spelling: Spelling | None = None, *, most: int | None = None) -> str:
    """The rows as running text in ANSI colours, with a legend in front.

    Args:
        spelling: the text of an id; default the id itself and a space.
        most: show at most so many tokens, and then how many are left out.
    """
    shown, left_out = first_tokens(rows, most)
    legend = "  ".join(_coloured(f" {MEANINGS[kind]} ", kind) for kind in kinds_of(shown))
    parts = [legend, "\n\n"]
    text_of = cached(spelling)
    for row in shown:
        if row.heading:
            parts.append(f"{_coloured(row.heading, 'padding')}\n")
        for number, part in enumerate(row.texts()):
            if number:
                parts.append(_coloured(f"\n── text {number + 1} ──\n", "padding"))
            texts = [text_of(token) for token in row.ids[part].tolist()]
            parts += [_coloured(text, kind) for text, kind in _runs(texts, row.kinds[part].tolist())]
        if row.n_padding:
            parts.append(_coloured(f"\n{row.n_padding:,} × padding", "padding"))
        parts.append("\n")
    if left_out:
        parts.append(_coloured(f"and {left_out:,} more tokens\n", "padding"))
    return "".join(parts)


def _runs(texts: list[str], kinds: list[int]) -> Iterator[tuple[str, Colour]]:
    """Neighbouring tokens of one kind, joined.

    ::

        texts  Hi  !  <e>      kinds  context context scaffold   ->   ("Hi!", context), ("<e>", scaffold)
    """
    start = 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at] != kinds[start]:
            yield whole("".join(texts[start:at])), COLOURS[kinds[start]]
            start = at


def _coloured(text: str, kind: Colour) -> str:
    """Text in the colour of its kind; a colour ends before a line does, or terminals paint the rest of the line."""
    lines = ["".join(map(printable, line)) for line in text.split("\n")]
    code = _ANSI[kind]
    if not code:
        return "\n".join(lines)
    end = "\n" if kind == "padding" else "⏎\n"  # headings and separators are ours: their line ends are not data
    return end.join(f"\x1b[{code}m{line}\x1b[0m" if line else "" for line in lines)
