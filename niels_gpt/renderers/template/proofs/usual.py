"""What a template writes around short probe messages, whatever the conversation: its prompt, its stops, its headers.

A turn is compared with these where the conversation's own beginning shows nothing, because the template refuses it or
writes it otherwise. Of a template <s> <u>...<e> <a>...<e>::

    probe                            prompt   <a>       `prompt`
    probe user, assistant, user      <s><u>probe user<e><a>probe assistant<e><u>probe user<e>
                                                     `end("user")` and `end()` are <e>; a template like GLM, whose
                                                     answers end where <u> opens the next question, has `opener` <u>
    probe system, user               <s>     `first_header`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

from niels_gpt.renderers.template.controls import ControlTokens, past_spaces

PROBE: Final = "probe"  # the content of messages that are rendered only to see what the template writes around it

TryRender = Callable[[Sequence[Any], bool], str | None]  # (messages, add_generation_prompt) -> the output, or refused


class Usual:
    """What a template writes around probe messages; each is rendered when it is first asked for."""

    def __init__(self, render: TryRender, controls: ControlTokens) -> None:
        self._render, self._controls = render, controls

    @cached_property
    def prompt(self) -> str:
        """The generation prompt after a single question; "" if the template refuses that."""
        served, without = self._render([probe("user")], True), self._render([probe("user")], False)
        return "" if served is None or without is None else added_prompt(served, without, self._controls)

    @cached_property
    def first_header(self) -> str:
        """The text before the first content, with a system message where one is allowed; "" if refused."""
        texts = (
            self._render([probe(role, role) for role in roles], False) for roles in (("system", "user"), ("user",))
        )
        return next((text.partition(PROBE)[0] for text in texts if text is not None), "")

    def stop(self, role: str = "assistant") -> str:
        """The stop token directly after an answer that a question follows, or after a question; "" if there is none."""
        token = self.end(role)
        return token if self._controls.is_stop(token) else ""

    def end(self, role: str = "assistant") -> str:
        """The control token there, whether it is a stop or not; "" for an opener of questions (GLM's `<|user|>`)."""
        token, is_opener = self._next(role)
        return "" if is_opener else token

    @property
    def opener(self) -> str:
        """The control token after an answer that a question follows, if it opens the question; else ""."""
        token, is_opener = self._next("assistant")
        return token if is_opener else ""

    def between(self, roles: Sequence[str]) -> str | None:
        """The text between the contents of the last two of these roles: a footer and a header; `None` if refused."""
        text = self._render([probe(role, number) for number, role in enumerate(roles)], False)
        if text is None:
            return None
        last = len(roles) - 1
        return text.partition(f"{PROBE} {last - 1}")[2].partition(f"{PROBE} {last}")[0]

    @cached_property
    def _three_turns(self) -> str | None:
        return self._render([probe(role, role) for role in ("user", "assistant", "user")], False)

    def _next(self, role: str) -> tuple[str, bool]:
        """The control token after a message of this role, which others follow, and whether it opens questions."""
        text = self._three_turns
        if text is None:
            return "", False
        lead = text.partition(f"{PROBE} user")[0]
        token = self._controls.first_at_start(text.partition(f"{PROBE} {role}")[2])
        return token, token == self._controls.at_end(lead.rstrip())


def probe(role: str, name: object = "") -> dict[str, str]:
    """A message to render; its content is "probe", or "probe user" with a name."""
    return {"role": role, "content": f"{PROBE} {name}" if name != "" else PROBE}


# ---- what two renderings have in common


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
