"""Attributes a template's output to messages, and checks that its control tokens are written by the template.

The input is the output in chunks, each with the message whose loop iteration wrote it, and with the origin of each
character. The result is a list of spans in order::

    {% for m in messages %}<u>{{ m.content }}<e>{% endfor %}      with two messages "Hi" and "Yo"

    text       <u>      Hi  <e>      <u>      Yo  <e>
    message    0        0   0        1        1   1
    origin     LITERAL  0   LITERAL  LITERAL  1   LITERAL

What this guarantees: content keeps its origin, and a control token in the output is written by the template's own
constants, or refused, or encoded as text. What it does not: that content whose origin is LOST is attributed;
`lost_content` reports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import REASONING_FIELDS, Message
from niels_gpt.renderers.template.execution.jinja import Chunk
from niels_gpt.renderers.template.execution.provenance import LABEL, LITERAL, LOST, NO_MESSAGE, plain, runs_of

# The fields that are a message's content. Templates write headers from the others (role, name, ids): labels.
CONTENT_FIELDS: Final = frozenset({"content", "tool_calls", *REASONING_FIELDS})

# Two origins in addition to those of `provenance.py`, assigned after rendering.
QUOTED: Final = -2  # content of another message than the one that the span belongs to
UNKNOWN_ROLE: Final = -5  # a role that is not in `KNOWN_ROLES`; it may not become part of a control token

# Roles of the formats in use. Templates write them into control tokens (`'<|' + message.role + '|>'`), so these count
# as the template's own text.
KNOWN_ROLES: Final = frozenset(
    {
        "system",
        "developer",
        "user",
        "assistant",
        "model",
        "chatbot",
        "tool",
        "function",
        "ipython",
        "observation",
        "environment",
        "context",
    }
)


def past_spaces(text: str, at: int = 0) -> int:
    """The position of the first character from `at` on that is no white space."""
    return at + len(text[at:]) - len(text[at:].lstrip())


class Span(NamedTuple):
    """A stretch of rendered text with one origin and one message.

    Attributes:
        text: the characters.
        message: the index of the message that it belongs to; `NO_MESSAGE` for none.
        origin: the index of the message whose content it is, or a negative code of `provenance.py` or
            `attribution.py`: LITERAL for text of the template.
    """

    text: str
    message: int
    origin: int


class ControlTokens:
    """The spellings of a tokenizer's control tokens, and which of them end a turn.

    Args:
        spellings: of all control tokens.
        stops: of those that end a turn; also ordinary text, if it is among the spellings.
        final_stop: the one that is written after an answer where the template writes no stop; "" for none.
    """

    def __init__(self, spellings: Iterable[str], stops: Iterable[str], final_stop: str = "") -> None:
        # One token may begin with another, and `re` takes the first alternative that matches.
        longest_first = sorted(spellings, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")  # (?!) never matches
        self._stops = frozenset(stops)
        self.final_stop = final_stop

    def first(self, text: str) -> str:
        """The first control token in a text; empty if there is none."""
        found = self._any.search(text)
        return found.group() if found else ""

    def first_at_start(self, text: str) -> str:
        """The control token that a text begins with, except for white space; empty if it begins with something else."""
        found = self._any.match(text, past_spaces(text))
        return found.group() if found else ""

    def at_end(self, text: str) -> str:
        """The control token that a text ends in; empty if it ends in something else."""
        last = None
        for last in self._any.finditer(text):  # noqa: B007 (the last one is used)
            pass
        return last.group() if last is not None and last.end() == len(text) else ""

    def words(self, text: str) -> str:
        """A text without its control tokens and the white space around it."""
        return self._any.sub("", text).strip()

    def excluded_from(self, pattern: re.Pattern[str]) -> re.Pattern[str]:
        """A pattern that matches the same, but nothing that begins with a control token."""
        return re.compile(f"(?!{self._any.pattern})(?:{pattern.pattern})")

    def is_stop(self, spelling: str) -> bool:
        """Whether this control token ends a turn."""
        return spelling in self._stops

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each control token in a text."""
        return (found.span() for found in self._any.finditer(text))

    def first_stop(self, text: str) -> int:
        """The end of the first stop token in a text; 0 if there is none."""
        return next((found.end() for found in self._any.finditer(text) if found.group() in self._stops), 0)

    def after_first_stop(self, text: str) -> int:
        """The position after the first stop token of a text and the white space after it; 0 if there is none."""
        stop = self.first_stop(text)
        return past_spaces(text, stop) if stop else 0

    def last_stop(self, text: str) -> int:
        """The end of the last stop token in a text; 0 if there is none."""
        return max((found.end() for found in self._any.finditer(text) if found.group() in self._stops), default=0)

    def before_split_token(self, text: str, end: int) -> int:
        """`end`, moved back to the start of a control token that it would cut in two."""
        for start, stop in self.places(text):
            if start < end < stop:
                return start
        return end

    def stop_after(self, text: str, start: int, *, at_once: bool) -> int | None:
        """The end of the first stop token after `start`; `None` if there is no control token at all.

        If no stop token follows, the turn ends with the first control token, or with the last one where more markup
        may come first (`at_once=False`).
        """
        # After the content of <a>Yo</a><eos>\n<u> the end is the stop token <eos>. Of <a>Yo</a>\n<u>, where no control
        # token is a stop, it is </a>.
        following = list(self._any.finditer(text, start))
        stop = next((found for found in following if found.group() in self._stops), None)
        if stop is None and following:
            stop = following[0] if at_once else following[-1]
        return None if stop is None else stop.end()


# ---- messages


def attribute_spans(chunks: list[Chunk], roles: Sequence[str], controls: ControlTokens) -> list[Span]:
    """The template's output as spans, each with its message.

    Inside a loop over messages, scaffold belongs to the message of the iteration. Outside of loops, a stretch that
    contains content of a message belongs to that message (a system block written before the loop), and a stretch
    without content belongs to none. Content of an assistant that is written into another message's turn (the name of
    the function that a tool result answers) belongs to that turn, as QUOTED.

    Args:
        roles: the role of each message.
        controls: the control tokens, of which a stop ends a turn outside of loops.
    """
    spans: list[Span] = []
    outside: list[Span] = []  # the current stretch outside of loops
    for text, message in chunks:
        if outside and message != NO_MESSAGE:
            spans += _attribute_outside_loops(outside, controls)
            outside = []
        written = outside if message == NO_MESSAGE else spans
        if type(text) is str:  # template data: the compiler writes it without runs
            if text:
                written.append(Span(text, message, LITERAL))
            continue
        for part, origin in _split_by_origin(text):
            if origin < 0:
                written.append(Span(part, message, origin))
            elif message not in (NO_MESSAGE, origin) and roles[origin] == "assistant" != roles[message]:
                written.append(Span(part, message, QUOTED))
            else:
                written.append(Span(part, origin, origin))
    return spans + _attribute_outside_loops(outside, controls)


def _split_by_origin(text: str) -> list[tuple[str, int]]:
    """`(stretch, origin)` for each maximal stretch of one origin: neighbouring runs of the same origin are merged."""
    runs = runs_of(text)
    if len(runs) == 1:  # the most frequent case
        return [(plain(text), runs[0][1])] if text else []
    stretches: list[tuple[str, int]] = []
    start = stop = 0
    current = LITERAL
    for length, origin in runs:
        if length and origin != current:
            if stop > start:
                stretches.append((str.__getitem__(text, slice(start, stop)), current))
            start, current = stop, origin
        stop += length
    if stop > start:
        stretches.append((str.__getitem__(text, slice(start, stop)), current))
    return stretches


def _attribute_outside_loops(stretch: list[Span], controls: ControlTokens) -> list[Span]:
    """Attribute the scaffold of a stretch outside of loops to a message whose content is beside it.

    A stretch without content is unchanged. Of messages 0 and 1, whose contents are "Hi" and "Yo"::

        <s> Hi <e> <u> Yo <e>      cut at stops        <s>, <e> to 0, <u>, <e> to 1
        <s> Hi --- Yo ---          no stop between     <s>, --- to 0, --- to 1: the last content before decides
    """
    origins = [span.origin for span in stretch if span.origin >= 0]
    if not origins:
        return stretch
    attributed = _cut_at_stops(stretch, origins[0], controls)
    if not attributed:
        message = origins[0]
        for span in stretch:
            message = span.origin if span.origin >= 0 else message
            attributed.append(Span(span.text, message, span.origin))
    return attributed


def _cut_at_stops(stretch: list[Span], message: int, controls: ControlTokens) -> list[Span]:
    """The stretch, cut between messages after a stop; empty if two messages have none between them."""
    attributed: list[Span] = []
    between: list[Span] = []  # the scaffold since the last content
    for span in stretch:
        if span.origin < 0:
            between.append(span)
            continue
        if span.origin != message:
            number, stop = _first_stop(between, controls)
            if not stop:
                return []
            # Of spans "<e>\n<u>" "\n" the first message gets "<e>\n", the second one "<u>" "\n".
            with_stop = between[number]
            footer = [*between[:number], with_stop._replace(text=with_stop.text[:stop])]
            header = [with_stop._replace(text=with_stop.text[stop:])] if stop < len(with_stop.text) else []
            attributed += [Span(part.text, message, part.origin) for part in footer]
            between = header + between[number + 1 :]
            message = span.origin
        attributed += [Span(part.text, message, part.origin) for part in [*between, span]]
        between = []
    return attributed + [Span(part.text, message, part.origin) for part in between]


def _first_stop(scaffold: list[Span], controls: ControlTokens) -> tuple[int, int]:
    """The first span with a stop that the template writes, and where that and white space after it end in it."""
    for number, span in enumerate(scaffold):
        stop = controls.after_first_stop(span.text) if span.origin == LITERAL else 0
        if stop:
            return number, stop
    return 0, 0


# ---- turns


def turns_of(spans: list[Span]) -> list[tuple[int, list[Span]]]:
    """`(message, spans)` for each maximal sequence of spans of one message."""
    turns: list[tuple[int, list[Span]]] = []
    for span in spans:
        if not turns or turns[-1][0] != span.message:
            turns.append((span.message, []))
        turns[-1][1].append(span)
    return turns


def default_turn_length(turn: Sequence[Span], controls: ControlTokens) -> int:
    """How many leading spans of the first message's turn are a turn that the template adds (a default system turn).

    Templates write it inside the loop's first iteration, so it is attributed to the first message. It is recognised by
    a stop token before the first character of the message's content (before the message's own stop, if it has no
    content), or by an opener that occurs twice (gpt-oss: a system turn, then the developer's turn).
    """
    leading = 0  # the spans before the first content
    while leading < len(turn) and turn[leading].origin < 0:
        leading += 1
    # Of "<s>Be kind.<e>" "<u>" "Hi" (content) the first two lead; a stop in the first makes it a turn of its own.
    stops = [at + 1 for at in range(leading) if controls.last_stop(turn[at].text)]
    if leading < len(turn):  # a stop right before the content is an opener (GLM's `<|user|>`)
        stops = [stop for stop in stops if any(span.text.strip() for span in turn[stop:leading])]
    opener = controls.first(turn[0].text) if turn else ""
    reopened = [at for at in range(1, leading) if opener and turn[at].text.startswith(opener)]
    # Without content all spans lead, and the last stop is the message's own.
    return max([*(stops[:-1] if leading == len(turn) else stops), *reopened[-1:]], default=0)


def detach_after(spans: list[Span], start: int) -> list[Span]:
    """The same spans, cut at character `start`, after which nothing belongs to a message."""
    result, at = [], 0
    for span in spans:
        cut = max(0, min(len(span.text), start - at))
        result += [span._replace(text=span.text[:cut]), without_message(span._replace(text=span.text[cut:]))]
        at += len(span.text)
    return [span for span in result if span.text]


def without_message(span: Span) -> Span:
    """The same text, belonging to no message. Content becomes a label, since no message owns it."""
    return Span(span.text, NO_MESSAGE, LABEL if span.origin >= 0 else span.origin)


# ---- checks


def lost_content(messages: Sequence[Message], spans: list[Span]) -> str:
    """A description of output whose origin is LOST; empty if there is none."""
    lost = [span.text for span in spans if span.origin == LOST and span.text.strip()]
    if not lost:
        return ""
    for index, message in enumerate(messages):
        if any(text and text in stretch for text in texts_of(message["content"]) for stretch in lost):
            return f"the content of message {index} lost its origin in the template"
    shown = lost[0] if len(lost[0]) <= 40 else lost[0][:37] + "..."
    return f"the origin of {shown!r} was lost in the template"


def texts_of(content: str | list[dict[str, Any]]) -> list[str]:
    """The texts of a message's content, which may be a list of parts."""
    parts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    return [part.strip() for part in parts if isinstance(part, str)]


def check_controls(spans: Sequence[Span], messages: Sequence[Message], inputs: Any, controls: ControlTokens) -> None:
    """Refuse output with control tokens if it is not certain that the template itself writes them.

    A control token whose characters are only partly LITERAL is encoded as text, so content never becomes one. Two
    cases need an error instead: a token that contains an unknown role, and a token with LOST text that no input
    contains, which the template therefore writes itself, through an operation that keeps no origins.

    Args:
        inputs: the other inputs of the rendering: tools and variables.

    Raises:
        MessageError: `unknown_role_in_control_token`.
        TemplateError: the template writes a control token through an operation that does not keep origins.
    """
    # Most renderings have neither, and then the search for control tokens is not needed.
    uncertain = {span.origin for span in spans} & {LOST, UNKNOWN_ROLE}
    if not uncertain:
        return
    for spelling, parts in _spelled(spans, controls):
        role = next((span for span in parts if span.origin == UNKNOWN_ROLE), None)
        if role is not None:
            raise MessageError(
                "unknown_role_in_control_token",
                f"the role {role.text[:40]!r} would be part of the control token {spelling!r}; expected one of "
                f"{', '.join(sorted(KNOWN_ROLES))}. If the format has this role, pass roles=({role.text[:40]!r},)",
            )
        if any(span.origin == LOST for span in parts) and not _contains((messages, inputs), spelling):
            raise TemplateError(
                f"the chat template writes the control token {spelling!r} through an operation that does not keep "
                "where text comes from, so that it might be text of the messages; write it as a string "
                "constant and join it with + or ~"
            )


def _spelled(spans: Sequence[Span], controls: ControlTokens) -> Iterator[tuple[str, list[Span]]]:
    """Each control token that the output spells, with the spans that it extends over.

    ::

        spans  "a<" "e>" "b"      control token <e> at 1..4      ->  ("<e>", ["a<", "e>"])
    """
    at, number = 0, 0  # the first span that the token can begin in, and the character that span starts at
    for start, end in controls.places("".join(span.text for span in spans)):
        while at + len(spans[number].text) <= start:
            at += len(spans[number].text)
            number += 1
        parts, stop, last = [spans[number]], at + len(spans[number].text), number
        while stop < end:
            last += 1
            parts.append(spans[last])
            stop += len(spans[last].text)
        spelling = "".join(span.text for span in spans[number : last + 1])[start - at : end - at]
        yield spelling, parts


def _contains(value: Any, text: str) -> bool:
    """Whether some string in a value, at any depth, contains this text."""
    if isinstance(value, str):
        return text in value
    if isinstance(value, dict):
        return any(_contains(key, text) or _contains(item, text) for key, item in value.items())
    return isinstance(value, list | tuple) and any(_contains(item, text) for item in value)
