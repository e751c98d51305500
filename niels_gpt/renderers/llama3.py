"""Llama 3: roles in headers, calls as bare JSON, tools in the first user's turn."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import ClassVar

from niels_gpt.errors import MessageError
from niels_gpt.renderers.bare_json import LlamaJSON
from niels_gpt.renderers.calls import CallForm
from niels_gpt.renderers.chat import Chat, to_json
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import FamilyConfig, Llama3RendererConfig, Llama30RendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.refusals import refuse_calls, refuse_many_calls, refuse_text_beside_calls, refuse_tools
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tools import Tools

_BEGIN, _END = "<|begin_of_text|>", "<|eot_id|>"
_DIALECT = LlamaJSON()
_FORM = (
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    "Do not use variables.\n\n"
)
_FOR_USER = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    "answers the given prompt.\n\n" + _FORM
)
_FOR_SYSTEM = (
    "You have access to the following functions. To call a function, please respond with JSON for a function call."
    + _FORM
)


def _header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


@lru_cache(maxsize=1024)  # many conversations have the same tools
def _indented(tool: str) -> str:
    return json.dumps(json.loads(tool), ensure_ascii=False, indent=4)


def _declared(tools: Tools) -> str:
    return "".join(_indented(text) + "\n\n" for text in tools.texts)


class Llama3Renderer(Family):
    """Llama 3.1, 3.2 and 3.3. One call a turn, without a text beside it; contents without white space at their ends."""

    name = "llama-3"
    config_class: ClassVar[type[FamilyConfig]] = Llama3RendererConfig
    stops = (_END, "<|eom_id|>", "<|end_of_text|>")
    controls = (_BEGIN, "<|start_header_id|>", "<|end_header_id|>")
    calls: ClassVar[CallForm | None] = _DIALECT

    def begin(self, chat: Chat, out: Script) -> int:
        """The system block, always there; then the first user's turn if it holds the tools."""
        given = int(chat.roles[0] == "system")
        owner = given - 1
        environment = "Environment: ipython\n" if chat.tools else ""
        out.frame(f"{_BEGIN}{_header('system')}{environment}Cutting Knowledge Date: December 2023\nToday Date: ", owner)
        out.label(self.config.date_string, owner)
        out.frame("\n\n", owner)
        if chat.tools and not self.config.tools_in_user_message:
            out.frame(_FOR_SYSTEM, owner)
            out.label(chat.tools.written(_declared), owner)
        if given:
            out.body(chat.text(0).strip(), 0)
        out.frame(_END, owner)
        if not chat.tools or not self.config.tools_in_user_message:
            return given
        if chat.roles[given : given + 1] != ["user"]:
            raise MessageError(
                "no_user_message",
                f"message {given}: no user speaks here, and {self.name} writes the tools into the first user's turn; "
                "begin with a user, drop the tools, or render with tools_in_user_message=False",
            )
        out.frame(_header("user") + _FOR_USER, given)
        out.label(chat.tools.written(_declared), given)
        out.body(chat.text(given).strip(), given)
        out.frame(_END, given)
        return given + 1

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A later system message."""
        out.turn(_header("system"), chat.text(index).strip(), _END, index)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.turn(_header("user"), chat.text(index).strip(), _END, index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """A text, or one call."""
        out.frame(_header("assistant"), index)
        calls = chat.calls(index)
        if not calls:
            out.reply(chat.text(index).strip(), _END, "", index)
            return
        refuse_many_calls(chat, index, self.name)
        refuse_text_beside_calls(chat, index, self.name)
        _DIALECT.write(calls[0], out, index)
        out.marks(_END, index)

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """A result, as a JSON string."""
        out.turn(_header("ipython"), to_json(chat.text(index)), _END, index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame(_header("assistant"))

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """The format has no reasoning; think tags are text."""
        return "", 0

    def tidy(self, content: str) -> str:
        """The template strips contents."""
        return content.strip()


class Llama30Renderer(Llama3Renderer):
    """Llama 3 as it first came: no tools, no system block of its own."""

    name = "llama-3.0"
    config_class = Llama30RendererConfig
    roles = ("system", "user", "assistant")
    calls = None

    def begin(self, chat: Chat, out: Script) -> int:
        """The beginning of the text, which the first message's turn holds."""
        refuse_tools(chat, self.name)
        out.frame(_BEGIN, 0)
        return 0

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """A text."""
        refuse_calls(chat, index, self.name)
        super().assistant(chat, index, out)
