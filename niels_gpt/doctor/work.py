"""What a worker does with a slice: decode it, render it if it holds conversations, and run the rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from niels_gpt.doctor.arrow import unpacked
from niels_gpt.doctor.chats import ChatRow, chat_rows
from niels_gpt.doctor.columns import Column, Problem, columns_of, columns_of_arrow, is_tokenised, token_rows
from niels_gpt.doctor.documents import Documents
from niels_gpt.doctor.learning import AnyRenderer
from niels_gpt.doctor.reading import Opened
from niels_gpt.doctor.report import Evidence
from niels_gpt.doctor.rows import ASSISTANT, ROLES, Int64s, TokenRows, Turns
from niels_gpt.doctor.rules import calls, chats, data, documents, masks, packing, turns
from niels_gpt.doctor.slices import Arrow, Slice, Stored, decoded
from niels_gpt.doctor.tally import Tally
from niels_gpt.doctor.view import Scope, View
from niels_gpt.errors import MessageError
from niels_gpt.forks import cached_property
from niels_gpt.inputs import Record, Rejected
from niels_gpt.renderers.loss import LossOn, batch_weights
from niels_gpt.renderers.rendered import RenderedBatch
from niels_gpt.renderers.unsupported import UnsupportedFields


@dataclass(frozen=True)
class Work:
    """All that a worker needs beside its slice.

    Attributes:
        renderer: of conversations; `None` where there is no tokenizer.
        controls: spellings of control tokens. bad_forms: see `calls.bad_forms`.
    """

    opened: Opened
    scope: Scope
    keep: int
    renderer: AnyRenderer | None = None
    on: LossOn = field(default_factory=LossOn)
    controls: tuple[str, ...] = ()
    bad_forms: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _unsupported(self) -> UnsupportedFields:
        """What the renderer does not write; it remembers what it has tried."""
        assert self.renderer is not None
        return UnsupportedFields(self.renderer)

    def examine(self, part: Slice) -> Tally:
        """Run the rules over one slice."""
        tally = Tally(self.keep)
        numbers, payload = part
        if isinstance(payload, Documents):
            documents.check(numbers, payload, self.opened.stored.run(payload.split), self.scope, tally)
            return tally
        tally.sums["rows"] += len(numbers)
        if isinstance(payload, Stored):
            own = numbers - self._base(payload.split)
            rows = self.opened.stored.read(payload.split, own, numbers)
            self._judge(View(rows, self.scope, tally))
        elif self.opened.kind == "tokens":
            self._tokens(numbers, payload, tally)
        else:
            self._chats(numbers, decoded(payload), tally)
        return tally

    def _base(self, split: str) -> int:
        names = list(self.opened.splits)
        return sum(self.opened.splits[name] for name in names[: names.index(split)])

    # ---- rows of ids

    def _tokens(self, numbers: Int64s, payload: Any, tally: Tally) -> None:
        if isinstance(payload, Arrow):
            batch = unpacked(payload.packed)
            wheres, columns, problems = payload.wheres, columns_of_arrow(batch), list[Problem]()
        else:
            records = decoded(payload)
            wheres = [record.where for record in records]
            columns, problems = self._columns(numbers, records, tally)
        rows, more = token_rows(columns or _no_columns(len(numbers)), numbers, wheres)
        first = {(problem.row, problem.rule): problem for problem in [*more, *problems][::-1]}  # one a row
        for row, rule in sorted(first):
            evidence = Evidence(row=int(numbers[row]), where=wheres[row], note=first[row, rule].note)
            tally.add(rule, [evidence])
        self._judge(View(rows, self.scope, tally))

    def _columns(
        self, numbers: Int64s, records: Sequence[Record | Rejected], tally: Tally
    ) -> tuple[dict[str, Column], list[Problem]]:
        rows: list[Mapping[str, Any]] = []
        odd: list[Problem] = []
        for at, record in enumerate(records):
            usable = isinstance(record, Record) and isinstance(record.value, Mapping) and is_tokenised(record.value)
            rows.append(record.value if usable and isinstance(record, Record) else {})
            if not usable:
                note = record.why if isinstance(record, Rejected) else "the row has no input_ids"
                odd.append(Problem("unusable-row", at, note))
        columns, problems = columns_of(rows)
        return columns, odd + problems

    def _judge(self, view: View) -> None:
        """The rules on tokens, in an order in which each can rely on those before it."""
        if not len(view.rows):
            return
        data.hash_rows(view)
        view = data.check(view)
        rows, sums = view.rows, view.tally.sums
        sums["tokens"] += len(rows.ids)
        sums["trained tokens"] += int(view.trained.sum())
        sums["rows with a mask"] += len(rows) if rows.trained is not None else 0
        sums["rows with a mask of their own"] += len(rows) if rows.mask_from not in ("", "labels") else 0
        sums["rows with an attention mask"] += len(rows) if rows.attended is not None else 0
        turns.check(view)
        masks.check(view)
        packing.check(view)

    # ---- conversations

    def _chats(self, numbers: Int64s, records: Sequence[Record | Rejected], tally: Tally) -> None:
        usable = chat_rows(numbers, records, self.opened.dialect, tally)
        pattern = "|".join(map(re.escape, sorted(self.controls, key=len, reverse=True)))
        chats.check(usable, tally, re.compile(pattern) if pattern else None)
        calls.check(usable, tally, self.bad_forms)
        chats.hash_chats(usable, tally)
        if self.renderer is not None and usable:
            self._render(self.renderer, usable, tally)

    def _render(self, renderer: AnyRenderer, given: Sequence[ChatRow], tally: Tally) -> None:
        kept, batch = _rendered(renderer, given, tally)
        if batch is None:
            return
        rows = TokenRows(
            numbers=np.array([chat.number for chat in kept]),
            wheres=[chat.where for chat in kept],
            ids=batch.ids.astype(np.int64),
            starts=np.concatenate(([0], np.cumsum(batch.lengths))),
            trained=batch_weights(batch, self.on) > 0,
        )
        view = View(rows, self.scope, tally, turns_of(batch, rows, self.scope))
        tally.sums["tokens"] += len(rows.ids)
        tally.sums["trained tokens"] += int(view.trained.sum())
        tally.sums["rows with a mask"] += len(rows)
        data.check(view)
        turns.check(view)
        masks.check(view)
        for chat, told in zip(kept, batch.attribution, strict=True):
            if told != "full":
                tally.add("attribution-partial", [Evidence(row=chat.number, where=chat.where, note=told)])
        chats.check_rendered(kept, batch, tally)
        chats.check_unsupported(self._unsupported, kept, tally)
        chats.check_thinking(renderer, kept, tally)


def _no_columns(n: int) -> dict[str, Column]:
    return {"input_ids": Column(np.zeros(0, dtype=np.int64), np.zeros(n, dtype=np.int64))}


def _rendered(
    renderer: AnyRenderer, given: Sequence[ChatRow], tally: Tally
) -> tuple[list[ChatRow], RenderedBatch | None]:
    """The conversations that the format takes, rendered at once; the others become hits."""
    kept = list(given)
    try:
        batch = _batch(renderer, kept)
    except MessageError:
        kept = [chat for chat in given if _renders(renderer, chat, tally)]
        batch = _batch(renderer, kept)
    if batch is None or np.all(batch.lengths > 0):
        return kept, batch
    for chat, length in zip(kept, batch.lengths.tolist(), strict=True):
        if not length:
            tally.add(
                "empty-row", [Evidence(row=chat.number, where=chat.where, note="the format writes nothing of it")]
            )
    kept = [chat for chat, length in zip(kept, batch.lengths.tolist(), strict=True) if length]
    return kept, _batch(renderer, kept)


def _batch(renderer: AnyRenderer, kept: Sequence[ChatRow]) -> RenderedBatch | None:
    if not kept:
        return None
    return renderer.render_many([chat.messages for chat in kept], tools=[chat.tools for chat in kept])


def _renders(renderer: AnyRenderer, chat: ChatRow, tally: Tally) -> bool:
    try:
        renderer.render(chat.messages, tools=chat.tools)
    except MessageError as error:
        tally.add("template-raises", [Evidence(row=chat.number, where=chat.where, note=str(error))])
        return False
    return True


def turns_of(batch: RenderedBatch, rows: TokenRows, scope: Scope) -> Turns:
    """The turns as the renderer wrote them.

    ::

        owner     0 0 0  1 1 1 1 1  2     two messages and the first token of a third
        sampled   . . .  . . # # .  .     start 3, body 5, stop 6 (if that id is a stop), end 8
    """
    owner, sampled = batch.message_indices.astype(np.int64), batch.sampled
    n = len(owner)
    key = rows.row_of * (int(owner.max(initial=0)) + 2) + owner + 1
    begins = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    roles = [[ROLES.index(m["role"]) if m["role"] in ROLES else 1 for m in messages] for messages in batch.messages]
    first = np.concatenate(([0], np.cumsum([len(one) for one in roles])))
    flat = np.array([role for one in roles for role in one], dtype=np.int64)
    own = owner[begins] >= 0
    start, row = begins[own], rows.row_of[begins[own]]
    role = flat[first[row] + owner[start]]
    end = np.append(begins[1:], n)[own]
    said = np.flatnonzero(sampled)
    # The first and last sampled token of each run: sampled 5 6 9, run 3..8: places 0..2, so 5 and 6.
    low, high = np.searchsorted(said, start), np.searchsorted(said, end)
    speaks = (role == ASSISTANT) & (high > low)
    padded = np.append(said, n)
    body = np.where(speaks, padded[np.minimum(low, len(said))], end)
    last = np.where(speaks, padded[np.maximum(high - 1, 0)], 0)
    layout = scope.layout
    known = np.isin(rows.ids[last], list(layout.known | set(layout.stops))) if layout is not None else speaks
    stop = np.where(speaks & known, last, -1)
    if layout is not None and not layout.closes:  # the opener of what follows ends the turn
        follows = np.minimum(end, n - 1)
        opened = speaks & (end < rows.starts[1:][row]) & np.isin(rows.ids[follows], layout.stops)
        stop = np.where(opened, end, stop)
    end = np.where(stop >= end, end, end)
    supplied = np.where(role == ASSISTANT, start, end)
    bodies = batch.is_content
    content = np.flatnonzero(bodies)
    lowest = np.searchsorted(content, start)
    other = np.where(lowest < len(content), np.append(content, n)[np.minimum(lowest, len(content))], end)
    body = np.where(role == ASSISTANT, body, np.minimum(other, end))
    return Turns(row, role, start, supplied, body, stop, end)
