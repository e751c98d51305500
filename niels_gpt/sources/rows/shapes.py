"""The shapes of rows that are read, one line each: which columns hold what.

===================  =====================================================================================
messages             `messages`: role and content (OpenAI), with tool calls, reasoning, `train`, `weight`
sharegpt             `conversations`: `from` and `value`; `system` and `tools` beside it
alpaca               `instruction`, `input`, `output`; `system` and `history` beside them
prompt_completion    `prompt` and `completion`: two texts, or two lists of messages
anthropic, gemini,   as the interfaces of these providers write conversations, see `provider_shapes`
harmony
preference           `chosen` and `rejected`, with a prompt or with the prompt as their common beginning (TRL,
                     UltraFeedback, Anthropic HH); `chosen_score`, `rejected_score`, `margin` beside them
ranked               a prompt and a list of completions, each with a rank or a score (Nectar, UltraFeedback)
unpaired             a prompt, a `completion` and a `label`: true or false (KTO)
scored               a prompt, a `completion` and a `score`
===================  =====================================================================================

A null counts as no column: Arrow gives every row the columns of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

from niels_gpt.errors import MessageError, shown
from niels_gpt.sources.rows.provider_shapes import anthropic, gemini, harmony, looks_like

Row = Mapping[str, Any]
Names = tuple[str, ...]  # names of a column, of which the first that a row has counts


KWARGS: Final = "chat_template_kwargs"  # the column with options of the renderer for its row alone
BESIDE: Final = ("tools", "system", KWARGS)  # columns beside the messages of any row


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Which columns of a row hold what. A row has the shape if it has all of them that are not optional.

    Attributes:
        messages: a whole conversation.
        prompt: a text or messages; to an `instruction` belong `input` and `history` beside it.
        completions: an answer each, the best first: a text or messages.
        listed: a list of completions, with ranks or scores.
        label: whether the completion is desirable.
        scores: of each completion.
        optional: those of these columns by which the shape is not recognised.
        convert: makes messages of a conversation that is none yet.
    """

    messages: Names = ()
    prompt: Names = ()
    completions: tuple[Names, ...] = ()
    listed: Names = ()
    label: Names = ()
    scores: tuple[Names, ...] = ()
    optional: tuple[Names, ...] = ()
    convert: Callable[[Row], list[Any]] | None = None

    @cached_property
    def needs(self) -> tuple[Names, ...]:
        """The columns by which a row is recognised."""
        columns = (self.messages, self.prompt, *self.completions, self.listed, self.label, *self.scores)
        return tuple(names for names in columns if names and names not in self.optional)

    @cached_property
    def columns(self) -> frozenset[str]:
        """All columns that are read, but for optional scores, which are also metadata."""
        margin = ("margin",) if len(self.completions) > 1 else ()
        system = ("systemInstruction", "system_instruction") if self.convert is not None else ()
        return frozenset(chain(*self.needs, self.prompt, margin, system, BESIDE))

    def is_in(self, row: Row) -> bool:
        """Whether a row has the columns."""
        return all(named(row, names) for names in self.needs)

    def check(self, row: Row, reason: str) -> None:
        """Raise `MessageError` if a row lacks a column."""
        for names in self.needs:
            if row.get(names[0]) is None and not named(row, names):
                found = ", ".join(map(repr, row)) or "none"
                expected = " or ".join(map(repr, names))
                raise MessageError(reason, f"no {expected} in the row, or it is null; columns found: {found}")


ASKED: Final = ("prompt", "instruction", "question")
LISTS: Final = ("completions", "answers", "responses")
CHOSEN_SCORES: Final = ("chosen_score", "score_chosen", "chosen_rating")
REJECTED_SCORES: Final = ("rejected_score", "score_rejected", "rejected_rating")
IN_LISTS: Final = (("scores",), ("ranks",))
BOTH: Final = (CHOSEN_SCORES, REJECTED_SCORES)

# Conversations, in the order in which they are recognised; `--format` takes these names.
DIALECTS: Final = {
    "messages": Shape(messages=("messages",)),
    "sharegpt": Shape(messages=("conversations",)),
    "alpaca": Shape(prompt=("instruction",), completions=(("output",),)),
    "prompt_completion": Shape(prompt=("prompt",), completions=(("completion",),)),
    "anthropic": Shape(messages=("messages",), convert=anthropic),
    "gemini": Shape(messages=("contents",), convert=gemini),
    "harmony": Shape(messages=("messages",), convert=harmony),
}
PROVIDERS: Final = ("anthropic", "gemini", "harmony")
# Preferences, in the same way.
FORMS: Final = {
    "preference": Shape(prompt=ASKED, completions=(("chosen",), ("rejected",)), scores=BOTH, optional=(ASKED, *BOTH)),
    "ranked": Shape(prompt=ASKED, listed=LISTS, scores=IN_LISTS, optional=IN_LISTS),
    "unpaired": Shape(
        prompt=ASKED, completions=(("completion",),), label=("label",), scores=(("score",),), optional=(("score",),)
    ),
    "scored": Shape(prompt=ASKED, completions=(("completion",),), scores=(("score",),)),
}


def named(row: Row, names: Names) -> str | None:
    """The first of these columns that a row has."""
    for name in names:
        if row.get(name) is not None:
            return name
    return None


def candidates(row: Row) -> list[str]:
    """The dialects whose columns a row has; if several share a column, the one that its contents fit."""
    # Providers also name the column "messages", so this name alone does not decide.
    by_contents = looks_like(row.get("messages"), row) or "messages"
    found = [name for name, shape in DIALECTS.items() if shape.is_in(row)]
    return [name for name in found if "messages" not in DIALECTS[name].messages or name == by_contents]


def detect(row: Row) -> str | None:
    """The dialect whose columns a row has, or `None`."""
    return next(iter(candidates(row)), None)


def detect_form(row: Row) -> str | None:
    """The form of preferences whose columns a row has, or `None`."""
    return next((name for name, shape in FORMS.items() if shape.is_in(row)), None)


# ---- what a column holds


def turns_of(value: Any, name: str, role: str) -> list[Any]:
    """Messages, or a text as a message of this role.

    Raises:
        MessageError: it is neither (`wrong_type`).
    """
    if isinstance(value, list):
        return list(value)
    if not isinstance(value, str):
        raise MessageError("wrong_type", f"{name} is a {type(value).__name__}; expected a text or a list of messages")
    return [{"role": role, "content": value}]


def prompt_of(row: Row, name: str) -> list[Any]:
    """The messages of a prompt. Of an `instruction` that is a text, `history` comes before it, and `input` after it.

    Raises:
        MessageError: `input` is no text, or `history` no list of pairs (`wrong_type`).
    """
    if name != "instruction" or not isinstance(row[name], str):
        return turns_of(row[name], name, "user")
    question, more = row[name], row.get("input")
    if more is not None and not isinstance(more, str):
        raise MessageError("wrong_type", f"input is a {type(more).__name__}; expected a text, or null")
    turns: list[Any] = []
    history = row.get("history") or []
    if not isinstance(history, list):
        raise MessageError("wrong_type", f"history is a {type(history).__name__}; expected a list of pairs, or null")
    for number, pair in enumerate(history):
        # LLaMA-Factory's alpaca format has earlier turns as pairs.
        if not isinstance(pair, list) or len(pair) != 2:
            raise MessageError("wrong_type", f"history {number}: expected a pair of question and answer")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return turns + turns_of(f"{question}\n\n{more}" if more and more.strip() else question, name, "user")


def beside(row: Row, turns: list[Any]) -> list[Any]:
    """The messages with the `system` that is beside them.

    Raises:
        MessageError: they begin with another system message (`system_twice`).
    """
    system = row.get("system")
    first = turns[0] if turns and isinstance(turns[0], Mapping) else {}
    # In a turn of ShareGPT the role is `from`.
    if not system or first.get("role", first.get("from")) not in ("system", "developer"):
        return [{"role": "system", "content": system}, *turns] if system else turns
    # Some data sets store the system message in both places.
    if first.get("content", first.get("value")) != system:
        raise MessageError(
            "system_twice",
            f"system is {shown(system)} beside messages that begin with another system message; drop one",
        )
    return turns
