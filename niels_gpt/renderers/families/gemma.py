"""Gemma 2 and 3: turns of a user and a model, with system text in the first user's turn."""

from __future__ import annotations

from niels_gpt.renderers.completions.reading import ALL_SPACE
from niels_gpt.renderers.family import ConversationView, Emitter, Family
from niels_gpt.renderers.refusals import check_alternates, refuse_only_system

_END = "<end_of_turn>"


class GemmaRenderer(Family):
    """Gemma 2 and 3, text only.

    Roles must alternate, and contents are stripped.
    """

    name = "gemma"
    parts = frozenset({"user", "assistant"})
    content_trim = ALL_SPACE
    roles = ("system", "user", "assistant")
    end_turn = (_END, "\n")
    stops = (_END, "<eos>")
    controls = ("<bos>", "<start_of_turn>")
    has_reasoning = False
    user_turn = ("<start_of_turn>user\n", f"{_END}\n")
    assistant_header = "<start_of_turn>model\n"

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the beginning of the text; `user` writes a system message."""
        out.scaffold("<bos>")
        refuse_only_system(view, self.name)
        return view.system_owner + 1

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message; the first one holds the system text."""
        check_alternates(view, index, self.name)
        header, footer = self.user_turn
        # The template writes the system text and a blank line in front of the first user's text. So the system text is
        # message 0's content within the turn of message 1; it is not stripped, and the blank line is the turn's.
        if index == 1 and view.has_system:
            out.scaffold(header, index)
            out.content(view.text(0), 0)
            header = "\n\n"
        self.content_turn((header, footer), view, index, out)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message; its role is called model."""
        check_alternates(view, index, self.name)
        out.assistant_turn(self.assistant_header, self.content(view, index), *self.end_turn, index)

    def content(self, view: ConversationView, index: int) -> str:
        # The template applies `trim` to a content that is a text, and to each text of a content in parts.
        text, content = view.text(index), view.messages[index]["content"]
        return text.strip() if isinstance(content, str) else "".join(part["text"].strip() for part in content)
