"""DeepSeek V3: texts between control tokens, calls as fenced JSON in a section."""

from __future__ import annotations

from typing import Literal

from niels_gpt.errors import MessageError
from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.dialects.sections import DEEPSEEK, FencedJSON
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.options import FamilyConfig


class DeepSeekV3RendererConfig(FamilyConfig):
    """DeepSeek V3 has no options of its own."""

    name: Literal["deepseek-v3"] = "deepseek-v3"


_START, _STOP = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_USER, _ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
_OUTPUTS, _END_OUTPUTS = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
_OUTPUT, _END_OUTPUT = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
_TOOL_TOKENS = (
    *(DEEPSEEK.opening, DEEPSEEK.closing, DEEPSEEK.call, DEEPSEEK.end_call, "<｜tool▁sep｜>"),
    *(_OUTPUTS, _END_OUTPUTS, _OUTPUT, _END_OUTPUT),
)


class DeepSeekV3Renderer(Family):
    """DeepSeek V3.

    ::

        <｜begin▁of▁sentence｜>Be brief.<｜User｜>hello<｜Assistant｜>hi<｜end▁of▁sentence｜>

    System text has no markup of its own. Tools and reasoning have no place in the format and are not written, as in its
    template. The template carries state from turn to turn in tool calls; docs/deviations.md lists what is written
    instead.
    """

    name = "deepseek-v3"
    config_class = DeepSeekV3RendererConfig
    stops = (_STOP,)
    controls = (_START, _USER, _ASSISTANT, *_TOOL_TOKENS)
    calls = FencedJSON()
    has_reasoning = False

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the leading system messages, joined by blank lines."""
        first = next((index for index, role in enumerate(view.roles) if role != "system"), len(view.roles))
        out.scaffold(_START, 0 if first else -1)
        for index in range(first):
            if index:  # the blank line ends the message before it
                out.scaffold("\n\n", index - 1)
            out.content(view.text(index), index)
        return first

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Refuse a system message after the leading ones; the template would move it to the front.

        Raises:
            MessageError: always (`late_system`).
        """
        raise MessageError(
            "late_system", f"message {index}: a system message after others; expected system messages at the front"
        )

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message."""
        out.scaffold(_USER, index)
        out.content(view.text(index), index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message; after tool results it has no header."""
        # After results the model continues at once: `<｜tool▁outputs▁end｜>` takes the place of a header.
        if index == 0 or view.roles[index - 1] != "tool":
            out.scaffold(_ASSISTANT, index)
        calls = view.calls(index)
        if not calls:
            out.model_reply(view.text(index), _STOP, "", index)
            return
        out.model_text(view.text(index), index)
        out.model_markup(DEEPSEEK.opening, index)
        for number, call in enumerate(calls):
            if number:  # calls are a line apart, but the section's tags touch the first and the last
                out.model_markup("\n", index)
            self.calls.write(call, out, index)
        out.model_reply("", DEEPSEEK.closing + _STOP, "", index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result; adjacent results share one section."""
        out.scaffold(_OUTPUTS if view.is_first_of_run(index) else "\n", index)
        out.turn(_OUTPUT, view.text(index), _END_OUTPUT, index)
        if view.is_last_of_run(index):
            out.scaffold(_END_OUTPUTS, index)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's header; after tool results there is none."""
        if view.roles[-1] != "tool":
            out.scaffold(_ASSISTANT)
