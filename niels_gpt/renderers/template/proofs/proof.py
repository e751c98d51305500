"""The result of `oracle.py` for a rendering (`Proof`), and the `Emitter` that is made from it (`emit_proof`).

A proof gives the message of every character, the sampled spans, and the rule that shows each. Only text that the
template itself wrote may become control tokens. Tracing marks it as LITERAL. If an operation lost the origin, the proof
may restore it, for characters that are neither content nor any other text of the caller.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.messages import REASONING_FIELDS, Message
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import CONTENT, CONTROL, SAMPLED, Kind, pack, unpack
from niels_gpt.renderers.template.attribution import CONTENT_FIELDS, ControlTokens, Span
from niels_gpt.renderers.template.execution.provenance import LITERAL, LOST, NO_MESSAGE
from niels_gpt.renderers.template.proofs.substitution import COMPARED_KEYS

Ints = npt.NDArray[np.int64]

# The rules by which the start of a sampled span was found, as `niels-gpt doctor template` prints them.
PREFIX: Final = "the generation prompt is a prefix"
TURN: Final = "the turn begins as the generation prompt does"
USUAL: Final = "the turn begins as the generation prompt does after another conversation"
SPACES: Final = "the turn begins as the generation prompt does, except for white space"
SHORTER: Final = "the turn begins as the generation prompt does, without its last tag"
HEADER: Final = "the turn begins as the generation prompt does, without the words that it ends in"
WITHOUT: Final = "the content follows at once, where the generation prompt would begin"

_WITHOUT_LABELS = CONTENT_FIELDS | {"role", "train", "weight"}  # fields of messages
_LONGEST_CONTROL: Final = 64  # characters in which the end of a control token is searched for
# The words of the chat format itself. They are in every conversation and spell no control token, so that they must not
# keep a template from writing tokens such as <|text|>.
_STANDARD_WORDS = frozenset(
    {"", "role", "content", "type", "text", "id", "function", "name", "arguments", "tool_calls", "tool_call_id"}
    | {"train", "weight", "image", "image_url", "url", "path", "video", "video_url", *REASONING_FIELDS}
)


@dataclass(frozen=True)
class SampledSpan:
    """The characters that the model emits of one message.

    Attributes:
        message: its index.
        start, stop: the first character, and the one after the last.
        rule: how the start was found, such as PREFIX.
        stop_token: the control token that it ends in, "" for none. The option `final_stop` writes it after `stop`
            where the message is in `Proof.added_stops`; in all other spans it is before `stop`.
    """

    message: int
    start: int
    stop: int
    rule: str
    stop_token: str


@dataclass(frozen=True)
class Proof:
    """The attribution of a rendering, character by character; arrays have the shape (characters,).

    Attributes:
        text: the output.
        content: the message whose content each character is, -1 for the template's own, int64.
        letters: bool, the characters that had a substitute, so that their content is certain; `content` of others is
            inferred from their neighbours.
        is_template: bool, the characters that are certainly the template's: as content they would have been replaced.
        owner: the message that each character belongs to, -1 for none, int64.
        sampled: the spans that the model emits, ascending.
        added: where the words of a turn end that the template adds before all messages, 0 without one.
        problems: what could not be proven; empty if everything is.
        added_stops: the messages after whose spans the option `final_stop` writes a stop -> what the template lacks
            there, in words.
    """

    text: str
    content: Ints
    letters: npt.NDArray[np.bool_]
    is_template: npt.NDArray[np.bool_]
    owner: Ints
    sampled: list[SampledSpan]
    added: int
    problems: list[str]
    added_stops: dict[int, str]


def emit_proof(proof: Proof, spans: Sequence[Span], messages: Sequence[Message]) -> Emitter:
    """The rendering with the proven attribution, ready to be encoded.

    Args:
        spans: the same text with origins, as tracing has them.
    """
    lengths = [len(span.text) for span in spans]
    origin = np.repeat(np.array([span.origin for span in spans], np.int64), lengths)
    traced_message = np.repeat(np.array([span.message for span in spans], np.int64), lengths)
    # The message whose content each character is: as proven, and for what has no substitutes (`"`) as traced. A traced
    # span is not used if it contains text of the template, as in `{'output': m.content} | tojson`.
    content, at = proof.content.copy(), 0
    for span in spans:
        stop = at + len(span.text)
        if span.origin >= 0 and not proof.is_template[at:stop].any() and may_hold(messages[span.origin], span.text):
            content[at + np.flatnonzero(content[at:stop] < 0)] = span.origin
        at = stop
    # A template may write a string of its own where a content had the same (`split('x') | join('x')`): it is content.
    is_literal = (origin == LITERAL) & (content < 0)
    # Text before all loops over messages, such as bos, belongs to no message. What follows the loops has its proven
    # owner: a stop that the template writes there once is of the last message. So has the turn of a message of which
    # tracing has seen nothing, because it is empty and no loop writes it.
    unseen = {int(owner) for owner in np.unique(proof.owner)} - {span.message for span in spans} - {NO_MESSAGE}
    inside = np.flatnonzero((traced_message != NO_MESSAGE) | np.isin(proof.owner, sorted(unseen)))
    # Content that only tracing found belongs to its message. Everything else has its proven owner.
    owner = np.where(content >= 0, np.where(proof.content >= 0, proof.owner, content), proof.owner)
    if len(inside):
        owner[: inside[0]] = NO_MESSAGE
    sampled = np.zeros(len(proof.text), np.bool_)
    for sampled_span in proof.sampled:
        owner[sampled_span.start : sampled_span.stop] = sampled_span.message
        sampled[sampled_span.start : sampled_span.stop] = True
    # The last entry is for characters without content, whose index is -1.
    is_assistant = np.array([*(message["role"] == "assistant" for message in messages), False])
    bits = np.where(sampled, SAMPLED | CONTENT, np.where((content >= 0) & ~is_assistant[content], CONTENT, 0))
    # The message is above four bits, as in every emitter; -1 << 4 is -16, and -16 >> 4 is -1 again.
    facts = owner << 4 | bits | np.where(is_literal, CONTROL, 0)
    out = Emitter(messages)
    # 0 0 5 5 5 1 has runs that start at 0 2 5
    starts = np.flatnonzero(np.diff(facts, prepend=facts[:1] - 1)).tolist()
    out.texts = [proof.text[start:stop] for start, stop in pairwise([*starts, len(facts)])]
    out.facts = facts[starts].tolist()
    out.attribution = f"partial: {proof.problems[0]}" if proof.problems else "full"
    return out


def settle_spaces(out: Emitter, controls: ControlTokens) -> None:
    """Give white space after a control token at the end of a turn to that turn, wherever the template writes it.

    Templates write it after each turn, before each but the first, or after each but the last. Content and sampled text
    stay where they are, and so does the generation prompt at the end, which belongs to no message.
    """
    texts: list[str] = []
    facts: list[int] = []
    for text, fact in zip(out.texts, out.facts, strict=True):
        before = facts[-1] >> 4 if facts else fact >> 4  # the message is above four bits
        is_scaffold = not fact & (SAMPLED | CONTENT)
        if before != fact >> 4 >= 0 and text[:1].isspace() and is_scaffold and _ends_in_control(texts, facts, controls):
            rest = text.lstrip()
            texts.append(text[: len(text) - len(rest)])
            facts.append(before << 4 | fact & CONTROL)
            text = rest
        if text:
            texts.append(text)
            facts.append(fact)
    out.texts, out.facts = texts, facts


def _ends_in_control(texts: Sequence[str], facts: Sequence[int], controls: ControlTokens) -> bool:
    """Whether these pieces end in a control token of the template's, except for white space."""
    end = ""
    for text, fact in zip(reversed(texts), reversed(facts), strict=True):
        if not fact & CONTROL:
            break
        end = text + end
        if end.strip() and (len(end) > _LONGEST_CONTROL or controls.at_end(end.rstrip())):
            break
    return bool(controls.at_end(end.rstrip()))


def with_final_stops(out: Emitter, proof: Proof, final_stop: str) -> Emitter:
    """The rendering with the stop of the option `final_stop` after each answer that the template leaves without one.

    ::

        pieces   \nHi Yo \n###        span of message 1 ends after Yo        ->   \nHi Yo </s> \n###
    """
    waiting = sorted((span.stop, span.message) for span in proof.sampled if span.message in proof.added_stops)
    if not waiting:
        return out
    added, at = Emitter(out.messages), 0
    added.attribution = out.attribution
    for text, fact in zip(out.texts, out.facts, strict=True):
        start, end = at, at + len(text)
        # A piece of 10..20 that holds ends at 12 and 15 becomes 10..12, stop, 12..15, stop, 15..20.
        while waiting and waiting[0][0] < end:
            position, message = waiting.pop(0)
            if position > start:
                added.texts.append(text[start - at : position - at])
                added.facts.append(fact)
                start = position
            added.stop(final_stop, message)
        added.texts.append(text[start - at :])
        added.facts.append(fact)
        at = end
    for _, message in waiting:
        added.stop(final_stop, message)
    return added


def mark_stops(out: Emitter, controls: ControlTokens) -> Emitter:
    """Give the control token that ends each answer the kind STOP, as a piece of its own."""
    ended: set[int] = set()
    for at in range(len(out.texts) - 1, -1, -1):
        text, (message, kind) = out.texts[at], unpack(out.facts[at])
        if not text or not kind & SAMPLED or message in ended:
            continue
        ended.add(message)
        stop = controls.at_end(text)
        if kind == Kind.MARKUP and stop:
            cut = len(text) - len(stop)
            out.texts[at : at + 1] = [text[:cut], stop] if cut else [stop]
            out.facts[at : at + 1] = [pack(message, kind)] * bool(cut) + [pack(message, Kind.STOP)]
    return out


def may_hold(message: Message, text: str) -> bool:
    """Whether a text is in a message's contents, as it is or as JSON writes it; of answers that does not matter."""
    if message["role"] == "assistant":
        return True
    texts = list(_strings([value for field, value in message.items() if field in CONTENT_FIELDS]))
    return any(text.strip() in form for one in texts for form in (one, json.dumps(one, ensure_ascii=False)))


def with_proven_literals(spans: list[Span], proof: Proof, labels: set[str], controls: ControlTokens) -> list[Span]:
    """The spans, with LITERAL in place of LOST where the proof shows that the template wrote the text.

    The proof shows which characters are not content. It says nothing about the caller's other texts (names, ids,
    tools), so nothing is changed if one of these may be a part of a control token that is written there.

    Args:
        labels: these other texts (`labels_of`, `compared_tokens`).
    """
    if all(span.origin != LOST for span in spans):
        return spans
    is_lost = np.array([span.origin == LOST for span in spans], np.bool_)
    written = np.repeat(is_lost, [len(span.text) for span in spans]) & (proof.content < 0)
    tokens = {proof.text[start:stop] for start, stop in controls.places(proof.text) if written[start:stop].any()}
    # Also a part: a name "user" may be the middle of <|user|>, and a name "<|user|> says" holds all of it.
    if any(label in token or token in label for token in tokens for label in labels):
        return spans
    found, at = [], 0
    for span in spans:
        stop = at + len(span.text)
        if span.origin != LOST:
            found.append(span)
        else:
            # Flags 0 0 1 1 1 0 have runs that start at 0 2 5.
            starts = np.flatnonzero(np.diff(written[at:stop].astype(np.int8), prepend=-1)).tolist()
            for start, end in pairwise([*starts, len(span.text)]):
                origin = LITERAL if written[at + start] else LOST
                found.append(Span(span.text[start:end], span.message, origin))
        at = stop
    return found


def labels_of(messages: Sequence[Message], tools: Any, variables: Mapping[str, Any]) -> set[str]:
    """The caller's strings that have no substitutes: names, ids, further fields, tools, variables.

    Roles are left out, because `attribution.check_controls` knows them, and so are variables named `..._token`, which
    are the tokenizer's.
    """
    found = set(_strings([tools, [value for name, value in variables.items() if not name.endswith("_token")]]))
    for message in messages:
        found |= set(_strings([value for key, value in message.items() if key not in _WITHOUT_LABELS]))
        found |= set(_without_substitutes([message.get("content"), message.get("tool_calls")]))
        found |= {*message}  # a template may write a whole message, and with it the caller's own keys
    return found - _STANDARD_WORDS


def compared_tokens(messages: Sequence[Message], retained: re.Pattern[str], controls: ControlTokens) -> set[str]:
    """The control tokens in contents that have no substitutes, because the template compares contents with them.

    A content that consists of such strings is substituted as a whole, so its tokens are not among them.

    Args:
        retained: matches the strings that the template compares with.
    """
    contents = [value for message in messages for field, value in message.items() if field in CONTENT_FIELDS]
    texts = [text for text in _strings(contents) if retained.sub("", text).strip()]
    pieces = {found[0] for text in texts for found in retained.finditer(text)}
    return {piece for piece in pieces if any(True for _ in controls.places(piece))}


def _without_substitutes(value: Any) -> Iterator[str]:
    """The strings in contents and calls that have no substitutes: keys outside of arguments, kinds and ids.

    See `substitution._Substitution.value`.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            if key in COMPARED_KEYS:
                yield from _strings(item)
            elif key != "arguments":
                yield from _without_substitutes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _without_substitutes(item)


def _strings(value: Any) -> Iterator[str]:
    """All strings in a value at any depth, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
