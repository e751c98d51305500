"""ChatML: a role, a text, an end of turn. What Qwen and Nemotron make of it builds on the turns here."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import ChatMLRendererConfig, FamilyConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.refusals import refuse_calls, refuse_tools
from niels_gpt.renderers.script import Script


class ChatMLTurns(Family):
    """The turns of every format that is made of ChatML."""

    stops: ClassVar[tuple[str, ...]] = ("<|im_end|>",)
    controls = ("<|im_start|>",)
    tail = "\n"

    def content(self, chat: Chat, index: int) -> str:
        """A message's text as its turn holds it."""
        return chat.text(index)

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message, first or later."""
        out.turn("<|im_start|>system\n", self.content(chat, index), "<|im_end|>\n", index)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        self.enclosed("<|im_start|>user\n", chat, index, "<|im_end|>\n", out)

    def enclosed(self, header: str, chat: Chat, index: int, footer: str, out: Script) -> None:
        """What the model reads: a message's content between two frames."""
        out.turn(header, self.content(chat, index), footer, index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("<|im_start|>assistant\n" + self.prefill())


class ChatMLRenderer(ChatMLTurns):
    """Plain ChatML, as TRL's and axolotl's `chatml` write it: no invented system message and no tools.

    Reasoning has no place in the format: not written, as in that template, and not read.
    """

    name = "chatml"
    config_class: ClassVar[type[FamilyConfig]] = ChatMLRendererConfig
    roles = ("system", "user", "assistant")

    def begin(self, chat: Chat, out: Script) -> int:
        """Nothing."""
        refuse_tools(chat, self.name)
        return 0

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """An assistant message."""
        refuse_calls(chat, index, self.name)
        out.answer("<|im_start|>assistant\n", chat.text(index), "<|im_end|>", "\n", index)

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """Think tags are text."""
        return "", 0
