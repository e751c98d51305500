"""Where the reasoning of a completion ends, in formats that write it between two tags."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window, hold


class PromptEnd(enum.Enum):
    """Whether a completion begins inside a think block, by the end of the prompt.

    `OPEN` and `CLOSED` are read from the prompt's own ids. `LIKELY_OPEN` is assumed from the family's generation prompt
    if the ids are not known. Otherwise text is held back until a tag, a call or the end shows whether it is reasoning.
    """

    OPEN = enum.auto()  # it opens one, so the completion begins with reasoning
    CLOSED = enum.auto()  # it opens none: reasoning has an opening tag of its own
    LIKELY_OPEN = enum.auto()  # open, but a finished completion without tags is an answer
    UNKNOWN = enum.auto()  # a closing tag that no opening one precedes ends reasoning


@dataclass(frozen=True)
class ReasoningFormat:
    """The tags of a format's reasoning.

    Attributes:
        opening, closing: its tags.
        calls: what the first tool call begins with, "" for formats without calls.
    """

    opening: str
    closing: str
    calls: str = ""


def read_reasoning(
    completion: Completion,
    out: ResponseBuilder,
    form: ReasoningFormat,
    prompt: PromptEnd,
) -> Steps[int]:
    """The character at which the content starts; the reasoning before it goes to `out`."""
    body = yield from _after_opening(completion, form.opening)
    # The prompt closed the block, or opened none: without an opening tag of its own the completion is all content.
    if body < 0 and prompt is PromptEnd.CLOSED:
        return 0
    is_open = body >= 0 or prompt is PromptEnd.OPEN
    out.begin_reasoning(max(body, 0))
    # Text that may still turn out to be content is held back: a reported event is never taken back.
    window = Window(completion, max(body, 0), tuple(filter(None, (form.closing, form.calls))))
    yield from window.pass_on(out.reasoning_to if is_open else hold)
    # It is not known how the prompt ended: only a closing tag, before any call, makes reasoning of what was held back.
    if not is_open and prompt is PromptEnd.UNKNOWN:
        if window.marker != form.closing:  # a closing tag after a call is within its arguments
            return 0
    elif window.marker == form.calls != "":  # a call in a block that is open: the block may be closed after it
        yield from Window(completion, window.stop, (form.closing,)).pass_on(hold)
    close = completion.find(form.closing)
    if close < 0:
        if not is_open and completion.stopped:
            return 0  # a whole answer without tags: the model skipped its reasoning
        end = _end_of_unclosed(completion, form.calls)
        out.reasoning_to(end)
        return end
    out.reasoning_to(close)
    return close + len(form.closing)


def _end_of_unclosed(completion: Completion, calls: str) -> int:
    """The end of reasoning without a closing tag: the beginning of the calls, else the end of the completion.

    Models call tools without closing the block first. A call's opening tag that is one token, or holds a control token,
    ends the reasoning, as inference servers read it. One that is spelled in several tokens may be a draft within the
    reasoning, so it counts only where the turn is complete.
    """
    if calls and (completion.stopped or completion.has_id_of(calls)):
        at = completion.find(calls)
        if at >= 0:
            return at
    return len(completion.text)


def _after_opening(completion: Completion, opening: str) -> Steps[int]:
    """The position after the opening tag at the start of a completion, except for white space; -1 without one.

    A tag that is a control token counts by its id only.
    """
    rest = Window(completion, 0)
    at = yield from rest.skip_space(0)
    if not (yield from rest.starts_with(opening, at)):
        return -1
    if completion.is_control(opening) and completion.find(opening) != at:
        return -1
    return at + len(opening)


def strip_think_tags(text: str, opening: str = "<think>") -> str:
    """The reasoning of a text that ends before the closing tag, with or without the opening one."""
    before, opened, after = text.partition(opening)
    return (after if opened and not before.strip() else text).strip("\n")
