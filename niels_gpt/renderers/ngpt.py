"""The house format of document 000: a sentinel, a text, an end of turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import NgptRendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tools import tools_of
from niels_gpt.tokenizer.sentinels import SPECIAL_TOKENS

_SYSTEM, _USER, _ASSISTANT, _END = SPECIAL_TOKENS


class NgptRenderer(Family):
    """Plain turns between sentinels; `format.sft.serialize_chat_to_ids` writes the same ids."""

    name = "ngpt"
    config_class = NgptRendererConfig
    roles = ("system", "user", "assistant")
    stops = (_END,)
    controls = (_SYSTEM, _USER, _ASSISTANT)

    def begin(self, chat: Chat, out: Script) -> int:
        """A system turn always comes first, of nobody's where the caller gave none."""
        if chat.roles[0] != "system":
            out.frame(_SYSTEM)
            out.label(self.config.default_system_text, -1)
            out.frame(_END)
        return 0

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message."""
        self._message(_SYSTEM, chat, index, out)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        self._message(_USER, chat, index, out)

    def _message(self, opener: str, chat: Chat, index: int, out: Script) -> None:
        out.frame(opener, index)
        out.body(chat.text(index), index)
        out.frame(_END, index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """An assistant message."""
        out.frame(_ASSISTANT, index)
        out.says(chat.text(index), index)
        out.marks(_END, index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's sentinel."""
        out.frame(_ASSISTANT)

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """The format has no reasoning; think tags are text."""
        return "", 0

    def _chat(self, messages: Sequence[Message], tools: Any) -> Chat:
        if tools_of(tools):
            raise MessageError("unsupported_field", "tools have no place in the ngpt format; drop them or the row")
        chat = super()._chat(messages, tools)
        for index, message in enumerate(chat.messages):
            held = next((name for name in ("tool_calls", "reasoning_content") if message.get(name)), None)
            if held is not None:
                raise MessageError(
                    "unsupported_field", f"message {index}: {held} has no place in the ngpt format; remove it"
                )
            if index and message["role"] == "system":
                raise MessageError(
                    "late_system", f"message {index}: a system message after others; expected at most one, first"
                )
        return chat
