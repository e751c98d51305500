"""Rows that compare or judge completions of a prompt, each read as one frozen `Preference`.

===============  ==================================================================================================
preference       `chosen` and `rejected`, with `prompt` or with the prompt as their common beginning (TRL,
                 UltraFeedback, Anthropic HH); `chosen_score`, `rejected_score`, `margin` beside them; an `instruction`
                 with `input` and `history` is a prompt, too
unpaired         `prompt`, `completion` and `label`: true or false (KTO)
ranked           `prompt` and a list of `completions` (or `answers`, `responses`), each with a rank or a score (Nectar,
                 UltraFeedback)
scored           `prompt`, `completion` and `score`
===============  ==================================================================================================

A prompt or a side may be a text, a list of messages, or a transcript: "\\n\\nHuman: ... \\n\\nAssistant: ...".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.messages import Conversation, Message, Notes, read_messages, read_tools
from niels_gpt.sources.rows.chat_shapes import KWARGS, beside, instruction_turns, kwargs_at, tools_at, unread_columns
from niels_gpt.sources.rows.media_columns import refuse_media_columns

Row = Mapping[str, Any]
Messages = list[Any]

_TURN: Final = re.compile(r"\n\n(Human|Assistant):")
_ROLES: Final = {"Human": "user", "Assistant": "assistant"}
_LISTS: Final = ("completions", "answers", "responses")
_TEXTS: Final = ("answer", "response", "completion", "text", "content")
_ITEM_SCORES: Final = ("score", "overall_score", "rating")
_PROMPTS: Final = ("prompt", "instruction", "question")
_SCORES: Final = {
    "chosen": ("chosen_score", "score_chosen", "chosen_rating"),
    "rejected": ("rejected_score", "score_rejected", "rejected_rating"),
}


# Columns of numbers, which are read where the form has them, and stay in the metadata.
_NUMBERS: Final = frozenset(chain(*_SCORES.values(), ("score", "scores", "ranks")))


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


def to_preference(row: Row, form: str, where: str = "", changes: Mapping[str, int] | None = None) -> Preference:
    """A row as a `Preference`.

    Raises:
        MessageError: a column is missing or of a wrong type, a completion is empty, or the prompts of two sides differ.
    """
    keys, convert = FORMS[form]
    for key in keys:
        if not any(row.get(name) is not None for name in key):
            found = ", ".join(map(repr, row)) or "none"
            names = " or ".join(map(repr, key))
            raise MessageError("missing_column", f"no {names} in the row, or it is null; columns found: {found}")
    notes = Notes()
    prompt, completions, margin = convert(row, notes)
    if not prompt:
        raise MessageError("no_prompt", "the prompt is empty; expected at least one message before the completions")
    for completion in completions:
        _check_completion(completion)
    refuse_media_columns(row, chain(prompt, *(completion.messages for completion in completions)))
    # What the form reads is no metadata. `input` and `history` are read beside an instruction only.
    used = {name for key in (*keys, _PROMPTS, ("tools", "system", "margin", KWARGS)) for name in key}
    if _prompt_name(row) == "instruction":
        used |= {"input", "history"}
    metadata = {key: value for key, value in row.items() if key not in used}
    tools: Any = read_tools(tools_at(row), notes)
    counted = {**(changes or {}), **notes.changes}
    unread = {**notes.unread, **unread_columns({name: metadata[name] for name in metadata if name not in _NUMBERS})}
    of_row = Conversation(prompt, where, None, tools, kwargs_at(row), metadata, counted, unread)
    return Preference(form, of_row, tuple(completions), margin)


def detect_form(row: Row) -> str | None:
    """The form whose columns a row has, or `None`."""
    for form, (keys, _) in FORMS.items():
        if all(any(row.get(name) is not None for name in key) for key in keys):
            return form
    return None


def _preference(row: Row, notes: Notes) -> tuple[list[Message], list[Completion], float | None]:
    sides = {name: _conversation(row[name], name) for name in ("chosen", "rejected")}
    prompt = _prompt_of(row, notes)
    if prompt is None:
        plain = [name for name, side in sides.items() if isinstance(side, str)]
        if plain:
            raise MessageError(
                "no_prompt",
                f"{plain[0]} is a text and there is no prompt; expected a 'prompt' column, messages, or a transcript "
                'that begins with "\\n\\nHuman:"',
            )
        prompt, completions = _common_prompt(sides, notes)
        prompt = _checked(beside(row, prompt), "chosen", notes)
    else:
        prompt, completions = _after_prompt(prompt, sides, notes)
    # The sides are in the order chosen, rejected, so their numbers are their ranks.
    scores = {name: _number(row, names) for name, names in _SCORES.items()}
    pair = [
        Completion(messages, name, rank=rank, score=scores[name])
        for rank, (name, messages) in enumerate(completions.items())
    ]
    return prompt, pair, _number(row, ("margin",))


def _after_prompt(
    prompt: list[Message], sides: Mapping[str, str | Messages], notes: Notes
) -> tuple[list[Message], dict[str, list[Message]]]:
    """The prompt and the messages after it, where the row has a prompt; the sides may repeat it (UltraFeedback)."""
    completions: dict[str, list[Message]] = {}
    conversations: dict[str, str | Messages] = {}
    for name, side in sides.items():
        messages = _checked(_as_messages(side), name, notes)
        # What begins with an answer follows the prompt; what begins with anything else contains it.
        if messages and messages[0]["role"] == "assistant":
            completions[name] = messages
        else:
            conversations[name] = list(messages)
    if not conversations:
        return prompt, completions
    if completions:
        with_prompt, without = next(iter(conversations)), next(iter(completions))
        raise MessageError(
            "prompt_differs",
            f"{with_prompt} begins with a prompt of its own and {without} does not; expected both or neither",
        )
    common, completions = _common_prompt(conversations, notes)
    # A system message may be in the prompt only.
    if prompt[0]["role"] == "system" and prompt[1:] == common:
        return prompt, completions
    # A system message may be in front of the sides only.
    if common[-len(prompt) :] != prompt:
        raise MessageError(
            "prompt_differs",
            f"chosen and rejected begin with {_shown(common[-1])}, but prompt is {_shown(prompt[-1])}; expected the "
            "same prompt in all columns",
        )
    return common, completions


def _common_prompt(sides: Mapping[str, str | Messages], notes: Notes) -> tuple[list[Message], dict[str, list[Message]]]:
    """The longest common beginning of conversations, and what follows it in each.

    ::

        chosen    user, assistant, user, assistant A        the prompt: user, assistant, user
        rejected  user, assistant, user, assistant B        completions: A and B

    Raises:
        MessageError: they differ before the first answer.
    """
    conversations = {name: _checked(_as_messages(side), name, notes) for name, side in sides.items()}
    first, most = next(iter(conversations.values())), min(map(len, conversations.values()))
    # The number of messages that all sides have in common.
    same = next((at for at in range(most) if any(each[at] != first[at] for each in conversations.values())), most)
    # Something must be left of each: identical conversations differ in nothing, and end in their completions.
    n = min(same, most - 1)
    for name, messages in conversations.items():
        if len(messages) == same and (not messages or messages[-1]["role"] != "assistant"):
            raise MessageError(
                "side_without_answer",
                f"{name} ends with the prompt, after {same} messages; expected an answer of the assistant after it",
            )
        if messages[n]["role"] != "assistant":
            other = next(each for each in conversations if each != name or len(conversations) == 1)
            raise MessageError(
                "prompt_differs",
                f"{name} and {other} differ from message {n} on, where {name} has a message of {messages[n]['role']}; "
                "expected the same prompt on both sides, and then an answer of the assistant",
            )
    return first[:n], {name: messages[n:] for name, messages in conversations.items()}


def _unpaired(row: Row, notes: Notes) -> tuple[list[Message], list[Completion], float | None]:
    label = row["label"]
    if not isinstance(label, bool):
        raise MessageError("wrong_label", f"label is {label!r}; expected true or false")
    prompt, messages = _single(row, notes)
    return prompt, [Completion(messages, "completion", label=label, score=_number(row, ("score",)))], None


def _scored(row: Row, notes: Notes) -> tuple[list[Message], list[Completion], float | None]:
    prompt, messages = _single(row, notes)
    return prompt, [Completion(messages, "completion", score=_number(row, ("score",)))], None


def _single(row: Row, notes: Notes) -> tuple[list[Message], list[Message]]:
    prompt = _required_prompt(row, notes)
    found, completions = _after_prompt(prompt, {"completion": _conversation(row["completion"], "completion")}, notes)
    return found, completions["completion"]


def _ranked(row: Row, notes: Notes) -> tuple[list[Message], list[Completion], float | None]:
    name = next(name for name in _LISTS if row.get(name) is not None)
    items = row[name]
    if not isinstance(items, list):
        raise MessageError("wrong_type", f"{name} is a {type(items).__name__}; expected a list of completions")
    if len(items) < 2:
        raise MessageError("one_completion", f"{name} has {len(items)} completion(s); expected at least two to compare")
    sides = {f"{name} {number}": _item(item, f"{name} {number}") for number, item in enumerate(items)}
    prompt, messages = _after_prompt(_required_prompt(row, notes), sides, notes)
    scores = _each(row, items, name, "scores", _ITEM_SCORES)
    ranks = _dense(_each(row, items, name, "ranks", ("rank",)), scores, name)
    completions = [
        Completion(messages[side], side, rank=ranks[number], score=scores[number]) for number, side in enumerate(sides)
    ]
    # The sort is stable: completions of one rank stay in the order of the row.
    return prompt, sorted(completions, key=lambda one: one.rank or 0), None


def _dense(ranks: list[float | None], scores: list[float | None], name: str) -> list[int]:
    """Ranks from 0 without gaps: by the ranks if the row has them, else by the scores, the highest first."""
    values = ranks if any(rank is not None for rank in ranks) else [None if s is None else -s for s in scores]
    missing = next((number for number, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise MessageError(
            "no_rank", f"{name} {missing} has neither a rank nor a score; expected one for every completion"
        )
    # Values 4 2 4 9: order 2 4 9, ranks 1 0 1 2.
    order = sorted({value for value in values if value is not None})
    return [order.index(value) for value in values if value is not None]


def _each(row: Row, items: Sequence[Any], name: str, column: str, keys: tuple[str, ...]) -> list[float | None]:
    """The values of a number for all completions: from a list beside them, or from the completions themselves."""
    beside = row.get(column)
    if beside is None:
        return [
            _number(item, keys, f"{name} {number}: ") if isinstance(item, Mapping) else None
            for number, item in enumerate(items)
        ]
    if not isinstance(beside, list) or len(beside) != len(items):
        found = f"{len(beside)} values" if isinstance(beside, list) else f"a {type(beside).__name__}"
        raise MessageError("wrong_type", f"{column} has {found}; expected one for each of the {len(items)} {name}")
    return [_number({column: value}, (column,), f"{name} {number}: ") for number, value in enumerate(beside)]


def _item(item: Any, name: str) -> str | Messages:
    """The text or messages of one completion of a list."""
    if isinstance(item, Mapping) and "role" not in item:
        if isinstance(item.get("messages"), list):
            return list(item["messages"])
        key = next((key for key in _TEXTS if item.get(key) is not None), None)
        if key is None:
            raise MessageError(
                "missing_column", f"{name} has none of {', '.join(_TEXTS)}; keys found: {', '.join(item)}"
            )
        item = item[key]
    # A mapping that is left here has a role: it is a single message.
    return _conversation([item] if isinstance(item, Mapping) else item, name)


def _conversation(value: Any, name: str) -> str | Messages:
    """A side: a plain text, or messages; a transcript becomes messages."""
    if isinstance(value, list):
        return list(value)
    if not isinstance(value, str):
        raise MessageError("wrong_type", f"{name} is a {type(value).__name__}; expected a text or a list of messages")
    if not value.startswith("\n\nHuman:"):
        return value
    # "\n\nHuman: Hi \n\nAssistant: Hello" becomes the parts "" "Human" " Hi " "Assistant" " Hello".
    parts = _TURN.split(value)
    turns = [{"role": _ROLES[who], "content": text.strip()} for who, text in zip(parts[1::2], parts[2::2], strict=True)]
    # Prompts end with an answer that is still open, which is no message.
    if turns and turns[-1]["role"] == "assistant" and not turns[-1]["content"]:
        turns.pop()
    return turns


def _prompt_name(row: Row) -> str | None:
    return next((name for name in _PROMPTS if row.get(name) is not None), None)


def _prompt_of(row: Row, notes: Notes) -> list[Message] | None:
    name = _prompt_name(row)
    if name is None:
        return None
    value = _conversation(row[name], name)
    if not isinstance(value, str):
        messages: Messages = value
    elif name == "instruction":  # as alpaca has it, with `input` and `history` beside it
        messages = instruction_turns(row)
    else:
        messages = [{"role": "user", "content": value}]
    return _checked(beside(row, messages), name, notes)


def _required_prompt(row: Row, notes: Notes) -> list[Message]:
    prompt = _prompt_of(row, notes)
    assert prompt is not None, "to_preference has found the column"
    return prompt


def _as_messages(side: str | Messages) -> Messages:
    return [{"role": "assistant", "content": side}] if isinstance(side, str) else side


def _checked(messages: Messages, name: str, notes: Notes) -> list[Message]:
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


def _number(row: Mapping[str, Any], names: tuple[str, ...], where: str = "") -> float | None:
    """The first of these columns that the row has, as a number."""
    name = next((name for name in names if row.get(name) is not None), None)
    if name is None:
        return None
    value = row[name]
    # `True` is an int in Python, and a label in the column of scores is a mistake.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MessageError("wrong_score", f"{where}{name} is {value!r}; expected a finite number")
    return float(value)


def _shown(message: Message) -> str:
    text = repr(message["content"])
    return f"{message['role']} {text[:60]}{'...' if len(text) > 60 else ''}"


_Converted = tuple[list[Message], list[Completion], float | None]

# Name -> the columns by which a row is recognised (alternatives in a tuple), and the conversion. `detect_form` takes
# the first whose columns a row has.
FORMS: Final[dict[str, tuple[tuple[tuple[str, ...], ...], Callable[[Row, Notes], _Converted]]]] = {
    "preference": ((("chosen",), ("rejected",)), _preference),
    "ranked": ((_PROMPTS, _LISTS), _ranked),
    "unpaired": ((_PROMPTS, ("completion",), ("label",)), _unpaired),
    "scored": ((_PROMPTS, ("completion",), ("score",)), _scored),
}
