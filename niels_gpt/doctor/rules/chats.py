"""Rules on conversations, before and after rendering."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.chats import ChatRow, texts_of
from niels_gpt.doctor.report import Evidence
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Tally
from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, reasoning_of
from niels_gpt.renderers.rendered import RenderedBatch
from niels_gpt.renderers.training import build_training_samples
from niels_gpt.renderers.unsupported import UnsupportedFields

RULES: Final = (
    Rule(
        "role-order",
        "warning",
        "roles come in an order that formats are not made for",
        "Templates fold, drop or refuse such turns, each in its own way.",
        "Conversations were cut at the wrong place, or merged.",
        "Begin with a user (or a system message), end with an assistant, let tool results follow calls.",
        applies=("chats",),
    ),
    Rule(
        "empty-answer",
        "warning",
        "an assistant message is empty",
        "The model learns to answer with nothing.",
        "A filter or a failed generation.",
        "Drop the message or the row.",
        applies=("chats",),
    ),
    Rule(
        "template-raises",
        "error",
        "the format refuses some conversations",
        "Pipelines drop such rows or stop; either way the data is not what it seems.",
        "A role or an order that the template has no place for.",
        "Repair the rows, or use a template that takes them.",
        applies=("chats",),
        needs=("renderer",),
    ),
    Rule(
        "system-dropped",
        "error",
        "the system message does not reach the model",
        "Training teaches to behave so without being told. Serving may write it all the same: some templates write it "
        "in the last user turn alone, which is the last message there and not here.",
        "The template has no system role and says nothing.",
        "Put the text into the first user message, or use another template.",
        applies=("chats", "tokenizer"),
        needs=("renderer",),
    ),
    Rule(
        "system-folded",
        "info",
        "the system message is written into the user's turn",
        "The format has no system role. It works if serving folds it in the same way.",
        "The template does so by design (Gemma, Mistral).",
        "Nothing to do if training and serving use this template.",
        applies=("chats", "tokenizer"),
        needs=("renderer",),
    ),
    Rule(
        "reasoning-dropped",
        "warning",
        "the format has no place for the reasoning of an answer",
        "The ids are right and the reasoning is not in them: the model is trained to answer without it, and no error "
        "says so.",
        "reasoning_content (or thinking) in the data, and a format without reasoning (Llama 3, Qwen2.5, Gemma).",
        "Use a format with reasoning, drop the field, or write it into content; builds refuse such rows with "
        "--on-unsupported error.",
        ("OpenPipe/ART#726",),
        ("chats",),
        needs=("renderer",),
    ),
    Rule(
        "history-thinking-stripped",
        "warning",
        "reasoning is dropped from history, so one sequence cannot train every turn as it was produced",
        "Earlier turns are trained without the reasoning that serving would have had them produce.",
        "The template keeps reasoning in the last turn only.",
        "One sample for each such turn (build_training_samples), or keep all reasoning (preserve_all_thinking).",
        ("ollama/ollama#10448", "OpenPipe/ART#726"),
        ("chats",),
        needs=("renderer",),
    ),
)


def check(chats: Sequence[ChatRow], tally: Tally, controls: re.Pattern[str] | None) -> None:
    """Judge the messages.

    Args:
        controls: finds the tokenizer's control tokens, and only in bodies does that matter.
    """
    for chat in chats:
        for index, note in _order_faults(chat.messages):
            tally.add("role-order", [_evidence(chat, index, note)])
            break  # one a row: what follows is often its consequence
        for index, message in enumerate(chat.messages):
            if message["role"] == "assistant" and _says_nothing(message):
                tally.add("empty-answer", [_evidence(chat, index, "the assistant says nothing")])
            found = controls and next(filter(None, map(controls.search, texts_of(message))), None)
            if found:
                note = f"the {message['role']} message spells {found.group()!r}"
                tally.add("special-tokens-in-content", [_evidence(chat, index, note)])


def hash_chats(chats: Sequence[ChatRow], tally: Tally) -> None:
    """Remember what rows hold."""
    digests = [hashlib.blake2b(_held(chat).encode(), digest_size=8).digest() for chat in chats]
    tally.hashes.append(np.array([int.from_bytes(digest) for digest in digests], dtype=np.uint64))
    tally.numbers.append(np.array([chat.number for chat in chats], dtype=np.int64))


def _held(chat: ChatRow) -> str:
    """A conversation as one text; JSON only where it is more than roles and contents, for it takes long."""
    if chat.tools is None and all(len(m) == 2 and isinstance(m["content"], str) for m in chat.messages):
        return "\0".join(f"{message['role']}\1{message['content']}" for message in chat.messages)
    return json.dumps([chat.messages, chat.tools], sort_keys=True, default=str)


def _evidence(chat: ChatRow, index: int | None, note: str) -> Evidence:
    return Evidence(row=chat.number, where=chat.where, note=note, message=index)


def _says_nothing(message: Message) -> bool:
    return not (message.get("tool_calls") or reasoning_of(message) or any(text.strip() for text in texts_of(message)))


def _order_faults(messages: Sequence[Message]) -> Iterator[tuple[int | None, str]]:
    roles = [message["role"] for message in messages]
    spoken = [role for role in roles if role not in ("system", "developer")]
    if "assistant" not in roles:
        yield None, "no assistant message"
    elif spoken[0] != "user":
        yield roles.index(spoken[0]), f"the first to speak is the {spoken[0]}"
    for index, (before, role) in enumerate(zip([None, *roles], roles, strict=False)):
        if role in ("system", "developer") and before not in (None, "system", "developer"):
            yield index, "a system message behind others"
        elif role == before and role in ("user", "assistant"):
            yield index, f"two {role} messages one after the other"
        elif role == "tool" and before not in ("tool", "assistant"):
            yield index, "a tool result that no call came before"
        elif role == "tool" and before == "assistant" and not messages[index - 1].get("tool_calls"):
            yield index, "a tool result, but the assistant message before it makes no call"
    if roles[-1] != "assistant" and "assistant" in roles:
        yield len(roles) - 1, f"the last message is the {roles[-1]}'s: nothing behind it is trained"


def check_rendered(chats: Sequence[ChatRow], batch: RenderedBatch, tally: Tally) -> None:
    """Judge what became of system messages."""
    stop = 0
    for chat, length, attribution in zip(chats, batch.lengths.tolist(), batch.attribution, strict=True):
        start, stop = stop, stop + length
        if attribution != "full":  # where a text went is not known
            continue
        if chat.messages[0]["role"] != "system" or not "".join(texts_of(chat.messages[0])).strip():
            continue
        rule, note = system_fault(batch.message_indices[start:stop], batch.is_content[start:stop])
        if rule:
            tally.add(rule, [_evidence(chat, 0, note)])


def system_fault(owners: np.ndarray[Any, Any], body: np.ndarray[Any, Any]) -> tuple[str, str]:
    """What became of a system message at index 0: written, dropped, or folded into the next turn."""
    own = np.flatnonzero((owners == 0) & body)
    if not own.size:
        return "system-dropped", "no token of the system message is in the rendering"
    others = np.flatnonzero(owners > 0)
    if others.size and others[0] < own[0]:
        return "system-folded", "the system message stands inside the next turn"
    return "", ""


def check_thinking(renderer: Any, chats: Sequence[ChatRow], tally: Tally) -> None:
    """Judge conversations with reasoning in a turn that a user's follows: is the turn the same as history?"""
    for chat in chats:
        if not _reasons_before_a_user(chat.messages):
            continue
        try:
            samples = build_training_samples(renderer, chat.messages, tools=chat.tools, allow_partial=True)
        except MessageError:  # a part of the conversation is refused although the whole is not: nothing to compare
            continue
        if len(samples) < 2:
            continue
        tokens = sum(len(ids) for ids, _ in samples)
        tally.sums["thinking: samples needed"] += len(samples)
        tally.sums["thinking: tokens of these samples"] += tokens
        tally.sums["thinking: tokens of one sequence each"] += len(samples[-1][0])
        note = f"{len(samples)} samples ({tokens:,} tokens) are needed to train every turn as it was produced"
        tally.add("history-thinking-stripped", [_evidence(chat, None, note)])


def check_unsupported(unsupported: UnsupportedFields, chats: Sequence[ChatRow], tally: Tally) -> None:
    """Judge reasoning that the renderer does not write anywhere."""
    for chat in chats:
        for field in unsupported.of(chat.messages, chat.tools):
            if field.name == "reasoning_content":
                size = len(reasoning_of(chat.messages[field.message]) or "")
                note = f"{size:,} characters of reasoning that the format does not write"
                tally.add("reasoning-dropped", [_evidence(chat, field.message, note)])


def _reasons_before_a_user(messages: Sequence[Message]) -> bool:
    reasoned = False
    for message in messages:
        if message["role"] == "user" and reasoned:
            return True
        if message["role"] == "assistant":
            reasoned |= bool(reasoning_of(message)) or any("</think>" in text for text in texts_of(message))
    return False
