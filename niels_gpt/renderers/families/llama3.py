"""Llama 3: roles in headers, calls as JSON without tags, tools in the first user's turn."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import ClassVar, Literal

from niels_gpt.errors import MessageError
from niels_gpt.renderers.completions.builder import ALL_SPACE
from niels_gpt.renderers.conversation import ConversationView, Tools, to_json
from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.dialects.json_calls import LlamaJSON
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.options import FamilyConfig
from niels_gpt.renderers.unsupported import refuse_calls, refuse_many_calls, refuse_text_beside_calls, refuse_tools


class Llama3RendererConfig(FamilyConfig):
    """Options of Llama 3.1, 3.2 and 3.3.

    Attributes:
        date_string: the date in the system block. The clock is never read: a rendering must not depend on its day.
        tools_in_user_message: tools are declared in the first user's turn; `False`: in the system block.
    """

    day = ("date_string", "%d %b %Y")

    name: Literal["llama-3"] = "llama-3"
    date_string: str = "26 Jul 2024"
    tools_in_user_message: bool = True


class Llama30RendererConfig(FamilyConfig):
    """Llama 3.0 has no options of its own."""

    name: Literal["llama-3.0"] = "llama-3.0"


_BEGIN, _END = "<|begin_of_text|>", "<|eot_id|>"
_DIALECT = LlamaJSON()
_CALL_FORMAT = (
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    "Do not use variables.\n\n"  # the template, too, has no space before "Do"
)
TOOLS_FOR_USER = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    "answers the given prompt.\n\n" + _CALL_FORMAT
)
_TOOLS_FOR_SYSTEM = (
    "You have access to the following functions. To call a function, please respond with JSON for a function call."
    + _CALL_FORMAT
)


class Llama3Renderer(Family):
    """Llama 3.1, 3.2 and 3.3.

    ::

        <|start_header_id|>user<|end_header_id|>

        hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>

        hi<|eot_id|>

    A system block with a date always comes first. A turn is a text or one call; contents are stripped.
    """

    name = "llama-3"
    config_class: ClassVar[type[FamilyConfig]] = Llama3RendererConfig
    content_trim = ALL_SPACE
    stops = (_END, "<|eom_id|>", "<|end_of_text|>")
    controls = (_BEGIN, "<|start_header_id|>", "<|end_header_id|>")
    calls: CallDialect | None = _DIALECT
    has_reasoning = False

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the system block, then the first user's turn if it holds the tools.

        Raises:
            MessageError: `no_user_message`: the tools belong into a user's turn, and another role comes first.
        """
        has_system = view.roles[0] == "system"
        self._system_block(view, has_system, out)
        first = int(has_system)
        if not view.tools or not self.config.tools_in_user_message:
            return first
        remedy = "begin with a user, drop the tools, or render with tools_in_user_message=False"
        turn = (_header("user"), _END)
        write_user_with_tools(view, view.tools, first, out, name=self.name, turn=turn, remedy=remedy)
        return first + 1

    def _system_block(self, view: ConversationView, has_system: bool, out: Emitter) -> None:
        owner = 0 if has_system else -1
        environment = "Environment: ipython\n" if view.tools else ""
        out.scaffold(
            f"{_BEGIN}{_header('system')}{environment}Cutting Knowledge Date: December 2023\nToday Date: ", owner
        )
        out.untrusted_label(self.config.date_string, owner)
        out.scaffold("\n\n", owner)
        if view.tools and not self.config.tools_in_user_message:
            out.scaffold(_TOOLS_FOR_SYSTEM, owner)
            out.untrusted_label(view.tools.declaration(declare_tools), owner)
        if has_system:  # the caller's text is the block's last part
            out.content(view.text(0).strip(), 0)
        out.scaffold(_END, owner)

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a later system message."""
        out.turn(_header("system"), view.text(index).strip(), _END, index)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message."""
        out.turn(_header("user"), view.text(index).strip(), _END, index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a text, or one call."""
        out.scaffold(_header("assistant"), index)
        calls = view.calls(index)
        if not calls:
            out.model_reply(view.text(index).strip(), _END, "", index)
            return
        refuse_many_calls(view, index, self.name)
        refuse_text_beside_calls(view, index, self.name)
        _DIALECT.write(calls[0], out, index)
        out.model_markup(_END, index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result; the template writes it as a JSON string."""
        out.turn(_header("ipython"), to_json(view.text(index)), _END, index)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's header."""
        out.scaffold(_header("assistant"))


class Llama30Renderer(Llama3Renderer):
    """Llama 3.0: no tools, no system block of its own."""

    name = "llama-3.0"
    config_class = Llama30RendererConfig
    roles = ("system", "user", "assistant")
    calls = None

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the beginning of the text, as part of the first message's turn."""
        refuse_tools(view, self.name)
        out.scaffold(_BEGIN, 0)
        return 0

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a text."""
        refuse_calls(view, index, self.name)
        super().assistant(view, index, out)


def _header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def write_user_with_tools(
    view: ConversationView, tools: Tools, index: int, out: Emitter, *, name: str, turn: tuple[str, str], remedy: str
) -> None:
    """Write the first user's turn, which holds the tools before its text.

    Args:
        name: of the format. turn: what is before and after the turn.
        remedy: what the caller can do if message `index` is not a user's.

    Raises:
        MessageError: `no_user_message`: another role comes first.
    """
    if view.roles[index : index + 1] != ["user"]:
        raise MessageError(
            "no_user_message",
            f"message {index}: no user speaks here, and {name} writes the tools into the first user's turn; {remedy}",
        )
    header, end = turn
    out.scaffold(header + TOOLS_FOR_USER, index)
    out.untrusted_label(tools.declaration(declare_tools), index)
    out.content(view.text(index).strip(), index)
    out.scaffold(end, index)


def declare_tools(tools: Tools) -> str:
    """The declarations of all tools: each as indented JSON, with a blank line after it."""
    return "".join(_indented(text) + "\n\n" for text in tools.json_texts)


@lru_cache(maxsize=1024)  # many conversations offer the same tools
def _indented(tool: str) -> str:
    return json.dumps(json.loads(tool), ensure_ascii=False, indent=4)
