"""Examines slices of the input: decodes one, renders it if it contains conversations, and runs the rules.

`examine_slices` does it for all slices, in this process or in several, and yields their counters in order.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from time import monotonic
from typing import Final

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.layouts.probes import AnyRenderer
from niels_gpt.doctor.rows import ASSISTANT, ROLES, ChatRow, Turns, chat_rows
from niels_gpt.doctor.rules import (
    calls,
    chats,
    contents,
    data,
    masks,
    packing,
    preferences,
    turns,
    vocabulary,
)
from niels_gpt.doctor.view import Scope, View
from niels_gpt.errors import MessageError
from niels_gpt.inputs.opened import Opened
from niels_gpt.inputs.parts import Slice, decoded, token_parts
from niels_gpt.inputs.rows import Bools, Int64s, TokenRows
from niels_gpt.interrupts import sigint_blocked
from niels_gpt.messages import is_untrained, weight_of
from niels_gpt.ranges import WORKERS
from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.loss import LossOn
from niels_gpt.renderers.masks import batch_weights
from niels_gpt.renderers.types import RenderedBatch
from niels_gpt.sources.files.inputs import Record, Rejected

# On a busy machine worker processes take about this long to start, and most inputs are finished earlier.
SECONDS_BEFORE_WORKERS: Final = 10.0


Examine = Callable[[Slice], Counters]  # the counters of a slice


def examine_slices(examine: Examine, slices: Iterator[Slice], workers: int) -> Iterator[Counters]:
    """The counters of all slices, in order.

    Args:
        examine: is sent to each worker process once.
        workers: processes. They start only after `SECONDS_BEFORE_WORKERS` of work in this one.
    """
    WORKERS.check(workers)
    began = monotonic()
    for part in slices:
        yield examine(part)
        if workers > 1 and monotonic() - began >= SECONDS_BEFORE_WORKERS:
            break
    else:
        return
    # From here on in other processes. Results are taken in the order of slices and not of completion, so that a report
    # does not depend on which worker is faster.
    waiting: deque[Future[Counters]] = deque()
    # Spawned, since tokenizers have threads, and a forked process would inherit their locks in a locked state.
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(examine,)) as pool:
        try:
            for part in slices:
                with sigint_blocked():  # an interrupt must not arrive while the pool starts a process
                    waiting.append(pool.submit(_examine, part))
                if len(waiting) > 2 * workers:  # bounds how far reading runs ahead, and so memory
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


# Of a worker process: the pool sends it once, at the start, and not with every slice.
_EXAMINE: list[Examine] = []


def _start_worker(examine: Examine) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core already
    _EXAMINE[:] = [examine]


def _examine(part: Slice) -> Counters:
    return _EXAMINE[0](part)


@dataclass(frozen=True)
class Examination:
    """The examination of a diagnosis: all that a worker needs besides its slices.

    Attributes:
        max_evidence: how many places of each rule are stored.
        renderer: of conversations; `None` without a tokenizer, or where the input has ids.
        loss_on: which tokens of conversations are trained.
        controls: texts of control tokens.
    """

    opened: Opened
    scope: Scope
    max_evidence: int
    renderer: AnyRenderer | None = None
    loss_on: LossOn = field(default_factory=LossOn)
    controls: tuple[str, ...] = ()

    def examine(self, part: Slice) -> Counters:
        """Run the rules over one slice."""
        counters = Counters(self.max_evidence)
        numbers, payload = part
        counters.sums["rows"] += len(numbers)
        if self.opened.kind == "tokens":
            parts, misfits = token_parts(numbers, payload, self.opened.dataset)
            for misfit in misfits:
                counters.add(misfit.rule, [Evidence(row=misfit.number, where=misfit.where, note=misfit.note)])
            for rows in parts:
                judge_rows(View(rows, self.scope, counters))
        elif self.opened.kind == "preferences":
            preferences.check(numbers, decoded(numbers, payload), self.opened.dialect, counters)
        else:
            self._examine_chats(numbers, decoded(numbers, payload), counters)
        return counters

    def _examine_chats(self, numbers: Int64s, records: Sequence[Record | Rejected], counters: Counters) -> None:
        """Run the rules on messages, then, where there is a renderer, those on what it writes."""
        usable = chat_rows(numbers, records, self.opened.dialect_at, counters)
        # The longest first: an alternation takes the first that matches.
        pattern = "|".join(map(re.escape, sorted(self.controls, key=len, reverse=True)))
        chats.check(usable, counters, re.compile(pattern) if pattern else None)
        calls.check(usable, counters)
        contents.check(usable, counters, self.controls)
        chats.hash_chats(usable, counters)
        # Builds leave out conversations in which no message is trained, so their masks are not judged.
        trained = [chat for chat in usable if not is_untrained(chat.messages)]
        counters.sums["rows switched off"] += len(usable) - len(trained)
        # Without a renderer only messages are judged; `Context.unmet` lists the rules that were not.
        if self.renderer is not None and trained:
            self._examine_rendered(self.renderer, trained, counters)

    def _examine_rendered(self, renderer: AnyRenderer, usable: Sequence[ChatRow], counters: Counters) -> None:
        """Render the conversations as a build would, and run the rules on their ids, turns and masks."""
        rendered, batch = _render(renderer, usable, counters)
        if batch is None:
            return
        rows = TokenRows(
            numbers=np.array([chat.number for chat in rendered]),
            wheres=[chat.where for chat in rendered],
            ids=batch.ids.astype(np.int64),
            starts=np.concatenate(([0], np.cumsum(batch.lengths))),
            # Weights of partial attribution are also examined; the finding attribution-partial names their rows.
            trained=batch_weights(batch, self.loss_on, allow_partial=True) > 0,
        )
        switched_off = _switched_off(rendered, batch, counters)
        view = View(rows, self.scope, counters, rendered_turns(batch, rows, self.scope.layout), switched_off)
        counters.sums["tokens"] += len(rows.ids)
        counters.sums["trained tokens"] += int(view.trained.sum())
        counters.sums["rows with a mask"] += len(rows)
        data.check(view)
        turns.check(view)
        masks.check(view)
        # Facts that the proof of a template could not settle; builds refuse these conversations.
        for chat, attribution in zip(rendered, batch.attribution, strict=True):
            if attribution != "full":
                counters.add("attribution-partial", [chat.evidence(None, attribution)])
        chats.check_rendered(rendered, batch, counters)
        chats.check_unwritten(rendered, batch, counters)
        chats.check_round_trips(renderer, rendered, batch, counters)
        chats.check_thinking(renderer, rendered, counters)


def judge_rows(view: View) -> View:
    """Run the rules over rows of ids.

    Returns:
        The view that rules on masks judged: with the mask corrected where labels are shifted.
    """
    if not len(view.rows):
        return view
    data.hash_rows(view)
    view = data.check(view)  # first, because it may correct the mask by shifted labels
    rows, sums = view.rows, view.counters.sums
    # `Context.unmet` reads these sums: they decide which rules had what they need.
    sums["tokens"] += len(rows.ids)
    sums["trained tokens"] += int(view.trained.sum())
    sums["rows with a mask"] += len(rows) if rows.trained is not None else 0
    sums["rows with a mask of their own"] += len(rows) if rows.mask_from not in ("", "labels") else 0
    sums["rows with an attention mask"] += len(rows) if rows.attended is not None else 0
    view = vocabulary.check(view)  # leaves out rows of another format, whose turns would be wrong
    if not len(view.rows):
        return view
    turns.check(view)
    masks.check(view)
    packing.check(view)
    return view


def _render(
    renderer: AnyRenderer, usable: Sequence[ChatRow], counters: Counters
) -> tuple[list[ChatRow], RenderedBatch | None]:
    """The conversations that the template accepts, rendered in one batch; the others become hits."""
    rendered = list(usable)
    try:
        batch = _batch(renderer, rendered)
    except MessageError:
        # The error of a batch names one conversation; rendered one by one, each refusal is a hit with its own message.
        rendered = []
        for chat in usable:
            try:
                renderer.render(chat.messages, tools=chat.tools, chat_template_kwargs=chat.kwargs)
                rendered.append(chat)
            except MessageError as error:
                counters.add("template-raises", [chat.evidence(None, str(error))])
        batch = _batch(renderer, rendered)
    if batch is None or np.all(batch.lengths > 0):
        return rendered, batch
    # `TokenRows` must not contain empty rows.
    not_empty = []
    for chat, length in zip(rendered, batch.lengths.tolist(), strict=True):
        if length:
            not_empty.append(chat)
        else:
            counters.add("empty-row", [chat.evidence(None, "the template writes no token for this conversation")])
    return not_empty, _batch(renderer, not_empty)


def _batch(renderer: AnyRenderer, chats: Sequence[ChatRow]) -> RenderedBatch | None:
    if not chats:
        return None
    return renderer.render_many(
        [chat.messages for chat in chats],
        tools=[chat.tools for chat in chats],
        chat_template_kwargs=[chat.kwargs for chat in chats],
    )


def _switched_off(chats: Sequence[ChatRow], batch: RenderedBatch, counters: Counters) -> Bools | None:
    """True on the tokens of assistant messages whose own `weight` or `train` leaves them out of the loss."""
    # Index -1 of tokens that belong to no message reads the entry at the end of each conversation: messages of 2 and 1
    # have the entries 0 1 - 2 -, and token -1 of the second conversation reads 3 + 1.
    off = [
        [message["role"] == "assistant" and not weight_of(message) for message in chat.messages] + [False]
        for chat in chats
    ]
    counters.sums["answers switched off"] += sum(map(sum, off))
    if not any(map(any, off)):  # the usual case, in which no array of all tokens is made
        return None
    sizes = np.array([len(flags) for flags in off])
    first = np.repeat(np.concatenate(([0], np.cumsum(sizes[:-1]))), batch.lengths)
    owner = batch.message_indices.astype(np.int64)
    entry = first + np.where(owner < 0, np.repeat(sizes - 1, batch.lengths), owner)
    found: Bools = np.array([flag for flags in off for flag in flags], dtype=np.bool_)[entry]
    return found


def rendered_turns(batch: RenderedBatch, rows: TokenRows, layout: Layout | None) -> Turns:
    """The turns of a batch, from the renderer's attribution.

    ::

        message index   0 0 0  1 1 1 1 1  2     two messages and the first token of a third
        sampled         . . .  . . # # .  .     turn of message 1: start 3, body 5, end 8; stop 6 if that id ends turns

    Args:
        rows: the batch as rows.
    """
    owner, sampled = batch.message_indices.astype(np.int64), batch.sampled
    n = len(owner)
    # A turn begins where the row or the message index changes. With at most 3 messages, index -1 .. 2 in row r gives
    # the keys 4 * r + 0 .. 3.
    key = rows.row_of * (int(owner.max(initial=0)) + 2) + owner + 1
    # Keys 5 5 6 6 6 8: turns begin at 0 2 5.
    begins = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    has_message = owner[begins] >= 0
    start, end = begins[has_message], np.append(begins[1:], n)[has_message]
    row = rows.row_of[start]
    # The role of each turn as an index into `ROLES`; any other role (developer) counts as the user's. Conversations of
    # 2 and 3 messages begin at 0 2 in the flat list, so message 1 of row 1 is at 2 + 1.
    user = ROLES.index("user")
    roles = [ROLES.index(m["role"]) if m["role"] in ROLES else user for chat in batch.messages for m in chat]
    first_message = np.concatenate(([0], np.cumsum([len(chat) for chat in batch.messages])))
    role = np.array(roles, dtype=np.int64)[first_message[row] + owner[start]]
    is_assistant = role == ASSISTANT
    # The first and last sampled token of each turn: sampled 5 6 9, turn 3:8: low 0, high 2, so tokens 5 and 6.
    positions = np.flatnonzero(sampled)
    low, high = np.searchsorted(positions, start), np.searchsorted(positions, end)
    has_sampled = is_assistant & (high > low)
    padded = np.append(positions, n)
    first = np.where(has_sampled, padded[np.minimum(low, len(positions))], end)
    last = np.where(has_sampled, padded[np.maximum(high - 1, 0)], 0)
    stop = np.where(has_sampled & (batch.kinds[last] == Kind.STOP), last, -1)
    if layout is not None and not layout.has_own_stop:  # the opener of the next message ends the turn
        next_ids = rows.ids[np.minimum(end, n - 1)]
        closed = has_sampled & (end < rows.starts[1:][row]) & np.isin(next_ids, layout.closers)
        stop = np.where(closed, end, stop)
    # Other roles sample nothing; their body begins with the first content token.
    content = np.append(np.flatnonzero(batch.is_content), n)
    first_content = np.minimum(content[np.searchsorted(content[:-1], start)], end)
    supplied, body = np.where(is_assistant, start, end), np.where(is_assistant, first, first_content)
    return Turns(row, role, start, supplied, body, stop, end)
