"""MiniMax M2: a system block in every conversation, calls as invocations in a section."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from niels_gpt.renderers.completions.reading import NEWLINES_BEFORE
from niels_gpt.renderers.dialects.sections import MINIMAX, MiniMaxSection
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig, Tools, to_json


class MiniMaxM2RendererConfig(FamilyConfig):
    """MiniMax M2, M2.1, M2.5 and M2.7.

    Attributes:
        model_identity: written if there is no system message or an empty one. `None` means that of the version in the
            tokenizer's name, or else of M2.5; the versions differ in nothing else.
    """

    name: Literal["minimax-m2"] = "minimax-m2"
    model_identity: str | None = None


_VERSION = re.compile(r"(.*/)?MiniMax-(M2(\.[157])?)(-.*)?", re.DOTALL)
_IDENTITIES = {
    version: f"You are a helpful assistant. Your name is MiniMax-{version} and is built by MiniMax."
    for version in ("M2.1", "M2.5", "M2.7")
} | {"M2": "You are MiniMax-M2, a helpful AI assistant built by MiniMax. Knowledge cutoff: 2025-06."}


_BEGIN, _TURN, _END = "]~!b[", "]~b]", "[e~["
_TOOLS = (
    "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"
    "Here are the tools available in JSONSchema format:\n\n<tools>\n"
)
_CALL_INSTRUCTIONS = (
    "</tools>\n\nWhen making tool calls, use XML format to invoke tools and pass parameters:\n\n"
    '<minimax:tool_call>\n<invoke name="tool-name-1">\n<parameter name="param-key-1">param-value-1</parameter>\n'
    '<parameter name="param-key-2">param-value-2</parameter>\n...\n</invoke>\n</minimax:tool_call>'
)


class MiniMaxM2Renderer(Family):
    """MiniMax M2, M2.1, M2.5 and M2.7.

    The generation prompt opens a think block, but a turn without reasoning has none in history.
    """

    name = "minimax-m2"
    parts = frozenset({"system", "user", "assistant"})
    config_class = MiniMaxM2RendererConfig
    content_trim = NEWLINES_BEFORE
    block_may_be_missing = True  # history writes no block for a turn without reasoning
    end_turn = (_END, "\n")
    stops = (_END,)
    controls = (_BEGIN, _TURN)
    calls = MiniMaxSection()
    before_first_call = "\n"
    calls_section = (f"\n{MINIMAX.opening}\n", MINIMAX.closing)  # the first newline is also written without a content
    between_calls = ""  # the dialect ends each call in a newline, as the template does
    user_turn = (f"{_TURN}user\n", f"{_END}\n")
    tool_turn = ("\n<response>", "</response>")
    results_section = (f"{_TURN}tool", f"{_END}\n")
    assistant_header = f"{_TURN}ai\n"
    thinking_prompt = ("<think>\n", "")

    def found_options(self) -> Mapping[str, Any]:
        if self.config.model_identity is not None:
            return {}
        named = _VERSION.fullmatch(self.encoder.name)
        return {"model_identity": _IDENTITIES[named[2] if named else "M2.5"]}

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write one system block: the caller's message or the model's identity, then the tools."""
        owner = view.system_owner
        out.scaffold(f"{_BEGIN}{_TURN}system\n", owner)
        if view.has_system and view.messages[0]["content"]:  # an empty system message gets the default text
            out.content(view.text(0), 0)
        else:
            out.untrusted_label(self.config.model_identity, owner)
        if view.has_system:
            # `current_date` and `current_location` are keys of the system message that only this template reads.
            for key, label in (("current_date", "Current date"), ("current_location", "Current location")):
                value: object = view.messages[0].get(key)
                if value:
                    out.scaffold(f"\n{label}: ", 0)
                    out.untrusted_label(str(value), 0)
        if view.tools:
            out.labelled(_TOOLS, view.tools.declaration(_declare), _CALL_INSTRUCTIONS, owner)
        out.scaffold(f"{_END}\n", owner)
        return owner + 1

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write the reasoning of turns after the last user, the content, the calls."""
        content, reasoning = view.text(index), view.reasoning(index)
        # As `split_thinking`, but this template has `strip` for newlines where others have `rstrip` or `lstrip`.
        if reasoning is None and "</think>" in content:
            reasoning = content.split("</think>")[0].strip("\n").split("<think>")[-1].strip("\n")
            content = content.split("</think>")[-1].strip("\n")
        out.scaffold(self.assistant_header, index)
        # The template drops reasoning that a user's message follows; a block that would be empty is left out.
        if reasoning and (index > view.last_user or self.preserves_thinking(view, index)):
            out.reasoning_block("<think>\n", reasoning, "\n</think>\n\n", index)
        self.finish_turn(content, view, index, out)


def _declare(tools: Tools) -> str:
    return "".join(f"<tool>{to_json(tool['function'])}</tool>\n" for tool in tools)
