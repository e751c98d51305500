"""GLM-5, GLM-5.1, GLM-4.7-Flash: turns without an end of their own, arguments as pairs of tags."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.chat import Chat, to_json
from niels_gpt.renderers.configs import FamilyConfig, GLM5RendererConfig, GLM51RendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tags import Pairs
from niels_gpt.renderers.thinking import split_thinking
from niels_gpt.renderers.tools import Tools

_TOOLS = (
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_HOW_TO_CALL = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"
)


class GLM5Renderer(Family):
    """GLM-5 and GLM-4.7-Flash. The next turn's opener ends a turn."""

    name = "glm-5"
    how_to_call: ClassVar[str] = _HOW_TO_CALL
    glue: ClassVar[str] = ""  # what stands behind openers and around results
    config_class: ClassVar[type[FamilyConfig]] = GLM5RendererConfig
    stops = ("<|endoftext|>", "<|user|>", "<|observation|>")
    controls = ("<|assistant|>", "<|user|>")
    ends_turns = False
    calls = Pairs()

    def begin(self, chat: Chat, out: Script) -> int:
        """The prefix, then the tools in a system turn of nobody's."""
        out.frame("[gMASK]<sop>")
        if chat.tools:
            out.frame(_TOOLS)
            out.label(chat.tools.written(self.declared), -1)
            out.frame(self.how_to_call)
        return 0

    @staticmethod
    def declared(tools: Tools) -> str:
        """The tools as the model reads them, each on a line."""
        return "".join(text + "\n" for text in tools.texts)

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message."""
        self._message("<|system|>", chat, index, out)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        self._message("<|user|>", chat, index, out)

    def _message(self, opener: str, chat: Chat, index: int, out: Script) -> None:
        self._open(opener, chat, index, out)
        if self.glue:
            out.frame(self.glue, index)
        out.body(chat.text(index), index)

    def _open(self, opener: str, chat: Chat, index: int, out: Script) -> None:
        """The opener of a turn. Behind an assistant's it is what the model stops at, if it stops at this one."""
        out.frame(opener, index)
        ends = opener in self.stops and index > 0 and chat.roles[index - 1] == "assistant"
        if self.config.sampled_openers and ends:
            out.opens(index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """A block of reasoning, or its closing tag alone."""
        reasoning, content = self.split(chat, index)
        out.frame("<|assistant|>", index)
        if reasoning is None:
            out.marks("</think>", index)
        else:
            out.marks("<think>", index)
            out.says(reasoning, index)
            out.marks("</think>", index)
        out.says(content.strip(), index)
        for call in chat.calls(index):
            self.calls.write(call, out, index)

    def split(self, chat: Chat, index: int) -> tuple[str | None, str]:
        """The reasoning that is written (`None`: no block) and the content."""
        reasoning, content = chat.reasoning(index), chat.text(index)
        if reasoning is None:
            reasoning, content = split_thinking(content)
        return (reasoning.strip() if reasoning and self.keeps(chat, index) else None), content

    def keeps(self, chat: Chat, index: int) -> bool:
        """The reasoning of this turn is written."""
        kept = not self.config.clear_thinking or index > chat.last_user
        return kept or self.keeps_thinking(chat, index)

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """Neighbouring results share one turn."""
        if chat.begins_run(index):
            self._open("<|observation|>", chat, index, out)
        glue = self.glue
        out.turn(f"{glue}<tool_response>{glue}", chat.text(index), f"{glue}</tool_response>", index)

    def prefill(self) -> str:
        """An opened block, or a closed one."""
        return "<think>" if self.config.enable_thinking else "</think>"

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("<|assistant|>" + self.prefill())

    def tidy(self, content: str) -> str:
        """The template strips contents."""
        return content.strip()


class GLM51Renderer(GLM5Renderer):
    """GLM-5.1: reasoning as it is, an empty block where a turn has none, bare tool declarations."""

    name = "glm-5.1"
    config_class = GLM51RendererConfig

    @staticmethod
    def declared(tools: Tools) -> str:
        """The functions alone; deferred ones are not declared."""
        functions = (tool["function"] for tool in tools if not tool["function"].get("defer_loading"))
        hidden = ("defer_loading", "strict")
        told = ({key: value for key, value in function.items() if key not in hidden} for function in functions)
        return "".join(to_json(function) + "\n" for function in told)

    def split(self, chat: Chat, index: int) -> tuple[str | None, str]:
        """See `GLM5Renderer`."""
        reasoning, content = chat.reasoning(index), chat.text(index)
        if reasoning is None and "</think>" in content:
            reasoning = content.split("</think>")[0].split("<think>")[-1]
            content = content.split("</think>")[-1]
        if reasoning is None and self._has_block(chat, index):
            reasoning = ""
        return (reasoning if reasoning is not None and self.keeps(chat, index) else None), content

    def _has_block(self, chat: Chat, index: int) -> bool:
        """A turn without reasoning gets an empty block: behind the last user, or among turns that have some."""
        if index > chat.last_user:
            return bool(self.config.enable_thinking)
        asked = next((i for i in range(index - 1, -1, -1) if chat.roles[i] == "user"), -1)
        following = (i for i in range(asked + 1, len(chat.roles)) if chat.roles[i] == "user")
        turns = range(asked + 1, next(following, len(chat.roles)))
        return asked >= 0 and any(chat.roles[i] == "assistant" and chat.reasoning(i) is not None for i in turns)
