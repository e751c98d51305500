"""Gemma 2 and 3: turns of a user and a model, system text in the first user's."""

from __future__ import annotations

from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import GemmaRendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.refusals import (
    check_alternates,
    refuse_calls,
    refuse_late_system,
    refuse_system_alone,
    refuse_tools,
)
from niels_gpt.renderers.script import Script

_END = "<end_of_turn>"


class GemmaRenderer(Family):
    """Gemma 2 and 3, texts alone: users and the model take turns, contents without white space at their ends."""

    name = "gemma"
    config_class = GemmaRendererConfig
    roles = ("system", "user", "assistant")
    stops = (_END, "<eos>")
    controls = ("<bos>", "<start_of_turn>")
    tail = "\n"

    def begin(self, chat: Chat, out: Script) -> int:
        """The beginning of the text; a system message waits for the first user's turn."""
        refuse_tools(chat, self.name)
        out.frame("<bos>")
        if chat.roles[0] != "system":
            return 0
        refuse_system_alone(chat, self.name)
        return 1

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """Only the first message may be one, which `user` writes."""
        refuse_late_system(index, self.name)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message, the system's text before the first."""
        check_alternates(chat, index, self.name)
        out.frame("<start_of_turn>user\n", index)
        if index == 1 and chat.roles[0] == "system":
            out.body(chat.text(0), 0)
            out.frame("\n\n", index)
        out.body(self._stripped(chat, index), index)
        out.frame(f"{_END}\n", index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """An assistant message, whose role is called model."""
        check_alternates(chat, index, self.name)
        refuse_calls(chat, index, self.name)
        out.frame("<start_of_turn>model\n", index)
        out.reply(self._stripped(chat, index), _END, "\n", index)

    def _stripped(self, chat: Chat, index: int) -> str:
        """A content without white space at its ends; of one in parts, at the ends of each."""
        whole, content = chat.text(index), chat.messages[index]["content"]
        return whole.strip() if isinstance(content, str) else "".join(part["text"].strip() for part in content)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The model's header."""
        out.frame("<start_of_turn>model\n")

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """The format has no reasoning; think tags are text."""
        return "", 0

    def tidy(self, content: str) -> str:
        """The template strips contents."""
        return content.strip()
