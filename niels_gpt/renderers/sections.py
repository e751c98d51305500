"""Tool calls that stand together in a section of their own: what all such dialects read alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from niels_gpt.renderers.calls import Block
from niels_gpt.renderers.completion import Completion


@dataclass(frozen=True)
class Section:
    """The tags around all calls of a turn, and those of each call in it."""

    opening: str
    closing: str
    call: str
    end_call: str

    def read(self, said: Completion, start: int, call_at: Callable[[int, int], Block]) -> Iterator[Block]:
        """The blocks of every section behind `start`.

        Args:
            call_at: reads the call whose tag stands at the first place given; a damaged one ends before the second.
        """
        section = said.find(self.opening, start)
        while section >= 0:
            at = section + len(self.opening)
            yield Block(section, at)
            limit = self._limit(said, at)
            while 0 <= (call := said.find(self.call, at)) < limit:
                block = call_at(call, limit)
                yield block
                at = block.stop
                # Texts in arguments may hold the section's tags, so its end is looked for behind each call.
                limit = self._limit(said, at)
            if said.text.startswith(self.closing, limit):
                yield Block(limit, limit + len(self.closing))
            section = said.find(self.opening, limit)

    def _limit(self, said: Completion, at: int) -> int:
        """Where the section ends that `at` lies in: at its closing tag, at another opening one, or with the text."""
        return first_of(len(said.text), said.find(self.closing, at), said.find(self.opening, at))

    def damaged(self, said: Completion, at: int, limit: int) -> tuple[int, int, bool]:
        """Where a damaged call's inside and the call itself end, and whether it has no end of its own."""
        inner = at + len(self.call)
        close, following = said.find(self.end_call, inner, limit), first_of(limit, said.find(self.call, inner, limit))
        if 0 <= close < following:
            return close, close + len(self.end_call), False
        return following, following, True


def first_of(otherwise: int, *places: int) -> int:
    """The first of the places that there are."""
    return min((place for place in places if place >= 0), default=otherwise)
