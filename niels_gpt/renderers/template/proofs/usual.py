"""What a template writes around short probe messages, whatever the conversation: its prompt, its stops, its headers.

The oracle compares a turn of a conversation with these where rendering the conversation's own beginning shows nothing,
because the template refuses it or writes it otherwise. Of a template <s> <u>...<e> <a>...<e>::

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

from niels_gpt.renderers.template.controls import ControlTokens
from niels_gpt.renderers.template.proofs.shared_texts import added_prompt

PROBE: Final = "probe"  # the content of messages that are rendered only to see what the template writes around it

TryRender = Callable[[Sequence[Any], bool], str | None]  # (messages, add_generation_prompt) -> the output, or refused


class Usual:
    """What a template writes around probe messages; each is rendered when it is first asked for.

    Args:
        render: runs the template; `None` if it refuses the messages.
        controls: the control tokens of the tokenizer.
    """

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
