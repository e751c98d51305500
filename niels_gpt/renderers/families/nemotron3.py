"""Nemotron 3: ChatML with a system turn in every conversation, tools declared in XML, calls in function tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from niels_gpt.renderers.completions.reading import ALL_SPACE
from niels_gpt.renderers.conversation import as_mapping
from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.dialects.xml_tags import TAGS_DECLARED, TAGS_EXPLAINED, FunctionTags
from niels_gpt.renderers.families.chatml import ChatMLTurns
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig, Tools, to_json


class _NemotronConfig(FamilyConfig):
    """Nemotron's options.

    Attributes:
        enable_thinking: `False` supplies an empty think block in the generation prompt.
        truncate_history_thinking: `False` keeps the reasoning of all turns.
    """

    enable_thinking: bool = True
    truncate_history_thinking: bool = True


class Nemotron3RendererConfig(_NemotronConfig):
    """Nemotron 3.

    Attributes:
        low_effort: the last user's turn asks for little thinking; an option of Super that Nano's template does not
            have.
        ultra: the format is Ultra's, as with the name `nemotron-3-ultra`; `None`: if the tokenizer's name is Ultra's.
    """

    name: Literal["nemotron-3"] = "nemotron-3"
    low_effort: bool = False
    ultra: bool | None = None

    @model_validator(mode="after")
    def _check_effort(self) -> Self:
        if self.ultra and self.low_effort:
            raise ValueError("low_effort is Super's; expected nemotron-3-ultra with medium_effort, which is Ultra's")
        return self


class Nemotron3UltraRendererConfig(_NemotronConfig):
    """Nemotron 3 Ultra; with `medium_effort` the last user's turn asks for efficient thinking."""

    name: Literal["nemotron-3-ultra"] = "nemotron-3-ultra"
    medium_effort: bool = False


_EMPTY_BLOCK = "<think></think>"
_ULTRA_NAME = re.compile(r"(.*/)?NVIDIA-Nemotron-3-Ultra-", re.DOTALL)


class Nemotron3Renderer(ChatMLTurns):
    """Nemotron 3: Nano and Super, or with `ultra=True` Ultra, which has no newlines between a block and its content.

    In history a think block is empty: `<think></think>hi`.
    """

    name = "nemotron-3"
    config_class: ClassVar[type[FamilyConfig]] = Nemotron3RendererConfig
    content_trim = ALL_SPACE
    stops = (*ChatMLTurns.stops, "</s>")
    calls: CallDialect = FunctionTags(python=True)
    before_first_call = "\n"
    calls_section = ("\n", "\n")  # with and without a content
    tool_turn = ("<tool_response>\n", "\n</tool_response>\n")
    results_section = ChatMLTurns.user_turn
    thinking_prompt = ("<think>\n", _EMPTY_BLOCK)
    thinking_option = "enable_thinking"

    def found_options(self) -> Mapping[str, Any]:
        return {"ultra": _ULTRA_NAME.match(self.encoder.name) is not None} if self.ultra is None else {}

    @property
    def ultra(self) -> bool | None:
        """The format is Ultra's."""
        ultra: bool | None = self.config.ultra
        return ultra

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write one system block, even an empty one: the caller's message, then the tools."""
        # Where there is no system message the template takes an empty text in its place. It writes the block if there
        # is a system text, and an empty one counts.
        owner, text = view.system_owner, view.text(0) if view.has_system else ""
        out.scaffold("<|im_start|>system\n", owner)
        if view.has_system:
            out.content(text, 0)
        if view.tools:
            before = ("\n\n" if text else "") + TAGS_DECLARED
            out.labelled(before, view.tools.declaration(_declare), TAGS_EXPLAINED, owner)
        out.scaffold("<|im_end|>\n", owner)
        return owner + 1

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message; the last one may ask for less thinking."""
        end = (self._effort if index == view.last_user else "") + "<|im_end|>\n"
        self.content_turn(("<|im_start|>user\n", end), view, index, out)

    @property
    def _closing(self) -> str:
        """The markup between reasoning and content."""
        return "</think>" if self.ultra else "\n</think>\n"

    @property
    def _effort(self) -> str:
        """The text that an option for less thinking writes after the last user's; "" where it is off."""
        return "\n\n{reasoning effort: low}" if self.config.low_effort else ""

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a think block, the content, the calls."""
        out.scaffold(self.assistant_header, index)
        # The template drops the reasoning of turns before the last user's if `truncate_history_thinking` is on.
        is_current = index > view.last_user or not self.config.truncate_history_thinking
        if not is_current and not self.preserves_thinking(view, index):
            content = self._without_reasoning(view, index, out)
            self.finish_turn(content, view, index, out)
            return
        reasoning, content = view.reasoning(index) or "", view.text(index)
        if reasoning.strip():
            # The template puts block and content into one text and trims that: white space before the content is inside
            # and stays, and the newline after `</think>` goes where no content follows it.
            content = content.rstrip()
            out.reasoning_block("<think>\n", reasoning, self._closing if content else self._closing.rstrip(), index)
        elif "<" in content and ("<think>" in content or "</think>" in content):
            # In the template a content with think tags of its own, even broken ones, gets no block.
            content = content.strip()
        else:
            out.model_markup(_EMPTY_BLOCK, index)
        self.finish_turn(content.rstrip(), view, index, out)

    def _without_reasoning(self, view: ConversationView, index: int, out: Emitter) -> str:
        """Write an empty block; return the content of a turn whose reasoning is history."""
        # The template joins reasoning and content, and writes an empty block and what follows the last `</think>` of
        # that text. So the newline after the reasoning's `</think>` stays before a content: "<think></think>\nhi".
        has_reasoning, content = (view.reasoning(index) or "").strip(), view.text(index)
        may_have_tags = "<" in content  # false for most texts, and found much faster than the tags
        opened, closed = may_have_tags and "<think>" in content, may_have_tags and "</think>" in content
        rest = content.split("</think>")[-1] if closed else content
        if has_reasoning and not closed:  # the last `</think>` is that of the reasoning
            rest = self._closing.partition("</think>")[2] + content
        calls = view.calls(index)
        if calls:
            # Of a content that opens a block and never closes it, the template drops everything from the tag on.
            rest = rest if has_reasoning or closed else rest.split("<think>")[0]
            # With calls the template applies `trim` to the content after the empty block; Ultra's does not.
            rest = rest if self.ultra else rest.strip()
        elif not has_reasoning and opened != closed:
            # Without calls the template drops a block only if it has both tags; half a block is text there.
            return content.strip()
        out.model_markup(_EMPTY_BLOCK, index)
        return rest if calls else rest.rstrip()


class Nemotron3UltraRenderer(Nemotron3Renderer):
    """Nemotron 3 Ultra, by its own renderer name."""

    name = "nemotron-3-ultra"
    config_class: ClassVar[type[FamilyConfig]] = Nemotron3UltraRendererConfig

    @property
    def ultra(self) -> bool:
        return True

    @property
    def _effort(self) -> str:
        return "\n\n{reasoning effort: efficient}" if self.config.medium_effort else ""


def _declare(tools: Tools) -> str:
    """The functions in XML: a tag for the name, the description, each parameter, and what else a schema holds."""
    lines = [""]  # the template begins every line with its break: "<tools>" comes directly before this text
    for tool in tools:
        function = tool["function"]
        schema = as_mapping(function.get("parameters"))
        lines += ["<function>", f"<name>{function['name']}</name>"]
        if "description" in function:
            lines.append(f"<description>{str(function['description']).strip()}</description>")
        lines.append("<parameters>")
        for name, value in as_mapping(schema.get("properties")).items():
            parameter = as_mapping(value)
            lines += ["<parameter>", f"<name>{name}</name>"]
            if "type" in parameter:
                lines.append(f"<type>{parameter['type']}</type>")
            if "description" in parameter:
                lines.append(f"<description>{str(parameter['description']).strip()}</description>")
            if "enum" in parameter:
                lines.append(f"<enum>{to_json(parameter['enum'])}</enum>")
            lines += [*_other_keys(parameter, ("name", "type", "description", "enum")), "</parameter>"]
        lines += _other_keys(schema, ("type", "properties", "required"))
        if "required" in schema:
            lines.append(f"<required>{to_json(schema['required'])}</required>")
        lines.append("</parameters>")
        lines += [*_other_keys(function, ("type", "name", "description", "parameters")), "</function>"]
    return "\n".join(lines)


def _other_keys(schema: Mapping[str, Any], written: tuple[str, ...]) -> list[str]:
    """The other keys of a schema, each as a tag: objects and lists as JSON."""
    return [
        f"<{key}>{to_json(value) if isinstance(value, Mapping | list) else value}</{key}>"
        for key, value in schema.items()
        if key not in written
    ]
