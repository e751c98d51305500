"""OLMo 3 Instruct: ChatML with functions in the system turn and Python calls."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.dialects.lists import PythonCalls
from niels_gpt.renderers.families.chatml import ChatMLTurns
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig, Tools, to_json


class Olmo3RendererConfig(FamilyConfig):
    """OLMo 3 Instruct has no options of its own."""

    name: Literal["olmo-3"] = "olmo-3"


class Olmo31RendererConfig(FamilyConfig):
    """OLMo 3.1 Instruct has no options of its own."""

    name: Literal["olmo-3.1"] = "olmo-3.1"


_NO_TOOLS = "You do not currently have access to any functions. <functions></functions>"
_TOOLS = (
    "You are provided with function signatures within <functions></functions> XML tags. You may call one or more "
    "functions to assist with the user query. Output any function calls within <function_calls></function_calls> XML "
    "tags. Do not make assumptions about what values to plug into functions."
)


class Olmo3Renderer(ChatMLTurns):
    """OLMo 3 Instruct, 7B.

    ::

        <|im_start|>assistant
        <function_calls>get_weather(city="Oslo", days=1)</function_calls><|im_end|>
        <|im_start|>environment
        4 degrees, rain<|im_end|>
        <|im_start|>assistant
        It rains.<|endoftext|>

    The last answer ends in `<|endoftext|>`, those before it in `<|im_end|>`. Tools follow each system message; without
    one, they are in a default system message.

    Class attributes:
        identity: the beginning of the default system message.
    """

    name = "olmo-3"
    config_class: ClassVar[type[FamilyConfig]] = Olmo3RendererConfig
    has_reasoning = False
    stops = ("<|im_end|>", "<|endoftext|>")
    controls = ("<|im_start|>", "<|endoftext|>")
    calls = PythonCalls("<function_calls>", "</function_calls>")
    calls_section = ("<function_calls>", "</function_calls>")
    identity: ClassVar[str] = "You are a helpful function-calling AI assistant. "
    tool_turn = ("<|im_start|>environment\n", "<|im_end|>\n")

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the default system message where there is no system message anywhere."""
        if "system" not in view.roles:
            out.scaffold("<|im_start|>system\n" + self.identity + (_TOOLS if view.tools else _NO_TOOLS))
            self._write_tools(view, -1, out)
            out.scaffold("<|im_end|>\n")
        return 0

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message, with the tools after it."""
        self.content_turn(("<|im_start|>system\n", ""), view, index, out)
        self._write_tools(view, index, out)
        out.scaffold("<|im_end|>\n", index)

    def _write_tools(self, view: ConversationView, owner: int, out: Emitter) -> None:
        if view.tools:
            out.labelled("<functions>", view.tools.declaration(_declare), "</functions>", owner)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a text, then the calls, a line each."""
        out.scaffold(self.assistant_header, index)
        # After the last message the template writes its eos token in the place of `<|im_end|>`, whether or not a
        # generation prompt follows.
        is_last = index == len(view.roles) - 1
        self.finish_turn(view.text(index), view, index, out, ends=("<|endoftext|>", "") if is_last else None)


class Olmo31Renderer(Olmo3Renderer):
    """OLMo 3.1 Instruct, 32B: another default system message."""

    name = "olmo-3.1"
    config_class = Olmo31RendererConfig
    identity = (
        "You are Olmo, a helpful AI assistant built by Ai2. Your date cutoff is December 2024, and your model weights "
        "are available at https://huggingface.co/allenai. "
    )


def _declare(tools: Tools) -> str:
    return to_json([*tools])
