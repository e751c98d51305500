"""The renderers of tml-renderers for our families. It renders by grammars of its own, in Rust."""

from __future__ import annotations

from functools import cache
from typing import Any

from tml_renderers import chat, renderers, tokenizers, v0

_DAY = "2026-01-31"
# Our family -> its class, and arguments of the constructor.
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {}),
    "qwen3-vl": ("Qwen3", {"vision": True, "support_thinking": False}),
    "qwen3.5": ("Qwen35", {}),
    "qwen3.8": ("Qwen38", {}),
    "deepseek-v3": ("DeepSeekV3", {}),
    "deepseek-v3.1": ("DeepSeekV31", {}),
    "deepseek-v4": ("DeepSeekV4", {}),
    "deepseek-v4-preview": ("DeepSeekV4", {"reasoning_effort_profile": "preview"}),
    "deepseek-v4.1": ("DeepSeekV41", {}),
    "deepseek-r1": ("DeepSeekR1", {}),
    "kimi-k2": ("KimiK2", {}),
    "kimi-k2-thinking": ("KimiK2", {}),
    "kimi-k2.5": ("KimiK25", {}),
    "gpt-oss": ("GptOss", {"reasoning_effort": "low", "current_date": _DAY}),
    "nemotron-3": ("Nemotron3", {}),
    "nemotron-3-ultra": ("Nemotron3", {"ultra": True}),
    "glm-5.2": ("Glm52", {}),
    "glm-5.3": ("Glm53", {"clear_thinking": False}),
    "inkling": ("v0.Renderer", {}),
}


@cache
def theirs(family: str) -> Any:
    """The renderer for a family."""
    kind, arguments = CLASSES[family]
    if kind == "v0.Renderer":
        return v0.Renderer(tokenizers.O200kBaseChatTokenizer())
    return getattr(renderers, kind)(**arguments)


def from_openai(messages: Any) -> Any:
    """A conversation in OpenAI's format as its messages."""
    return chat.OpenAIMessage.from_oss_messages(messages)


def question(text: str) -> Any:
    """A conversation of one question."""
    return chat.MessageList([chat.Message(chat.Text(text), chat.Author(chat.AuthorKind.User, None))])
