"""Where the reasoning of a completion is, in formats that write it between two tags."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from niels_gpt.renderers.completions.text import Completion


class PromptEnd(enum.Enum):
    """Whether a completion begins inside a think block, by the end of the prompt.

    `OPEN` and `CLOSED` are read from the prompt's own ids. `LIKELY_OPEN` and `UNKNOWN` are assumed from the family's
    generation prompt if the ids are not known.
    """

    OPEN = enum.auto()  # it opens one, so the completion begins with reasoning
    CLOSED = enum.auto()  # it opens none: reasoning has an opening tag of its own
    LIKELY_OPEN = enum.auto()  # open, but a finished completion without tags is an answer
    UNKNOWN = enum.auto()  # a closing tag that no opening one precedes ends reasoning


def find_reasoning(
    completion: Completion,
    tags: tuple[str, str],
    prompt: PromptEnd,
    marks: Sequence[str],
    first_call: Callable[[int, Sequence[str]], int],
) -> tuple[int, int, int]:
    """Where the reasoning starts and stops, and where the content starts; 0, 0, 0 if there is no reasoning.

    Args:
        marks: what a call may begin with, the outermost tag first; none for formats without calls.
        first_call: the character at which the first call with one of some marks begins, from a character on; -1: none.
    """
    opening, closing = tags
    begin = opening_end(completion, opening)
    is_open = begin >= 0 or prompt is PromptEnd.OPEN
    # The prompt closed the block, or opened none: without an opening tag of its own the completion is all content.
    if begin < 0 and prompt is PromptEnd.CLOSED:
        return 0, 0, 0
    begin = max(begin, 0)
    close = completion.find(closing)
    # It is not known how the prompt ended: only a closing tag makes reasoning of what is before it, and one after a
    # call is within its arguments.
    if not is_open and prompt is PromptEnd.UNKNOWN and (close < 0 or 0 <= first_call(begin, marks[:1]) < close):
        return 0, 0, 0
    if close >= 0:
        return min(begin, close), close, close + len(closing)
    if not is_open and completion.stopped:
        return 0, 0, 0  # a whole answer without tags: the model skipped its reasoning
    # Models call tools without closing the block first. A tag of a call that is one token, or holds a control token,
    # ends the reasoning, as inference servers read it. One that is spelled in several tokens may be a draft within the
    # reasoning, so it counts only where the turn is complete.
    call = first_call(begin, [mark for mark in marks if completion.stopped or completion.has_id_of(mark)])
    end = call if call >= 0 else len(completion.text)
    return begin, end, end


def opening_end(completion: Completion, opening: str) -> int:
    """The position after the opening tag at the start of a completion, except for white space; -1 without one.

    A tag that is a control token counts by its id only.
    """
    at = completion.skip_space(0)
    if not completion.text.startswith(opening, at):
        return -1
    if completion.is_control(opening) and completion.find(opening) != at:
        return -1
    return at + len(opening)


def strip_think_tags(text: str, opening: str = "<think>") -> str:
    """The reasoning of a text that ends before the closing tag, with or without the opening one."""
    before, opened, after = text.partition(opening)
    return (after if opened and not before.strip() else text).strip("\n")
