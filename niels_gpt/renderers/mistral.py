"""Mistral (v3 tekken): instructions in brackets, tools and system text in the last user's turn."""

from __future__ import annotations

import re

from niels_gpt.errors import MessageError
from niels_gpt.renderers.bare_json import MistralList
from niels_gpt.renderers.chat import Chat, to_json
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import MistralRendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.refusals import (
    check_alternates,
    refuse_late_system,
    refuse_system_alone,
    refuse_text_beside_calls,
)
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tools import Tools

_ID = re.compile(r"[A-Za-z0-9]{9}")


class MistralRenderer(Family):
    """Mistral Nemo. A turn is a text or a list of calls, whose ids have nine letters or digits."""

    name = "mistral"
    config_class = MistralRendererConfig
    stops = ("</s>",)
    controls = (
        *("<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    )
    calls = _DIALECT = MistralList()

    def begin(self, chat: Chat, out: Script) -> int:
        """The beginning of the text; a system message waits for the last user's turn."""
        out.frame("<s>")
        if chat.roles[0] != "system":
            return 0
        refuse_system_alone(chat, self.name)
        return 1

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """Only the first message may be one, which `user` writes."""
        refuse_late_system(index, self.name)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message; before the last one the tools, in it the system's text."""
        check_alternates(chat, index, self.name)
        last = index == chat.last_user
        if last and chat.tools:
            out.frame("[AVAILABLE_TOOLS]", index)
            out.label(chat.tools.written(_all_declared), index)
            out.frame("[/AVAILABLE_TOOLS]", index)
        out.frame("[INST]", index)
        if last and chat.roles[0] == "system":
            out.body(chat.text(0), 0)
            out.frame("\n\n", index)
        out.body(chat.text(index), index)
        out.frame("[/INST]", index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """A text, or a list of calls."""
        calls = chat.calls(index)
        if not calls:
            check_alternates(chat, index, self.name)
            out.reply(chat.text(index), "</s>", "", index)
            return
        refuse_text_beside_calls(chat, index, self.name)
        out.marks("[TOOL_CALLS]", index)
        before = "["
        for call in calls:
            _check_id(call.id, f"{call.where.removesuffix('.function')}.id")
            out.says(before, index)
            self._DIALECT.write(call, out, index)
            before = ", "
        out.says("]", index)
        out.marks("</s>", index)

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """A result with the id of its call."""
        given = chat.messages[index].get("tool_call_id", "")
        _check_id(given, f"message {index}: tool_call_id")
        out.turn('[TOOL_RESULTS]{"content": ', chat.text(index), ', "call_id": "', index)
        out.label(given, index)
        out.frame('"}[/TOOL_RESULTS]', index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """Nothing: a user's turn and a result end where the assistant's begins."""

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """The format has no reasoning; think tags are text."""
        return "", 0


def _all_declared(tools: Tools) -> str:
    return "[" + ", ".join(_declared(tool["function"]) for tool in tools) + "]"


def _declared(function: dict[str, object]) -> str:
    """A function as the template writes it: texts as they are, everything else as JSON."""
    pairs = (
        f'"{key}": "{held}"' if isinstance(held, str) else f'"{key}": {to_json(held)}'
        for key, held in function.items()
        if key != "return"
    )
    return '{"type": "function", "function": {' + ", ".join(pairs) + "}}"


def _check_id(given: str, where: str) -> None:
    """Check a call's id.

    Raises:
        MessageError: `wrong_call_id`.
    """
    if not _ID.fullmatch(given):
        found = repr(given) if given else "missing"
        raise MessageError(
            "wrong_call_id", f"{where} is {found}; expected nine letters or digits, as Mistral's ids are"
        )
