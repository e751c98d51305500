"""The table of an example in the terminal: a row a token, written as it is read.

A cell with a style is made once for all rows that have it, and rich is asked once for each style: it takes 50 us.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from niels_gpt.explorer.example import Kind, TokenColumns, TokenView
from niels_gpt.explorer.looks import STYLES, visible

PADDING_ROWS = 2
_WIDEST = 24  # columns of a token's text; a longer one sticks out of its row
_FAINT = "bright_black"
_ROWS = 1024  # written at a time


class Seen:
    """What the table and the legend must know before the first row."""

    def __init__(self, tokens: Sequence[TokenView]) -> None:
        few = tokens.different() if isinstance(tokens, TokenColumns) else tokens
        self.kinds = {token.kind for token in few}
        self.texts = {text for token in few for text in (token.text, token.target_text)}
        self.owners = {(token.segment, token.role) for token in few}
        self.widest_id = max((max(token.id, token.target) for token in few), default=0)
        # Padding is always at the end.
        self.n_real = bisect_left(range(len(tokens)), True, key=lambda at: tokens[at].kind == "padding")
        self.n_padding = len(tokens) - self.n_real


class Table:
    """Position, id, token, kind, and the target that is predicted from there.

    Args:
        console: where the lines will be printed; it says which colours there are.
        seen: the tokens.
    """

    def __init__(self, console: Console, seen: Seen) -> None:
        self._console, self._seen = console, seen
        self._rendered = any(role for _, role in seen.owners)
        self._packed = any(segment for segment, _ in seen.owners) and not self._rendered
        self._position = max(3, len(str(seen.n_real + seen.n_padding)))
        self._id, self._target = max(2, len(str(seen.widest_id))), max(9, len(str(seen.widest_id)))
        self._text = max(6, min(_WIDEST, max((cell_len(visible(text)) for text in seen.texts), default=0)))
        names = [self._owner(owner) for owner in seen.owners]
        self._owner_width = max(map(len, ["message" if self._rendered else "seg", *names]))
        self._of_token, self._of_target = cache(self._token_cells), cache(self._target_cells)
        self._codes = cache(self._codes_of)

    def lines(self, tokens: Sequence[TokenView]) -> Iterator[str]:
        """The table, many lines at a time, with the console's own codes for colours."""
        yield self._head() + "\n"
        shown = self._seen.n_real + min(self._seen.n_padding, PADDING_ROWS)
        rows = map(self._row, islice(tokens, shown))
        while block := "".join(islice(rows, _ROWS)):
            yield block
        if shown < len(tokens):
            yield self._styled(f"{'⋮':>{self._position}}  {len(tokens) - shown:,} more", STYLES["padding"]) + "\n"

    def _head(self) -> str:
        owner = [f"{'message' if self._rendered else 'seg':<{self._owner_width}}"] * (self._rendered or self._packed)
        words = [f"{'pos':>{self._position}}", *owner, f"{'id':>{self._id}}", f"{'token':<{self._text}}", "kind    "]
        words += [f"{'target id':>{self._target}}", f"{'target':<{self._text}}", "loss"]
        return self._styled("  ".join(words), "bold")

    def _row(self, token: TokenView) -> str:
        owner = ""
        if self._rendered or self._packed:
            owner = f"{self._owner((token.segment, token.role)):<{self._owner_width}}  "
        left = f"{token.position:>{self._position}}  {owner}{token.id:>{self._id}}  "
        target = token.target if token.target_trained else None
        return left + self._of_token(token.text, token.kind) + self._of_target(target, token.target_text)

    def _owner(self, owner: tuple[int, str | None]) -> str:
        segment, role = owner
        if self._rendered:
            return f"{segment - 1} {role}" if role else ""
        return str(segment or "")

    def _token_cells(self, text: str, kind: Kind) -> str:
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
        """What the console writes before and after a text of this style."""
        with self._console.capture() as made:
            self._console.print(Text("|", style=style), end="", soft_wrap=True)
        before, _, after = made.get().partition("|")
        return before, after
