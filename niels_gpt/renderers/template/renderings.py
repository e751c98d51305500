"""One conversation rendered in parts, on messages with substitutes, and which places of the parts are the same.

::

    all messages          <u>㐀㐁<e> <a>㐂㐃<e>
    messages[:1]          <u>㐀㐁<e>                 `_aligned`: behind 㐁, the last substitute, both are at 5

Renderings are made when they are first needed and kept. What a rendering proves is in `oracle.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.attribution import ControlTokens
from niels_gpt.renderers.template.proof import Ints
from niels_gpt.renderers.template.substitution import NONE, Substituted, leaves_of, without_edges

Render = Callable[[Sequence[Message], bool], str]  # (messages, add_generation_prompt) -> the output


@dataclass
class Rendering:
    """An output on substituted messages, with the substitute at each character."""

    text: str
    substitutes: Ints
    known: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.known = np.flatnonzero(self.substitutes >= 0)


class Renderings:
    """One conversation: its rendering, and those of its beginnings.

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
        self.controls, self.messages, self.real, self.made = controls, messages, real, made
        self.render: Render = lambda messages, gen: made.unescaped(render(messages, gen))
        self.whole = whole = Rendering(output, made.find(output))
        self._renderings: dict[tuple[int, bool], Rendering | None] = {(len(messages), gen): whole}
        self.own = made.message_of(whole.substitutes)  # the message of each substitute
        fixed = np.zeros(len(real), np.bool_)
        for start, stop in controls.places(output):
            fixed[start:stop] = True
        leaf = leaves_of(made, whole.substitutes, real, fixed, edges=self._with_edges(gen))
        self.content = np.array([*(leaf.message for leaf in made.leaves), NONE], np.int64)[leaf]

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

    def _with_edges(self, gen: bool) -> frozenset[int]:
        """The messages whose white space at the edges of contents is in the output: without it, the output differs.

        Asked message by message where it is so of any: a template may strip users' texts and not results of tools.
        """
        messages = frozenset(leaf.message for leaf in self.made.leaves if leaf.text != leaf.text.strip())
        if not messages or not self._needs_edges(messages, gen):
            return frozenset()
        return frozenset(one for one in messages if len(messages) == 1 or self._needs_edges({one}, gen))

    def _needs_edges(self, indices: Collection[int], gen: bool) -> bool:
        stripped = [without_edges(one) if at in indices else one for at, one in enumerate(self.messages)]
        if len(indices) == 1 and stripped == self.messages:  # the white space is in a call's arguments, as JSON
            return True
        try:
            return self.render(stripped, gen) != self.real
        except MessageError:
            return True

    def _data_end(self, index: int) -> int:
        """The character after all content of the messages up to this one."""
        own = np.flatnonzero((self.own <= index) & (self.own >= 0))
        return self._after_content(int(own[-1]) + 1) if len(own) else 0

    def _aligned(self, part: Rendering) -> tuple[int, int] | None:
        """A character of another rendering and the same one of the whole: those after the last substitute.

        `None` if the whole does not have this substitute: once another message follows, the template drops it.
        """
        if not len(part.known):
            return 0, 0
        last = int(part.known[-1])
        number = int(part.substitutes[last])
        count = int((part.substitutes == number).sum())
        places = np.flatnonzero(self.whole.substitutes == number)
        if not len(places):
            return None
        return last + 1, int(places[min(count, len(places)) - 1]) + 1

    def _next_data(self, place: int) -> int:
        """Where the next substitute is."""
        at = int(np.searchsorted(self.whole.known, place))
        return int(self.whole.known[at]) if at < len(self.whole.known) else len(self.real)

    def _after_content(self, place: int) -> int:
        """The first character from a place on that is no content of the character before."""
        while 0 < place < len(self.content) and self.content[place] == self.content[place - 1] >= 0:
            place += 1
        return place

    def _after(self, part: Rendering, place: int) -> str | None:
        """What follows a place of the whole in another rendering; `None` if that differs before it."""
        before = self.whole.known[: int(np.searchsorted(self.whole.known, place))]
        if not len(before):
            return part.text[place:] if part.text[:place] == self.whole.text[:place] else None
        last = int(before[-1])
        places = np.flatnonzero(part.substitutes == self.whole.substitutes[last])
        if not len(places):
            return None
        at = int(places[-1]) - last + place
        return part.text[at:] if part.text[at - (place - last) : at] == self.whole.text[last:place] else None
