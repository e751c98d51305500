"""Phi: Phi-3, Phi-3.5 and Phi-4-mini have one token per role; Phi-4 is ChatML with a separator, and may reason."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.options import FamilyConfig
from niels_gpt.renderers.unsupported import refuse_calls, refuse_tools


class Phi3RendererConfig(FamilyConfig):
    """Phi-3 has no options of its own."""

    name: Literal["phi-3"] = "phi-3"


class Phi35RendererConfig(FamilyConfig):
    """Phi-3.5 has no options of its own."""

    name: Literal["phi-3.5"] = "phi-3.5"


class Phi4RendererConfig(FamilyConfig):
    """Phi-4 has no options of its own."""

    name: Literal["phi-4"] = "phi-4"


class Phi4MiniRendererConfig(FamilyConfig):
    """Phi-4-mini has no options of its own."""

    name: Literal["phi-4-mini"] = "phi-4-mini"


class Phi4ReasoningRendererConfig(FamilyConfig):
    """Phi-4-reasoning has no options of its own."""

    name: Literal["phi-4-reasoning"] = "phi-4-reasoning"


class Phi3Renderer(Family):
    """Phi-3.

    ::

        <|user|>
        hello<|end|>
        <|assistant|>
        hi<|end|>
        <|endoftext|>

    The last token follows whole conversations only: a generation prompt takes its place.

    Class attributes:
        separator: the text after a role's token and between turns.
    """

    name = "phi-3"
    config_class: ClassVar[type[FamilyConfig]] = Phi3RendererConfig
    roles = ("system", "user", "assistant")
    stops = ("<|end|>", "<|endoftext|>")
    controls = ("<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>")
    after_stop = separator = "\n"
    has_reasoning = False

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Refuse tools; nothing comes before the turns."""
        refuse_tools(view, self.name)
        return 0

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message."""
        out.turn("<|system|>" + self.separator, view.text(index), "<|end|>" + self.separator, index)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message."""
        out.turn("<|user|>" + self.separator, view.text(index), "<|end|>" + self.separator, index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message."""
        refuse_calls(view, index, self.name)
        out.scaffold("<|assistant|>" + self.separator, index)
        out.model_reply(view.text(index), "<|end|>", self.separator, index)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's header."""
        out.scaffold("<|assistant|>" + self.separator)

    def end(self, view: ConversationView, out: Emitter) -> None:
        """Write the end of text."""
        # Not trained: the model has stopped at `<|end|>` before this token.
        out.scaffold("<|endoftext|>")


class Phi35Renderer(Phi3Renderer):
    """Phi-3.5: an empty system message is not written."""

    name = "phi-3.5"
    config_class = Phi35RendererConfig

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message that is not empty."""
        if view.text(index):
            super().system(view, index, out)


class Phi4MiniRenderer(Phi3Renderer):
    """Phi-4-mini: Phi-3 without newlines.

    Its template takes tools only as text within the system message: put them there. That template is not among those
    the parity tests compare with; the format is written as Microsoft describes it.
    """

    name = "phi-4-mini"
    config_class = Phi4MiniRendererConfig
    after_stop = separator = ""


class Phi4Renderer(Family):
    """Phi-4: ChatML with `<|im_sep|>` after the role, and nothing between turns.

    ::

        <|im_start|>user<|im_sep|>hello<|im_end|><|im_start|>assistant<|im_sep|>hi<|im_end|>

    Its template is not among those the parity tests compare with; the format is written as Microsoft describes it.
    """

    name = "phi-4"
    config_class: ClassVar[type[FamilyConfig]] = Phi4RendererConfig
    roles = ("system", "user", "assistant")
    stops = ("<|im_end|>", "<|endoftext|>")
    controls = ("<|im_start|>", "<|im_sep|>")
    has_reasoning = False

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Refuse tools; nothing comes before the turns."""
        refuse_tools(view, self.name)
        return 0

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message."""
        out.turn("<|im_start|>system<|im_sep|>", view.text(index), "<|im_end|>", index)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message."""
        out.turn("<|im_start|>user<|im_sep|>", view.text(index), "<|im_end|>", index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message."""
        refuse_calls(view, index, self.name)
        out.scaffold("<|im_start|>assistant<|im_sep|>", index)
        out.model_reply(view.text(index), "<|im_end|>", "", index)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's header."""
        out.scaffold("<|im_start|>assistant<|im_sep|>")


def thought_and_solution(backtracking: str, thought: str, solution: str) -> str:
    """The request for think tags that Phi-4-reasoning and SmolLM3 share, but for these words."""
    return (
        "Your role as an assistant involves thoroughly exploring questions through a systematic thinking "
        "process before providing the final precise and accurate solutions. This requires engaging in a "
        f"comprehensive cycle of analysis, summarizing, exploration, reassessment, reflection, {backtracking}, "
        "and iteration to develop well-considered thinking process. Please structure your response into two "
        f"main sections: Thought and Solution using the specified format: <think> {thought} </think> "
        f"{solution}. In the Thought section, detail your reasoning process in steps. Each step should include "
        "detailed considerations such as analysing questions, summarizing relevant findings, brainstorming "
        "new ideas, verifying the accuracy of the current steps, refining any errors, and revisiting previous "
        "steps. In the Solution section, based on various attempts, explorations, and reflections from the "
        "Thought section, systematically present the final solution that you deem correct. The Solution "
        "section should be logical, accurate, and concise and detail necessary steps needed to reach the "
        "conclusion."
    )


_REASONING_SYSTEM = (
    "You are Phi, a language model trained by Microsoft to help users. "
    + thought_and_solution("backtracing", "{Thought section}", "{Solution section}")
    + " Now, try to solve the following question through the above guidelines:"
)


class Phi4ReasoningRenderer(Phi4Renderer):
    """Phi-4-reasoning and Phi-4-reasoning-plus.

    ::

        <|im_start|>assistant<|im_sep|><think>A greeting.</think>hi<|im_end|>

    The default system message asks for think tags. The template puts it in the place of a caller's, which is written
    here. Reasoning stays in history. The format is written as its model card describes it; see Phi-4.
    """

    name = "phi-4-reasoning"
    config_class = Phi4ReasoningRendererConfig
    has_reasoning = True

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the default system message where the first message is none."""
        super().begin(view, out)
        if view.roles[0] != "system":
            out.scaffold(f"<|im_start|>system<|im_sep|>{_REASONING_SYSTEM}<|im_end|>")
        return 0

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write reasoning and a text."""
        refuse_calls(view, index, self.name)
        out.scaffold("<|im_start|>assistant<|im_sep|>", index)
        if reasoning := view.reasoning(index):
            out.model_block("<think>", reasoning, "</think>", index)
        out.model_reply(view.text(index), "<|im_end|>", "", index)
