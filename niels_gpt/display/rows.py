"""Tokens as they are shown: their kinds and colours, their texts, and rows of them (`TokenRow`).

Renderings, batches, stored rows and findings all show themselves through a list of `TokenRow`::

    TokenRow    ids  5 7 9 | 4 2 0 0      kinds  context trained trained context trained
                                          text_starts 3      n_padding 2
    terminal    5 7 9                     each kind in its colour
                ── text 2 ──
                4 2
                2 × padding

The colours of terminals and notebooks are here. Those of the explorer, which also shows roles, are in its `style.css`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
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
_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥"}


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
        names: of the texts, such as "episode 7"; default "text 1", "text 2", ...
    """

    ids: npt.NDArray[np.integer[Any]]
    kinds: npt.NDArray[np.intp]
    facts: Callable[[int], str]
    heading: str = ""
    text_starts: Sequence[int] = ()
    n_padding: int = 0
    names: Sequence[str] = ()

    def name(self, text: int) -> str:
        """The name of a text, counted from 0."""
        return self.names[text] if self.names else f"text {text + 1}"

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
    # `decode` first: the tokenizers of transformers are callable as well, but on text.
    if hasattr(tokenizer, "decode"):
        return lambda token: str(tokenizer.decode([token]))
    if not callable(tokenizer):
        raise UsageError(
            f"tokenizer is a {type(tokenizer).__name__}; expected a tokenizer with decode(ids), or a function from an "
            "id to its text"
        )
    spelling: Spelling = tokenizer
    return spelling


def first_tokens(rows: Sequence[TokenRow], most: int | None) -> tuple[list[TokenRow], int]:
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
                cut = replace(row, ids=row.ids[:room], kinds=row.kinds[:room], text_starts=starts, n_padding=0)
                shown.append(cut)
            break
        shown.append(row)
        room -= len(row.ids)
    return shown, total - sum(len(row.ids) for row in shown)


def kinds_of(rows: Sequence[TokenRow]) -> list[Colour]:
    """The kinds that occur in the rows, in the order of `COLOURS`, for the legend."""
    found = {place for row in rows for place in np.unique(row.kinds).tolist()}
    return [kind for place, kind in enumerate(COLOURS) if place in found]


def cached(spelling: Spelling | None) -> Spelling:
    """The spelling of ids, computed once for each; without one, the ids as numbers."""
    # Most ids of a conversation occur several times, and decoding one takes microseconds.
    return cache(raw_spelling(spelling) if spelling else (lambda token: f"{token} "))
