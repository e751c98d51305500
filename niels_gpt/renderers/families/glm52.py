"""GLM-5.2 and GLM-5.3: GLM-5.1 with a reasoning effort, and with a think block in every turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from niels_gpt.renderers.families.glm5 import GLM5Config, GLM51Renderer, GLMConfig
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig


class GLM52RendererConfig(GLM5Config):
    """GLM-5.2.

    Attributes:
        reasoning_effort: how much the model thinks. Where thinking is off, no effort is written.
    """

    name: Literal["glm-5.2"] = "glm-5.2"
    reasoning_effort: Literal["high", "max"] = "max"


class GLM53RendererConfig(GLMConfig):
    """GLM-5.3 and GLM-5.3-Flash. Thinking cannot be turned off.

    Attributes:
        reasoning_effort: how much the model thinks.
        clear_thinking: `True` drops reasoning from turns before the last user message.
    """

    name: Literal["glm-5.3"] = "glm-5.3"
    reasoning_effort: Literal["low", "high", "max"] = "max"
    clear_thinking: bool = False


class GLM52Renderer(GLM51Renderer):
    """GLM-5.2. A turn without reasoning has an empty block.

    ::

        [gMASK]<sop><|system|>Reasoning Effort: Max<|user|>hello<|assistant|><think></think>hi<|user|>more
    """

    name = "glm-5.2"
    config_class: ClassVar[type[FamilyConfig]] = GLM52RendererConfig
    thinking_prompt = ("<think>", "<think></think>")

    def effort(self) -> str:
        return f"<|system|>Reasoning Effort: {self.config.reasoning_effort.capitalize()}" if self.thinks else ""

    def reasoning_and_content(self, view: ConversationView, index: int) -> tuple[str | None, str]:
        """See `GLM5Renderer`; there is always a block."""
        # The template writes an empty block where GLM-5.1's writes `</think>` alone.
        reasoning, content = self.unstripped(view, index)
        return (reasoning if reasoning and self.writes_reasoning(view, index) else ""), content


class GLM53Renderer(GLM52Renderer):
    """GLM-5.3 and GLM-5.3-Flash, text only. Reasoning stays in history, results come in the order of their calls."""

    name = "glm-5.3"
    config_class = GLM53RendererConfig
    thinking_option = ""

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write all results of a run at its first one, in the order of their calls if ids determine it."""
        if not view.is_first_of_run(index):
            return
        end = next((i for i in range(index, len(view.roles)) if view.roles[i] != "tool"), len(view.roles))
        results: Sequence[int] = range(index, end)
        call_ids = [call.id for call in view.calls(index - 1)] if index else []
        result_ids = [view.messages[i].get("tool_call_id") or "" for i in results]
        # Results with the ids b c a of the calls a b c are written as a b c. An id twice, or one that is missing on
        # either side, leaves all of them as they come.
        is_unique = len({*call_ids}) == len(call_ids) and len({*result_ids}) == len(result_ids)
        if is_unique and "" not in call_ids and {*result_ids} <= {*call_ids}:
            results = sorted(results, key=lambda i: call_ids.index(result_ids[i - index]))
        self.open_turn("<|observation|>", view, index, out)
        for result in results:
            self.result(view, result, out)
