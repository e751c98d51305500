"""The quick way: whole strings through gigatoken with its control tokens, and a proof that none came from a body.

`Encoder` goes this way first. The ids are those of the general way (`encoder.py`) if the control tokens among them are
those of the scaffold, each at its own byte: then what lies between them was encoded as the general way encodes it.
Where a body spells a control token, or anything else is not as it should be, the general way is taken.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import compress, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.forks import new_lock
from niels_gpt.tokenizer.description import Description
from niels_gpt.tokenizer.engines import Body, Gigatoken, proven_gigatoken
from niels_gpt.tokenizer.pieces import ControlFinder, Ids, Positions, edges_of

_CACHED_CHARACTERS = 8_000_000
_INT32 = 2**31 - 1


def utf8_of(text: str) -> bytes | None:
    """A text as UTF-8; `None` where it holds half of a surrogate pair: the general way says which text it is."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


class Frames(dict[str, int]):
    """Scaffold texts, numbered as they come, and the control tokens of each.

    ::

        texts      "<e>" 0    "x" 1    "a<e><f>" 2
        edges      0          1        1             3
        table      (0, <e>)            (1, <e>) (4, <f>)      byte and id of each
    """

    def __init__(self, finder: ControlFinder) -> None:
        super().__init__()
        self._finder, self._lock = finder, new_lock()
        self._hits: list[tuple[int, int]] = []
        self._ends = [0]
        self._made: tuple[Positions, Positions] | None = None
        self.characters = 0

    def __missing__(self, text: str) -> int:
        hits = [(begin, token) for begin, _, token in self._finder.hits(text.encode())]
        with self._lock:
            if text not in self:  # no other thread was quicker
                self._hits += hits
                self._ends.append(len(self._hits))
                self._made = None
                self.characters += len(text)
                self[text] = len(self)
        return self[text]

    def hits(self, numbers: Positions) -> tuple[Positions, Positions]:
        """`(counts, hits)`: how many control tokens each of these texts has, and all of them, (byte, id) in rows."""
        edges, table = self._arrays()
        counts = edges[numbers + 1] - edges[numbers]
        # Texts 2 and 0 have 2 and 1 hits, which start at 1 and 0 of the table and at 0 and 2 here: rows 1 2 | 0.
        rows = np.arange(counts.sum()) + (edges[numbers] - edges_of(counts)[:-1]).repeat(counts)
        return counts, table[rows]

    def _arrays(self) -> tuple[Positions, Positions]:
        made = self._made
        if made is None:
            with self._lock:
                made = np.array(self._ends, np.int64), np.array(self._hits, np.int64).reshape(-1, 2)
                self._made = made
        return made


class Outline(NamedTuple):
    """What is known of strings before they are encoded: where pieces and control tokens stand in their bytes.

    ::

        text       "<e>ab<e>" "<e>"      three pieces of sizes 3 2 3, and one of size 3
        controls   pieces 0, 2 and 3 at byte 0 of them, all <e>

    Attributes:
        text, data: all of them end to end, as text and as UTF-8.
        pieces: int64 of shape (strings,), how many each has.
        sizes: int64 of shape (pieces,), the bytes of each.
        controls: int64 of shape (controls, 3), in order: the piece that holds it, the byte in that, the id.
        ascii_only: there is nothing else.
    """

    text: str
    data: bytes
    pieces: Positions
    sizes: Positions
    controls: Positions
    ascii_only: bool


def bytes_of(texts: Sequence[str], *, ascii_only: bool) -> Positions:
    """How many bytes of UTF-8 each text has: int64 of shape (texts,)."""
    return np.fromiter(each_bytes_of(texts, ascii_only=ascii_only), np.int64, len(texts))


def each_bytes_of(texts: Sequence[str], *, ascii_only: bool) -> Iterable[int]:
    """The same one by one."""
    if ascii_only:
        return map(len, texts)
    return (len(text) if text.isascii() else len(text.encode()) for text in texts)


class FlatEncoder:
    """Strings of pieces through gigatoken in one go.

    Attributes:
        seams: with what texts can be encoded apart, if they can (`encode_apart`).
    """

    def __init__(
        self,
        finder: ControlFinder,
        about: Description,
        made: Gigatoken,
        is_control: npt.NDArray[np.bool_],
        body: Body,
    ) -> None:
        self._form: Any = about.form
        self._finder, self._frames = finder, Frames(finder)
        self._gigatoken = made
        self._is_control = np.append(is_control, True)  # an id beyond the vocabulary fails the proof
        self._one_at_a_time = new_lock()  # gigatoken refuses a second thread: "Already borrowed"
        lengths = np.zeros(about.vocab_size, np.int32)
        if about.byte_lengths is not None:
            lengths[: about.byte_lengths.size] = about.byte_lengths
        self.seams, self._body = about.seams, body
        self._body_lengths = np.where(is_control, 0, lengths)  # a text that becomes a control token fails the proof
        for text, token in about.control_ids.items():
            lengths[token] = len(text.encode())
        self._lengths, self._longest = lengths, int(lengths.max(initial=0))

    @classmethod
    def proven(
        cls,
        finder: ControlFinder,
        about: Description,
        is_control: npt.NDArray[np.bool_],
        reference: Any,
        body: Body,
        name: str,
    ) -> FlatEncoder | None:
        """The quick way for a tokenizer, or `None` where it has not been proven to lead to the reference's ids."""
        if about.uncuttable or about.byte_lengths is None or about.rest != about.body:
            return None
        made, _ = proven_gigatoken(about.whole, reference, about.added_ids, name)
        return None if made is None else cls(finder, about, made, is_control, body)

    def encode(
        self, texts: Sequence[str], scaffold: Sequence[bool], pieces: Positions
    ) -> tuple[Ids, Positions, Positions] | None:
        """See `Encoder.encode_flat`; `None` where this way does not lead to a proven result."""
        text = "".join(texts)
        data = utf8_of(text)
        if data is None:
            return None
        ascii_only = len(data) == len(text)
        sizes = bytes_of(texts, ascii_only=ascii_only)
        return self.encode_outline(Outline(text, data, pieces, sizes, self._controls(texts, scaffold), ascii_only))

    def encode_outline(self, known: Outline) -> tuple[Ids, Positions, Positions] | None:
        """The same for strings of which all but the ids is known.

        ::

            pieces     "<e>" scaffold   "ab" body   "<e>" scaffold      bytes before each  0 3 5, all 8
            ids        <e> a b <e>      stand for 3 1 1 3 bytes          they start at      0 3 4 5
            controls   at 0 and 5, as the scaffold has them              tokens of pieces   1 2 1
        """
        if self._form and not known.ascii_only and not unicodedata.is_normalized(self._form, known.text):
            return None  # of normal text all strings are normal
        edges = edges_of(known.sizes)
        piece, byte, expected = known.controls.T
        there = edges.take(piece) + byte
        with self._one_at_a_time:
            ids, lengths = self._ids(known, edges, there)
        rows = ids.astype(np.intp)  # numpy would do it for each table
        starts = self._starts(rows, self._lengths)
        controls = self._is_control.take(rows, mode="clip").nonzero()[0]
        # All bytes of every string are told by its own tokens, and control tokens are where they should be.
        if controls.size != expected.size or starts[-1] != edges[-1]:
            return None
        # Bytes are compared quicker than numbers, which counts where there is one string alone.
        if ids.take(controls).tobytes() != expected.astype(np.int32).tobytes():
            return None
        if starts.take(controls).astype(np.int64).tobytes() != there.tobytes():
            return None
        before = starts[:-1].searchsorted(edges.astype(starts.dtype))
        if lengths is None:  # every string begins with a control token, so that no token reaches into the next
            ends = before.take(edges_of(known.pieces))
            lengths = ends[1:] - ends[:-1]
        elif lengths.size > 1 and (starts.take(edges_of(lengths)) != _string_edges(known, edges)).any():
            return None
        return ids, before[1:] - before[:-1], lengths

    def encode_apart(
        self, text: str, edges: Sequence[int] | Positions, sides: Positions | None
    ) -> tuple[Ids, Positions] | None:
        """Texts that have neither white space nor nothing at their ends, which is up to the caller: each as alone.

        ::

            text       " \\nab" " \\nab<e>"      edges of units  0 2 4 6 8 11      seams  0 2      sides  0 2 1 3
            ids        _ a b _ a b < e >       cuts  0 1 3 4 6 9

        Args:
            text: all of them with `SEAM` in front of each.
            edges: the byte at which each unit starts, a seam or a stretch of a text, and the end of the last.
            sides: the edges that are a side of a seam; `None`: all of them are.

        Returns:
            The ids, and the token at each edge. `None` where this way does not lead to a proven result.
        """
        data = utf8_of(text)
        if data is None:
            return None
        if self._form and len(data) != len(text) and not unicodedata.is_normalized(self._form, text):
            return None
        ids = self._body.encode_one(data)
        starts = self._starts(ids.astype(np.intp), self._body_lengths)
        if starts[-1] != edges[-1]:  # not all bytes are told
            return None
        expected = np.array(edges, starts.dtype)
        cuts = starts[:-1].searchsorted(expected)
        reached = starts.take(cuts)
        if reached.tobytes() == expected.tobytes():  # no token reaches over any edge
            return ids, cuts
        if sides is None or reached.take(sides).tobytes() != expected.take(sides).tobytes():  # into a seam or out of it
            return None
        return ids, cuts

    def _starts(self, rows: npt.NDArray[np.intp], lengths: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        """Where each token starts in the bytes, and the last one ends.

        ::

            ids  <e> a b <e>      starts  0 3 4 5 8
        """
        fits = rows.size * self._longest <= _INT32  # nearly always, and half the memory to go through
        starts = np.zeros(rows.size + 1, np.int32 if fits else np.int64)
        np.add.accumulate(lengths.take(rows, mode="clip"), out=starts[1:])
        return starts

    def controls_in(self, text: str) -> list[tuple[int, int, int]]:
        """Of every control token that a scaffold text holds its first byte, the byte behind it, and its id."""
        return list(self._finder.hits(text.encode()))

    def _controls(self, texts: Sequence[str], scaffold: Sequence[bool]) -> Positions:
        """Every control token that the scaffold has: piece, byte and id."""
        frames = self._frames
        if frames.characters > _CACHED_CHARACTERS:
            frames = self._frames = Frames(self._finder)
        pieces = np.flatnonzero(np.array(scaffold, np.bool_))
        numbers = np.fromiter(map(frames.__getitem__, compress(texts, scaffold)), np.int64, pieces.size)
        counts, hits = frames.hits(numbers)
        return np.column_stack((pieces.repeat(counts), hits))

    def _ids(self, known: Outline, edges: Positions, controls: Positions) -> tuple[Ids, Positions | None]:
        """The ids of strings, and how many each has; `None`: those up to where the next one's bytes begin.

        Strings that begin with control tokens are encoded as one: no token is of two of them, as is proven afterwards.

        ::

            <e>ab|<e>c      edges  0 3 5 8 9      controls  0 5      <e> a b <e> c      None
            ab|c            edges  0 2 3          controls           a b c              2 1

        Args:
            edges: where each piece starts in the bytes, and the last one ends.
            controls: where each control token starts, in order.
        """
        backend = self._gigatoken.after(len(known.data))
        if known.pieces.size == 1:
            ids = backend.encode(known.data).view(np.int32)
            return ids, np.array([ids.size], np.int64)
        ends = _string_edges(known, edges)
        begins = ends[:-1]
        if controls.size and (controls.take(controls.searchsorted(begins), mode="clip") == begins).all():
            return backend.encode(known.data).view(np.int32), None
        encoded = [backend.encode(known.data[a:b]) for a, b in pairwise(ends.tolist())]
        return np.concatenate(encoded).view(np.int32), np.fromiter(map(len, encoded), np.int64, len(encoded))


def _string_edges(known: Outline, edges: Positions) -> Positions:
    """Where each string starts in the bytes, and the last one ends."""
    return edges.take(edges_of(known.pieces))
