"""ChatML: a role, a text, an end of turn. Qwen and Nemotron build on the turns here (`ChatMLTurns`)."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.options import FamilyConfig
from niels_gpt.renderers.unsupported import refuse_calls, refuse_tools


class ChatMLRendererConfig(FamilyConfig):
    """Plain ChatML has no options of its own."""

    name: Literal["chatml"] = "chatml"


class ChatMLTurns(Family):
    """The turns of every format that is made of ChatML.

    ::

        <|im_start|>user
        hello<|im_end|>
        <|im_start|>assistant
        hi<|im_end|>

    The newline after `<|im_end|>` is the template's: the model stops at `<|im_end|>`.
    """

    stops: ClassVar[tuple[str, ...]] = ("<|im_end|>",)
    controls: ClassVar[tuple[str, ...]] = ("<|im_start|>",)
    after_stop = "\n"

    def content(self, view: ConversationView, index: int) -> str:
        """A message's text as its turn holds it."""
        return view.text(index)

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message, first or later."""
        out.turn("<|im_start|>system\n", self.content(view, index), "<|im_end|>\n", index)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message."""
        self.content_turn("<|im_start|>user\n", view, index, "<|im_end|>\n", out)

    def content_turn(self, header: str, view: ConversationView, index: int, footer: str, out: Emitter) -> None:
        """Write a turn that the model reads: a message's content between scaffold."""
        out.turn(header, self.content(view, index), footer, index)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's header."""
        out.scaffold("<|im_start|>assistant\n" + self.prefill())


class ChatMLRenderer(ChatMLTurns):
    """Plain ChatML, as TRL's and axolotl's `chatml` write it: no default system message, no tools, no reasoning.

    `reasoning_content` is not written, as in that template.
    """

    name = "chatml"
    config_class: ClassVar[type[FamilyConfig]] = ChatMLRendererConfig
    roles = ("system", "user", "assistant")
    has_reasoning = False

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Refuse tools; nothing comes before the turns."""
        refuse_tools(view, self.name)
        return 0

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message."""
        refuse_calls(view, index, self.name)
        out.assistant_turn("<|im_start|>assistant\n", view.text(index), "<|im_end|>", "\n", index)
