"""DeepSeek V4 and V4.1: tool results in users' turns, calls in DSML, efforts as text before everything else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from niels_gpt.renderers.dialects.dsml import DSML, TOKEN, SpacedDSML
from niels_gpt.renderers.families.deepseek_v3 import ASSISTANT, START, STOP, USER
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig, Tools, to_json
from niels_gpt.renderers.refusals import refuse_late_system


class _V4Config(FamilyConfig):
    """Options of all versions.

    Attributes:
        thinking: `False` closes the think block in the generation prompt, and no reasoning is written.
    """

    thinking: bool = True


class DeepSeekV4RendererConfig(_V4Config):
    """DeepSeek V4 since V4-Flash-0731."""

    name: Literal["deepseek-v4"] = "deepseek-v4"
    reasoning_effort: Literal["low", "high", "max"] = "low"


class DeepSeekV4PreviewRendererConfig(_V4Config):
    """DeepSeek V4-Flash and V4-Pro, the first versions."""

    name: Literal["deepseek-v4-preview"] = "deepseek-v4-preview"
    reasoning_effort: Literal["high", "max"] = "high"


class DeepSeekV41RendererConfig(_V4Config):
    """DeepSeek V4.1; `reasoning_effort` is a number from 1 to 100 or its name: low 50, high 75, max 100."""

    name: Literal["deepseek-v4.1"] = "deepseek-v4.1"
    reasoning_effort: Literal["low", "high", "max"] | Annotated[int, Field(ge=1, le=100, strict=True)] = "high"


_SYSTEM = "<｜System｜>"
_ABSOLUTE = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_BEYOND = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
_TOOLS = (
    "\n\n## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by "
    'writing a "{opening}" block like the following:\n\n{opening}\n{call}$TOOL_NAME">\n'
    '{parameter}$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE{end_parameter}\n...\n{end_call}\n'
    '{call}$TOOL_NAME2">\n...\n{end_call}\n{closing}\n\n'
    'String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, '
    'arrays, objects), pass the value in JSON format and set `string="false"`.\n\n'
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n### Available Tool Schemas\n\n"
)
_AFTER_TOOLS = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"


def _tools_text(dialect: DSML) -> str:
    """The text before the tools' schemas."""
    tags, (parameter, end_parameter) = dialect.tags, dialect.parameter
    return _TOOLS.format(
        opening=tags.opening,
        closing=tags.closing,
        call=tags.call,
        end_call=tags.end_call,
        parameter=parameter,
        end_parameter=end_parameter,
    )


def _declare(tools: Tools) -> str:
    return "\n".join(to_json(tool["function"]) for tool in tools)


# V4 has no chat template: this is what the Python encoder in the models' repositories writes. docs/deviations.md lists
# where DeepSeek's library `deepseek-recipe` writes something else.
class DeepSeekV4Renderer(Family):
    """DeepSeek V4 since V4-Flash-0731.

    ::

        <｜begin▁of▁sentence｜>Be brief.<｜User｜>hello<｜Assistant｜><think>I greet.</think>hi<｜end▁of▁sentence｜>

    Reasoning is retained until the next user message or tool result; with declared tools it is always retained. User
    messages and tool results that follow each other share one turn; results are in the order of their calls.

    Class attributes:
        efforts: the text of each effort.
        tools_text: the text before the tools' schemas.
        requests: the roles that the model answers: reasoning before the last such message is history.
    """

    name = "deepseek-v4"
    parts = frozenset({"system", "user", "assistant", "tool", "developer", "latest_reminder"})
    config_class: ClassVar[type[FamilyConfig]] = DeepSeekV4RendererConfig
    end_turn = (STOP, "")
    stops = (STOP,)
    controls: ClassVar[tuple[str, ...]] = (START, USER, ASSISTANT, TOKEN)
    calls: DSML = DSML()
    before_first_call = "\n\n"
    calls_section = (f"\n\n{DSML.tags.opening}\n", f"\n{DSML.tags.closing}")
    efforts: ClassVar[Mapping[str, str]] = MappingProxyType({"low": "", "high": _ABSOLUTE, "max": _BEYOND})
    tools_text: ClassVar[str] = _tools_text(DSML())
    requests: ClassVar[tuple[str, ...]] = ("user", "tool")
    assistant_header = ASSISTANT
    thinking_prompt = ("<think>", "</think>")
    thinking_option = "thinking"

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the effort, the first system message, the tools."""
        owner = view.system_owner
        out.scaffold(START + self.opening(view.has_system or bool(view.tools)), owner)
        if view.has_system:
            out.content(self.content(view, 0), 0)
        if view.tools:
            out.labelled(self.tools_text, view.tools.declaration(_declare), _AFTER_TOOLS, owner)
        return owner + 1

    def opening(self, has_system: bool) -> str:
        """The text before the first system message and the tools, or before the first turn if there is neither."""
        return self.efforts[self.config.reasoning_effort] if self.thinks else ""

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write another system message at the front; one after others has no place.

        Raises:
            MessageError: `late_system`.
        """
        if index == 0 or any(role != "system" for role in view.roles[:index]):
            refuse_late_system(index, self.name)
        out.content(self.content(view, index), index)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message, in the turn of the user messages and results before it."""
        self._open(view, index, index, out)
        out.content(self.content(view, index), index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write the first of adjacent results with all that follow it, in the order of the calls that they name."""
        if not view.is_first_of_run(index):
            return
        end = next((at for at in range(index, len(view.roles)) if view.roles[at] != "tool"), len(view.roles))
        order = {call.id: call.number for call in view.calls(index - 1)} if index else {}
        numbers = {at: order.get(view.messages[at].get("tool_call_id", "")) for at in range(index, end)}
        # Results 3 4 5 of the calls 1 2 0 are written as 5 3 4, all of them at the place of 3. One result of an unknown
        # call has no place among the others; then none is moved.
        is_known = None not in numbers.values()
        results = sorted(numbers, key=lambda at: (numbers[at], at)) if is_known else list(numbers)
        for place, result in enumerate(results, index):
            self._open(view, place, result, out)
            self.content_turn(("<tool_result>", "</tool_result>"), view, result, out)

    @staticmethod
    def _open(view: ConversationView, place: int, index: int, out: Emitter) -> None:
        """Write what is before a message that is written at `place`."""
        # DeepSeek's encoder writes users and results that follow each other as one user's turn, a blank line between.
        is_in_turn = place > 0 and view.roles[place - 1] in ("user", "tool")
        out.scaffold("\n\n" if is_in_turn else USER, index)

    def content(self, view: ConversationView, index: int) -> str:
        """The content as one text, its parts separated by blank lines."""
        content = view.messages[index]["content"]
        if isinstance(content, str):
            return content
        texts = [view.text_of(part, index, number) for number, part in enumerate(content)]
        return "\n\n".join(text for text in texts if text)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write the think block or its closing tag, the content, the calls."""
        out.scaffold(ASSISTANT, index)
        if self.writes_reasoning(view, index):
            out.reasoning_block("<think>", view.reasoning(index) or "", "</think>", index)
        else:
            out.model_markup("</think>", index)
        self.finish_turn(self.content(view, index), view, index, out)

    def writes_reasoning(self, view: ConversationView, index: int) -> bool:
        """Whether the turn has a think block: no later user or tool message, or tools are declared, or an option."""
        if not self.thinks:
            return False
        # DeepSeek's encoder drops no reasoning from a conversation with declared tools; without them, a result counts
        # as a user's message and ends the reasoning before it.
        is_current = bool(view.tools) or not any(role in self.requests for role in view.roles[index + 1 :])
        return is_current or self.preserves_thinking(view, index)


class DeepSeekV4PreviewRenderer(DeepSeekV4Renderer):
    """DeepSeek V4-Flash and V4-Pro, the first versions: the efforts have other texts."""

    name = "deepseek-v4-preview"
    config_class = DeepSeekV4PreviewRendererConfig
    efforts = MappingProxyType({"high": "", "max": _ABSOLUTE})


class DeepSeekV41Renderer(DeepSeekV4Renderer):
    """DeepSeek V4.1: system messages have a token of their own and may come later; the effort is a number.

    ::

        <｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (range 1-100, ...)

        Be brief.<｜User｜>hello<｜Assistant｜><think>I greet.</think>hi<｜end▁of▁sentence｜>
    """

    name = "deepseek-v4.1"
    config_class = DeepSeekV41RendererConfig
    controls = (*DeepSeekV4Renderer.controls, _SYSTEM)
    calls = SpacedDSML()
    calls_section = (f"\n\n{SpacedDSML.tags.opening}\n", f"\n{SpacedDSML.tags.closing}")
    efforts = MappingProxyType({"low": "50", "high": "75", "max": "100"})
    tools_text = _tools_text(SpacedDSML())
    requests = ("user", "tool", "system")

    def opening(self, has_system: bool) -> str:
        """The system's token and the effort, or nothing."""
        if not self.thinks:
            return _SYSTEM if has_system else ""
        effort = self.config.reasoning_effort
        budget = self.efforts.get(effort, effort)
        scale = "(range 1-100, the higher the value, the more thorough the reasoning)"
        return f"{_SYSTEM}Reasoning Effort: {budget} {scale}\n\n"

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        self.content_turn((_SYSTEM, ""), view, index, out)
