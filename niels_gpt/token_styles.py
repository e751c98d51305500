"""How tokens are shown: the kind of a token, its colour in a terminal, and its text with white space made visible.

The explorer, `niels-gpt show`, the doctor's report and `RenderedTokens` all use these.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["trained", "sampled", "context", "scaffold", "padding"]
KINDS: tuple[Kind, ...] = ("trained", "sampled", "context", "scaffold", "padding")
TRAINED, SAMPLED, CONTEXT, SCAFFOLD, PADDING = range(5)  # of `KINDS`

STYLES: dict[Kind, str] = {
    "trained": "bold black on green",
    "sampled": "black on yellow",
    "context": "white",
    "scaffold": "magenta",
    "padding": "bright_black",
}
MEANINGS: dict[Kind, str] = {
    "trained": "trained: in the loss",
    "sampled": "sampled: the model's, not in the loss",
    "context": "context: read, not graded",
    "scaffold": "scaffold: the format's own",
    "padding": "padding",
}
_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥"}


def visible(text: str) -> str:
    """A token's text with white space made visible and without control codes, which a terminal would obey."""
    return "".join(_VISIBLE.get(character) or printable(character) for character in text)


def printable(character: str) -> str:
    """A character, or its code point in hexadecimal if it is not printable."""
    return character if character.isprintable() else f"\\u{ord(character):04x}"
