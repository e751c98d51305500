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
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, Mismatch
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.calls import BareForm, CallForm
from niels_gpt.renderers.filling import Shape, Shaped, encoded_shape, encoded_shapes
from niels_gpt.renderers.kinds import PLAIN, Key, Kind, read_values
from niels_gpt.renderers.odd_texts import OddTexts
from niels_gpt.renderers.rendered import SCAFFOLD
from niels_gpt.renderers.runs import apart_of
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.stand_ins import STAND_IN, found_in, spells_stand_in, stand_ins
from niels_gpt.renderers.tools import Tools, tools_of
from niels_gpt.tokenizer.encoder import Encoder
from niels_gpt.tokenizer.flat import bytes_of

_MOST_MESSAGES = 64  # longer conversations are seldom alike
_MOST_KINDS = 4096
_PROVEN_EVERY = 1024  # conversations with shapes, of which one is written by the grammar too
_TRIES = 8  # kinds with calls; if none of them has a shape, no other is tried
_LIST, _DICT = {list}, {dict}
_SPACES = ("\n\n", "  ", "\t\u2003\n ")


class Shapes:
    """The shapes that a grammar has been seen to write.

    Args:
        write: the grammar.
        looks_for: what it looks for in texts. Texts that are odd to it (`odd_texts.py`) are none of its shapes'.
        dialect: how it writes calls; `None`: it writes none.
        quoted: it writes results of tools as JSON.
        name: what errors call it.
    """

    def __init__(
        self,
        write: Callable[[list[Message], Any], tuple[Script, str]],
        encoder: Encoder,
        looks_for: Sequence[str],
        dialect: CallForm | None = None,
        *,
        quoted: bool = False,
        name: str = "the grammar",
    ) -> None:
        self._write, self._encoder, self._quoted, self._name = write, encoder, quoted, name
        self._bare = dialect.bare if isinstance(dialect, BareForm) else None
        self._odd = OddTexts(looks_for)
        self._known: dict[tuple[Key, int], tuple[Shape | None, Tools | None]] = {}
        self._met: dict[tuple[Key, int], Tools | None] = {}
        self._filled, self._proof_at = 0, 1  # conversations so far, and after how many one is proven next
        self._calls_tried = self._calls_known = 0  # kinds with calls that were learned, and that have a shape

    def __getstate__(self) -> dict[str, Any]:
        """Without what was learned: its keys hold where tools are in the memory of this process."""
        return self.__dict__ | {"_known": {}, "_met": {}}

    def of(self, conversations: Sequence[Sequence[Message]], tools: Sequence[Any]) -> Shaped:
        """Those of the conversations whose shapes are known and whose texts are not odd.

        Raises:
            Mismatch: the grammar writes a conversation otherwise than its shape says. The first one is compared, and
                the second, the fourth and so on, and one in 1,024.
        """
        found = self._read(conversations, tools)
        odd, spaced = self._odd.among(list(chain.from_iterable(found.values)))
        if odd or spaced:
            found = found.without(odd, spaced)
        self._filled += len(found.numbers)
        if self._filled >= self._proof_at:
            self._proof_at = self._filled + min(self._filled, _PROVEN_EVERY)
            self._prove(found.last(), tools[found.numbers[-1]])
        return found

    def _read(self, conversations: Sequence[Sequence[Message]], tools: Sequence[Any]) -> Shaped:
        """Those of the conversations whose shapes are known, however odd their values are.

        What all messages have is read from all of them at once, which is quicker.
        """
        numbers, chats, flat = _readable(conversations)
        roles = [message.get("role") for message in flat]
        contents = [message.get("content") for message in flat]
        sizes = list(map(len, flat))
        found = Shaped([], [], [], [])
        given: Any = None
        offered: Any = None
        end = 0
        for number, messages in zip(numbers, chats, strict=True):
            begin, end = end, end + len(messages)
            own = tools[number]
            if own is not None:
                if own is not given:  # the same object as before is not read again
                    given, offered = own, _offered(own)
                if not _is_known(offered):
                    continue
            if sizes[begin:end].count(PLAIN) == end - begin:
                key, values = tuple(roles[begin:end]), contents[begin:end]
            else:
                calls = self._calls_known > 0 or self._calls_tried < _TRIES
                read = read_values(
                    messages,
                    roles[begin:end],
                    contents[begin:end],
                    calls=calls,
                    bare=self._bare,
                    quoted=self._quoted,
                )
                if read is None:
                    continue
                key, values, messages = read
            shape = self._shape_of(key, None if own is None else offered)
            if shape is not None:
                found.numbers.append(number)
                found.shapes.append(shape)
                found.values.append(values)
                found.messages.append(messages)
        return found

    def _prove(self, own: Shaped, tools: Any) -> None:
        """Write a conversation by the grammar, and compare what it is as one of a batch, and alone."""
        messages = own.messages[0]
        filled, alone = encoded_shapes(self._encoder, own), encoded_shape(self._encoder, own)
        if filled is None:  # it is written by the grammar
            return
        try:
            out, _ = self._write(normalise(messages), tools_of(tools))
            ids, owner = self._encoder.encode_pieces(out.texts, out.scaffold)
            written = ids.tolist(), np.bincount(owner, minlength=len(out.texts)).tolist(), out.facts
        except MessageError:
            written = [], [], []
        as_one = alone is None or alone == next(iter(filled))
        if not as_one or written != (filled.ids.tolist(), filled.counts.tolist(), filled.facts.tolist()):
            roles = ", ".join(message["role"] for message in messages)
            raise Mismatch(
                f"{self._name} writes a conversation of {roles} otherwise than one of the same kind before; expected "
                "texts to decide nothing but by what its looks_for names. Name there what decides it, or set it to "
                "None. What was rendered so far may be wrong"
            )

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
            sizes              3       1                4           frames  "<s>\\n" "" "</s>" ""
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
            find_spaced=partial(self._spaced, kinds, tools, out, found),
            frames=tuple(text for frame in between for text in (frame, "")),
            order=None if order == tuple(range(len(made))) else order,
            pieces=np.column_stack((out.facts, bytes_of(empty, ascii_only=False))).astype(np.int64),
            places=np.array(holding, np.int64),
            controls=np.array(controls, np.int64).reshape(-1, 4)[:, [0, 1, 3]],
            apart=None if flat.seams is None else apart_of(self._encoder, flat.seams, out, controls),
        )

    def _spaced(
        self, kinds: Key, tools: Tools | None, out: Script, found: Sequence[Sequence[int] | None]
    ) -> frozenset[int]:
        """The values that the grammar writes with the white space at their ends, of all kinds and at both.

        Args:
            out: what it writes without; found: the values in each piece, one at most.
        """
        kept = {number for values in found for number in values or ()}
        for space in _SPACES:
            try:
                other, _ = self._write(normalise(stand_ins(kinds, quoted=self._quoted, around=space)[0]), tools)
            except MessageError:
                return frozenset()
            if other.facts != out.facts:
                return frozenset()
            for text, spaced, values in zip(out.texts, other.texts, found, strict=True):
                if values and spaced != STAND_IN.sub(rf"{space}\g<0>{space}", text):
                    kept -= set(values)
                elif not values and spaced != text:
                    return frozenset()
        return frozenset(kept)


def _offered(tools: Any) -> Tools | MessageError | None:
    """Tools, or why they are none: the grammar tells the caller."""
    try:
        return tools_of(tools)
    except MessageError as error:
        return error


def _is_known(offered: Tools | MessageError | None) -> bool:
    """Whether tools have been met before: where each conversation has tools of its own, meeting them is all."""
    if offered is None or isinstance(offered, MessageError):
        return offered is None
    known, offered.met = offered.met, True
    return known


def _readable(conversations: Sequence[Sequence[Message]]) -> tuple[Sequence[int], Any, list[Any]]:
    """The conversations that are lists of dicts, as nearly all are: their numbers, they themselves, all messages."""
    if set(map(type, conversations)) == _LIST:
        flat = list(chain.from_iterable(conversations))
        if set(map(type, flat)) == _DICT and all(conversations):
            return range(len(conversations)), conversations, flat
    numbers = [
        number
        for number, messages in enumerate(conversations)
        if type(messages) is list and set(map(type, messages)) == _DICT
    ]
    chats = [conversations[number] for number in numbers]
    return numbers, chats, list(chain.from_iterable(chats))
