"""Short conversations of fixed texts that stand in for a part of a real one.

What a template writes between two texts depends on the kinds of the messages around. So the oracle is asked about a
conversation of the same kinds with fixed texts, and its answer holds for every conversation that has such a place
(`gaps.py`, which compares what is written there)::

    conversation   system, user, assistant, user, assistant, user, assistant, user
    the place      after the second answer
    window         system, user, assistant, user, assistant, user, ...
    stand-ins      "stand-in 0", "stand-in 1", ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final, NamedTuple

from niels_gpt.renderers.template.controls import CONTENT_FIELDS
from niels_gpt.renderers.template.letters import PLAIN, WORD, Lettered
from niels_gpt.renderers.template.proofs.probes import LOOK_UP

_FEW: Final = 1  # messages after a place that are taken as they are
_MOST: Final = 12  # messages of a conversation that is its own window
_LONGEST: Final = 24  # messages of a window without instructions
_READ: Final = frozenset({"role", "train", "weight", *CONTENT_FIELDS})
_VALUES: Final = {"str": "stand-in", "scalar": 3, "list": ["stand-in"], "dict": {"in": "stand-in"}}
_NAME: Final = "look_up"
# What templates write of a declaration besides its texts is not part of a place, so that one is enough.
TOOLS: Final = [*LOOK_UP]


class MessageKind(NamedTuple):
    """What a template may branch on in a message.

    Attributes:
        role: the role.
        content: "text", "parts", or "" for no content.
        texts: the patterns of its texts, see `letters.py`.
        reasoning: the pattern of its reasoning; `None` without one.
        calls: for each call its own keys and its arguments: as text, none, or which values are written last.
        labels: its other keys, such as `name`.
    """

    role: str
    content: str
    texts: tuple[str, ...]
    reasoning: str | None = None
    calls: tuple[tuple[tuple[str, ...], str], ...] | None = None
    labels: tuple[str, ...] = ()


Shape = tuple[MessageKind, ...]
_USER, _ANSWER = MessageKind("user", "text", (WORD,)), MessageKind("assistant", "text", (WORD,))


def shape_of(messages: Sequence[Mapping[str, Any]], lettered: Lettered) -> Shape | None:
    """The kinds of messages, as `Reads.given` returns them; `None` if stand-ins cannot have one of these kinds."""
    if not lettered.fits:
        return None
    kinds, patterns = list[MessageKind](), lettered.patterns
    for index, message in enumerate(messages):
        if len(message) == 2 and type(message.get("content")) is str:
            pattern = patterns.get((index, "content"))
            is_plain = pattern is None or pattern is PLAIN
            kinds.append(_plain(message["role"]) if is_plain else MessageKind(message["role"], "text", pattern or ()))
            continue
        content = message.get("content")
        if isinstance(content, list):
            if not all(isinstance(part, Mapping) and {*part} == {"type", "text"} for part in content):
                return None
            kind = "parts"
        else:
            kind = "" if content is None else "text"
        calls = message.get("tool_calls")
        labels = tuple(sorted(message.keys() - _READ))
        if not all(isinstance(message[key], str) for key in labels):
            return None
        reasoning = patterns.get((index, "reasoning"))
        kinds.append(
            MessageKind(
                message["role"],
                kind,
                patterns.get((index, "content"), ()),
                None if reasoning is None else reasoning[0],
                None if calls is None else tuple(map(_kind_of_call, calls)),
                labels,
            )
        )
    return tuple(kinds)


@lru_cache(maxsize=64)
def _plain(role: str) -> MessageKind:
    return MessageKind(role, "text", PLAIN)


def _kind_of_call(call: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    arguments = call["function"]["arguments"]
    kind = "text" if isinstance(arguments, str) else "empty"
    if arguments and kind == "empty":  # what is written last, in the order of the keys or sorted
        last, greatest = next(reversed(arguments)), max(arguments, key=str.lower)
        kind = f"{_kind_of_value(arguments[last])} {_kind_of_value(arguments[greatest])}"
    return tuple(sorted(call)), kind


def _kind_of_value(value: Any) -> str:
    if isinstance(value, str | list | dict):
        return type(value).__name__
    return "scalar"


def stand_in(shape: Shape) -> list[dict[str, Any]]:
    """Messages of these kinds with fixed texts; results answer the calls before them, in order."""
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    count = 0
    for index, kind in enumerate(shape):
        message: dict[str, Any] = {"role": kind.role, "content": None}
        texts = [pattern.replace(WORD, f"stand-in {index}") for pattern in kind.texts]
        if kind.content:
            parts = [{"type": "text", "text": one} for one in texts]
            message["content"] = texts[0] if kind.content == "text" else parts
        if kind.reasoning is not None:
            message["reasoning_content"] = kind.reasoning.replace(WORD, f"reasoning {index}")
        if kind.calls is not None:
            waiting = [f"call{count + number:05}" for number in range(len(kind.calls))]  # of 9 letters, as Mistral's
            count += len(waiting)
            message["tool_calls"] = [_call(*call, name) for call, name in zip(kind.calls, waiting, strict=True)]
        for label in kind.labels:
            message[label] = waiting.pop(0) if label == "tool_call_id" and waiting else _NAME
        messages.append(message)
    return messages


def _call(keys: Sequence[str], arguments: str, name: str) -> dict[str, Any]:
    last, _, greatest = arguments.partition(" ")
    # "place" is the greatest key, "near" the last one.
    one_or_two = {"place": _VALUES.get(greatest)} | ({"near": _VALUES.get(last)} if last != greatest else {})
    values = {"text": {"place": "stand-in"}, "empty": {}}.get(arguments, one_or_two)
    given = {"id": name, "type": "function", "function": {"name": _NAME, "arguments": values}}
    return {key: given.get(key, _NAME) for key in keys}


def windows_of(shape: Shape, before: int, after: int) -> list[tuple[Shape, dict[int, int]]]:
    """The windows of a place, the short one first, each with the index in it of each message of the conversation.

    Args:
        before, after: the messages whose texts are on both sides; -1 and `len(shape)` at the ends.
    """
    windows = []
    if 0 <= before < len(shape) and shape[before].calls:
        # Most templates write the same after a call, whatever its arguments and the text before it are.
        simple = _window((*shape[:before], _simple(shape[before]), *shape[before + 1 :]), before, after)
        windows += [] if simple is None else [simple]
    short = _window(shape, before, after)
    if short is not None and short not in windows:
        windows.append(short)
    if len(shape) <= _MOST and (short is None or len(short[0]) != len(shape)):
        windows.append((shape, {index: index for index in range(-1, len(shape) + 1)}))
    return windows


def _simple(kind: MessageKind) -> MessageKind:
    """The kind without white space around texts and values of arguments, each of which would be a window of its own."""
    texts = tuple(WORD if text.strip() == WORD else text for text in kind.texts)
    if kind.calls and texts == PLAIN:
        texts = ("",)
    return _beside(kind._replace(texts=PLAIN if texts == PLAIN else texts), is_before=False)


def _beside(kind: MessageKind, is_before: bool) -> MessageKind:
    """The kind of a message beside a place: of its arguments the last ones matter, where it comes before."""
    if not kind.calls:
        return kind
    calls = tuple((keys, "str str" if " " in values else values) for keys, values in kind.calls)
    return kind._replace(calls=(*calls[:-1], kind.calls[-1]) if is_before else calls)


def _first_call(shape: Shape) -> Shape:
    """The first call and its first result."""
    start = next((index for index, kind in enumerate(shape) if kind.calls), len(shape))
    stop = start + 1 + (start + 1 < len(shape) and shape[start + 1].role == "tool")
    return tuple(kind._replace(calls=kind.calls[:1]) if kind.calls else kind for kind in shape[start:stop])


def _ending(shape: Shape, stop: int) -> list[MessageKind]:
    """What follows the messages up to `stop` in a window: less than in the conversation, and complete turns."""
    last, rest = shape[stop - 1], shape[stop:]
    ending = list[MessageKind]()
    if last.calls:
        ending += takewhile(lambda kind: kind.role == "tool", rest)
    if last.role != "assistant" or ending:
        ending.append(_ANSWER)
    if any(kind.role == "user" for kind in rest):
        ending += [_USER, _ANSWER]
    return ending or [rest[0]]


def _window(shape: Shape, before: int, after: int) -> tuple[Shape, dict[int, int]] | None:
    """The messages around a place that decide what is written there, or `None` if they are too many.

    ::

        conversation   S U A U C T C T A U A U      S: system, C: a call, T: its result
        place                          ^            between the last result and the answer
        window         S U A U     C T A U A U      and not the call before the last
    """
    n = len(shape)
    lead = next((index for index, kind in enumerate(shape) if kind.role not in ("system", "developer")), n)
    sides = [index for index in (before, after) if lead <= index < n] or [lead if before < lead else n - 1]
    first, last = min(sides), max(sides)
    if first >= n:
        return tuple(shape), {index: index for index in range(-1, n + 1)}
    question = next((index for index in range(first, lead - 1, -1) if shape[index].role == "user"), lead)
    answer = next((index for index in range(first - 1, question, -1) if shape[index].role == "assistant"), None)
    # Of a call before, and of its results, one is enough, unless the place is between the results.
    cycle = range(answer, first) if answer is not None else range(0)
    if shape[first].role != "tool":
        cycle = cycle[:2]
    taken = [question, *cycle, *range(first, last + 1)]
    # Up to the next message that is no result, and, if few follow, all of them.
    following = last + 1
    while following < n and shape[following].role == "tool":
        following += 1
    stop = n if n - following <= _FEW else following + 1
    taken += range(last + 1, stop)
    kinds, where = [*shape[:lead]], {index: index for index in range(lead)}
    if before >= lead:  # instructions before the first message are beside no other place
        kinds = [*map(_simple, kinds)]
    if question > lead:  # the first turn of a conversation may differ from the others, and so may its first call
        kinds += [_USER, *map(_simple, _first_call(shape[lead:question])), _ANSWER]
    for index in dict.fromkeys(taken):
        where[index] = len(kinds)
        kind = _beside(shape[index], index == before) if first <= index <= last else _simple(shape[index])
        is_short = index in cycle and shape[first].role != "tool"
        kinds.append(kind._replace(calls=kind.calls[:1]) if is_short and kind.calls else kind)
    if stop < n:
        kinds += _ending(shape, stop)
    where |= {-1: -1, n: len(kinds)}
    return None if len(kinds) > _LONGEST + lead else (tuple(kinds), where)
