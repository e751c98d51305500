"""Tokens in colour: their kinds and colours, running text for a terminal, HTML with a tooltip per token for a notebook.

Renderings, batches, stored rows and findings all show themselves through a list of `TokenRow`::

    TokenRow    ids  5 7 9 | 4 2 0 0      kinds  context trained trained context trained
                                          text_starts 3      n_padding 2
    terminal    5 7 9                     each kind in its colour
                ── text 2 ──
                4 2
                2 × padding

The colours of terminals and notebooks are here. Those of the explorer, which also shows roles, are in its `style.css`.
`niels-gpt show`, the doctor's report, and what `RenderedTokens`, datasets and batches show of themselves all use these.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from html import escape
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError

Colour = Literal["trained", "sampled", "context", "label", "scaffold", "padding"]
COLOURS: tuple[Colour, ...] = ("trained", "sampled", "context", "label", "scaffold", "padding")
TRAINED, SAMPLED, CONTEXT, LABEL, SCAFFOLD, PADDING = range(6)  # of `COLOURS`

STYLES: dict[Colour, str] = {  # in terminals, in rich's words; `ansi_code` needs no rich
    "trained": "bold black on green",
    "sampled": "black on yellow",
    "context": "default",
    "label": "cyan",
    "scaffold": "magenta",
    "padding": "bright_black",
}
NOTEBOOK_STYLES: dict[Colour, str] = {  # in notebooks, as CSS that can be read on light and on dark pages
    "trained": "background: #2da44e40; border-bottom: 2px solid #2da44e;",
    "sampled": "background: #d4a72c40; border-bottom: 2px dotted #bf8700;",
    "context": "",
    "label": "color: #1b7c83;",
    "scaffold": "color: #8a4fbf;",
    "padding": "opacity: .5;",
}
MEANINGS: dict[Colour, str] = {
    "trained": "trained: in the loss",
    "sampled": "sampled: the model's, not in the loss",
    "context": "context: not in the loss",
    "label": "label: the caller's, in the format's text",
    "scaffold": "scaffold: the format's own",
    "padding": "padding",
}
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")  # 30 to 37 in ANSI
_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥"}


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


def visible(text: str) -> str:
    """A token's text with white space made visible and without control codes, which a terminal would obey."""
    return "".join(_VISIBLE.get(character) or printable(character) for character in text)


def printable(character: str) -> str:
    """A character; its code point, or the byte that `TokenSpelling.raw` wrote, if it is not printable."""
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


Spelling = Callable[[int], str]


class TokenSpelling:
    """The text of an id. A token may hold some of a character's bytes; those are written `\\xc3`.

    ::

        ids                 7 8             é is two tokens
        spelling(7)         '\\xc3'        as text
        spelling.raw(7)     '\\udcc3'       for `whole`, which joins neighbours: whole(raw(7) + raw(8)) is 'é'

    Args:
        token_bytes: the bytes of each of some ids, as encoders have it.
    """

    def __init__(self, token_bytes: Callable[[list[int]], list[bytes]]) -> None:
        # A row repeats a few hundred ids, and the bytes of one cost a call into the tokenizer.
        self.raw: Spelling = lru_cache(maxsize=1 << 16)(
            lambda token: token_bytes([token])[0].decode("utf-8", "surrogateescape")
        )

    def __call__(self, token: int) -> str:
        return whole(self.raw(token))


def whole(text: str) -> str:
    """Joined texts of `TokenSpelling.raw`; bytes that make no character together are written `\\xc3`."""
    if _BYTES.search(text) is None:
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def raw_spelling(spelling: Spelling) -> Spelling:
    """The function whose texts may be joined and given to `whole`."""
    return spelling.raw if isinstance(spelling, TokenSpelling) else spelling


_BYTES: Final = re.compile("[\udc80-\udcff]")  # how `surrogateescape` writes bytes that are no whole character
MOST_TOKENS: Final = 20_000  # in HTML: a notebook becomes slow with more
PREVIEW_TOKENS: Final = 400  # of what `print` shows besides the line of counts

_ANSI: Final = {kind: ansi_code(style) for kind, style in STYLES.items()}

CSS: Final = """
.ng-tokens { font: .85em/1.7 ui-monospace, Menlo, "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.ng-tokens span { border-radius: 2px; } .ng-tokens span:hover { outline: 1px solid #2a62c9; }
.ng-head { opacity: .7; font-size: .85em; margin: .3em 0; }
""" + "".join(f".ng-{kind} {{ {rules} }}\n" for kind, rules in NOTEBOOK_STYLES.items() if rules)


@dataclass(frozen=True, eq=False)
class TokenRow:
    """Tokens that are shown together, such as a rendering, or a row of a batch.

    Attributes:
        ids: integers of shape (tokens,), without padding.
        kinds: places in `COLOURS`, of shape (tokens,).
        facts: what the tooltip of the token at a place says, after its place and id.
        heading: a line above the tokens; empty for none.
        text_starts: the places, other than 0, at which another text of a packed row begins.
        n_padding: how many padding tokens follow.
    """

    ids: npt.NDArray[np.integer[Any]]
    kinds: npt.NDArray[np.intp]
    facts: Callable[[int], str]
    heading: str = ""
    text_starts: Sequence[int] = ()
    n_padding: int = 0

    def texts(self) -> Iterator[slice]:
        """The places of each text: starts 3 of 5 tokens gives 0:3 and 3:5."""
        edges = [0, *self.text_starts, len(self.ids)]
        return map(slice, edges, edges[1:])


def weighted_row(
    ids: npt.NDArray[np.integer[Any]],
    weights: npt.NDArray[Any],
    segment_ids: npt.NDArray[Any] | None = None,
    *,
    heading: str = "",
    n_padding: int = 0,
) -> TokenRow:
    """A row of which only loss weights are known, as caches, episodes and batches store them.

    ::

        segment_ids  1 1 1 2 2      text_starts 3

    Args:
        ids: integers of shape (tokens,), without padding.
        weights: of shape (tokens,): the weight of each token when it is the target.
        segment_ids: of shape (tokens,); another text begins where they change.
    """
    starts = [] if segment_ids is None else (np.flatnonzero(np.diff(segment_ids)) + 1).tolist()

    def facts(at: int) -> str:
        text = [f"text {np.searchsorted(starts, at, side='right') + 1}"] if starts else []
        return ", ".join([*text, f"loss weight {float(weights[at]):g}"])

    kinds = np.where(weights > 0, TRAINED, CONTEXT)
    return TokenRow(ids, kinds, facts, heading, starts, n_padding)


def spelling_of(tokenizer: Any) -> Spelling | None:
    """The text of one id, by whatever knows it: a tokenizer with `decode`, a function of an id, or `None`.

    Raises:
        UsageError: neither of these.
    """
    if tokenizer is None:
        return None
    if hasattr(tokenizer, "token_bytes"):
        return TokenSpelling(tokenizer.token_bytes)
    # `decode` first: the tokenizers of transformers are callable too, but on text.
    if hasattr(tokenizer, "decode"):
        return lambda token: str(tokenizer.decode([token]))
    if not callable(tokenizer):
        raise UsageError(
            f"tokenizer is a {type(tokenizer).__name__}; expected a tokenizer with decode(ids), or a function from an "
            "id to its text"
        )
    spelling: Spelling = tokenizer
    return spelling


def in_colour() -> bool:
    """Whether `print` goes to a terminal that should get colours; https://no-color.org is respected."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def terminal_text(rows: Sequence[TokenRow], spelling: Spelling | None = None, *, most: int | None = None) -> str:
    """The rows as running text in ANSI colours, with a legend in front.

    Args:
        spelling: the text of an id; default the id itself and a space.
        most: show at most so many tokens, and then how many are left out.
    """
    shown, left_out = _first(rows, most)
    legend = "  ".join(_coloured(f" {MEANINGS[kind]} ", kind) for kind in _kinds_of(shown))
    parts = [legend, "\n\n"]
    text_of = _cached(spelling)
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


def notebook_html(head: str, rows: Sequence[TokenRow], spelling: Spelling | None = None) -> str:
    """The rows as HTML: a span for each token, its place, id and facts in the tooltip.

    Args:
        head: the first line, as plain text.
    """
    shown, left_out = _first(rows, MOST_TOKENS)
    legend = " ".join(f'<span class="ng-{kind}">{escape(MEANINGS[kind])}</span>' for kind in _kinds_of(shown))
    text_of = _cached(spelling)
    parts = [f'<style>{CSS}</style><div class="ng-head">{escape(head)}. {legend}</div>']
    for row in shown:
        if row.heading:
            parts.append(f'<div class="ng-head">{escape(row.heading)}</div>')
        for number, part in enumerate(row.texts()):
            if number:
                parts.append(f'<div class="ng-head">text {number + 1}</div>')
            spans = [
                span(text_of(int(row.ids[at])), COLOURS[row.kinds[at]], f"{at}: id {int(row.ids[at])}, {row.facts(at)}")
                for at in range(part.start, part.stop)
            ]
            parts.append(f'<div class="ng-tokens">{"".join(spans)}</div>')
        if row.n_padding:
            parts.append(f'<div class="ng-tokens"><span class="ng-padding">{row.n_padding:,} × padding</span></div>')
    if left_out:
        parts.append(f'<div class="ng-head">and {left_out:,} more tokens</div>')
    return "".join(parts)


def span(text: str, kind: Colour, tip: str) -> str:
    """One token as HTML; `tip` appears when the pointer is over it."""
    lines = "⏎\n".join(escape("".join(map(printable, line))) for line in text.split("\n"))
    return f'<span class="ng-{kind}" title="{escape(tip)}">{lines}</span>'


def _first(rows: Sequence[TokenRow], most: int | None) -> tuple[list[TokenRow], int]:
    """The rows cut after `most` tokens, and how many tokens are left out.

    Rows of 4, 3 and 2 tokens with `most` 5 are shown as rows of 4 and 1 tokens; 4 are left out.
    """
    total = sum(len(row.ids) for row in rows)
    if most is None or total <= most:
        return list(rows), 0
    shown, room = [], most
    for row in rows:
        if len(row.ids) > room:
            starts = [start for start in row.text_starts if start < room]
            # The padding of a row that is cut would seem to follow its last shown token.
            if room:
                shown.append(TokenRow(row.ids[:room], row.kinds[:room], row.facts, row.heading, starts))
            break
        shown.append(row)
        room -= len(row.ids)
    return shown, total - sum(len(row.ids) for row in shown)


def _kinds_of(rows: Sequence[TokenRow]) -> list[Colour]:
    """The kinds that occur in the rows, in the order of `COLOURS`, for the legend."""
    found = {place for row in rows for place in np.unique(row.kinds).tolist()}
    return [kind for place, kind in enumerate(COLOURS) if place in found]


def _cached(spelling: Spelling | None) -> Spelling:
    # Most ids of a conversation occur several times, and decoding one takes microseconds.
    return cache(raw_spelling(spelling) if spelling else (lambda token: f"{token} "))


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
