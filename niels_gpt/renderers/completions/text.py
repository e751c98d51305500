"""Completions as text with their tokens: `Completion`.

Families and dialects search them for tags and calls by character, and get the tokens of what they find.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from niels_gpt.tokenizer.pieces import PieceEncoder, Positions, bytes_of_ids, edges_of, lengths_of, token_id_list

_UNKNOWN = "\ufffd".encode()
_SPACE = re.compile(r"\s*")
# Of each encoder: marker -> the control token in it, of which a tokenizer may have hundreds.
_WITHIN: WeakKeyDictionary[PieceEncoder, dict[str, str]] = WeakKeyDictionary()
_TOKENS_AT_END = 16  # of a prompt: more than an opened think block takes, however it is tokenized


class Completion:
    """The text of sampled ids up to the first stop, and the way back from characters to tokens.

    Bytes that are not UTF-8 (half a character at the end of what was sampled) are lone surrogates in `text`, one for
    each byte, so that every byte has a place; `decoded` shows them as U+FFFD.

    Attributes:
        ids: the ids up to the first stop, without it.
        text: their text.
        stopped: there was a stop.
        guessed: `find` took a spelling for a marker, which more tokens might have shown to be text.

    Args:
        decoded: the bytes of the ids, and where those of each begin, where the caller has them already.
    """

    def __init__(
        self,
        encoder: PieceEncoder,
        token_ids: Sequence[int],
        stop_ids: Collection[int],
        decoded: tuple[bytes, Positions] | None = None,
    ) -> None:
        ids = token_id_list(token_ids, "token_ids") if decoded is None else [*token_ids]
        # Of the ids 7 9 4 9 2 with the stops 9 and 2: 7, and the rest is ignored, as a server would not have sent it.
        end = len(ids)
        for stop in stop_ids:
            with suppress(ValueError):
                end = ids.index(stop, 0, end)
        self.stopped = end < len(ids)
        self.ids = ids[:end]
        self._added, self._controls = encoder.added_ids, encoder.control_ids
        self._encoder = encoder
        self._bytes, self._edges = _decoded(encoder, self.ids) if decoded is None else decoded
        self._bytes = self._bytes[: int(self._edges[end])]
        self.text = self._bytes.decode("utf-8", "surrogateescape")
        self._is_ascii = self.text.isascii()
        self.guessed = False
        self._found: dict[int, list[int]] = {}  # id of an added token -> its places, filled when they are first needed

    def decoded(self, start: int = 0, stop: int | None = None) -> str:
        """The characters `start` to `stop` as valid Unicode."""
        return replace_surrogates(self.text[start:stop])

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The tokens that hold the characters `start` to `stop`.

        ::

            tokens  "a" b"\xc3" b"\xa9b"    before them 0 1 2 bytes    text  "aéb"
            1 to 2  the bytes 1 to 3: the token with the first byte, up to the one with the last: (1, 3)
        """
        first = bisect_right(self._before, self._byte(start)) - 1
        return first, max(first, bisect_left(self._before, self._byte(stop)))

    def _byte(self, at: int) -> int:
        """How many bytes are before a character."""
        return at if self._is_ascii else len(self.text[:at].encode("utf-8", "surrogateescape"))

    def find(self, marker: str, start: int = 0, stop: int | None = None) -> int:
        """The next character at which a marker begins, -1 if there is none.

        A marker that is a token of its own is searched by id, so that its spelling in several tokens is text. Where no
        such id follows, its spelling counts, since models may write it so. Control tokens count by id only, also
        within a marker (`<｜DSML｜tool_calls>`).
        """
        end = len(self.text) if stop is None else stop
        at = self.find_id(marker, start)
        if at >= 0 and at + len(marker) <= end:
            return at
        if marker in self._controls:
            return -1
        if marker not in self._added and (inner := control_in(self._encoder, marker)):
            offset = marker.index(inner)
            at = self.find_id(inner, start + offset)
            while at >= 0 and not self.text.startswith(marker, at - offset, end):
                at = self.find_id(inner, at + 1)
            return max(at - offset, -1)
        at = self.text.find(marker, start, end)
        self.guessed |= at >= 0 and marker in self._added
        return at

    def first(self, start: int, markers: Sequence[str], stop: int | None = None) -> tuple[int, str]:
        """Where the nearest of some markers begins, and which it is; the end and "" where there is none."""
        nearest, found = len(self.text) if stop is None else stop, ""
        for marker in markers:
            at = self.find(marker, start, stop)
            if 0 <= at < nearest:
                nearest, found = at, marker
        return nearest, found

    def skip_space(self, at: int) -> int:
        """The first character from a place on that is no white space, or the end."""
        return _SPACE.match(self.text, at).end()  # type: ignore[union-attr]

    def find_id(self, marker: str, start: int = 0) -> int:
        """The next character at which a marker begins that is a token of its own, -1 if there is none."""
        token = self._added.get(marker)
        places = self._places_of(token) if token is not None else ()
        at = bisect_left(places, start)
        return places[at] if at < len(places) else -1

    def is_control(self, marker: str) -> bool:
        """Whether the marker is a control token, which is recognised by its id only."""
        return marker in self._controls

    def has_id_of(self, marker: str) -> bool:
        """Whether the marker is somewhere by its id, or the control token is that its spelling contains."""
        token = self._added.get(marker)
        return (self._controls.get(control_in(self._encoder, marker)) if token is None else token) in self.ids

    def has_text(self, start: int, stop: int) -> bool:
        """Whether the tokens `start` to `stop` have more than white space."""
        return bool(self._bytes[self._before[start] : self._before[stop]].strip())

    @cached_property
    def _before(self) -> list[int]:
        """How many bytes are before each token, and all; one more than there are tokens."""
        before: list[int] = self._edges.tolist()
        return before

    def _places_of(self, token: int) -> Sequence[int]:
        """The characters at which an added token starts, ascending."""
        if token not in self._found:
            places, at, char = self._found.setdefault(token, list[int]()), 0, 0
            for _ in range(self.ids.count(token)):  # none for most tokens
                place = self.ids.index(token, at)
                begin, end = self._before[place], self._before[place + 1]
                char += len(self._bytes[self._before[at] : begin].decode("utf-8", "surrogateescape"))
                places.append(char)
                char, at = char + len(self._bytes[begin:end].decode()), place + 1
        return self._found[token]


def control_in(encoder: PieceEncoder, marker: str) -> str:
    """The control token that a marker is or contains; "" for none."""
    known = _WITHIN.setdefault(encoder, {})
    if marker not in known:
        known[marker] = next((control for control in encoder.control_ids if control in marker), "")
    return known[marker]


def _decoded(encoder: PieceEncoder, ids: list[int]) -> tuple[bytes, Positions]:
    """The bytes of ids and where each begins; U+FFFD for ids that the tokenizer lacks.

    A model whose embedding is padded may sample such ids.
    """
    size = encoder.vocab_size
    if not ids or (min(ids) >= 0 and max(ids) < size):
        return bytes_of_ids(encoder).joined(np.array(ids, np.int64))
    known = iter(encoder.token_bytes([token for token in ids if 0 <= token < size]))
    words = [next(known) if 0 <= token < size else _UNKNOWN for token in ids]
    return b"".join(words), edges_of(lengths_of(words))


def replace_surrogates(text: str) -> str:
    """A text in which lone surrogates (bytes that are not UTF-8) are replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def text_at_end(encoder: PieceEncoder, token_ids: Sequence[int]) -> str:
    """The text of the last ids of a prompt."""
    last = token_id_list(token_ids[-_TOKENS_AT_END:], "prompt_ids")
    known = [token for token in last if 0 <= token < encoder.vocab_size]
    # The first of these tokens may begin within a character.
    return b"".join(encoder.token_bytes(known)).decode(errors="replace")
