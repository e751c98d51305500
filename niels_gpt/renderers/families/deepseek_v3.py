"""DeepSeek V3: texts between control tokens, calls as fenced JSON in a section."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.errors import MessageError
from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.dialects.sections import DEEPSEEK, FencedJSON
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig


class DeepSeekV3RendererConfig(FamilyConfig):
    """DeepSeek V3 has no options of its own."""

    name: Literal["deepseek-v3"] = "deepseek-v3"


START, STOP = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
OUTPUTS, END_OUTPUTS = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
OUTPUT, END_OUTPUT = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
_TOOL_TOKENS = (
    *(DEEPSEEK.opening, DEEPSEEK.closing, DEEPSEEK.call, DEEPSEEK.end_call, "<｜tool▁sep｜>"),
    *(OUTPUTS, END_OUTPUTS, OUTPUT, END_OUTPUT),
)


class DeepSeekV3Renderer(Family):
    """DeepSeek V3.

    ::

        <｜begin▁of▁sentence｜>Be brief.<｜User｜>hello<｜Assistant｜>hi<｜end▁of▁sentence｜>

    System text has no markup of its own. Tools and reasoning have no place in the format and are not written, as in its
    template.
    """

    name = "deepseek-v3"
    config_class: ClassVar[type[FamilyConfig]] = DeepSeekV3RendererConfig
    # Not as in the template: it notes that the first call and the first result were written, and never forgets it. So
    # from the second turn with calls on it leaves out `<｜tool▁calls▁begin｜>` and `<｜tool▁outputs▁begin｜>`, and it
    # closes the section after every call but the first. docs/deviations.md lists what is written instead.
    calls_section = (DEEPSEEK.opening, DEEPSEEK.closing)
    tool_turn = (OUTPUT, END_OUTPUT)
    results_section = (OUTPUTS, END_OUTPUTS)
    between_results = "\n"
    end_turn = (STOP, "")
    stops = (STOP,)
    controls: ClassVar[tuple[str, ...]] = (START, USER, ASSISTANT, *_TOOL_TOKENS)
    calls: CallDialect | None = FencedJSON()
    has_reasoning = False
    declares_tools = False
    user_turn = (USER, "")
    assistant_header = ASSISTANT

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the leading system messages, joined by blank lines."""
        # The template collects system messages from the whole conversation, and writes them first.
        first = next((index for index, role in enumerate(view.roles) if role != "system"), len(view.roles))
        out.scaffold(START, 0 if first else -1)
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

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message; after tool results it has no header."""
        self.header(view, index, out)
        self.finish_turn(view.text(index), view, index, out)

    @staticmethod
    def header(view: ConversationView, index: int, out: Emitter) -> None:
        """Write the assistant's header, if there is one."""
        # After results the template writes the content directly after `<｜tool▁outputs▁end｜>`: the model continues at
        # once, without a header.
        if index and view.roles[index - 1] == "tool":
            out.prefill = ""  # the generation prompt is empty there
        else:
            out.scaffold(ASSISTANT, index)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's header; after tool results there is none."""
        # As in the template, where `add_generation_prompt` writes nothing after a tool result.
        if view.roles[-1] != "tool":
            super().generation_prompt(view, out)
