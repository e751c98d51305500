"""Phi-3, Phi-3.5 and Phi-4-mini: a role's token, a text, an end. Phi-4: ChatML with a separator of its own."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import (
    FamilyConfig,
    Phi3RendererConfig,
    Phi4MiniRendererConfig,
    Phi4RendererConfig,
    Phi35RendererConfig,
)
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
    tail = gap = "\n"  # what stands behind a role, and between turns

    def begin(self, chat: Chat, out: Script) -> int:
        """Nothing."""
        refuse_tools(chat, self.name)
        return 0

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message."""
        out.turn("<|system|>" + self.gap, chat.text(index), "<|end|>" + self.gap, index)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.turn("<|user|>" + self.gap, chat.text(index), "<|end|>" + self.gap, index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """An assistant message."""
        refuse_calls(chat, index, self.name)
        out.frame("<|assistant|>" + self.gap, index)
        out.reply(chat.text(index), "<|end|>", self.gap, index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("<|assistant|>" + self.gap)

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


class Phi4MiniRenderer(Phi3Renderer):
    """Phi-4-mini: Phi-3 without newlines. Its template knows tools as a text in the system message alone: put it there.

    Its template is in none of the places that the tests judge by; this is the format as Microsoft describes it.
    """

    name = "phi-4-mini"
    config_class = Phi4MiniRendererConfig
    tail = gap = ""


class Phi4Renderer(Family):
    """Phi-4: a role between two tokens, a text, an end, and nothing between turns.

    Its template is in none of the places that the tests judge by; this is the format as Microsoft describes it.
    """

    name = "phi-4"
    config_class = Phi4RendererConfig
    roles = ("system", "user", "assistant")
    stops = ("<|im_end|>", "<|endoftext|>")
    controls = ("<|im_start|>", "<|im_sep|>")

    def begin(self, chat: Chat, out: Script) -> int:
        """Nothing."""
        refuse_tools(chat, self.name)
        return 0

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message."""
        out.turn("<|im_start|>system<|im_sep|>", chat.text(index), "<|im_end|>", index)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.turn("<|im_start|>user<|im_sep|>", chat.text(index), "<|im_end|>", index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """An assistant message."""
        refuse_calls(chat, index, self.name)
        out.frame("<|im_start|>assistant<|im_sep|>", index)
        out.reply(chat.text(index), "<|im_end|>", "", index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("<|im_start|>assistant<|im_sep|>")

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """The format has no reasoning; think tags are text."""
        return "", 0
