"""What a grammar writes around the texts of a conversation depends on little more than its roles: it is learned once.

Most messages are a role and a text. A grammar writes conversations of such messages with the same roles alike, but for
the texts, as long as it finds nothing in them that it looks for; and so it is with calls, results and reasoning
(`kinds.py`). `Shapes` runs the grammar on the second conversation of a kind, keeps the frames, and fills them with the
values of all that come behind::

    roles      user, assistant
    frames     <|im_start|>user\\n      (text)  <|im_end|>\\n<|im_start|>assistant\\n      (text)  <|im_end|>\\n
    arrays     facts of each piece, its bytes without the text, its control tokens

What a family looks for in a text it says itself (`Family.looks_for`); the tests hold it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.calls import BareForm, CallForm
from niels_gpt.renderers.kinds import Key, Kind, plain_values, read_values
from niels_gpt.renderers.rendered import SCAFFOLD
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.stand_ins import STAND_IN, found_in, spells_stand_in, stand_ins
from niels_gpt.renderers.tools import Tools, tools_of
from niels_gpt.tokenizer.encoder import Encoder
from niels_gpt.tokenizer.flat import Outline, bytes_of, is_ascii, utf8_of
from niels_gpt.tokenizer.pieces import Positions, edges_of

_MOST_MESSAGES = 64  # longer conversations are seldom alike
_MOST_KINDS = 4096
_TRIES = 8  # kinds with calls; if none of them has a shape, no other is tried
_DICT = {dict}


@dataclass(frozen=True)
class Shape:
    """Conversations of the same kinds, without their values.

    Attributes:
        frames: what stands before, between and behind the values, and nothing at every second place, for the values.
        order: the value that stands at each of these places; `None`: all stand in order.
        pieces: int64 of shape (pieces, 2), of each its facts as in `Script` and its bytes without the value in it.
        places: int64 of shape (values,), the piece that each value stands in.
        controls: int64 of shape (controls, 3), as in `Outline`.
    """

    frames: list[str]
    order: tuple[int, ...] | None
    pieces: Positions
    places: Positions
    controls: Positions

    def filled(self, values: Sequence[str]) -> str:
        """The rendering with these values, in the order of their places."""
        whole = self.frames.copy()
        whole[1::2] = values
        return "".join(whole)


class Shaped(NamedTuple):
    """A conversation with a shape.

    Attributes:
        values: in the order of their places.
        messages: as `normalise` returns them; the caller's own where nothing is to be normalised.
    """

    shape: Shape
    values: list[str]
    messages: Sequence[Message]


class Shapes:
    """The shapes that a grammar has been seen to write.

    Args:
        write: the grammar.
        looks_for: what it looks for in texts. Those that hold one of these are none of its shapes', and neither are
            texts that are empty, begin or end in white space, or begin with a tag.
        dialect: how it writes calls; `None`: it writes none.
        quoted: it writes results of tools as JSON.
    """

    def __init__(
        self,
        write: Callable[[list[Message], Any], tuple[Script, str]],
        encoder: Encoder,
        looks_for: Sequence[str],
        dialect: CallForm | None = None,
        *,
        quoted: bool = False,
    ) -> None:
        self._write, self._encoder, self._quoted = write, encoder, quoted
        self._bare = dialect.bare if isinstance(dialect, BareForm) else None
        self._tags = [text for text in looks_for if "<" in text]
        self._words = [text for text in looks_for if "<" not in text]
        self._known: dict[tuple[Key, int], tuple[Shape | None, Tools | None]] = {}
        self._met: dict[tuple[Key, int], Tools | None] = {}
        self._calls_tried = self._calls_known = 0  # kinds with calls that were learned, and that have a shape

    def __getstate__(self) -> dict[str, Any]:
        """Without what was learned: its keys hold where tools are in the memory of this process."""
        return self.__dict__ | {"_known": {}, "_met": {}}

    def of(self, messages: Sequence[Message], tools: Any = None) -> Shaped | None:
        """The shape of a conversation and its values; `None`: it has none that is known."""
        if type(messages) is not list or set(map(type, messages)) != _DICT:
            return None
        try:
            offered = None if tools is None else tools_of(tools)
        except MessageError:
            return None
        if offered is not None and not offered.met:  # where every conversation has tools of its own, no more is read
            offered.met = True
            return None
        calls = self._calls_known > 0 or self._calls_tried < _TRIES
        read = plain_values(messages) or read_values(messages, calls=calls, bare=self._bare, quoted=self._quoted)
        if read is None:
            return None
        shape = self._shape_of(read.key, offered)
        values = read.values
        if shape is None or not self._ordinary(values):
            return None
        return Shaped(shape, values if shape.order is None else [values[at] for at in shape.order], read.messages)

    def _ordinary(self, values: list[str]) -> bool:
        """The grammar writes these texts as they are, and looks for nothing that they hold."""
        try:
            if list(map(str.strip, values)) != values or not all(values):
                return False
        except TypeError:  # one of them is no text
            return False
        joined = "\0".join(values)
        if not joined.isascii() and utf8_of([joined]) is None:
            return False
        for word in self._words:
            if word in joined:
                return False
        if "<" not in joined:  # one letter is found several times as fast as a tag
            return True
        return not any(text[0] == "<" for text in values) and not any(tag in joined for tag in self._tags)

    def _shape_of(self, kinds: Key, offered: Tools | None) -> Shape | None:
        """A kind of conversation that comes a second time is worth a shape."""
        key = (kinds, id(offered))  # equal tools are the same object, as long as it is kept
        try:
            known = self._known.get(key)
        except TypeError:  # a role that cannot be a key
            return None
        if known is not None:
            return known[0]
        if key in self._met:
            shape = self._learned(kinds, offered)
            self._known[key] = shape, offered  # kept, whatever other threads forget
            if any(isinstance(kind, Kind) and kind.calls for kind in kinds):
                self._calls_tried += 1
                self._calls_known += shape is not None
            return shape
        if len(self._met) >= _MOST_KINDS:
            self._met.clear()
            self._known.clear()
        if len(kinds) <= _MOST_MESSAGES:
            self._met[key] = offered
        return None

    def _learned(self, kinds: Key, tools: Tools | None) -> Shape | None:
        """What the grammar writes for these kinds; `None` where it refuses them, or writes a value in its own way.

        ::

            text of a piece   "<s>"   "\\n(value 0)"   "</s>"      one stand-in, in piece 1, which is no scaffold
            sizes              3       1                4           frames  "<s>\\n" "" "</s>"
        """
        if spells_stand_in(repr(kinds), *(tools.texts if tools else ())):
            return None
        if not all(isinstance(kind, str | Kind) for kind in kinds):  # a role that is no text: the grammar refuses it
            return None
        messages, made = stand_ins(kinds, quoted=self._quoted)
        try:
            out, _ = self._write(normalise(messages), tools)
        except MessageError:
            return None
        found = [found_in(text, made) for text in out.texts]
        holding = [piece for piece, values in enumerate(found) if values]
        order = tuple(chain.from_iterable(values or () for values in found))
        as_given = all(values is not None and len(values) <= 1 for values in found)
        flat = self._encoder.flat
        if flat is None or out.images or not as_given or any(out.facts[piece] & SCAFFOLD for piece in holding):
            return None
        controls = [
            (piece, *hit)
            for piece, (text, fact) in enumerate(zip(out.texts, out.facts, strict=True))
            if fact & SCAFFOLD
            for hit in flat.controls_in(text)
        ]
        empty = [STAND_IN.sub("", text) for text in out.texts]
        between = STAND_IN.sub("\0", "".join(out.texts)).split("\0")
        if len(between) != len(order) + 1:  # a value over two pieces, or a tool that spells one
            return None
        return Shape(
            frames=[text for frame in between for text in (frame, "")][:-1],
            order=None if order == tuple(range(len(made))) else order,
            pieces=np.column_stack((out.facts, bytes_of(empty, ascii_only=False))).astype(np.int64),
            places=np.array(holding, np.int64),
            controls=np.array(controls, np.int64).reshape(-1, 3),
        )


def outline_of(shaped: Sequence[Shaped]) -> tuple[Outline, npt.NDArray[np.int32]] | None:
    """What is known of conversations with shapes before they are encoded, and the facts of their pieces.

    `None`: a text cannot be encoded.

    ::

        shapes     3 pieces, text in 1 | 3 pieces, text in 1      first pieces  0 3      texts in pieces  1 4
        sizes      3 1 4               | 3 1 4                    and texts of 5 and 7 bytes: 3 6 4 3 8 4
    """
    strings = [shape.filled(values) for shape, values, _ in shaped]
    data = utf8_of(strings)
    if data is None:
        return None
    ascii_only = is_ascii(strings, data)
    pieces, places, controls, counts = _laid_end_to_end([own.shape for own in shaped])
    facts, sizes = pieces[:, 0].astype(np.int32), pieces[:, 1].copy()
    sizes[places] += bytes_of(list(chain.from_iterable([own.values for own in shaped])), ascii_only=ascii_only)
    return Outline(strings, data, counts, sizes, controls, ascii_only), facts


def _laid_end_to_end(shapes: Sequence[Shape]) -> tuple[Positions, Positions, Positions, Positions]:
    """The pieces, the places and the controls of all shapes, and how many pieces each has."""
    if len(shapes) == 1:
        only = shapes[0]
        return only.pieces, only.places, only.controls, np.array([len(only.pieces)], np.int64)
    counts = _counts([shape.pieces for shape in shapes])
    first = edges_of(counts)[:-1]
    places = [shape.places for shape in shapes]
    held = [shape.controls for shape in shapes]
    controls = np.concatenate(held)
    controls[:, 0] += first.repeat(_counts(held))
    return (
        np.concatenate([shape.pieces for shape in shapes]),
        np.concatenate(places) + first.repeat(_counts(places)),
        controls,
        counts,
    )


def _counts(arrays: Sequence[Positions]) -> Positions:
    return np.fromiter(map(len, arrays), np.int64, len(arrays))
