"""One example in the terminal: a legend, running text in colour, and a table with ids and targets.

It is printed while it is read, so an example of millions of tokens begins at once and needs little memory. Formatting a
cell with rich takes 50 us; the table therefore asks rich once per style, and makes each distinct cell once.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from niels_gpt.display.example import ExampleView, TokenColumns, TokenView
from niels_gpt.display.rows import MEANINGS, STYLES, Colour, printable, visible, whole

PADDING_ROWS = 2  # of the table; more padding is only counted
_WIDEST = 24  # columns for a token's text; the row of a longer text is wider
_FAINT = "bright_black"
_ROWS = 1024  # of the table, printed at a time
_BLOCK = 4096  # characters of running text printed at a time, up to the end of a line
_LONGEST_LINE = 65_536  # a longer one is printed in parts
_LINES = 1024  # of JSON, printed at a time
_json = json.JSONEncoder(ensure_ascii=False).encode


def show_view(console: Console, view: ExampleView, *, with_table: bool) -> None:
    """Print title, legend, running text and, if `with_table`, the table."""
    seen = Seen(view.tokens)
    console.print(Text(view.title, style="bold"), soft_wrap=True)
    if not view.has_text:
        console.print(
            Text("ids only: no tokenizer of the dataset is beside it; pass --tokenizer to see text", style="yellow"),
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
    """Print an example as JSON, a line per token."""
    print(f'{{\n  "title": {_json(view.title)},\n  "tokens": [', end="")
    lines, before = (_json(token.to_json()) for token in view.tokens), ""
    while block := ",\n    ".join(islice(lines, _LINES)):
        print(f"{before}\n    {block}", end="")
        before = ","
    print("\n  ]\n}")


def legend(kinds: Iterable[Colour]) -> Text:
    """The legend of these kinds of tokens."""
    found = set(kinds)
    return Text("  ").join(Text(f" {MEANINGS[kind]} ", style=style) for kind, style in STYLES.items() if kind in found)


def flow(view: ExampleView, n_real: int) -> Iterator[Text]:
    """The example as running text, each token in the colour of its kind; ids where there is no text.

    Yields blocks to be printed one after the other with nothing between them.

    Args:
        n_real: how many tokens there are before the padding.
    """
    block, size, now = Text(), 0, ""
    run: list[str] = []  # neighbours of one style
    for text, style in _styled(view, n_real):
        if style != now:
            block.append(whole("".join(run)), style=now)
            run, now = [], style
        run.append(text)
        size += len(text)
        if size > _LONGEST_LINE or (size > _BLOCK and text.endswith("\n")):
            yield block.append(whole("".join(run)), style=now)
            block, size, run = Text(), 0, []
    yield block.append(whole("".join(run)), style=now)


def _styled(view: ExampleView, n_real: int) -> Iterator[tuple[str, str]]:
    """The text and style of every token, and of the lines between texts or messages."""

    @cache  # there are few different texts
    def shown(text: str) -> str:
        text = "\n" if text == "<0x0A>" else text  # SentencePiece's name of the byte
        # Bytes of a character stay as they are: the other bytes are in the next token, and `flow` joins them.
        lines = (
            "".join(byte if "\udc80" <= byte <= "\udcff" else printable(byte) for byte in line)
            for line in text.split("\n")
        )
        # A document ends with <eot>; the next one begins on a line of its own.
        return "⏎\n".join(lines) + ("\n" if text == "<eot>" else "")

    segment = None
    for token in islice(view.tokens, n_real):
        if segment is not None and segment != token.segment:
            # Between two messages of a rendering, or two texts of a row.
            yield f"\n── {token.segment - 1} {token.role} ──\n" if token.role else "\n──\n", STYLES["padding"]
        segment = token.segment
        yield shown(token.text) if view.has_text else f"{token.id} ", STYLES[token.kind]
    if n_real < len(view.tokens):
        first = view.tokens[n_real]
        yield f"{len(view.tokens) - n_real:,} × {visible(first.text) or first.id}", STYLES["padding"]


class Seen:
    """Facts that the table and legend need before the first row: kinds, column widths, where padding begins."""

    def __init__(self, tokens: Sequence[TokenView]) -> None:
        few = tokens.different() if isinstance(tokens, TokenColumns) else tokens
        self.kinds = {token.kind for token in few}
        self.texts = {text for token in few for text in (token.text, token.target_text)}
        self.owners = {(token.segment, token.role) for token in few}
        self.widest_id = max((max(token.id, token.target) for token in few), default=0)
        # Padding is always at the end, so a binary search finds where it begins.
        self.n_real = bisect_left(range(len(tokens)), True, key=lambda at: tokens[at].kind == "padding")
        self.n_padding = len(tokens) - self.n_real


class Table:
    """The table: position, id, token, kind, and the target that is predicted from that position.

    Args:
        console: where the lines will be printed; it knows which colours there are.
        seen: of the tokens.
    """

    def __init__(self, console: Console, seen: Seen) -> None:
        self._console, self._seen = console, seen
        # Only renderings have roles; the segments of a packed row are numbers.
        self._rendered = any(role for _, role in seen.owners)
        self._packed = any(segment for segment, _ in seen.owners) and not self._rendered
        self._position = max(3, len(str(seen.n_real + seen.n_padding)))
        self._id, self._target = max(2, len(str(seen.widest_id))), max(9, len(str(seen.widest_id)))
        self._text = max(6, min(_WIDEST, max((cell_len(visible(text)) for text in seen.texts), default=0)))
        names = [self._owner(owner) for owner in seen.owners]
        self._owner_width = max(map(len, ["message" if self._rendered else "seg", *names]))
        # Few texts and kinds repeat in many rows.
        self._of_token, self._of_target = cache(self._token_cells), cache(self._target_cells)
        self._codes = cache(self._codes_of)

    def lines(self, tokens: Sequence[TokenView]) -> Iterator[str]:
        """The table, many lines at a time, with the console's colour codes."""
        owner = [f"{'message' if self._rendered else 'seg':<{self._owner_width}}"] * (self._rendered or self._packed)
        words = [f"{'pos':>{self._position}}", *owner, f"{'id':>{self._id}}", f"{'token':<{self._text}}", "kind    "]
        words += [f"{'target id':>{self._target}}", f"{'target':<{self._text}}", "loss"]
        yield self._styled("  ".join(words), "bold") + "\n"
        # All padding is alike; a row of 8 192 would end in thousands of lines of it.
        shown = self._seen.n_real + min(self._seen.n_padding, PADDING_ROWS)
        rows = map(self._row, islice(tokens, shown))
        while block := "".join(islice(rows, _ROWS)):
            yield block
        if shown < len(tokens):
            yield self._styled(f"{'⋮':>{self._position}}  {len(tokens) - shown:,} more", STYLES["padding"]) + "\n"

    def _row(self, token: TokenView) -> str:
        owner = ""
        if self._rendered or self._packed:
            owner = f"{self._owner((token.segment, token.role)):<{self._owner_width}}  "
        left = f"{token.position:>{self._position}}  {owner}{token.id:>{self._id}}  "
        # -100 is printed where the target is not in the loss, as trainers write it.
        target = token.target if token.target_trained else None
        return left + self._of_token(token.text, token.kind) + self._of_target(target, token.target_text)

    def _owner(self, owner: tuple[int, str | None]) -> str:
        segment, role = owner
        if self._rendered:
            return f"{segment - 1} {role}" if role else ""
        return str(segment or "")

    def _token_cells(self, text: str, kind: Colour) -> str:
        style = STYLES[kind]
        return self._cell(visible(text), style, self._text) + self._cell(kind, style, 8)

    def _target_cells(self, target: int | None, text: str) -> str:
        if target is None:
            faint = self._cell(visible(text), _FAINT, self._text)
            return f"{self._styled(f'{-100:>{self._target}}', _FAINT)}  {faint}{self._styled('·', _FAINT)}\n"
        plain = self._cell(visible(text), "", self._text)
        return f"{target:>{self._target}}  {plain}{self._styled('●', 'green')}\n"

    def _cell(self, text: str, style: str, width: int) -> str:
        return self._styled(text, style) + " " * (max(0, width - cell_len(text)) + 2)

    def _styled(self, text: str, style: str) -> str:
        before, after = self._codes(style)
        return f"{before}{text}{after}" if text else ""

    def _codes_of(self, style: str) -> tuple[str, str]:
        """The codes that the console writes before and after a text of this style."""
        with self._console.capture() as captured:
            self._console.print(Text("|", style=style), end="", soft_wrap=True)
        # The codes depend on the terminal (256 colours, none), so rich is asked once for each style.
        before, _, after = captured.get().partition("|")
        return before, after
