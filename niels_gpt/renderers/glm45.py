"""GLM-4.5: GLM-5's turns with newlines between their parts; reasoning is written for the turns behind the last user."""

from __future__ import annotations

from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.configs import GLM45RendererConfig
from niels_gpt.renderers.glm5 import GLM5Renderer
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tags import Pairs

_HOW_TO_CALL = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
    "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
)
_SILENT = "/nothink"  # a control token


class GLM45Renderer(GLM5Renderer):
    """GLM-4.5-Air. Every turn has a think block, an empty one where it has no reasoning."""

    name = "glm-4.5"
    config_class = GLM45RendererConfig
    calls = Pairs(glue=("\n", "\n", "\n"))
    call_glue = "\n"
    glue = "\n"
    how_to_call = _HOW_TO_CALL

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message, which says so where thinking is off."""
        super().user(chat, index, out)
        if not self.config.enable_thinking and not chat.text(index).endswith(_SILENT):
            out.frame(_SILENT, index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """The newline behind the header is the model's: the generation prompt ends before it."""
        reasoning, content = self.split(chat, index)
        content = content.strip()
        out.frame("<|assistant|>", index)
        out.marks("\n<think>", index)
        out.says(reasoning or "", index)
        out.marks("</think>", index)
        if content:
            out.says("\n" + content, index)
        for call in chat.calls(index):
            out.marks("\n", index)
            self.calls.write(call, out, index)

    def keeps(self, chat: Chat, index: int) -> bool:
        """The reasoning of this turn is written."""
        return index > chat.last_user or self.keeps_thinking(chat, index)

    def prefill(self) -> str:
        """An empty block where thinking is off."""
        return "" if self.config.enable_thinking else "\n<think></think>"
