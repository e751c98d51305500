"""The quick way: whole strings through gigatoken with its control tokens, and a proof that none came from a body.

`Encoder` goes this way first. The ids are those of the general way (`encoder.py`) if the control tokens among them are
those of the scaffold, each at its own byte: then what lies between them was encoded as the general way encodes it.
Where a body spells a control token, or anything else is not as it should be, the general way is taken.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import chain, compress, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.tokenizer.description import Description
from niels_gpt.tokenizer.engines import BETWEEN, proven_gigatoken
from niels_gpt.tokenizer.pieces import ControlFinder, Ids, Positions, edges_of

_CACHED_TEXTS = 65_536
_CACHED_CHARACTERS = 1024  # longer scaffold (tool schemas) is seldom seen twice
_BATCH = 24  # strings; gigatoken's batches cost some 130 microseconds before the first

Hits = tuple[tuple[int, int], ...]  # (byte, id) of each control token in a scaffold text


class FrameHits(dict[str, Hits]):
    """The control tokens of scaffold texts, remembered."""

    def __init__(self, finder: ControlFinder) -> None:
        super().__init__()
        self._finder = finder

    def __missing__(self, text: str) -> Hits:
        hits = tuple((begin, token) for begin, _, token in self._finder.hits(text.encode()))
        if len(text) <= _CACHED_CHARACTERS and len(self) < _CACHED_TEXTS:
            self[text] = hits
        return hits


class FlatEncoder:
    """Strings of pieces through gigatoken in one go."""

    def __init__(self, finder: ControlFinder, about: Description, backend: Any, is_control: npt.NDArray[np.bool_]):
        self._form: Any = about.form
        self._hits = FrameHits(finder)
        self._backend, self._is_control = backend, is_control
        lengths = np.zeros(about.vocab_size, np.int64)
        if about.byte_lengths is not None:
            lengths[: about.byte_lengths.size] = about.byte_lengths
        for text, token in about.control_ids.items():
            lengths[token] = len(text.encode())
        self._lengths = lengths

    @classmethod
    def proven(
        cls, finder: ControlFinder, about: Description, is_control: npt.NDArray[np.bool_], reference: Any
    ) -> FlatEncoder | None:
        """The quick way for a tokenizer, or `None` where it has not been proven to lead to the reference's ids."""
        if about.uncuttable or about.byte_lengths is None or about.rest != about.body:
            return None
        backend, _ = proven_gigatoken(about.whole, reference, about.added_ids)
        return None if backend is None else cls(finder, about, backend, is_control)

    def encode(
        self, texts: Sequence[str], scaffold: Sequence[bool], pieces: Positions
    ) -> tuple[Ids, Positions, Positions] | None:
        """See `Encoder.encode_flat`; `None` where this way does not lead to a proven result.

        ::

            pieces     "<e>" scaffold   "ab" body   "<e>" scaffold      bytes before each  0 3 5, all 8
            ids        <e> a b <e>      stand for 3 1 1 3 bytes          they start at      0 3 4 5
            controls   at 0 and 5, as the scaffold has them              tokens of pieces   1 2 1
        """
        first = edges_of(pieces)
        bounds = first.tolist()
        try:
            strings = ["".join(texts[a:b]) for a, b in pairwise(bounds)]
            data = [string.encode() for string in strings]
        except UnicodeEncodeError:  # the general way says which text it is
            return None
        if self._form and not all(s.isascii() or unicodedata.is_normalized(self._form, s) for s in strings):
            return None
        edges = edges_of(self._sizes(texts, strings, data))
        ids, lengths = self._ids(data)
        starts = edges_of(self._lengths[ids])
        controls = np.flatnonzero(self._is_control[ids])
        at, expected = self._expected(texts, scaffold, edges)
        # All bytes of every string are told by its own tokens, and control tokens are where they should be.
        proven = np.array_equal(starts[edges_of(lengths)], edges[first])
        if not proven or not np.array_equal(ids[controls], expected) or not np.array_equal(starts[controls], at):
            return None
        before = starts[:-1].searchsorted(edges)
        return ids, before[1:] - before[:-1], lengths

    @staticmethod
    def _sizes(texts: Sequence[str], strings: list[str], data: list[bytes]) -> Positions:
        """The bytes of each piece."""
        if sum(map(len, strings)) == sum(map(len, data)):  # all ASCII
            return np.fromiter(map(len, texts), np.int64, len(texts))
        return np.fromiter(map(len, map(str.encode, texts)), np.int64, len(texts))

    def _expected(
        self, texts: Sequence[str], scaffold: Sequence[bool], edges: Positions
    ) -> tuple[Positions, npt.NDArray[np.int64]]:
        """Byte and id of every control token that the scaffold has."""
        hits = list(map(self._hits.__getitem__, compress(texts, scaffold)))
        table = np.fromiter(chain.from_iterable(chain.from_iterable(hits)), np.int64).reshape(-1, 2)
        begin = edges[:-1][np.fromiter(scaffold, np.bool_, len(scaffold))]
        counts = np.fromiter(map(len, hits), np.int64, len(hits))
        return begin.repeat(counts) + table[:, 0], table[:, 1]

    def _ids(self, data: list[bytes]) -> tuple[Ids, Positions]:
        """All ids, and how many each string has."""
        if len(data) < _BATCH:
            encoded = list(map(self._backend.encode, data))
            lengths = np.fromiter(map(len, encoded), np.int64, len(data))
            return np.concatenate(encoded, dtype=np.int32, casting="unsafe"), lengths
        import gigatoken

        source: Any = data
        if isinstance(self._backend, gigatoken.gigatoken_rs.BPETokenizer):  # the other wants UTF-8 between texts
            source = gigatoken.BytesSource([BETWEEN.join(data)], separator=BETWEEN)
        layout = gigatoken.Tokenizer(self._backend).encode_batch(source).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        return np.asarray(layout.content.data).astype(np.int32), offsets[1:] - offsets[:-1]
