"""Finds the characters of an assistant turn that the model emits: from the end of the generation prompt to the stop.

::

    generation prompt   <a>\\n<think>\\n                       the prefill: serving writes it before the model samples
    turn                <a>\\n<think>\\nHm.</think>4<e>\\n
    sampled                           Hm.</think>4<e>       up to the stop <e>, without the newline after it

`sampled_span` compares one turn with its generation prompt. The prompt comes from rendering the messages before the
turn (`tracing.py`), or from `static_analysis.fixed_prompt`, which proves for most templates that it is always the same.

What this guarantees: no character that the generation prompt supplies counts as sampled. What it does not: that the
turn begins as the prompt does. Some templates write history differently; then the span starts at the first character of
the message's content, and `RenderedTokens.attribution` says so ("partial: ...").
"""

from __future__ import annotations

from collections.abc import Sequence

from niels_gpt.renderers.template.attribution import ControlTokens, Span, past_spaces


def sampled_span(turn: Sequence[Span], text: str, prompt: str, controls: ControlTokens) -> tuple[int, int, bool]:
    """Where the sampled part of a turn starts and stops, in characters of its joined spans.

    It starts after the prefix that the turn shares with the generation prompt. It ends with the stop token after the
    last character of the message's content, or with the turn if its format has no stop::

        prompt   <a>\\n              turn   <a>\\nHi there<e>\\n      content  4..12
                                    start 4, stop 15, found True

    Args:
        text: the texts of the turn, joined.
        prompt: the generation prompt before this turn.

    Returns:
        `(start, stop, found)`: `found` is whether the turn begins as the prompt does. If not, `start` is the first
        character of the message's content.
    """
    # The start of the first and the end of the last character of content. Of spans "<a>" "Hi" " " "you" "<e>", whose
    # second and fourth are content: 3 and 9.
    at, bounds = 0, list[int]()
    for span in turn:
        if span.origin >= 0 and span.text:
            bounds += [at, at + len(span.text)]
        at += len(span.text)
    first, last = (bounds[0], bounds[-1]) if bounds else (0, 0)
    prefill = _prefill_length(text, prompt, controls)
    found = _matches_prompt(prompt, prefill)
    if not found:  # the white space between two turns may belong to either, so the prompt is tried without it
        lead = past_spaces(text)
        after_lead = _prefill_length(text[lead:], prompt.lstrip(), controls)
        found = _matches_prompt(prompt.lstrip(), after_lead)
        prefill = lead + after_lead if found else first
    # The stop is searched after the content, which may contain one. If there is no content, markup precedes the stop:
    #     <a>\nHi<e>                          content to 6    the first stop token, or else the first control token
    #     <a>\n<tool_call>...</tool_call><e>  no content      the first stop token, or else the last control token
    stop = controls.stop_after(text, max(last, prefill), at_once=last > 0)
    return min(prefill, len(text)), len(text) if stop is None else stop, found


def _matches_prompt(prompt: str, shared: int) -> bool:
    """Whether a turn begins as the prompt does: with all of it, or without a tag or white space at the prompt's end."""
    # Prompt <a>\n<think>\n and history <a>\nYo<e>: the model reasons when it is served, and history drops it.
    rest = prompt[shared:].lstrip()
    return shared == len(prompt) or (shared > 0 and (not rest or rest.startswith("<")))


def _prefill_length(text: str, prompt: str, controls: ControlTokens) -> int:
    """How many characters at the beginning of a turn the prompt supplies, without a part of a tag or control token.

    ::

        prompt  <a>\\n<think>\\n      turn  <a>\\n<tool_call>      supplied  <a>\\n      (not <a>\\n<t)
    """
    if text.startswith(prompt):
        return len(prompt)
    return controls.before_split_token(text, before_open_tag(text, common_prefix(text, prompt)))


def before_open_tag(text: str, end: int) -> int:
    """`end`, moved back to the beginning of a tag that it cuts in two: 4 becomes 1 in `a<think>`."""
    opened = text.rfind("<", 0, end)
    return opened if opened > text.rfind(">", 0, end) else end


# ---- texts that two renderings share


def common_prefix(one: str, other: str) -> int:
    """How many characters two texts have in common from their start, by bisection (`startswith` runs in C)."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


# ---- generation prompts


def added_prompt(with_prompt: str, without: str, controls: ControlTokens) -> str:
    """The generation prompt: what follows the common prefix of the renderings with and without it.

    The shorter text need not be a prefix of the longer: some templates write eos at the end only without a prompt.
    """
    shared = common_prefix(with_prompt, without)
    opened = before_open_tag(with_prompt, shared)
    if "\n" not in with_prompt[opened:shared]:  # else that `<` is text of a message
        shared = opened  # <|end_of_text|> and <|start_of_role|>, where the tokenizer does not have the second
    return with_prompt[controls.before_split_token(with_prompt, shared) :]


def end_of_same(expected: str, text: str) -> int | None:
    """The length of the beginning of `text` that equals `expected` except for white space; `None` if there is none.

    White space after it is included if the expected text ends in white space, and no more than that if it is the same::

        expected  "\\nASSISTANT:\\n"     text  "\\n    ASSISTANT: Hi"       ends before "Hi"
        expected  "\\nASSISTANT:"       text  "\\n    ASSISTANT: Hi"       ends before " Hi"
        expected  "ASSISTANT:\\n"       text  "\\nASSISTANT:\\n Hi"       ends before " Hi"
    """
    at = 0
    # White space of `text` is skipped wherever it is, so that texts which break lines elsewhere are the same.
    for character in "".join(expected.split()):
        while at < len(text) and text[at] != character and text[at].isspace():
            at += 1
        if at == len(text) or text[at] != character:
            return None
        at += 1
    spaces = expected[len(expected.rstrip()) :]
    return at + len(spaces) if text.startswith(spaces, at) else past_spaces(text, at)


def history_opening(prompt: str, controls: ControlTokens) -> str:
    """The part of a generation prompt that turns in history have too: all but a tag at its end.

    ::

        <|im_start|>assistant\\n<think>\\n    ->  <|im_start|>assistant\\n
    """
    opening = prompt[: max(0, prompt.rfind("<"))]
    return opening if controls.first(opening) else prompt
