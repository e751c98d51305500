"""How tokens are shown: the kind of a token, its colours, and its text with white space made visible.

The colours of terminals and notebooks are here. Those of the explorer, which also shows roles, are in its `style.css`.
`niels-gpt show`, the doctor's report, and what `RenderedTokens`, datasets and batches show of themselves all use these.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["trained", "sampled", "context", "scaffold", "padding"]
KINDS: tuple[Kind, ...] = ("trained", "sampled", "context", "scaffold", "padding")
TRAINED, SAMPLED, CONTEXT, SCAFFOLD, PADDING = range(5)  # of `KINDS`

STYLES: dict[Kind, str] = {  # in terminals, in rich's words; `ansi_code` needs no rich
    "trained": "bold black on green",
    "sampled": "black on yellow",
    "context": "default",
    "scaffold": "magenta",
    "padding": "bright_black",
}
NOTEBOOK_STYLES: dict[Kind, str] = {  # in notebooks, as CSS that can be read on light and on dark pages
    "trained": "background: #2da44e40; border-bottom: 2px solid #2da44e;",
    "sampled": "background: #d4a72c40; border-bottom: 2px dotted #bf8700;",
    "context": "",
    "scaffold": "color: #8a4fbf;",
    "padding": "opacity: .5;",
}
MEANINGS: dict[Kind, str] = {
    "trained": "trained: in the loss",
    "sampled": "sampled: the model's, not in the loss",
    "context": "context: not in the loss",
    "scaffold": "scaffold: the format's own",
    "padding": "padding",
}
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")  # 30 to 37 in ANSI
_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥"}


def ansi_code(style: str) -> str:
    """The ANSI code of a style in rich's words: `bold black on green` -> `1;30;42`.

    It knows `bold`, the eight colours, their `bright_` forms and `on`. `default` has no code: it is the terminal's own
    colour.
    """
    codes, background = [], 0
    for word in style.split():
        if word == "bold":
            codes.append(1)
        elif word == "on":
            background = 10
        elif word != "default":
            bright = 60 if word.startswith("bright_") else 0
            codes.append(30 + _COLOURS.index(word.removeprefix("bright_")) + bright + background)
    return ";".join(map(str, codes))


def visible(text: str) -> str:
    """A token's text with white space made visible and without control codes, which a terminal would obey."""
    return "".join(_VISIBLE.get(character) or printable(character) for character in text)


def printable(character: str) -> str:
    """A character, or its code point in hexadecimal if it is not printable."""
    return character if character.isprintable() else f"\\u{ord(character):04x}"
