"""Rows that compare or judge completions of a prompt, each read as one frozen `Preference`; `shapes.FORMS` lists them.

The prompt and the completions may be texts, lists of messages, or transcripts: "\\n\\nHuman: ... \\n\\nAssistant: ...".
Completions may repeat the prompt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from niels_gpt.errors import MessageError, shown
from niels_gpt.messages import Conversation, Message, Notes, read_messages
from niels_gpt.sources.rows.chats import as_conversation, plain_row
from niels_gpt.sources.rows.shapes import FORMS, Names, Row, Shape, beside, named, prompt_of, turns_of

_TEXTS: Final = ("messages", "answer", "response", "completion", "text", "content")  # of a completion in a list
_SPEAKER: Final = re.compile(r"\n\n(Human|Assistant):")
_ROLES: Final = {"Human": "user", "Assistant": "assistant"}


@dataclass(frozen=True)
class Completion:
    """One completion of a prompt.

    Attributes:
        messages: after `normalise`; the first is of the assistant.
        name: what messages about it call it: "chosen", "rejected", "completion", "completions 2".
        rank: 0 is the best of the group; completions of equal rank are not compared. `None`: not ranked.
        label: whether it is desirable; `None`: not labelled.
        score: a reward; `None`: not scored.
    """

    messages: list[Message]
    name: str
    rank: int | None = None
    label: bool | None = None
    score: float | None = None


@dataclass(frozen=True)
class Preference:
    """A row of preference data: completions of one prompt, with their rank, score or label.

    Attributes:
        form: one of `FORMS`.
        prompt: the messages that all completions follow, at least one, and what else is of the whole row: its place,
            group, tools, options and metadata.
        completions: the best first; two for "preference", one for "unpaired" and "scored", two or more for "ranked".
        margin: by how much the chosen completion is better, where the row says so.
    """

    form: str
    prompt: Conversation
    completions: tuple[Completion, ...]
    margin: float | None = None


def to_preference(row: Row, form: str, where: str = "", *, arrow: bool = False) -> Preference:
    """A row as a `Preference`.

    Args:
        arrow: it was read through Arrow, whose nulls are dropped, see `arrow_nulls`.

    Raises:
        MessageError: a column is missing or of a wrong type, a completion is empty, or the prompts of two sides differ.
    """
    shape, notes = FORMS[form], Notes()
    row = plain_row(row, notes, arrow=arrow)
    shape.check(row, "missing_column")
    label = row.get(shape.label[0]) if shape.label else None
    if shape.label and not isinstance(label, bool):
        raise MessageError("wrong_label", f"{shape.label[0]} is {label!r}; expected true or false")
    found = _listed(row, listed) if (listed := named(row, shape.listed)) else _sides(row, shape)
    prompt, messages = _divided(row, shape, {one.name: one.messages for one in found}, notes)
    completions = [replace(one, messages=messages[one.name], label=label) for one in found]
    for completion in completions:
        _check_completion(completion)
    of_row = as_conversation(row, prompt, shape, where, notes, chain(*messages.values()))
    # The sort is stable: completions of one rank stay in the order of the row.
    completions.sort(key=lambda one: one.rank or 0)
    margin = _number(row, ("margin",)) if len(shape.completions) > 1 else None
    return Preference(form, of_row, tuple(completions), margin)


def _sides(row: Row, shape: Shape) -> list[Completion]:
    """The completions that have columns of their own, the best first; their messages are not read yet."""
    names = [name for of_side in shape.completions if (name := named(row, of_side))]
    scores = [_number(row, of_side) for of_side in shape.scores]
    ranks = range(len(names)) if len(names) > 1 else [None]
    sides = zip(names, ranks, scores, strict=True)
    return [Completion(_split(row[name]), name, rank, score=score) for name, rank, score in sides]


def _listed(row: Row, name: str) -> list[Completion]:
    """The completions of a list, as `_sides`. Ranks and scores may be in lists beside it.

    Ranks are counted from 0, without gaps.
    """
    items = row[name]
    if not isinstance(items, list):
        raise MessageError("wrong_type", f"{name} is a {type(items).__name__}; expected a list of completions")
    if len(items) < 2:
        raise MessageError("one_completion", f"{name} has {len(items)} completion(s); expected at least two to compare")
    beside_it = {key: row[f"{key}s"] for key in ("rank", "score") if row.get(f"{key}s") is not None}
    for key, values in beside_it.items():
        if not isinstance(values, list) or len(values) != len(items):
            found = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
            raise MessageError("wrong_type", f"{key}s has {found}; expected one for each of the {len(items)} {name}")
    values, ranks, scores = [], [], []
    for number, item in enumerate(items):
        where, fields = f"{name} {number}", item if isinstance(item, Mapping) else {}
        if isinstance(item, Mapping) and "role" not in item:  # what has a role is a single message
            text = named(item, _TEXTS)
            if text is None:
                expected = ", ".join(_TEXTS)
                raise MessageError("missing_column", f"{where} has none of {expected}; keys found: {', '.join(item)}")
            item = item[text]
        numbers = {**fields, **{key: of_items[number] for key, of_items in beside_it.items()}}
        ranks.append(_number(numbers, ("rank",), f"{where}: "))
        scores.append(_number(numbers, ("score", "overall_score", "rating"), f"{where}: "))
        values.append([item] if isinstance(item, Mapping) else _split(item))
    if all(rank is None for rank in ranks):  # the highest score first
        ranks = [None if score is None else -score for score in scores]
    if None in ranks:
        raise MessageError(
            "no_rank", f"{name} {ranks.index(None)} has neither a rank nor a score; expected one for every completion"
        )
    # Ranks 4 2 4 9: order 2 4 9, so 1 0 1 2.
    order = sorted({rank for rank in ranks if rank is not None})
    dense = [order.index(rank) for rank in ranks if rank is not None]
    listed = enumerate(zip(values, dense, scores, strict=True))
    return [Completion(value, f"{name} {n}", rank, score=score) for n, (value, rank, score) in listed]


def _divided(
    row: Row, shape: Shape, found: Mapping[str, Any], notes: Notes
) -> tuple[list[Message], dict[str, list[Message]]]:
    """The prompt, and the messages after it by the name of their completion.

    ::

        prompt      user                                       the prompt: user
        chosen      assistant A                                completions: A and B
        rejected    assistant B

        chosen      user, assistant, user, assistant A        the prompt: user, assistant, user
        rejected    user, assistant, user, assistant B        completions: A and B

    Raises:
        MessageError: there is no prompt (`no_prompt`), or several (`prompt_differs`).
    """
    column = named(row, shape.prompt)
    plain = [name for name, value in found.items() if isinstance(value, str)]
    if column is None and plain:
        raise MessageError(
            "no_prompt",
            f"{plain[0]} is a text and there is no prompt; expected a 'prompt' column, messages, or a transcript "
            'that begins with "\\n\\nHuman:"',
        )
    prompt: list[Message] = []
    if column is not None:
        asked = prompt_of({**row, column: _split(row[column])}, column)
        prompt = _read(beside(row, asked), column, notes)
    sides = {name: _read(turns_of(value, name, "assistant"), name, notes) for name, value in found.items()}
    # What begins with an answer follows the prompt; what begins with anything else contains it.
    whole = [name for name, messages in sides.items() if messages[0]["role"] != "assistant"]
    if whole and len(whole) < len(sides):
        without = next(name for name in sides if name not in whole)
        raise MessageError(
            "prompt_differs",
            f"{whole[0]} begins with a prompt of its own and {without} does not; expected both or neither",
        )
    if whole:
        common = _common(sides)
        sides = {name: messages[len(common) :] for name, messages in sides.items()}
        # A system message may be in the prompt only, or in front of the sides only.
        if column is None:
            prompt = _read(beside(row, common), whole[0], notes)
        elif not (prompt[0]["role"] == "system" and prompt[1:] == common):
            if common[-len(prompt) :] != prompt:
                raise MessageError(
                    "prompt_differs",
                    f"{' and '.join(sides)} begin with {_shown(common[-1])}, but {column} is {_shown(prompt[-1])}; "
                    "expected the same prompt in all columns",
                )
            prompt = common
    if not prompt:
        raise MessageError("no_prompt", "the prompt is empty; expected at least one message before the completions")
    return prompt, sides


def _split(value: Any) -> Any:
    """A transcript as messages; any other value as it is."""
    if not isinstance(value, str) or not value.startswith("\n\nHuman:"):
        return value
    # "\n\nHuman: Hi \n\nAssistant: Hello" becomes the parts "" "Human" " Hi " "Assistant" " Hello".
    parts = _SPEAKER.split(value)
    turns = [{"role": _ROLES[who], "content": text.strip()} for who, text in zip(parts[1::2], parts[2::2], strict=True)]
    # Prompts end with an answer that is still open, which is no message.
    return turns[:-1] if turns[-1] == {"role": "assistant", "content": ""} else turns


def _common(sides: Mapping[str, list[Message]]) -> list[Message]:
    """The longest common beginning of conversations, after which an answer follows in each.

    Raises:
        MessageError: they differ before the first answer.
    """
    first, most = next(iter(sides.values())), min(map(len, sides.values()))
    # The number of messages that all sides have in common.
    same = next((at for at in range(most) if any(each[at] != first[at] for each in sides.values())), most)
    # Something must be left of each: identical conversations differ in nothing, and end in their completions.
    n = min(same, most - 1)
    for name, messages in sides.items():
        if len(messages) == same and messages[-1]["role"] != "assistant":
            raise MessageError(
                "side_without_answer",
                f"{name} ends with the prompt, after {same} messages; expected an answer of the assistant after it",
            )
        if messages[n]["role"] != "assistant":
            raise MessageError(
                "prompt_differs",
                f"{' and '.join(sides)} differ from message {n} on, where {name} has a message of "
                f"{messages[n]['role']}; expected the same prompt on both sides, and then an answer of the assistant",
            )
    return first[:n]


def _number(row: Row, names: Names, where: str = "") -> float | None:
    """The first of these columns that the row has, as a number."""
    name = named(row, names)
    if name is None:
        return None
    value = row[name]
    # `True` is an int in Python, and a label in the column of scores is a mistake.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MessageError("wrong_score", f"{where}{name} is {value!r}; expected a finite number")
    return float(value)


def _read(messages: list[Any], name: str, notes: Notes) -> list[Message]:
    try:
        return read_messages(messages, notes)
    except MessageError as error:
        raise MessageError(error.reason, f"{name}: {error}") from error


def _check_completion(completion: Completion) -> None:
    last = completion.messages[-1]
    if last["role"] != "assistant":
        raise MessageError(
            "no_answer", f"{completion.name} ends with a message of {last['role']}; expected one of the assistant"
        )
    content = last["content"]
    empty = not content.strip() if isinstance(content, str) else not content
    if empty and not last.get("tool_calls"):
        raise MessageError("empty_completion", f"{completion.name} is empty; expected a text or a tool call")


def _shown(message: Message) -> str:
    return f"{message['role']} {shown(message['content'], 60)}"
