"""Mistral (v3 tekken): instructions in brackets, tools and system text in the last user's turn."""

from __future__ import annotations

import re
from collections.abc import Sequence

from niels_gpt.errors import MessageError
from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.dialects.json_calls import MistralList
from niels_gpt.renderers.family import Call, ConversationView, Emitter, Family, Tools, to_json
from niels_gpt.renderers.refusals import check_alternates, lose_text_beside_calls, refuse_only_system

_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")


class MistralRenderer(Family):
    """Mistral Nemo.

    ::

        <s>[INST]hello[/INST]hi</s>[INST]Be brief.

        more[/INST]ok</s>

    System text and tools move to each new last user. A turn is a text or a list of calls, whose ids have nine letters
    or digits. Roles must alternate.
    """

    name = "mistral"
    has_reasoning = False
    end_turn = ("</s>", "")
    stops = (end_turn[0],)
    controls = (
        *("<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    )
    calls = MistralList()

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the beginning of the text; `user` writes a system message."""
        out.scaffold("<s>")
        refuse_only_system(view, self.name)
        return view.system_owner + 1

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message; the last one has the tools before it and the system text in it."""
        check_alternates(view, index, self.name)
        # The template writes the tools at the last user's message, and the system text if that is the last of all
        # messages, as in a prompt. In a longer conversation the same user message is written without both: earlier
        # prompts are no prefixes.
        is_last = index == view.last_user
        if is_last and view.tools:
            declared = view.tools.declaration(_declare)
            out.labelled("[AVAILABLE_TOOLS]", declared, "[/AVAILABLE_TOOLS]", index)
        out.scaffold("[INST]", index)
        if is_last and view.has_system:
            out.content(view.text(0), 0)
            out.scaffold("\n\n", index)
        out.content(view.text(index), index)
        out.scaffold("[/INST]", index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        calls = view.calls(index)
        if not calls:
            check_alternates(view, index, self.name)
            out.model_reply(view.text(index), *self.end_turn, index)
            return
        lose_text_beside_calls(view, index, out)
        write_call_list(calls, self.calls, index, out)
        out.stop(self.end_turn[0], index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        call_id = view.messages[index].get("tool_call_id", "")
        check_call_id(call_id, f"message {index}: tool_call_id")
        # The template puts the text of the result into the JSON without quotes.
        out.turn('[TOOL_RESULTS]{"content": ', view.text(index), ', "call_id": "', index)
        out.untrusted_label(call_id, index)
        out.scaffold('"}[/TOOL_RESULTS]', index)


def write_call_list(calls: Sequence[Call], dialect: CallDialect, index: int, out: Emitter) -> None:
    """Write calls as one JSON list, whose brackets and commas the model also writes.

    Raises:
        MessageError: `wrong_call_id`.
    """
    out.model_markup("[TOOL_CALLS]", index)
    before = "["
    for call in calls:
        check_call_id(call.id, f"{call.where.removesuffix('.function')}.id")
        out.model_text(before, index)
        dialect.write(call, out, index)
        before = ", "
    out.model_text("]", index)


def _declare(tools: Tools) -> str:
    """The functions as the template writes them: strings between quotes, everything else as JSON."""
    functions = []
    for tool in tools:
        # The template sets quotes around a text and escapes none within it. It leaves out a key `return`.
        pairs = (
            f'"{key}": "{value}"' if isinstance(value, str) else f'"{key}": {to_json(value)}'
            for key, value in tool["function"].items()
            if key != "return"
        )
        functions.append('{"type": "function", "function": {' + ", ".join(pairs) + "}}")
    return "[" + ", ".join(functions) + "]"


def check_call_id(call_id: str, where: str) -> None:
    """Check a call's id.

    Raises:
        MessageError: `wrong_call_id`.
    """
    if not _CALL_ID.fullmatch(call_id):
        found = repr(call_id) if call_id else "missing"
        raise MessageError(
            "wrong_call_id", f"{where} is {found}; expected nine letters or digits, as Mistral's ids are"
        )
