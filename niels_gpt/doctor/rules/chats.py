"""Rules on conversations, before and after rendering."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.layouts.probes import AnyRenderer
from niels_gpt.doctor.rows import ChatRow, Fault, is_blank, texts_of
from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, reasoning_of
from niels_gpt.renderers.masks import build_training_samples
from niels_gpt.renderers.round_trip import round_trips
from niels_gpt.renderers.types import RenderedBatch

UNWRITTEN: Final = "unwritten"
REASONING: Final = "unwritten: reasoning"  # candidates; see `finish`
# Rows whose round trip is judged, which costs four times as much as rendering them: the first, and one in so many.
ALL_UP_TO: Final = 50
ONE_IN: Final = 1000


def _role_order(chat: ChatRow) -> Iterable[Fault]:
    """The first message that is out of order; what follows is often a consequence of it."""
    fault = next(_order_faults(chat.messages), None)
    return () if fault is None else [fault]


def _empty_answer(chat: ChatRow) -> Iterable[Fault]:
    """Assistant messages without text, reasoning and calls."""
    for index, message in enumerate(chat.messages):
        if message["role"] != "assistant" or message.get("tool_calls") or reasoning_of(message):
            continue
        if all(map(is_blank, texts_of(message))):
            yield index, "the assistant message has no text, no reasoning and no call"


def check(chats: Sequence[ChatRow], counters: Counters, controls: re.Pattern[str] | None) -> None:
    """Judge the contents of messages.

    Args:
        controls: matches the text of any control token of the tokenizer; `None` without a tokenizer.
    """
    for chat in chats:
        for rule, faults in (("role-order", _role_order(chat)), ("empty-answer", _empty_answer(chat))):
            counters.add(rule, [chat.evidence(index, note) for index, note in faults])
        unread = [key for key in chat.unread if not key.startswith("row.")]  # a row may have ids and scores
        if unread:
            counters.add("unread-keys", [chat.evidence(None, f"nothing reads {', '.join(sorted(unread))}")])
    if controls is None:
        return
    for chat in chats:
        for index, message in enumerate(chat.messages):
            # One piece of evidence per message is enough.
            found = next(filter(None, map(controls.search, texts_of(message))), None)
            if found:
                note = f"the {message['role']} message contains {found.group()!r}"
                counters.add("special-tokens-in-content", [chat.evidence(index, note)])


def hash_chats(chats: Sequence[ChatRow], counters: Counters) -> None:
    """Store a hash of every conversation, to find duplicates."""
    counters.hashes.append(np.array([_hash_of(chat) for chat in chats], dtype=np.uint64))
    counters.numbers.append(np.array([chat.number for chat in chats], dtype=np.int64))


def _hash_of(chat: ChatRow) -> int:
    """64 bits of a hash of all that a conversation says; among a million rows two collide once in 37 million times."""
    # As JSON, which is slower, only where a conversation has more than roles and contents.
    if chat.tools is None and all(len(m) == 2 and isinstance(m["content"], str) for m in chat.messages):
        # Separators that text does not contain, so that different conversations differ.
        text = "\0".join(f"{message['role']}\1{message['content']}" for message in chat.messages)
    else:
        text = json.dumps([chat.messages, chat.tools], sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _order_faults(messages: Sequence[Message]) -> Iterator[Fault]:
    """Message index (`None`: the conversation) and fault of everything out of order."""
    roles = [message["role"] for message in messages]
    # Instructions may come before the first user message.
    spoken = [role for role in roles if role not in ("system", "developer")]
    if "assistant" not in roles:
        yield None, "no assistant message"
    elif spoken[0] != "user":
        yield roles.index(spoken[0]), f"the conversation begins with the {spoken[0]}, expected the user"
    # Each role with the one before it; the list with None is one longer, hence not strict.
    for index, (before, role) in enumerate(zip([None, *roles], roles, strict=False)):
        if role in ("system", "developer") and before not in (None, "system", "developer"):
            yield index, "a system message after other messages"
        elif role == before and role in ("user", "assistant"):
            yield index, f"two {role} messages one after the other"
        elif role == "tool" and before not in ("tool", "assistant"):
            yield index, "a tool result that follows no assistant message"
        elif role == "tool" and before == "assistant" and not messages[index - 1].get("tool_calls"):
            yield index, "a tool result, but the assistant message before it makes no call"
    if roles[-1] != "assistant" and "assistant" in roles:
        yield len(roles) - 1, f"the last message is of the {roles[-1]}: no answer to it is trained"


def check_rendered(chats: Sequence[ChatRow], batch: RenderedBatch, counters: Counters) -> None:
    """Judge whether the system messages are in the rendering, and in a turn of their own."""
    stop = 0
    for chat, length, attribution in zip(chats, batch.lengths.tolist(), batch.attribution, strict=True):
        start, stop = stop, stop + length
        if attribution != "full":  # where the text of a message is in the rendering is not known
            continue
        # An empty system message may be left out without loss.
        if chat.messages[0]["role"] != "system" or not "".join(texts_of(chat.messages[0])).strip():
            continue
        rule, note = system_fault(batch.message_indices[start:stop], batch.is_content[start:stop])
        if rule:
            counters.add(rule, [chat.evidence(0, note)])


def system_fault(owners: np.ndarray[Any, Any], body: np.ndarray[Any, Any]) -> tuple[str, str]:
    """The rule that fires on a system message at index 0, and its note; both empty if it has a turn of its own.

    Args:
        owners: message index of each token. body: True on tokens of contents.
    """
    # Only its content: a header alone would not show the instructions to the model.
    system = np.flatnonzero((owners == 0) & body)
    if not system.size:
        return "system-dropped", "no token of the system message is in the rendering"
    others = np.flatnonzero(owners > 0)
    # A token of a later message comes first: the header of the user's turn is around the system text.
    if others.size and others[0] < system[0]:
        return "system-folded", "the system message is written inside the next turn"
    return "", ""


def check_thinking(renderer: Any, chats: Sequence[ChatRow], counters: Counters) -> None:
    """Judge conversations with reasoning before a user message: is such a turn rendered differently as history?"""
    for chat in chats:
        if not _reasons_before_a_user(chat.messages):
            continue
        try:
            samples = build_training_samples(
                renderer, chat.messages, tools=chat.tools, allow_partial=True, chat_template_kwargs=chat.kwargs
            )
        except MessageError:  # the template refuses a part of the conversation although it accepts the whole
            continue
        # One sample trains all turns as they were produced, so nothing is lost.
        if len(samples) < 2:
            continue
        tokens = sum(len(ids) for ids, _ in samples)
        counters.sums["thinking: samples needed"] += len(samples)
        counters.sums["thinking: tokens of these samples"] += tokens
        # The last sample is the whole conversation, as a trainer with one sequence renders it.
        counters.sums["thinking: tokens of one sequence each"] += len(samples[-1][0])
        note = f"{len(samples)} samples ({tokens:,} tokens) are needed to train every turn as it was produced"
        counters.add("history-thinking-stripped", [chat.evidence(None, note)])


def check_unwritten(chats: Sequence[ChatRow], batch: RenderedBatch, counters: Counters) -> None:
    """Judge texts that the renderer does not write."""
    for chat, notes in zip(chats, batch.notes, strict=True):
        found: dict[str, list[Evidence]] = {UNWRITTEN: [], REASONING: []}
        for one in notes.unwritten:
            place = one.message if one.message >= 0 else None
            if one.field == "reasoning_content":
                note = f"{len(one.text):,} characters of reasoning that the format does not write"
                found[REASONING].append(chat.evidence(place, note))
            elif one.field != "tools":  # which formats such as DeepSeek V3's have no place for; builds count them
                found[UNWRITTEN].append(chat.evidence(place, str(one)))
        for rule, evidence in found.items():
            counters.add(rule, evidence)
        counters.sums[UNWRITTEN] += any(found.values())


def check_round_trips(
    renderer: AnyRenderer, chats: Sequence[ChatRow], batch: RenderedBatch, counters: Counters
) -> None:
    """Judge whether what is written is read as the same messages again, in a part of the rows."""
    asked = [chat.number < ALL_UP_TO or not chat.number % ONE_IN for chat in chats]
    chosen = [at for at, one in enumerate(asked) if one and batch.attribution[at] == "full"]
    if not chosen:
        return
    some = [chats[at] for at in chosen]
    if len(chosen) < len(chats):
        batch = renderer.render_many(
            [chat.messages for chat in some],
            tools=[chat.tools for chat in some],
            chat_template_kwargs=[chat.kwargs for chat in some],
        )
    renderers = [renderer.with_kwargs(chat.kwargs) for chat in some]
    for chat, trip in zip(some, round_trips(renderers, batch, [chat.tools for chat in some]), strict=True):
        if trip.difference is not None:
            counters.add("round-trip", [chat.evidence(trip.difference.message, str(trip.difference))])


def finish(counters: Counters) -> None:
    """Reasoning that is not written is a warning where nothing else is left out; called after the last row."""
    if UNWRITTEN not in counters.hits:
        counters.milder[UNWRITTEN] = "warning"
    counters.move(REASONING, UNWRITTEN, rows=counters.sums[UNWRITTEN])


def _reasons_before_a_user(messages: Sequence[Message]) -> bool:
    """Whether an assistant message with reasoning (or `</think>`) is before a user message."""
    reasoned = False
    for message in messages:
        if message["role"] == "user" and reasoned:
            return True
        if message["role"] == "assistant":
            # Many datasets write the reasoning into the content.
            reasoned |= bool(reasoning_of(message)) or any("</think>" in text for text in texts_of(message))
    return False
