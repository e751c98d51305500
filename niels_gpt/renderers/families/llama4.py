"""Llama 4: roles in headers, calls as JSON after a text between two tags, tools in the first user's turn."""

from __future__ import annotations

from typing import Literal

from niels_gpt.renderers.dialects.json_calls import Llama4JSON
from niels_gpt.renderers.families.llama3 import write_user_with_tools
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig, to_json


class Llama4RendererConfig(FamilyConfig):
    """Llama 4 has no options of its own."""

    name: Literal["llama-4"] = "llama-4"


_END = "<|eot|>"


def _header(role: str) -> str:
    return f"<|header_start|>{role}<|header_end|>\n\n"


class Llama4Renderer(Family):
    """Llama 4 Scout and Maverick, text only.

    ::

        <|begin_of_text|><|header_start|>user<|header_end|>

        hello<|eot|><|header_start|>assistant<|header_end|>

        <|python_start|><|python_end|>{"name": "get_weather", "parameters": {"city": "Oslo"}}<|eot|>

    The first system message is stripped, and so is the first user's text where it follows the tools.
    """

    name = "llama-4"
    config_class = Llama4RendererConfig
    stops = (_END, "<|eom|>", "<|end_of_text|>")
    controls = ("<|begin_of_text|>", "<|header_start|>", "<|header_end|>", "<|python_start|>", "<|python_end|>")
    calls = Llama4JSON()
    has_reasoning = False
    system_turn = (_header("system"), _END)
    user_turn = (_header("user"), _END)
    assistant_header = _header("assistant")

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write a first system message, then the first user's turn if it holds the tools.

        Raises:
            MessageError: `no_user_message`: the tools belong into a user's turn, and another role comes first.
        """
        first = view.system_owner + 1
        out.scaffold("<|begin_of_text|>", 0 if first or view.tools else -1)
        if first:
            # Unlike Llama 3's, this template writes a system block only for the caller's text, and no date in it.
            environment = "Environment: ipython\n" if view.tools else ""
            out.turn(_header("system") + environment, view.text(0).strip(), _END, 0)
        if not view.tools:
            return first
        write_user_with_tools(self, view, view.tools, first, out, remedy="begin with a user, or drop the tools")
        return first + 1

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a text; beside calls it is between tags, even an empty one."""
        calls = view.calls(index)
        if not calls:
            out.assistant_turn(self.assistant_header, view.text(index), _END, "", index)
            return
        out.scaffold(self.assistant_header, index)
        # Despite their names the tags are around the text, and the calls follow them, without anything between.
        out.model_block("<|python_start|>", view.text(index), "<|python_end|>", index)
        for call in calls:
            self.calls.write(call, out, index)
        out.model_markup(_END, index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result as a JSON string."""
        # The template applies `tojson`, as Llama 3's does.
        out.turn(_header("ipython"), to_json(view.text(index)), _END, index)
