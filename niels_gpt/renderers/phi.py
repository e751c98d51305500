"""Phi-3 and Phi-3.5: a role's token, a text, an end."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import FamilyConfig, Phi3RendererConfig, Phi35RendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.refusals import refuse_calls, refuse_tools
from niels_gpt.renderers.script import Script


class Phi3Renderer(Family):
    """Phi-3. A conversation that is not to go on ends in an end of text."""

    name = "phi-3"
    config_class: ClassVar[type[FamilyConfig]] = Phi3RendererConfig
    roles = ("system", "user", "assistant")
    stops = ("<|end|>", "<|endoftext|>")
    controls = ("<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>")
    tail = "\n"

    def begin(self, chat: Chat, out: Script) -> int:
        """Nothing."""
        refuse_tools(chat, self.name)
        return 0

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message."""
        out.turn("<|system|>\n", chat.text(index), "<|end|>\n", index)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.turn("<|user|>\n", chat.text(index), "<|end|>\n", index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """An assistant message."""
        refuse_calls(chat, index, self.name)
        out.frame("<|assistant|>\n", index)
        out.reply(chat.text(index), "<|end|>", "\n", index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("<|assistant|>\n")

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """The format has no reasoning; think tags are text."""
        return "", 0

    def _written(self, chat: Chat, add_generation_prompt: bool) -> Script:
        out = super()._written(chat, add_generation_prompt)
        if not add_generation_prompt:
            out.frame("<|endoftext|>")
        return out


class Phi35Renderer(Phi3Renderer):
    """Phi-3.5: an empty system message is not written."""

    name = "phi-3.5"
    config_class = Phi35RendererConfig

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message that says something."""
        if chat.text(index):
            super().system(chat, index, out)
