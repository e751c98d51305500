"""Renderings of the beginnings of one conversation, with substitutes, and which of their places correspond.

::

    all messages          <u>㐀㐁<e> <a>㐂㐃<e>
    messages[:1]          <u>㐀㐁<e>                 `_aligned`: after 㐁, the last substitute, both are at 5

A rendering is made when it is first needed, and then stored. `oracle.py` draws conclusions from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.attribution import ControlTokens
from niels_gpt.renderers.template.proofs.proof import Ints
from niels_gpt.renderers.template.proofs.substitution import NONE, Edge, Edges, Substituted, leaves_of, without_edges

Render = Callable[[Sequence[Message], bool], str]  # (messages, add_generation_prompt) -> the output


@dataclass
class Rendering:
    """The output on messages with substitutes.

    Attributes:
        text: the output.
        substitutes: the number of the substitute at each character, -1 for none, int64 of shape (characters,).
        known: the positions that have one, ascending.
    """

    text: str
    substitutes: Ints
    known: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.known = np.flatnonzero(self.substitutes >= 0)


class Renderings:
    """The rendering of one conversation, and those of its beginnings.

    Positions are in characters of the whole rendering, which is as long with substitutes as without.

    Args:
        render: runs the template.
        messages, real: the conversation as it is, and its output.
        made, output: the same with substitutes.
        gen: whether both outputs end in the generation prompt.
    """

    def __init__(
        self,
        render: Render,
        controls: ControlTokens,
        messages: list[Message],
        real: str,
        made: Substituted,
        output: str,
        *,
        gen: bool,
    ) -> None:
        self.controls, self.messages, self.real, self.made, self.gen = controls, messages, real, made, gen
        self.render: Render = lambda messages, gen: made.unescaped(render(messages, gen))
        self.whole = whole = Rendering(output, made.find(output))
        self._renderings: dict[tuple[int, bool], Rendering | None] = {(len(messages), gen): whole}
        self.own = made.message_of(whole.substitutes)  # for each character, the message of its substitute, or -1
        # Control tokens in the output are the template's, even between two characters of one content.
        fixed = np.zeros(len(real), np.bool_)
        for start, stop in controls.places(output):
            fixed[start:stop] = True
        leaf = leaves_of(made, whole.substitutes, real, fixed, edges=self._with_edges(gen))
        self.content = np.array([*(leaf.message for leaf in made.leaves), NONE], np.int64)[leaf]
        self.unplaced: list[int] = []  # messages whose text has no substitutes and is not found either
        self._add_blanks()

    def rendering(self, count: int, gen: bool) -> Rendering | None:
        """The output on the first `count` substituted messages; `None` if the template refuses them."""
        if (count, gen) not in self._renderings:
            try:
                text = self.render(self.made.messages[:count], gen)
            except MessageError:
                self._renderings[count, gen] = None
            else:
                self._renderings[count, gen] = Rendering(text, self.made.find(text))
        return self._renderings[count, gen]

    def _with_edges(self, gen: bool) -> Edges:
        """The ends of contents whose white space is in the output: without it, the output differs.

        Asked end by end where it is so of any: a template may strip users' texts and not results of tools, or write the
        parts of a content one after another and strip the whole.
        """
        ends = [
            Edge(leaf.message, leaf.text, at_end)
            for leaf in self.made.leaves
            for at_end, stripped in ((False, leaf.text.lstrip()), (True, leaf.text.rstrip()))
            if stripped not in (leaf.text, "")
        ]
        if not ends or not self._needs_edges(ends, gen):
            return frozenset()
        return frozenset(one for one in ends if len(ends) == 1 or self._needs_edges([one], gen))

    def _needs_edges(self, edges: Sequence[Edge], gen: bool) -> bool:
        # The template itself decides: white space that it strips anyway changes nothing when it is left out.
        stripped = [without_edges(one, [e for e in edges if e.message == at]) for at, one in enumerate(self.messages)]
        if len(edges) == 1 and stripped == self.messages:  # the white space is in a call's arguments, as JSON
            return True
        try:
            return self.render(stripped, gen) != self.real
        except MessageError:
            return True

    def _add_blanks(self) -> None:
        """Find the texts without any substitute (white space alone, a quote), by a letter in the place of each."""
        for index, (message, made) in enumerate(zip(self.messages, self.made.messages, strict=True)):
            for key in ("content", "reasoning_content"):
                for number, (text, same) in enumerate(zip(_texts(message, key), _texts(made, key), strict=True)):
                    if text and text == same and not self._add_blank(index, key, number, text):
                        self.unplaced.append(index)

    def _add_blank(self, index: int, key: str, number: int, text: str) -> bool:
        """Find one such text, or one part of a content; false if it may be in the output and its place is not found."""
        spare, whole = self.made.spare, self.whole.text
        around = self._with_text(index, key, number, spare).split(spare)
        # A template writes a text as it is, or as JSON, whose escapes depend on the option of `tojson`.
        for form in (text, *(json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))):
            if len(around) > 1 and form.join(around) == whole:
                # "a", "bc", "d" around a text of two characters: the text is at 1 and at 5
                starts = np.cumsum([len(part) for part in around[:-1]]) + np.arange(len(around) - 1) * len(form)
                for start in starts.tolist():
                    self.content[start : start + len(form)] = index
                return True
        # Or the template strips it, or does as if it were empty.
        return "".join(around) == whole or self._with_text(index, key, number, "") == whole

    def _place_of_nothing(self, index: int, begin: int, end: int) -> int | None:
        """Where a message without content would have it, by a letter in its place; `None` if that shows no place.

        Args:
            begin, end: the message's turn.
        """
        around = self._with_text(index, "content", 0, self.made.spare).split(self.made.spare)
        place = len(around[0])
        return place if "".join(around) == self.whole.text and begin <= place <= end and len(around) == 2 else None

    def _with_text(self, index: int, key: str, number: int, text: str) -> str:
        """The output with this text in the place of another, or of one part; "" if the template refuses."""
        content: Any = cast(dict[str, Any], self.made.messages[index])[key]
        if not isinstance(content, str):
            content = [{**part, "text": text} if at == number else part for at, part in enumerate(content)]
        made = [*self.made.messages]
        made[index] = cast(Message, {**made[index], key: text if isinstance(content, str) else content})
        try:
            return self.render(made, self.gen)
        except MessageError:
            return ""

    def _data_end(self, index: int) -> int:
        """The position after all content of the messages up to `index`."""
        own = np.flatnonzero((self.own <= index) & (self.own >= 0))
        return self._after_content(int(own[-1]) + 1) if len(own) else 0

    def _aligned(self, part: Rendering) -> tuple[int, int] | None:
        """Two positions that correspond, `(in part, in the whole)`: after the content of the last substitute of `part`.

        `None` if the whole lacks this substitute, because the template drops that text when messages follow.
        """
        if not len(part.known):
            return 0, 0
        # A template may write a text twice: with copies of the last substitute at 3 7 in the part and 3 7 9 in the
        # whole, the second copy (7) corresponds to the second.
        last = int(part.known[-1])
        number = int(part.substitutes[last])
        count = int((part.substitutes == number).sum())
        places = np.flatnonzero(self.whole.substitutes == number)
        if not len(places):
            return None
        at, place = last + 1, int(places[min(count, len(places)) - 1]) + 1
        rest = self.real[place : self._after_content(place)]  # signs without a substitute, which both have
        return (at + len(rest), place + len(rest)) if part.text.startswith(rest, at) else (at, place)

    def _next_data(self, place: int) -> int:
        """The start of the next content at or after `place`, also where it begins with signs that have no substitute.

        The end of the output if there is none.
        """
        at = int(np.searchsorted(self.whole.known, place))
        if at == len(self.whole.known):
            return len(self.real)
        start = int(self.whole.known[at])
        while start > place and self.content[start - 1] == self.content[start] >= 0:
            start -= 1
        return start

    def _after_content(self, place: int) -> int:
        """The end of the content that the character before `place` belongs to; `place` itself if it belongs to none."""
        while 0 < place < len(self.content) and self.content[place] == self.content[place - 1] >= 0:
            place += 1
        return place

    def _after(self, part: Rendering, place: int) -> str | None:
        """The text of another rendering from where it corresponds to `place` in the whole.

        `None` if the two differ between the last substitute before `place` and `place`.
        """
        before = self.whole.known[: int(np.searchsorted(self.whole.known, place))]
        if not len(before):
            return part.text[place:] if part.text[:place] == self.whole.text[:place] else None
        last = int(before[-1])
        places = np.flatnonzero(part.substitutes == self.whole.substitutes[last])
        if not len(places):
            return None
        at = int(places[-1]) - last + place
        return part.text[at:] if part.text[at - (place - last) : at] == self.whole.text[last:place] else None


def _texts(message: Message, key: str) -> list[str]:
    """The text of a message's content or reasoning, or those of its parts; "" for a part without text."""
    value: Any = cast(dict[str, Any], message).get(key) or ""
    return [value] if isinstance(value, str) else [part.get("text") or "" for part in value]
