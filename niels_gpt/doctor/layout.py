"""How a format writes its turns in ids (`Layout`), and finding turns by it in rows that came without any facts.

`layout_inference` makes a layout from a renderer; two more are known without one: sentinels, and plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from niels_gpt.doctor.rows import ASSISTANT, ROLES, Int64s, TokenRows, Turns
from niels_gpt.forks import cached_property

Ids = tuple[int, ...]
_WHITE_TOKENS = 4  # the most tokens of white space that are read after an opener; formats write one or two
# An id and 0, or 0 and a number of bytes of white space, whichever tokens spell it.
_Part = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """What the turns of a format look like in ids. A part of it for ChatML, without the system role::

        openers  (1, (<|im_start|>, user)), (2, (<|im_start|>, assistant))      stops  (<|im_end|>,)
        supplied 1: (newline,), or (newline, <think>) where the generation prompt opens a think block

    Attributes:
        openers: `(role, ids)` of each beginning of a turn, without the white space and think tags after it.
        supplied: for the openers of assistants, by their index in `openers`, what a generation prompt may write after
            them. DeepSeek-R1's prompt opens a think block after the header, and nothing after results of tools.
        stops: the ids that end an assistant turn.
        has_own_stop: assistant turns end in a token of their own. Without it (GLM) the opener of the next turn ends
            them, and `stops` are these openers.
        preamble: control tokens that occur only at the beginning of a text. bos: the tokenizer's own bos token.
        template_ids: all ids in the renderings of the probes.
        pad: the tokenizer's padding token.
        controls: control tokens, which no ordinary text is encoded as.
        serving_stops: all ids that serving stops at.
        think: ids of `<think>` and `</think>`, where each is one token.
        white_bytes: int64 of shape (vocab_size,): the bytes of tokens that are nothing but white space, 0 for others.
        vocab_size: all ids are below it.
        trusted: whether the turns of every probe were found exactly where the renderer wrote them.
        untrusted_because: which turns were not found; empty if trusted.
        first_ids: ids that renderings of the probes begin with; empty if one of them could be ordinary text.
        repeats_opener: the model itself writes the assistant's opener between parts of an answer (gpt-oss's channels).
        joins_parts: an assistant's opener continues the turn before it if that has no stop, because only the last part
            of an answer has one (Inkling).
        moves_system: system texts are written into the last user turn, so history does not show them (Mistral).
        headerless: an assistant turn that is the first, or follows another one, has no opener (DeepSeek-V3.1).
        min_white_space: for each opener the fewest bytes of white space that follow it in the probes.
        most_white_space: the most bytes of white space between an assistant's opener and what follows it in the probes,
            by `(index in openers, the control token that follows, or -1)`.
        header_pairs: `(first id of an opener, the id after it)` as seen in the probes, for openers that begin with a
            control token.
        names: text of added tokens, by id.
    """

    openers: tuple[tuple[int, Ids], ...]
    supplied: Mapping[int, tuple[Ids, ...]]
    stops: Ids
    has_own_stop: bool
    preamble: Ids
    bos: int | None
    template_ids: frozenset[int]
    pad: int | None
    controls: frozenset[int]
    serving_stops: frozenset[int]
    think: tuple[int, int] | None
    white_bytes: Int64s
    vocab_size: int
    trusted: bool = True
    untrusted_because: str = ""
    first_ids: frozenset[int] = frozenset()
    repeats_opener: bool = False
    joins_parts: bool = False
    headerless: bool = False
    moves_system: bool = False
    min_white_space: tuple[int, ...] = ()
    most_white_space: dict[tuple[int, int], int] = field(default_factory=dict)
    header_pairs: frozenset[tuple[int, int]] = frozenset()
    names: dict[int, str] = field(default_factory=dict)

    def turns(self, rows: TokenRows) -> Turns:
        """The turns in these rows, in order."""
        ids, n = rows.ids, len(rows.ids)
        start, which, length = self._openings(rows)
        if self.joins_parts:
            # An assistant's opener with no stop since the one before it goes on with the same answer:
            #     opener M  part  opener M  part  stop      goes on  . #
            # The number of stops before each opener, 0 0 here, is equal where none is in between.
            by_assistant = self._roles[which] == ASSISTANT
            stops_before = np.cumsum(np.isin(ids, self.stops) | rows.first_of_document)[start]
            goes_on = np.zeros(len(start), dtype=np.bool_)
            goes_on[1:] = by_assistant[1:] & by_assistant[:-1] & (stops_before[1:] == stops_before[:-1])
            start, which, length = start[~goes_on], which[~goes_on], length[~goes_on]
        if self.headerless:
            start, which, length = self._with_headerless(rows, start, which, length)
        role = self._roles[which]
        # A turn ends where the next turn, row or text begins. Turns at 0 5, rows at 0 8, 10 ids: edges 0 5 8 10, so
        # the turns end at 5 and 8.
        edges = np.union1d(np.union1d(start, np.flatnonzero(rows.first_of_document)), [n])
        end = edges[np.searchsorted(edges, start, side="right")]
        supplied = np.minimum(start + length, end)
        body = np.where(role == ASSISTANT, self._body(ids, which, supplied, end), supplied)
        # The first stop at or after `body`: stops at 5 9 of 12 ids give 5 9 12 for bodies at 3 6 10; 12 means none.
        stops = np.flatnonzero(np.isin(ids, list(self.closers)))
        stop = np.append(stops, n)[np.searchsorted(stops, body)]
        last = end
        if not self.has_own_stop:  # the stop is the next opener, at `end`, if that is still in the same row
            last = end + (end < rows.starts[1:][rows.row_of[np.maximum(body - 1, 0)]])
        stop = np.where((role == ASSISTANT) & (stop < last), stop, -1)
        return Turns(rows.row_of[start], role, start, supplied, body, stop, end)

    def _openings(self, rows: TokenRows) -> tuple[Int64s, Int64s, Int64s]:
        """`(place, index in openers, length)` of every opener; where two match at one place, the longer one."""
        if not self.openers:
            return (np.zeros(0, dtype=np.int64),) * 3
        found = [occurrences(rows.ids, opener) for _, opener in self.openers]
        counts = list(map(len, found))
        start = np.concatenate(found)
        which = np.repeat(np.arange(len(self.openers)), counts)
        length = np.repeat([len(opener) for _, opener in self.openers], counts)
        # Sorted by position, then by length, so that the last one at each position is the longest: positions 4 4 7
        # with lengths 2 3 1 leave the last two.
        order = np.lexsort((length, start))
        start, which, length = start[order], which[order], length[order]
        last = np.append(start[1:] != start[:-1], True)
        # Rows are concatenated, so an opener may seem to go on in the next row. Such a one is none.
        chosen = last & (start + length <= rows.starts[rows.row_of[start] + 1])
        return start[chosen], which[chosen], length[chosen]

    def _with_headerless(
        self, rows: TokenRows, start: Int64s, which: Int64s, length: Int64s
    ) -> tuple[Int64s, Int64s, Int64s]:
        """The openers, and answers without one as openers of length 0, in order."""
        # Such an answer is text that comes first in its text, or after a stop, and has a stop before any opener.
        # Candidates are the beginnings of texts after their preamble, and what follows a stop.
        n, stops = len(rows.ids), np.flatnonzero(np.isin(rows.ids, self.stops))
        begins = np.flatnonzero(rows.first_of_document)
        for token in self.preamble:  # which belongs to no turn
            begins = begins[rows.ids[np.minimum(begins, n - 1)] == token] + 1
        after = stops[:-1] + 1 if len(stops) and stops[-1] == n - 1 else stops + 1
        begins = np.union1d(begins[begins < n], after[~rows.first_of_document[after]])
        stop = np.append(stops, n)[np.searchsorted(stops, begins)]
        # Retained are beginnings with a stop before any opener, in the same text.
        opener = np.append(start, n)[np.searchsorted(start, begins)]
        edges = np.append(np.flatnonzero(rows.first_of_document), n)
        found = (stop < opener) & (begins < stop) & (stop < edges[np.searchsorted(edges, begins, side="right")])
        begins, stop = begins[found], stop[found]
        if rows.trained is not None:
            # A system message before the answer has no header either: then the answer begins with the first trained
            # token at or after that beginning.
            #     bos  s s  a a  stop  U u  A a  stop      trained  . . . # # # . . . # #      begins at 3
            trained = np.flatnonzero(rows.trained)
            first = np.append(trained, n)[np.searchsorted(trained, begins)]
            begins = np.where(first < stop, first, begins)
        # They count as the first of the assistant's openers, with a length of 0.
        of_assistant = next(at for at, (role, _) in enumerate(self.openers) if role == ASSISTANT)
        starts = np.concatenate((start, begins))
        order = np.argsort(starts, kind="stable")
        which = np.concatenate((which, np.full_like(begins, of_assistant)))
        length = np.concatenate((length, np.zeros_like(begins)))
        return starts[order], which[order], length[order]

    @cached_property
    def closers(self) -> Ids:
        """The ids that close assistant turns: the stops; without a stop of their own, also the tokens that open others.

        A template does not say at which of these serving stops, so they need not be among its stops.
        """
        openers = {ids[0] for role, ids in self.openers if role != ASSISTANT and ids[0] in self.controls}
        return self.stops if self.has_own_stop else tuple(sorted({*self.stops, *openers}))

    @cached_property
    def _roles(self) -> Int64s:
        """The role of each opener, so that `self._roles[which]` are those of many."""
        return np.array([role for role, _ in self.openers], dtype=np.int64)

    def white_space_after(self, rows: TokenRows) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """The white space after every opener: `(start, index in openers, end, bytes)`, all of shape (openers found,).

        ::

            <|im_start|> user newline Hi      start 0, end 3, 1 byte

        A run of white space ends with its row at the latest.
        """
        start, which, length = self._openings(rows)
        at, size = start + length, np.zeros(len(start), dtype=np.int64)
        end = rows.starts[1:][rows.row_of[start]]
        # Each step reads one more token after all openers at once, as long as it is white space.
        open_ = np.ones(len(start), dtype=np.bool_)
        for _ in range(_WHITE_TOKENS):
            here = rows.ids[np.minimum(at, len(rows.ids) - 1)]
            open_ &= (at < end) & (here >= 0) & (here < len(self.white_bytes))
            white = np.zeros(len(start), dtype=np.int64)
            white[open_] = self.white_bytes[here[open_]]
            open_ &= white > 0
            size, at = size + white, at + open_
        return start, which, at, size

    def followers(self, rows: TokenRows, after: Int64s) -> Int64s:
        """The ids at some positions where they are control tokens or think tags, else -1; int64 of the same shape."""
        found = rows.ids[np.minimum(after, len(rows.ids) - 1)]
        return np.where(np.isin(found, [*self.controls, *(self.think or ())]), found, -1)

    def unknown_headers(self, rows: TokenRows) -> Int64s:
        """Positions of control tokens that begin a header in the probes but are followed by an id that no probe has."""
        ids, first_ids = rows.ids, [first for first, _ in self.header_pairs]
        at = np.flatnonzero(np.isin(ids[:-1], first_ids))
        # At the end of its row a control token is followed by an id of another row.
        at = at[at + 1 < rows.starts[1:][rows.row_of[at]]]
        # An opener as a whole is a known header, even if its first two ids occur in no probe.
        at = np.setdiff1d(at, self._openings(rows)[0])
        pairs = zip(ids[at].tolist(), ids[at + 1].tolist(), strict=True)
        unknown = np.fromiter((pair not in self.header_pairs for pair in pairs), dtype=np.bool_, count=len(at))
        return at[unknown]

    def _body(self, ids: Int64s, which: Int64s, after: Int64s, end: Int64s) -> Int64s:
        """Where the sampled text of each turn begins: after the longest of `supplied` that is found at `after`.

        Args:
            which: the opener of each turn, as an index in `openers`.
        """
        # White space is compared by its length, not by its tokens: a newline of the format may share a token with
        # white space that the model wrote. Such a token belongs to the format, as its first character does.
        body, undecided = after.copy(), np.ones(len(after), dtype=np.bool_)
        for opener, parts in self._supplied_parts:
            # All turns at once: `at` goes on through the parts, and `fits` is where all of them were found so far.
            at, fits = after.copy(), np.ones(len(after), dtype=np.bool_)
            for token, size in parts:
                left = np.full(len(at), max(size, 1))
                for _ in range(max(size, 1)):  # a token of white space has at least one byte
                    here = ids[np.minimum(at, len(ids) - 1)]
                    valid = (at < len(ids)) & (here >= 0) & (here < len(self.white_bytes))
                    lengths = np.zeros(len(at), dtype=np.int64)
                    lengths[valid] = self.white_bytes[here[valid]] if size else here[valid] == token
                    unfinished = left > 0
                    fits &= ~unfinished | (lengths > 0)
                    left, at = left - lengths * unfinished, at + (unfinished & fits)
                # Below 0 where a token of three bytes holds the last two of the format and one of the model.
                fits &= left <= 0
            fits &= undecided & (which == opener)
            body[fits] = at[fits]
            undecided &= ~fits
        return np.minimum(body, end)

    @cached_property
    def _supplied_parts(self) -> list[tuple[int, list[_Part]]]:
        """`supplied` as `(opener, parts)`, see `_parts_of`; for each opener longest first."""
        found: list[tuple[int, list[_Part]]] = []
        for opener, runs in self.supplied.items():
            shortest: dict[tuple[tuple[_Part, ...], bool], int] = {}
            for run in runs:
                parts = self._parts_of(run)
                # The last token of white space may be shared with the model's text, so runs that differ only in its
                # length are one run, and the shortest is what the format writes.
                last = parts.pop()[1] if parts and parts[-1][1] else 0
                key = (tuple(parts), last > 0)
                shortest[key] = min(last, shortest.get(key, last))
            tried = [[*parts, *([(0, last)] if last else [])] for (parts, _), last in shortest.items()]
            tried.sort(key=lambda parts: (-len(parts), [-size for _, size in parts]))
            found += [(opener, parts) for parts in tried]
        return found

    def _parts_of(self, ids: Ids) -> list[_Part]:
        """Ids as ids and runs of white space.

        ::

            newline, <think>, newline, newline      (0, 1) (7, 0) (0, 2)      where 7 is the id of <think>
        """
        parts: list[_Part] = []
        for token in ids:
            size = int(self.white_bytes[token])
            if size and parts and parts[-1][1]:
                parts[-1] = (0, parts[-1][1] + size)
            else:
                parts.append((0, size) if size else (token, 0))
        return parts


def occurrences(ids: Int64s, wanted: Sequence[int]) -> Int64s:
    """Where a run of ids begins: `wanted` 2 3 in 1 2 3 2 2 3 is found at 1 and 4.

    One comparison of arrays per wanted id, so long rows cost no Python.
    """
    if len(ids) < len(wanted) or not wanted:
        return np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(ids[: len(ids) - len(wanted) + 1] == wanted[0])
    for offset, token in enumerate(wanted[1:], start=1):
        starts = starts[ids[starts + offset] == token]
    return starts


def sentinel_layout(special: dict[str, int], vocab_size: int) -> Layout:
    """The layout of the sentinel format, in which each of `sys`, `usr`, `asst` and `eot` is one id.

    Args:
        special: the ids of these four, by name.
    """
    openers = tuple(
        (ROLES.index(role), (special[name],)) for role, name in zip(ROLES, ("sys", "usr", "asst"), strict=False)
    )
    stop = special["eot"]
    return Layout(
        openers=openers,
        supplied={},
        stops=(stop,),
        has_own_stop=True,
        preamble=(),
        bos=None,
        template_ids=frozenset(special.values()),
        first_ids=frozenset(special[name] for name in ("sys", "usr", "asst")),
        pad=None,
        controls=frozenset(special.values()),
        serving_stops=frozenset((stop,)),
        think=None,
        white_bytes=np.zeros(vocab_size, dtype=np.int64),
        vocab_size=vocab_size,
        names={token: f"<{name}>" for name, token in special.items()},
    )


def plain_layout(special: dict[str, int], vocab_size: int) -> Layout:
    """The layout of plain text: a vocabulary and the names of control tokens, no turns."""
    return replace(
        sentinel_layout(special, vocab_size), openers=(), trusted=False, untrusted_because="documents have no turns"
    )


def rows_of(many: Sequence[Sequence[int]], **more: Any) -> TokenRows:
    """Rows from lists of ids.

    Args:
        more: further fields of `TokenRows`.
    """
    lengths = np.array([len(ids) for ids in many], dtype=np.int64)
    return TokenRows(
        numbers=np.arange(len(many)),
        wheres=[f"row {number}" for number in range(len(many))],
        ids=np.concatenate([np.zeros(0, np.int64), *(np.asarray(ids, dtype=np.int64) for ids in many)]),
        starts=np.concatenate(([0], np.cumsum(lengths))),
        **more,
    )
