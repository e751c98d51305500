"""A completion as text whose every character knows its token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

import numpy as np

from niels_gpt.forks import cached_property
from niels_gpt.tokenizer.protocol import PieceEncoder

_UNKNOWN = "\ufffd".encode()


class Completion:
    """The text of sampled ids up to the first stop, and the way back from characters to ids.

    Bytes that are no UTF-8 (half a character at the end of what was sampled) stand as lone surrogates here, one each,
    so that no place is lost; `told` shows them as U+FFFD.

    Attributes:
        ids: the ids up to the first stop, without it.
        text: their text.
        stopped: there was a stop.
    """

    def __init__(self, encoder: PieceEncoder, token_ids: Sequence[int], stop_ids: Collection[int]) -> None:
        ids = [int(token) for token in token_ids]
        end = next((at for at, token in enumerate(ids) if token in stop_ids), len(ids))
        self.stopped = end < len(ids)
        self.ids = ids[:end]
        self._added, self._controls = encoder.added_ids, encoder.control_ids
        # Models with padded embeddings may sample ids that no tokenizer knows.
        known = iter(encoder.token_bytes([token for token in self.ids if 0 <= token < encoder.vocab_size]))
        self._bytes = [next(known) if 0 <= token < encoder.vocab_size else _UNKNOWN for token in self.ids]
        self.text = b"".join(self._bytes).decode("utf-8", "surrogateescape")

    @cached_property
    def _starts(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The character in which each token starts, and the end.

        ::

            tokens  "a" b"\\xc3" b"\\xa9b"     bytes before  0 1 2 4     characters "aéb" start at bytes  0 1 3 4
            starts  0 1 1 3                  (the last character that starts at or before each byte)
        """
        sizes = [len(char.encode("utf-8", "surrogateescape")) for char in self.text]
        edges = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        before = np.concatenate(([0], np.cumsum([len(part) for part in self._bytes], dtype=np.int64)))
        return edges.searchsorted(before, side="right") - 1

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The tokens that hold the characters from `start` to `stop`."""
        first = int(self._starts.searchsorted(start, side="right")) - 1
        return first, max(first, int(self._starts.searchsorted(stop, side="left")))

    def find(self, marker: str, start: int = 0, stop: int | None = None) -> int:
        """Where a marker stands next, -1 if nowhere.

        A marker that is a token of its own is looked for by id, so that a text that merely spells it is text; where no
        such id is left, by its spelling, for a model may write it so; but control tokens come by id alone.
        """
        end = len(self.text) if stop is None else stop
        token = self._added.get(marker)
        if token is not None:
            places = self._places.get(token, [])
            at = bisect_left(places, start)
            if at < len(places) and places[at] + len(marker) <= end:
                return places[at]
            if marker in self._controls:
                return -1
        return self.text.find(marker, start, end)

    @cached_property
    def _places(self) -> dict[int, list[int]]:
        """The characters at which each id starts, of ids that are added tokens."""
        added = set(self._added.values())
        places: dict[int, list[int]] = {}
        for token, at in zip(self.ids, self._starts.tolist(), strict=False):
            if token in added:
                places.setdefault(token, []).append(at)
        return places

    def told(self, start: int = 0, stop: int | None = None) -> str:
        """Text from here to there, as one may show it."""
        return shown(self.text[start:stop])

    def says(self, start: int, stop: int) -> bool:
        """The ids from here to there are more than white space."""
        return bool(b"".join(self._bytes[start:stop]).strip())


def shown(text: str) -> str:
    """A text whose lone surrogates are bytes that are no UTF-8, with U+FFFD in their place."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
