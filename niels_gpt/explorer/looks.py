"""How a token looks in the terminal: the colour of its kind, and its text without what could steer the terminal."""

from __future__ import annotations

from niels_gpt.explorer.example import Kind

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
    """A token's text with spaces and control characters made visible; nothing in data can steer the terminal."""
    return "".join(_VISIBLE.get(character) or printable(character) for character in text)


def printable(character: str) -> str:
    """A character, or its number where it has no looks."""
    return character if character.isprintable() else f"\\u{ord(character):04x}"
