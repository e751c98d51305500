"""Llama 4: roles in headers, calls as JSON after a text between two tags, tools in the first user's turn."""

from __future__ import annotations

from typing import Literal

from niels_gpt.renderers.conversation import ConversationView, to_json
from niels_gpt.renderers.dialects.json_calls import Llama4JSON
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.families.llama3 import write_user_with_tools
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.options import FamilyConfig


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
    calls = _DIALECT = Llama4JSON()
    has_reasoning = False

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write a first system message, then the first user's turn if it holds the tools.

        Raises:
            MessageError: `no_user_message`: the tools belong into a user's turn, and another role comes first.
        """
        first = int(view.roles[0] == "system")
        out.scaffold("<|begin_of_text|>", 0 if first or view.tools else -1)
        if first:
            environment = "Environment: ipython\n" if view.tools else ""
            out.turn(_header("system") + environment, view.text(0).strip(), _END, 0)
        if not view.tools:
            return first
        turn, remedy = (_header("user"), _END), "begin with a user, or drop the tools"
        write_user_with_tools(view, view.tools, first, out, name=self.name, turn=turn, remedy=remedy)
        return first + 1

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a later system message."""
        out.turn(_header("system"), view.text(index), _END, index)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message."""
        out.turn(_header("user"), view.text(index), _END, index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a text; beside calls it is between tags, even an empty one."""
        calls = view.calls(index)
        if not calls:
            out.assistant_turn(_header("assistant"), view.text(index), _END, "", index)
            return
        out.scaffold(_header("assistant"), index)
        out.model_block("<|python_start|>", view.text(index), "<|python_end|>", index)
        for call in calls:
            self._DIALECT.write(call, out, index)
        out.model_markup(_END, index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result; the template writes it as a JSON string."""
        out.turn(_header("ipython"), to_json(view.text(index)), _END, index)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's header."""
        out.scaffold(_header("assistant"))
