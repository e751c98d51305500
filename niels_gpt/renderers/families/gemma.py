"""Gemma 2 and 3: turns of a user and a model, with system text in the first user's turn."""

from __future__ import annotations

from typing import Literal

from niels_gpt.renderers.completions.builder import ALL_SPACE
from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.options import FamilyConfig
from niels_gpt.renderers.unsupported import (
    check_alternates,
    refuse_calls,
    refuse_late_system,
    refuse_only_system,
    refuse_tools,
)


class GemmaRendererConfig(FamilyConfig):
    """Gemma has no options of its own."""

    name: Literal["gemma"] = "gemma"


_END = "<end_of_turn>"


class GemmaRenderer(Family):
    """Gemma 2 and 3, text only.

    ::

        <bos><start_of_turn>user
        Be brief.

        hello<end_of_turn>
        <start_of_turn>model
        hi<end_of_turn>

    Roles must alternate, and contents are stripped.
    """

    name = "gemma"
    config_class = GemmaRendererConfig
    content_trim = ALL_SPACE
    roles = ("system", "user", "assistant")
    stops = (_END, "<eos>")
    controls = ("<bos>", "<start_of_turn>")
    after_stop = "\n"
    has_reasoning = False

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the beginning of the text; `user` writes a system message."""
        refuse_tools(view, self.name)
        out.scaffold("<bos>")
        if view.roles[0] != "system":
            return 0
        refuse_only_system(view, self.name)
        return 1

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Refuse a system message that is not the first message."""
        refuse_late_system(index, self.name)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message; the first one holds the system text."""
        check_alternates(view, index, self.name)
        out.scaffold("<start_of_turn>user\n", index)
        # The system text is message 0's content within the turn of message 1; the blank line is the turn's scaffold.
        if index == 1 and view.roles[0] == "system":
            out.content(view.text(0), 0)
            out.scaffold("\n\n", index)
        out.content(self._stripped(view, index), index)
        out.scaffold(f"{_END}\n", index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message; its role is called model."""
        check_alternates(view, index, self.name)
        refuse_calls(view, index, self.name)
        out.scaffold("<start_of_turn>model\n", index)
        out.model_reply(self._stripped(view, index), _END, "\n", index)

    def _stripped(self, view: ConversationView, index: int) -> str:
        """A content without white space at its ends; the template strips each part of a content in parts."""
        text, content = view.text(index), view.messages[index]["content"]
        return text.strip() if isinstance(content, str) else "".join(part["text"].strip() for part in content)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the model's header."""
        out.scaffold("<start_of_turn>model\n")
