"""What two renderings have in common: a beginning, a generation prompt, a text that is equal but for white space."""

from __future__ import annotations

from niels_gpt.renderers.template.controls import ControlTokens, past_spaces


def before_open_tag(text: str, end: int) -> int:
    """`end`, moved back to the beginning of a tag that it cuts in two: 4 becomes 1 in `a<think>`."""
    opened = text.rfind("<", 0, end)
    return opened if opened > text.rfind(">", 0, end) else end


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
