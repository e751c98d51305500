"""Nemotron 3: ChatML with a system turn always, tools declared in XML, calls in function tags."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from niels_gpt.renderers.calls import CallForm
from niels_gpt.renderers.chat import Chat, to_json
from niels_gpt.renderers.chatml import ChatMLTurns
from niels_gpt.renderers.configs import (
    FamilyConfig,
    Nemotron3RendererConfig,
    Nemotron3UltraRendererConfig,
    with_options,
)
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tags import TAGS_DECLARED, TAGS_EXPLAINED, FunctionTags
from niels_gpt.renderers.tools import Tools

_EMPTY = "<think></think>"
_ULTRA = re.compile(r"(.*/)?NVIDIA-Nemotron-3-Ultra-", re.DOTALL)


class Nemotron3Renderer(ChatMLTurns):
    """Nemotron 3: Nano and Super, or with `ultra=True` Ultra, which has nothing between a block and its content."""

    name = "nemotron-3"
    config_class: ClassVar[type[FamilyConfig]] = Nemotron3RendererConfig
    roles = ("system", "user", "assistant", "tool")
    stops = ("<|im_end|>", "</s>")
    calls: ClassVar[CallForm] = FunctionTags(python=True)
    call_glue = "\n"

    def begin(self, chat: Chat, out: Script) -> int:
        """One system block, be it empty: the caller's message, then the tools."""
        given = chat.roles[0] == "system"
        owner, text = (0, chat.text(0)) if given else (-1, "")
        out.frame("<|im_start|>system\n", owner)
        if given:
            out.body(text, 0)
        if chat.tools:
            out.frame(("\n\n" if text else "") + TAGS_DECLARED, owner)
            out.label(chat.tools.written(_all_declared), owner)
            out.frame(TAGS_EXPLAINED, owner)
        out.frame("<|im_end|>\n", owner)
        return int(given)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message; the last one may ask for less thinking."""
        end = (self._effort if index == chat.last_user else "") + "<|im_end|>\n"
        out.turn("<|im_start|>user\n", chat.text(index), end, index)

    def __init__(self, tokenizer: Any, config: FamilyConfig | None = None, **options: Any) -> None:
        super().__init__(tokenizer, config, **options)
        if self.ultra is None:  # told apart here, so that the fingerprint knows
            named = _ULTRA.match(self.encoder.name) is not None
            self.config = with_options(self.config, {"ultra": named})

    @property
    def ultra(self) -> bool | None:
        """The format is Ultra's."""
        ultra: bool | None = self.config.ultra
        return ultra

    @property
    def _closing(self) -> str:
        """What stands between a reasoning and a content."""
        return "</think>" if self.ultra else "\n</think>\n"

    @property
    def _effort(self) -> str:
        """What the option for less thinking writes behind the last user's text; "" where it is off."""
        return "\n\n{reasoning effort: low}" if self.config.low_effort else ""

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """A block, even an empty one, unless the content has think tags of its own."""
        calls = chat.calls(index)
        out.frame("<|im_start|>assistant\n", index)
        if self._kept(chat, index):
            self._whole(chat, index, out)
        else:
            self._shortened(chat, index, out, calls=bool(calls))
        for call in calls:
            out.marks("\n", index)
            self.calls.write(call, out, index)
        out.reply("", ("\n" if calls else "") + "<|im_end|>", "\n", index)

    def _kept(self, chat: Chat, index: int) -> bool:
        """The reasoning of this turn is written."""
        current = not self.config.truncate_history_thinking or index >= chat.last_user
        return current or self.keeps_thinking(chat, index)

    def _whole(self, chat: Chat, index: int, out: Script) -> None:
        reasoning, content = chat.reasoning(index) or "", chat.text(index)
        if reasoning.strip():
            content = content.rstrip()
            out.marks("<think>\n", index)
            out.says(reasoning, index)
            out.marks(self._closing if content else self._closing.rstrip(), index)
        elif "<think>" in content or "</think>" in content:
            content = content.strip()
        else:
            out.marks(_EMPTY, index)
        out.says(content.rstrip(), index)

    def _shortened(self, chat: Chat, index: int, out: Script, *, calls: bool) -> None:
        """Without its reasoning. What stood behind that keeps the glue, or loses it before calls."""
        reasoned, content = (chat.reasoning(index) or "").strip(), chat.text(index)
        opened, closed = "<think>" in content, "</think>" in content
        rest = self._closing.partition("</think>")[2] + content if reasoned else content
        rest = rest.split("</think>")[-1]
        if calls:
            rest = rest if reasoned or closed else rest.split("<think>")[0]
            rest = rest if self.ultra else rest.strip()
        elif not reasoned and opened != closed:  # half a block is text here
            out.says(content.strip(), index)
            return
        out.marks(_EMPTY, index)
        out.says(rest if calls else rest.rstrip(), index)

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """Neighbouring results share one user turn."""
        if chat.begins_run(index):
            out.frame("<|im_start|>user\n", index)
        out.turn("<tool_response>\n", chat.text(index), "\n</tool_response>\n", index)
        if chat.ends_run(index):
            out.frame("<|im_end|>\n", index)

    def prefill(self) -> str:
        """An opened block, or an empty one."""
        return "<think>\n" if self.config.enable_thinking else _EMPTY

    def tidy(self, content: str) -> str:
        """The template strips contents."""
        return content.strip()


class Nemotron3UltraRenderer(Nemotron3Renderer):
    """Nemotron 3 Ultra, by a name of its own."""

    name = "nemotron-3-ultra"
    config_class: ClassVar[type[FamilyConfig]] = Nemotron3UltraRendererConfig

    @property
    def ultra(self) -> bool:
        """See `Nemotron3Renderer`."""
        return True

    @property
    def _effort(self) -> str:
        """See `Nemotron3Renderer`."""
        return "\n\n{reasoning effort: efficient}" if self.config.medium_effort else ""


def _all_declared(tools: Tools) -> str:
    return "".join(declared(tool["function"]) for tool in tools)


def declared(function: Mapping[str, Any]) -> str:
    """A tool's function in the XML in which Nemotron reads it."""
    parameters = function.get("parameters")
    schema = parameters if isinstance(parameters, Mapping) else {}
    properties = schema.get("properties")
    lines = [f"<function>\n<name>{function['name']}</name>"]
    if "description" in function:
        lines.append(f"<description>{str(function['description']).strip()}</description>")
    lines.append("<parameters>")
    for name, fields in (properties if isinstance(properties, Mapping) else {}).items():
        lines += ["<parameter>", f"<name>{name}</name>", *_fields(fields), "</parameter>"]
    lines += _extra(schema, ("type", "properties", "required"))
    if "required" in schema:
        lines.append(f"<required>{to_json(schema['required'])}</required>")
    lines.append("</parameters>")
    lines += _extra(function, ("type", "name", "description", "parameters"))
    return "".join("\n" + line for line in [*lines, "</function>"])


def _fields(fields: Any) -> list[str]:
    if not isinstance(fields, Mapping):
        return []
    lines = [f"<type>{fields['type']}</type>"] if "type" in fields else []
    if "description" in fields:
        lines.append(f"<description>{str(fields['description']).strip()}</description>")
    if "enum" in fields:
        lines.append(f"<enum>{to_json(fields['enum'])}</enum>")
    return [*lines, *_extra(fields, ("name", "type", "description", "enum"))]


def _extra(held: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """What else a schema says, each under its key: objects and lists as JSON, all else as Python prints it."""
    return [
        f"<{key}>{to_json(value) if isinstance(value, Mapping | list) else value}</{key}>"
        for key, value in held.items()
        if key not in known
    ]
