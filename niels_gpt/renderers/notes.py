"""`Notes`: what a renderer says of a rendering besides its tokens; and what is done where a text is not in it.

A format may have no place for a text: reasoning in Llama 3, a second call in gpt-oss, a developer's message in a
template that knows three roles. Families and templates list such texts alike (`RenderedTokens.unwritten`), and one
option, `on_unwritten`, decides about the conversation::

    "content"   refused where a content or a call is not written; of the rest (reasoning, tools, names) rows are counted
    "error"     refused, whatever it is
    "drop"      rendered without it, and counted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from niels_gpt.errors import MessageError, UsageError

OnUnwritten = Literal["content", "error", "drop"]
UNWRITTEN = "unwritten"  # the reason of a refusal
_BODIES = ("content", "tool_calls")


class Unwritten(NamedTuple):
    """A text of the conversation that is not in the rendering.

    Attributes:
        message: the index of its message, -1 for the declaration of a tool.
        field: "content", "reasoning_content", "tool_calls", "name" or "tools".
        text: the text; of a declaration the name of the tool.
    """

    message: int
    field: str
    text: str

    def __str__(self) -> str:
        where = "" if self.message < 0 else f"message {self.message}: "
        text = self.text if len(self.text) <= 40 else self.text[:37] + "..."
        return f"{where}{self.field} is not written ({text!r})"


class Notes(NamedTuple):
    """How a rendering was attributed, and what of the conversation is not in it.

    Attributes:
        route: "gaps": by letters and remembered gaps. "oracle": the conversation by itself, which takes two renderings
            per message. "": by a grammar.
        unwritten: texts that the format has no place for.
        by_format: answers' reasoning that the format drops from history by design.
        changes: code -> how many times a text, a role or an id is written otherwise than the caller has it; see
            `adapting.py`.
    """

    route: str = ""
    unwritten: tuple[Unwritten, ...] = ()
    by_format: tuple[Unwritten, ...] = ()
    changes: Mapping[str, int] = {}


NO_NOTES = Notes()


def check_on_unwritten(value: Any) -> None:
    """Raise `UsageError` unless this is one of `OnUnwritten`."""
    if value not in get_args(OnUnwritten):
        raise UsageError(f"on_unwritten is {value!r}; expected one of {', '.join(get_args(OnUnwritten))}")


def refused(unwritten: Sequence[Unwritten], on_unwritten: OnUnwritten) -> Unwritten | None:
    """The first text for which a conversation is refused; `None` if it is not."""
    if not unwritten or on_unwritten == "drop":  # nearly always
        return None
    return next((one for one in unwritten if on_unwritten == "error" or one.field in _BODIES), None)


def check_written(unwritten: Sequence[Unwritten], on_unwritten: OnUnwritten) -> None:
    """Raise `MessageError` (`unwritten`) for a conversation that is refused."""
    lost = refused(unwritten, on_unwritten)
    if lost is not None:
        raise MessageError(
            UNWRITTEN,
            f"{lost}: the format has no place for it. Remove it, drop the row, use another renderer, or lose it with "
            "--on-unwritten drop (on_unwritten='drop')",
        )


def decided(renderer: Any, on_unwritten: OnUnwritten | None) -> OnUnwritten:
    """What holds for data that is made with a renderer: the caller's value, else the renderer's own, else "content".

    Raises:
        UsageError: no such value.
    """
    value: OnUnwritten = on_unwritten or getattr(renderer, "on_unwritten", None) or "content"
    check_on_unwritten(value)
    return value


def lost_in_all(whole: Sequence[Unwritten], produced: Mapping[int, Sequence[Unwritten]]) -> list[Unwritten]:
    """What a conversation loses in all of its samples: a turn that is written whole where it is produced loses nothing.

    Args:
        whole: what the rendering of the whole loses.
        produced: what the rendering that ends with each turn loses.
    """
    return [one for one in whole if one.message not in produced or one in produced[one.message]]
