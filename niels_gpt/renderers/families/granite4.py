"""Granite 4: roles in brackets of their own, a default system message, Hermes JSON calls."""

from __future__ import annotations

from typing import Literal

from niels_gpt.renderers.dialects.json_calls import HermesJSON
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig


class Granite4RendererConfig(FamilyConfig):
    """Granite 4 has no options of its own."""

    name: Literal["granite-4"] = "granite-4"


_END = "<|end_of_text|>"
_DEFAULT_SYSTEM = "You are a helpful assistant. Please ensure responses are professional, accurate, and safe."
_TOOLS = (
    "You are a helpful assistant with access to the following tools. You may call one or more tools to assist with the "
    "user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_CALL_INSTRUCTIONS = (
    "\n</tools>\n\nFor each tool call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>. If a tool does not exist in the provided list of tools, notify the user that you do not have the "
    "ability to fulfill the request."
)


def _header(role: str) -> str:
    return f"<|start_of_role|>{role}<|end_of_role|>"


class Granite4Renderer(Family):
    """Granite 4.0.

    ::

        <|start_of_role|>user<|end_of_role|>hello<|end_of_text|>
        <|start_of_role|>assistant<|end_of_role|>hi<|end_of_text|>

    There is always a system turn; without a text it holds the tools, else a default. Documents are not supported.
    """

    name = "granite-4"
    config_class = Granite4RendererConfig
    # The template reads `content` and `tool_calls` alone.
    has_reasoning = False
    stops = (_END,)
    controls = ("<|start_of_role|>", "<|end_of_role|>")
    after_stop = "\n"
    calls = HermesJSON()
    before_first_call = "\n"
    system_turn = (_header("system"), _END + "\n")
    user_turn = (_header("user"), _END + "\n")
    assistant_header = _header("assistant")

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the system turn: the caller's text, the tools, or the default."""
        owner, text = view.system_owner, view.text(0) if view.has_system else ""
        out.scaffold(_header("system"), owner)
        if view.has_system:
            out.content(text, 0)
        # An empty system message gets the default text, too, unless there are tools: then it stays empty.
        if view.tools:
            declared = "".join("\n" + text for text in view.tools.json_texts)
            out.labelled(("\n\n" if view.has_system else "") + _TOOLS, declared, _CALL_INSTRUCTIONS, owner)
        elif not text:
            out.scaffold(_DEFAULT_SYSTEM, owner)
        out.scaffold(_END + "\n", owner)
        return owner + 1

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a text, then the calls, each on a line of its own."""
        out.scaffold(self.assistant_header, index)
        self.finish_turn(view.text(index), view, index, out)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result; adjacent results share one user turn."""
        header = _header("user") if view.is_first_of_run(index) else ""
        footer = _END + "\n" if view.is_last_of_run(index) else ""
        self.content_turn((header + "\n<tool_response>\n", "\n</tool_response>" + footer), view, index, out)
