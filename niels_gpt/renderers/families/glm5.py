"""GLM-5, GLM-5.1, GLM-4.7-Flash: turns without an end of their own, arguments as pairs of tags."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.completions.reading import ALL_SPACE
from niels_gpt.renderers.conversation import split_thinking
from niels_gpt.renderers.dialects.xml_tags import Pairs
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig, Tools, to_json


class GLMConfig(FamilyConfig):
    """The options of all versions.

    Attributes:
        sampled_openers: the opener of the turn after an assistant's, at which the model stops, counts as sampled: GLM
            has no other end of turn.
        final_stop: a conversation that ends in an assistant's turn ends in the token at which the model stops there:
            `<|user|>`, or `<|observation|>` after a call. The chat template writes none.
    """

    sampled_openers: bool = False
    final_stop: bool = False


class GLM5Config(GLMConfig):
    """The options since GLM-5.

    Attributes:
        enable_thinking: `False` closes the think block in the generation prompt.
        clear_thinking: `False` keeps the reasoning of all turns.
    """

    enable_thinking: bool = True
    clear_thinking: bool = True


class GLM5RendererConfig(GLM5Config):
    """GLM-5 and GLM-4.7-Flash."""

    name: Literal["glm-5"] = "glm-5"


class GLM51RendererConfig(GLM5Config):
    """GLM-5.1."""

    name: Literal["glm-5.1"] = "glm-5.1"


_TOOLS = (
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_CALL_INSTRUCTIONS = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"
)


class GLM5Renderer(Family):
    """GLM-5 and GLM-4.7-Flash. The opener of the next turn ends a turn.

    ::

        [gMASK]<sop><|user|>hello<|assistant|></think>hi<|user|>more

    A turn without reasoning begins with `</think>`: the generation prompt opens a think block, or closes one that it
    did not open where thinking is off.

    Class attributes:
        call_instructions: the text after the tools' declarations.
        separator: the text after openers, around tool results, and between the parts of an assistant's turn.
    """

    name = "glm-5"
    parts = frozenset({"system", "user", "assistant"})
    call_instructions: ClassVar[str] = _CALL_INSTRUCTIONS
    separator: ClassVar[str] = ""
    config_class: ClassVar[type[FamilyConfig]] = GLM5RendererConfig
    content_trim = ALL_SPACE
    stops = ("<|endoftext|>", "<|user|>", "<|observation|>")
    controls = ("<|assistant|>", "<|user|>")
    calls = Pairs()
    assistant_header = "<|assistant|>"
    thinking_prompt = ("<think>", "</think>")
    thinking_option: ClassVar[str] = "enable_thinking"

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the prefix, then the tools in a system turn that belongs to no message."""
        out.scaffold("[gMASK]<sop>" + self.effort())
        if view.tools:  # a turn before the caller's own system message, so it belongs to no message
            # The template's source has a newline after `<sop>`, which Jinja cuts.
            out.labelled(_TOOLS, view.tools.declaration(self.declare), self.call_instructions, -1)
        return 0

    def effort(self) -> str:
        """The text before the tools, which sets how much the model thinks; empty before GLM-5.2."""
        return ""

    @staticmethod
    def declare(tools: Tools) -> str:
        return "".join(text + "\n" for text in tools.json_texts)

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        self._message("<|system|>", view, index, out)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        self._message("<|user|>", view, index, out)

    def _message(self, opener: str, view: ConversationView, index: int, out: Emitter) -> None:
        self.open_turn(opener, view, index, out)
        if self.separator:  # GLM-4.5 has a newline here, GLM-5 nothing
            out.scaffold(self.separator, index)
        out.content(view.text(index), index)

    def open_turn(self, opener: str, view: ConversationView, index: int, out: Emitter) -> None:
        """Write the opener of a turn. After an assistant's turn it is the token at which the model stops."""
        # After other roles nothing was sampled, so there the opener is the template's.
        is_stop = opener in self.stops and index > 0 and view.roles[index - 1] == "assistant"
        write = out.trained_opener if self.config.sampled_openers and is_stop else out.scaffold
        write(opener, index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a think block or its closing tag, the content, the calls."""
        reasoning, content = self.reasoning_and_content(view, index)
        out.scaffold(self.assistant_header, index)
        # As in the template, a turn without reasoning has the closing tag alone, whether or not the generation prompt
        # opens a block.
        if reasoning is None:
            out.model_markup("</think>", index)
        else:
            out.reasoning_block(f"{self.separator}<think>", reasoning, "</think>", index)
        # The template writes the stripped content where something is left of it. The line breaks of GLM-4.5's template
        # become `separator`.
        content = content.strip()
        if content:
            out.model_text(self.separator + content, index)
        # No stop is written here: the next turn's opener is the stop, or `end` writes one.
        for call in view.calls(index):
            if self.separator:
                out.model_markup(self.separator, index)
            self.calls.write(call, out, index)

    def reasoning_and_content(self, view: ConversationView, index: int) -> tuple[str | None, str]:
        """The reasoning that is written (`None`: no block) and the content."""
        # The template looks for think tags in the content only where the message has no field with reasoning.
        reasoning, content = view.reasoning(index), view.text(index)
        if reasoning is None:
            reasoning, content = split_thinking(content)
        return (reasoning.strip() if reasoning and self.writes_reasoning(view, index) else None), content

    def writes_reasoning(self, view: ConversationView, index: int) -> bool:
        """Whether the reasoning of this turn is written: after the last user message, or if an option keeps it."""
        written = not self.config.clear_thinking or index > view.last_user
        return written or self.preserves_thinking(view, index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result; adjacent results share one turn."""
        if view.is_first_of_run(index):
            self.open_turn("<|observation|>", view, index, out)
        self.result(view, index, out)

    def result(self, view: ConversationView, index: int, out: Emitter) -> None:
        separator = self.separator
        around = f"{separator}<tool_response>{separator}", f"{separator}</tool_response>"
        self.content_turn(around, view, index, out)

    def end(self, view: ConversationView, out: Emitter) -> None:
        """Write the stop of a last turn of the assistant's, where the option `final_stop` is set."""
        last = len(view.roles) - 1
        if self.config.final_stop and view.roles[last:] == ["assistant"]:
            out.stop("<|observation|>" if view.calls(last) else "<|user|>", last)


class GLM51Renderer(GLM5Renderer):
    """GLM-5.1: reasoning is not stripped, some turns without reasoning get an empty block, tools are bare functions."""

    name = "glm-5.1"
    parts = frozenset({"system", "user", "assistant", "tool"})
    config_class: ClassVar[type[FamilyConfig]] = GLM51RendererConfig

    @staticmethod
    def declare(tools: Tools) -> str:
        """The functions without their wrapping; deferred ones are not declared."""
        # The template writes the keys of a function one by one but for two, and skips functions with `defer_loading`.
        # Such tools are declared later, in results of type `tool_reference`, which are not supported here.
        functions = (tool["function"] for tool in tools if not tool["function"].get("defer_loading"))
        hidden = ("defer_loading", "strict")
        visible = ({key: value for key, value in function.items() if key not in hidden} for function in functions)
        return "".join(to_json(function) + "\n" for function in visible)

    def reasoning_and_content(self, view: ConversationView, index: int) -> tuple[str | None, str]:
        """See `GLM5Renderer`; some turns without reasoning have an empty block."""
        reasoning, content = self.unstripped(view, index)
        if reasoning is None and index > view.last_user:
            # After the last user message the template writes an empty block, unless `enable_thinking` is set to false.
            reasoning = "" if self.thinks else None
        elif reasoning is None:
            # The template notes whether some assistant's turn between the same two users has a field with reasoning. In
            # U A T A U with reasoning in one A, both get a block if `clear_thinking` is off.
            user = next((i for i in range(index - 1, -1, -1) if view.roles[i] == "user"), -1)
            later_users = (i for i in range(user + 1, len(view.roles)) if view.roles[i] == "user")
            turns = range(user + 1, next(later_users, len(view.roles)))
            if user >= 0 and any(view.roles[i] == "assistant" and view.reasoning(i) is not None for i in turns):
                reasoning = ""
        return (reasoning if reasoning is not None and self.writes_reasoning(view, index) else None), content

    @staticmethod
    def unstripped(view: ConversationView, index: int) -> tuple[str | None, str]:
        """Reasoning, from its field or from think tags in the content, and the content; nothing is stripped."""
        reasoning, content = view.reasoning(index), view.text(index)
        # The template cuts the content at the tags as GLM-5's does, but strips no newlines (`rstrip`, `lstrip`).
        if reasoning is None and "</think>" in content:
            before, *_, content = content.split("</think>")
            reasoning = before.split("<think>")[-1]
        return reasoning, content
