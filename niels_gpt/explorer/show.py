"""An example in the terminal: running text in colour, then a table with ids and targets."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from niels_gpt.explorer.example import ExampleView, Kind, TokenView

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


PADDING_ROWS = 2
_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥"}


def visible(text: str) -> str:
    """A token's text with spaces and control characters made visible; nothing in data can steer the terminal."""
    return "".join(_VISIBLE.get(character) or _printable(character) for character in text)


def _printable(character: str) -> str:
    return character if character.isprintable() else f"\\u{ord(character):04x}"


def legend(tokens: list[TokenView]) -> Text:
    """What the colours mean that occur."""
    found = {token.kind for token in tokens}
    return Text("  ").join(Text(f" {MEANINGS[kind]} ", style=style) for kind, style in STYLES.items() if kind in found)


def flow(view: ExampleView) -> Text:
    """The example as running text, each token in the colour of its kind; ids where there is no text."""
    text = Text()
    real, padding = _apart(view.tokens)
    for before, token in zip([None, *real], real, strict=False):
        if before is not None and before.segment != token.segment:
            text.append(_seam(token), style=STYLES["padding"])
        shown = token.text if view.has_text else f"{token.id} "
        shown = "\n" if token.text == "<0x0A>" else shown
        for number, line in enumerate(shown.split("\n")):
            text.append("⏎\n" if number else "", style=STYLES[token.kind])
            text.append("".join(map(_printable, line)), style=STYLES[token.kind])
        if token.text == "<eot>":
            text.append("\n")
    if padding:
        text.append(f"{len(padding):,} × {padding[0].text or padding[0].id}", style=STYLES["padding"])
    return text


def _seam(token: TokenView) -> str:
    """What stands between two texts of a row, or two messages of a rendering."""
    return f"\n── {token.segment - 1} {token.role} ──\n" if token.role else "\n──\n"


def _apart(tokens: list[TokenView]) -> tuple[list[TokenView], list[TokenView]]:
    """Real tokens and padding; padding is always at the end."""
    n = sum(token.kind != "padding" for token in tokens)
    return tokens[:n], tokens[n:]


def table(tokens: list[TokenView]) -> Table:
    """Position, id, token, kind, and the target that is predicted from there."""
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    rendered = any(token.role for token in tokens)
    packed = any(token.segment for token in tokens) and not rendered
    for name in ("pos", "seg", "id") if packed else ("pos", "id"):
        shown.add_column(name, justify="right")
    if rendered:
        shown.add_column("message")
    shown.add_column("token")
    shown.add_column("kind")
    shown.add_column("target id", justify="right")
    shown.add_column("target")
    shown.add_column("loss")
    real, padding = _apart(tokens)
    for token in real + padding[:PADDING_ROWS]:
        style = STYLES[token.kind]
        shown.add_row(
            str(token.position),
            *([str(token.segment or "")] if packed else []),
            str(token.id),
            *([f"{token.segment - 1} {token.role}" if token.role else ""] if rendered else []),
            Text(visible(token.text), style=style),
            Text(token.kind, style=style),
            str(token.target) if token.target_trained else Text("-100", style="bright_black"),
            Text(visible(token.target_text), style="" if token.target_trained else "bright_black"),
            Text("●", style="green") if token.target_trained else Text("·", style="bright_black"),
        )
    if len(padding) > PADDING_ROWS:
        shown.add_row(
            *["⋮", "", "", ""][: 3 + packed], Text(f"{len(padding) - PADDING_ROWS:,} more", style=STYLES["padding"])
        )
    return shown


def render(view: ExampleView, *, with_table: bool) -> RenderableType:
    """Title, legend, running text and, on request, the table."""
    parts: list[RenderableType] = [Text(view.title, style="bold"), legend(view.tokens), Text(), flow(view)]
    if not view.has_text:
        parts.insert(1, Text("no tokenizer with the cache's hash nearby; pass --tokenizer to see text", style="yellow"))
    if with_table:
        parts += [Text(), table(view.tokens)]
    return Group(*parts)
