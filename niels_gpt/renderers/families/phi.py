"""Phi: Phi-3, Phi-3.5 and Phi-4-mini have one token per role; Phi-4 is ChatML with a separator, and may reason."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig


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
    """

    name = "phi-3"
    config_class: ClassVar[type[FamilyConfig]] = Phi3RendererConfig
    roles = ("system", "user", "assistant")
    stops = ("<|end|>", "<|endoftext|>")
    controls = ("<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>")
    after_stop = "\n"
    has_reasoning = False
    system_turn = ("<|system|>\n", "<|end|>\n")
    user_turn = ("<|user|>\n", "<|end|>\n")
    assistant_header = "<|assistant|>\n"

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message."""
        out.assistant_turn(self.assistant_header, view.text(index), "<|end|>", self.after_stop, index)

    def end(self, view: ConversationView, out: Emitter) -> None:
        """Write the end of text."""
        # Where `add_generation_prompt` is off, the template writes the eos token in the place of the prompt. Not
        # trained: the model has stopped at `<|end|>` before this token.
        out.scaffold("<|endoftext|>")


class Phi35Renderer(Phi3Renderer):
    """Phi-3.5: an empty system message is not written."""

    name = "phi-3.5"
    config_class = Phi35RendererConfig

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message that is not empty."""
        # The template writes a message of this role only if it has a content; Phi-3's looks at the role alone.
        if view.text(index):
            super().system(view, index, out)


class Phi4MiniRenderer(Phi3Renderer):
    """Phi-4-mini: Phi-3 without newlines.

    Its template takes tools only as text within the system message: put them there.
    """

    # The template is not among those the parity tests compare with; the format is written as Microsoft describes it.
    name = "phi-4-mini"
    config_class = Phi4MiniRendererConfig
    after_stop = ""
    system_turn = ("<|system|>", "<|end|>")
    user_turn = ("<|user|>", "<|end|>")
    assistant_header = "<|assistant|>"


class Phi4Renderer(Family):
    """Phi-4: ChatML with `<|im_sep|>` after the role, and nothing between turns.

    ::

        <|im_start|>user<|im_sep|>hello<|im_end|><|im_start|>assistant<|im_sep|>hi<|im_end|>
    """

    # As for Phi-4-mini, written as Microsoft describes it, without a template to compare with.
    name = "phi-4"
    config_class: ClassVar[type[FamilyConfig]] = Phi4RendererConfig
    roles = ("system", "user", "assistant")
    stops = ("<|im_end|>", "<|endoftext|>")
    controls = ("<|im_start|>", "<|im_sep|>")
    has_reasoning = False
    system_turn = ("<|im_start|>system<|im_sep|>", "<|im_end|>")
    user_turn = ("<|im_start|>user<|im_sep|>", "<|im_end|>")
    assistant_header = "<|im_start|>assistant<|im_sep|>"

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message."""
        out.assistant_turn(self.assistant_header, view.text(index), "<|im_end|>", "", index)


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

    The default system message asks for think tags. Reasoning stays in history.
    """

    name = "phi-4-reasoning"
    config_class = Phi4ReasoningRendererConfig
    has_reasoning = True

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the default system message where the first message is none."""
        # The template, as the model card shows it, puts this text in the place of a caller's message, too.
        if not view.has_system:
            out.scaffold(f"<|im_start|>system<|im_sep|>{_REASONING_SYSTEM}<|im_end|>")
        return 0

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write reasoning and a text."""
        out.scaffold(self.assistant_header, index)
        if reasoning := view.reasoning(index):
            out.model_block("<think>", reasoning, "</think>", index)
        out.model_reply(view.text(index), "<|im_end|>", "", index)
