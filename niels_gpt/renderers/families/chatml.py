"""ChatML: a role, a text, an end of turn. Qwen and Nemotron build on the turns here (`ChatMLTurns`)."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.family import ConversationView, Emitter, Family


class ChatMLTurns(Family):
    """The turns of every format that is made of ChatML.

    ::

        <|im_start|>user
        hello<|im_end|>
        <|im_start|>assistant
        hi<|im_end|>

    The newline after `<|im_end|>` is the template's: the model stops at `<|im_end|>`.
    """

    end_turn = ("<|im_end|>", "\n")
    stops: ClassVar[tuple[str, ...]] = (end_turn[0],)
    controls: ClassVar[tuple[str, ...]] = ("<|im_start|>",)
    system_turn: ClassVar[tuple[str, str] | None] = ("<|im_start|>system\n", "<|im_end|>\n")
    user_turn = ("<|im_start|>user\n", "<|im_end|>\n")
    assistant_header = "<|im_start|>assistant\n"


class ChatMLRenderer(ChatMLTurns):
    """Plain ChatML, as TRL's and axolotl's `chatml` write it: no default system message, no tools, no reasoning."""

    name = "chatml"
    roles = ("system", "user", "assistant")
    # Those templates write the field `content` and nothing else, so `reasoning_content` is left out here.
    has_reasoning = False

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        out.assistant_turn(self.assistant_header, view.text(index), *self.end_turn, index)
