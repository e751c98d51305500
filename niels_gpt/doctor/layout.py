"""How a format lays out its turns, as learned from probes, and turns found by it in ids of any origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from niels_gpt.doctor.rows import ASSISTANT, ROLES, Bools, Int64s, TokenRows, Turns
from niels_gpt.forks import cached_property

Ids = tuple[int, ...]
_WHITE = 4  # tokens of white space that are looked at behind an opener
_Part = tuple[int, int]  # an id, or a number of bytes of white space


@dataclass(frozen=True)
class Layout:
    """What the turns of a format look like in ids.

    Attributes:
        openers: `(role, ids)`: what begins a turn, without white space and think tags behind it.
        supplied: what a generation prompt may put behind the assistant's opener, longest first.
        stops: the ids that end an assistant's turn. closes: an assistant's turn has a stop of its own; where it has
            none, the next turn's opener ends it, and `stops` are openers.
        preamble: control tokens that begin a text once; bos: the one that the tokenizer calls so.
        structural: ids that renderings of the probes hold. firsts: those that they begin with, if control tokens all.
        pad: the tokenizer's padding token.
        joins: the model itself writes the assistant's opener between parts of what it says (gpt-oss's channels).
        controls: control tokens, which no text becomes.
        known: all ids that serving stops at.
        think: ids of the tags around reasoning, where they are tokens.
        blank: int64 of shape (vocab_size,), the bytes of tokens of nothing but white space, 0 for all others.
        vocab_size: all ids are below it.
        gaps: of each opener the bytes of white space behind it, in all probes at least.
        heads: first ids of openers that are control tokens, each with the ids that followed it in a probe.
        trusted: the turns of every probe were found exactly where the renderer wrote them. `doubt` says what was not.
    """

    openers: tuple[tuple[int, Ids], ...]
    supplied: tuple[Ids, ...]
    stops: Ids
    closes: bool
    preamble: Ids
    bos: int | None
    structural: frozenset[int]
    pad: int | None
    controls: frozenset[int]
    known: frozenset[int]
    think: tuple[int, int] | None
    blank: Int64s
    vocab_size: int
    trusted: bool = True
    doubt: str = ""
    firsts: frozenset[int] = frozenset()
    joins: bool = False
    gaps: tuple[int, ...] = ()
    heads: frozenset[tuple[int, int]] = frozenset()
    names: dict[int, str] = field(default_factory=dict)

    def turns(self, rows: TokenRows) -> Turns:
        """The turns in these rows, in order."""
        ids, n = rows.ids, len(rows.ids)
        place, which, length = self._openings(rows)
        role = self._roles[which]
        row = rows.row_of[place]
        # A turn ends where the next begins, a row or text ends: the first such edge behind its opener.
        edges = np.union1d(np.union1d(place, np.flatnonzero(rows.first_of_document)), [n])
        end = edges[np.searchsorted(edges, place, side="right")]
        supplied = np.minimum(place + length, end)
        body = np.where(role == ASSISTANT, self._body(ids, supplied, end), supplied)
        stop = np.where(role == ASSISTANT, self._stop(ids, body, end, rows), -1)
        return Turns(row, role, place, supplied, body, stop, end)

    def _openings(self, rows: TokenRows) -> tuple[Int64s, Int64s, Int64s]:
        """`(place, index in openers, length)` of every opener; where two begin at one place, the longer."""
        found = [
            (at, np.full(len(at), which), np.full(len(at), len(opener)))
            for which, (_, opener) in enumerate(self.openers)
            for at in [occurrences(rows.ids, opener)]
        ]
        if not found:
            return (np.zeros(0, dtype=np.int64),) * 3
        place, which, length = (np.concatenate(column) for column in zip(*found, strict=True))
        # Sorted by place, then length: of 4 4 7 with lengths 2 3 1 the second and third stay.
        order = np.lexsort((length, place))
        place, which, length = place[order], which[order], length[order]
        last = np.append(place[1:] != place[:-1], True)
        inside = place + length <= rows.starts[rows.row_of[place] + 1]
        chosen = last & inside
        return place[chosen], which[chosen], length[chosen]

    @cached_property
    def _roles(self) -> Int64s:
        return np.array([role for role, _ in self.openers], dtype=np.int64)

    def white_behind(self, rows: TokenRows) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """`(place, index in openers, behind, bytes)` of every opener: the run of white space behind it and its end.

        ::

            <|im_start|> user new-line Hi      place 0, behind 3, 1 byte      a run goes to the end of its row at most
        """
        place, which, length = self._openings(rows)
        at, size = place + length, np.zeros(len(place), dtype=np.int64)
        end = rows.starts[1:][rows.row_of[place]]
        open_ = np.ones(len(place), dtype=np.bool_)
        for _ in range(_WHITE):
            here = rows.ids[np.minimum(at, len(rows.ids) - 1)]
            open_ &= (at < end) & (here >= 0) & (here < len(self.blank))
            white = np.zeros(len(place), dtype=np.int64)
            white[open_] = self.blank[here[open_]]
            open_ &= white > 0
            size, at = size + white, at + open_
        return place, which, at, size

    def strange_heads(self, rows: TokenRows) -> Int64s:
        """Places of control tokens that begin headers, with something behind them that no probe shows."""
        ids, firsts = rows.ids, [first for first, _ in self.heads]
        places = np.flatnonzero(np.isin(ids[:-1], firsts))
        places = places[places + 1 < rows.starts[1:][rows.row_of[places]]]
        places = np.setdiff1d(places, self._openings(rows)[0])
        pairs = zip(ids[places].tolist(), ids[places + 1].tolist(), strict=True)
        strange = np.fromiter((pair not in self.heads for pair in pairs), dtype=np.bool_, count=len(places))
        return places[strange]

    def _body(self, ids: Int64s, after: Int64s, end: Int64s) -> Int64s:
        """Where what the model says begins: behind the longest of `supplied` that stands there.

        White space is told by its length, not by its tokens: a new line that the format writes may share a token with
        white space that the model says, and by its first character that token is the format's.
        """
        body, open_ = after.copy(), np.ones(len(after), dtype=np.bool_)
        for parts in self._supplied_parts:
            here, behind = self._behind(ids, after, parts)
            here &= open_
            body[here] = behind[here]
            open_ &= ~here
        return np.minimum(body, end)

    @cached_property
    def _supplied_parts(self) -> list[list[_Part]]:
        """`supplied` as ids and runs of white space, the longest first, without repeats.

        ::

            new line, <think>, new line, new line       (0, 1) (7, 0) (0, 2)        7 is the tag's id
        """
        shortest: dict[tuple[tuple[_Part, ...], bool], int] = {}
        for run in self.supplied:
            parts: list[_Part] = []
            for token in run:
                size = int(self.blank[token])
                if size and parts and parts[-1][1]:
                    parts[-1] = (0, parts[-1][1] + size)
                else:
                    parts.append((0, size) if size else (token, 0))
            # White space at the end may hold some of the model's, in a token that both share: the least of it is the
            # format's.
            last = parts.pop()[1] if parts and parts[-1][1] else 0
            key = (tuple(parts), last > 0)
            shortest[key] = min(last, shortest.get(key, last))
        found = [[*parts, *([(0, last)] if last else [])] for (parts, _), last in shortest.items()]
        return sorted(found, key=lambda parts: (-len(parts), [-size for _, size in parts]))

    def _behind(self, ids: Int64s, places: Int64s, parts: Sequence[_Part]) -> tuple[Bools, Int64s]:
        """At which places the parts stand, and where they end there."""
        at, fits = places.copy(), np.ones(len(places), dtype=np.bool_)
        for token, size in parts:
            left = np.full(len(at), max(size, 1))
            for _ in range(max(size, 1)):  # a token of white space has at least one byte
                here = ids[np.minimum(at, len(ids) - 1)]
                known = (at < len(ids)) & (here >= 0) & (here < len(self.blank))
                lengths = np.zeros(len(at), dtype=np.int64)
                lengths[known] = self.blank[here[known]] if size else here[known] == token
                going = left > 0
                fits &= ~going | (lengths > 0)
                left, at = left - lengths * going, at + (going & fits)
            fits &= left <= 0
        return fits, at

    def _stop(self, ids: Int64s, body: Int64s, end: Int64s, rows: TokenRows) -> Int64s:
        """The first stop behind `body`; without stops of its own, the opener that follows."""
        stops = np.flatnonzero(np.isin(ids, list(self.stops)))
        at = np.append(stops, len(ids))[np.searchsorted(stops, body)]
        last = end
        if not self.closes:  # the next opener is at `end`, if that is still the same row
            last = end + (end < rows.starts[1:][rows.row_of[np.maximum(body - 1, 0)]])
        return np.where(at < last, at, -1)


def occurrences(ids: Int64s, wanted: Sequence[int]) -> Int64s:
    """Where a run of ids begins, by comparing whole arrays: one comparison per wanted id."""
    if len(ids) < len(wanted) or not wanted:
        return np.zeros(0, dtype=np.int64)
    places = np.flatnonzero(ids[: len(ids) - len(wanted) + 1] == wanted[0])
    for offset, token in enumerate(wanted[1:], start=1):
        places = places[ids[places + offset] == token]
    return places


def sentinel_layout(special: dict[str, int], vocab_size: int) -> Layout:
    """The layout of document 000, from the four sentinels alone."""
    openers = tuple(
        (ROLES.index(role), (special[name],)) for role, name in zip(ROLES, ("sys", "usr", "asst"), strict=False)
    )
    stop = special["eot"]
    return Layout(
        openers=openers,
        supplied=((),),
        stops=(stop,),
        closes=True,
        preamble=(),
        bos=None,
        structural=frozenset(special.values()),
        firsts=frozenset(special[name] for name in ("sys", "usr", "asst")),
        pad=None,
        controls=frozenset(special.values()),
        known=frozenset((stop,)),
        think=None,
        blank=np.zeros(vocab_size, dtype=np.int64),
        vocab_size=vocab_size,
        names={token: f"<{name}>" for name, token in special.items()},
    )


def plain_layout(special: dict[str, int], vocab_size: int) -> Layout:
    """Of plain text: a vocabulary and the names of control tokens, no turns."""
    return replace(sentinel_layout(special, vocab_size), openers=(), trusted=False, doubt="documents have no turns")


def rows_of(many: Sequence[Sequence[int]], **more: Any) -> TokenRows:
    """Rows from lists of ids."""
    lengths = np.array([len(ids) for ids in many], dtype=np.int64)
    return TokenRows(
        numbers=np.arange(len(many)),
        wheres=[f"row {number}" for number in range(len(many))],
        ids=np.concatenate([np.zeros(0, np.int64), *(np.asarray(ids, dtype=np.int64) for ids in many)]),
        starts=np.concatenate(([0], np.cumsum(lengths))),
        **more,
    )
