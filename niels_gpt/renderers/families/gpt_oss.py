"""gpt-oss: the Harmony format, in which reasoning, calls and answers have channels."""

from __future__ import annotations

from typing import Literal

from niels_gpt.errors import MessageError
from niels_gpt.renderers.completions.reading import NOTHING
from niels_gpt.renderers.dialects.harmony import CHANNEL, END, MESSAGE, START, HarmonyCalls, namespace
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig, Tools, to_json

_ASSISTANT = f"{START}assistant"
_ANALYSIS, _COMMENTARY, _FINAL = (f"{CHANNEL}{channel}{MESSAGE}" for channel in ("analysis", "commentary", "final"))
_NEXT_MESSAGE = f"{END}{_ASSISTANT}"  # the end of a message that another one of the same turn follows


class GptOssRendererConfig(FamilyConfig):
    """gpt-oss.

    Attributes:
        reasoning_effort, knowledge_cutoff, model_identity: texts of the system block.
        conversation_start_date: the date in the system block, as 2026-01-31; `None` leaves the line out, as
            `openai-harmony` does. The clock is never read: a rendering must not depend on its day.
        text_before_calls: the channel of a content beside a tool call where there is no reasoning: analysis, as the
            official template writes it, or commentary, as the model itself does. Beside reasoning it is commentary.
    """

    day = ("conversation_start_date", "%Y-%m-%d")

    name: Literal["gpt-oss"] = "gpt-oss"
    reasoning_effort: Literal["low", "medium", "high"] = "medium"
    conversation_start_date: str | None = None
    knowledge_cutoff: str = "2024-06"
    model_identity: str = "You are ChatGPT, a large language model trained by OpenAI."
    text_before_calls: Literal["analysis", "commentary"] = "analysis"


class GptOssRenderer(Family):
    """gpt-oss 20b and 120b.

    ::

        <|start|>user<|message|>hello<|end|>
        <|start|>assistant<|channel|>analysis<|message|>A greeting.<|end|>
        <|start|>assistant<|channel|>final<|message|>hi<|return|>

    (Without the newlines.) One assistant message becomes several of Harmony's: reasoning, then a text, then one call or
    an answer. All after the first `<|start|>assistant` is sampled. An answer ends in `<|return|>` where it is the last
    message, and in `<|end|>` in history.
    """

    name = "gpt-oss"
    config_class = GptOssRendererConfig
    roles = ("system", "user", "assistant", "tool", "developer")
    end_turn = ("<|return|>", "")
    stops = (end_turn[0], "<|call|>")
    controls = (START, CHANNEL, MESSAGE, END)
    truncation_stop = END
    version = 2  # since then, samples retain the reasoning of the tool cycle before an answer
    calls = HarmonyCalls()
    names_results = True
    reasoning_trim = NOTHING
    part_separator = "\n"  # between the texts of several messages
    user_turn = (f"{START}user{MESSAGE}", END)
    assistant_header = _ASSISTANT

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the system block, of no message; then a developer block with instructions and tools, if any."""
        config = self.config
        # The template writes the date of the clock (`strftime_now`) in every rendering; here the line is there if the
        # option is set.
        date = f"Current date: {config.conversation_start_date}\n" if config.conversation_start_date else ""
        tools = "\nCalls to these tools must go to the commentary channel: 'functions'." if view.tools else ""
        text = (
            f"{config.model_identity}\nKnowledge cutoff: {config.knowledge_cutoff}\n{date}\n"
            f"Reasoning: {config.reasoning_effort}\n\n"
            f"# Valid channels: analysis, commentary, final. Channel must be included for every message.{tools}"
        )
        # A label, because options are the caller's text: control tokens in it stay text.
        out.labelled(f"{START}system{MESSAGE}", text, END, -1)
        # As in the template, the caller's first message gives the instructions, whichever of the two roles it has.
        has_instructions = view.roles[0] in ("system", "developer")
        instructions = view.text(0) if has_instructions else ""
        if not instructions and not view.tools:
            return int(has_instructions)
        # A system message that is empty has no tokens of its own: tools without instructions belong to no message.
        owner = 0 if instructions else -1
        out.scaffold(f"{START}developer{MESSAGE}", owner)
        if instructions:
            out.turn("# Instructions\n\n", instructions, "\n\n", owner)
        if view.tools:
            out.labelled("# Tools\n\n", view.tools.declaration(_declare), END, owner)
        else:
            out.scaffold(END, owner)
        return int(has_instructions)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write reasoning, a text before a call, then a call or an answer.

        Reasoning is written before the last answer, and before calls that no answer follows.
        """
        # `analysis` and `preamble` are texts of the channels analysis and commentary.
        # An empty reasoning is none, as in the template.
        calls, analysis, preamble = view.calls(index), view.reasoning(index) or None, ""
        is_last = view.is_produced(index)
        out.scaffold(_ASSISTANT, index)
        if calls:
            for call in calls[1:]:  # a turn makes one call
                out.lose(index, "tool_calls", call.name)
            # The template writes a content beside a call on the channel analysis, and raises on one beside `thinking`.
            # Models write both, reasoning and a preamble, so both are written.
            content = view.text(index)
            if analysis or self.config.text_before_calls == "commentary":
                preamble = content
            else:
                analysis = content or None
        # The template keeps the reasoning of an answer where it is the last message and `add_generation_prompt` is off.
        # It keeps that before a call unless an answer on the channel final comes later.
        is_current = index > view.last_answer if calls else is_last
        if analysis is not None and (is_current or self.preserves_thinking(view, index)):
            out.reasoning_block(_ANALYSIS, analysis, _NEXT_MESSAGE, index)
        elif calls and analysis is not None and not view.reasoning(index):
            out.lose(index, "content", analysis)  # which the template wrote there, and forgets
        if preamble:
            out.model_block(_COMMENTARY, preamble, _NEXT_MESSAGE, index)
        if calls:
            self.calls.write(calls[0], out, index)
        else:
            # The template writes `<|return|>` only at the end of a conversation that is trained; no prompt holds it.
            out.model_markup(_FINAL, index)
            out.model_text(view.text(index), index)
            out.stop(self.end_turn[0] if is_last else END, index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result as a JSON string, headed by the function that was called last.

        Raises:
            MessageError: the call is not among the messages (as in a bridge), and the result has no name.
        """
        # The template heads every result by the last call before it, whatever its tool_call_id is.
        called = (calls[0].name for i in range(index - 1, -1, -1) if (calls := view.calls(i)))
        name = next(called, None) or view.messages[index].get("name")
        if not name:
            raise MessageError(
                "missing_field", f"message {index}: name is missing; expected the function that gpt-oss heads it by"
            )
        out.labelled(f"{START}functions.", name, f" to=assistant{CHANNEL}commentary{MESSAGE}", index)
        # The template applies `tojson`: a text becomes a JSON string, with its quotes and escapes.
        out.content(to_json(view.text(index)), index)
        out.scaffold(END, index)


def _declare(tools: Tools) -> str:
    return namespace("functions", tools)
