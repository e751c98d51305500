"""Llama 3: roles in headers, calls as JSON without tags, tools in the first user's turn."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import ClassVar, Literal

from niels_gpt.errors import MessageError
from niels_gpt.renderers.completions.reading import ALL_SPACE
from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.dialects.json_calls import LlamaJSON
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig, PlainConfig, Tools, to_json
from niels_gpt.renderers.refusals import lose_text_beside_calls


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


_BEGIN, _END = "<|begin_of_text|>", "<|eot_id|>"
_DIALECT = LlamaJSON()
_CALL_FORMAT = (
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    "Do not use variables.\n\n"  # the template has no space before "Do" either
)
TOOLS_FOR_USER = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    "answers the given prompt.\n\n" + _CALL_FORMAT
)
_TOOLS_FOR_SYSTEM = (
    "You have access to the following functions. To call a function, please respond with JSON for a function call."
    + _CALL_FORMAT
)


def _header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


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
    end_turn = (_END, "")
    stops = (_END, "<|eom_id|>", "<|end_of_text|>")
    controls = (_BEGIN, "<|start_header_id|>", "<|end_header_id|>")
    calls: CallDialect | None = _DIALECT
    has_reasoning = False
    system_turn = (_header("system"), _END)
    user_turn = (_header("user"), _END)
    assistant_header = _header("assistant")

    def content(self, view: ConversationView, index: int) -> str:
        return view.text(index).strip()

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the system block, then the first user's turn if it holds the tools.

        Raises:
            MessageError: `no_user_message`: the tools belong into a user's turn, and another role comes first.
        """
        # The template always writes this block, with a date that cannot be left out. `Environment: ipython` tells the
        # model that it may call tools.
        owner, environment = view.system_owner, "Environment: ipython\n" if view.tools else ""
        before = f"{_BEGIN}{_header('system')}{environment}Cutting Knowledge Date: December 2023\nToday Date: "
        out.labelled(before, self.config.date_string, "\n\n", owner)
        if view.tools and not self.config.tools_in_user_message:
            out.scaffold(_TOOLS_FOR_SYSTEM, owner)
            out.untrusted_label(view.tools.declaration(declare_tools), owner)
        if view.has_system:  # the caller's text is the block's last part
            out.content(self.content(view, 0), 0)
        out.scaffold(_END, owner)
        first = owner + 1
        if not view.tools or not self.config.tools_in_user_message:
            return first
        remedy = "begin with a user, drop the tools, or render with tools_in_user_message=False"
        write_user_with_tools(self, view, view.tools, first, out, remedy=remedy)
        return first + 1

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        calls = view.calls(index)
        if not calls:
            out.assistant_turn(self.assistant_header, self.content(view, index), *self.end_turn, index)
            return
        # The template raises for more than one call, and drops a content beside the call.
        for call in calls[1:]:
            out.lose(index, "tool_calls", call.name)
        lose_text_beside_calls(view, index, out)
        out.scaffold(self.assistant_header, index)
        _DIALECT.write(calls[0], out, index)
        out.stop(_END, index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        # The template applies `tojson` to mappings and to whatever is iterable. A text is iterable, so it gets quotes
        # and escapes.
        out.turn(_header("ipython"), to_json(view.text(index)), _END, index)


class Llama30Renderer(Llama3Renderer):
    """Llama 3.0: no tools, no system block of its own."""

    name = "llama-3.0"
    config_class = PlainConfig
    roles = ("system", "user", "assistant")
    calls = None

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the beginning of the text, as part of the first message's turn."""
        # Its template puts the bos token in front of the first message, within the same turn.
        out.scaffold(_BEGIN, 0)
        return 0


def write_user_with_tools(
    family: Family, view: ConversationView, tools: Tools, index: int, out: Emitter, *, remedy: str
) -> None:
    """Write the first user's turn, which holds the tools before its text.

    Args:
        remedy: what the caller can do if message `index` is not a user's.

    Raises:
        MessageError: `no_user_message`: another role comes first.
    """
    if view.roles[index : index + 1] != ["user"]:
        raise MessageError(
            "no_user_message",
            f"message {index}: no user speaks here, and {family.name} writes the tools into the first user's turn; "
            + remedy,
        )
    header, end = family.user_turn
    out.scaffold(header + TOOLS_FOR_USER, index)
    out.untrusted_label(tools.declaration(declare_tools), index)
    out.content(view.text(index).strip(), index)
    out.scaffold(end, index)


def declare_tools(tools: Tools) -> str:
    """The declarations of all tools: each as JSON that is indented by four, with a blank line after it."""
    return "".join(_indented(text) + "\n\n" for text in tools.json_texts)


@lru_cache(maxsize=1024)  # many conversations offer the same tools
def _indented(tool: str) -> str:
    return json.dumps(json.loads(tool), ensure_ascii=False, indent=4)
