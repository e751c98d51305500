"""Mistral with the tokenizers Tekken v7, v11 and v13: system blocks, tools before a user's turn, `[THINK]`.

The format is that of Mistral's own library, `mistral-common`, which serves these models; the tests compare ids with it.
"""

from __future__ import annotations

import json
from typing import ClassVar

from niels_gpt.errors import MessageError
from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.dialects.json_calls import MistralList
from niels_gpt.renderers.dialects.named_calls import NamedCalls
from niels_gpt.renderers.families.mistral import check_call_id, write_call_list
from niels_gpt.renderers.family import ConversationView, Emitter, Family, Tools, to_json
from niels_gpt.renderers.refusals import check_alternates, refuse_late_system


class MistralV7Renderer(Family):
    """Mistral with Tekken v7: Mistral Small 3 and 3.1.

    ::

        <s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]hello[/INST]hi</s>

    Tools are declared before the last user turn. A turn may have text and calls. Roles must alternate. The template in
    the models' repositories adds a default system message with the date of the day; nothing is added here.

    Class attributes:
        tools_at_first: tools are declared before the first user's turn, not before the last.
    """

    name = "mistral-v7"
    parts = frozenset({"system", "user", "assistant", "tool"})
    has_reasoning = False
    end_turn = ("</s>", "")
    stops = (end_turn[0],)
    controls: ClassVar[tuple[str, ...]] = (
        *("<s>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]"),
    )
    calls: CallDialect = MistralList()
    tools_at_first: ClassVar[bool] = False
    user_turn = ("[INST]", "[/INST]")

    def begin(self, view: ConversationView, out: Emitter) -> int:
        out.scaffold("<s>")
        return 0

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write the first message; refuse a system message that is not the first."""
        if index or view.is_extension:
            refuse_late_system(index, self.name)
        self.content_turn(("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), view, index, out)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message; the last one, or the first, has the tools before it."""
        check_alternates(view, index, self.name)
        if view.tools:
            # Of U A U the second. Since v13 the first, which is not among the messages of a bridge: they come after it.
            tools_at = view.last_user
            if self.tools_at_first:
                tools_at = -1 if view.is_extension else view.roles.index("user")
            if index == tools_at:
                out.labelled("[AVAILABLE_TOOLS]", view.tools.declaration(_declare), "[/AVAILABLE_TOOLS]", index)
        super().user(view, index, out)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        calls = view.calls(index)
        if not calls:
            check_alternates(view, index, self.name)
        reasoning = self._reasoning(view, index)
        if reasoning:
            out.reasoning_block("[THINK]", reasoning, "[/THINK]", index)
        text = view.text(index)
        # `mistral-common` strips spaces at the end of a content that is a string. With reasoning a content is a list of
        # chunks, whose texts it leaves as they are.
        out.model_text(text if reasoning else text.rstrip(" "), index)
        if calls:
            self._write_calls(view, index, out)
        out.stop(self.end_turn[0], index)

    def _reasoning(self, view: ConversationView, index: int) -> str:
        """The reasoning that is written; "" in formats without a place for it."""
        return ""

    def _write_calls(self, view: ConversationView, index: int, out: Emitter) -> None:
        write_call_list(view.calls(index), self.calls, index, out)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        call_id = view.messages[index].get("tool_call_id", "")
        check_call_id(call_id, f"message {index}: tool_call_id")
        out.labelled("[TOOL_RESULTS]", call_id, "[TOOL_CONTENT]", index)
        out.content(json_again(view.text(index)), index)
        out.scaffold("[/TOOL_RESULTS]", index)


class MistralV11Renderer(MistralV7Renderer):
    """Mistral with Tekken v11: Mistral Small 3.2.

    ::

        [TOOL_CALLS]get_weather[CALL_ID]weather01[ARGS]{"city": "Oslo"}</s>

    As v7, but for the calls.
    """

    name = "mistral-v11"
    controls: ClassVar[tuple[str, ...]] = (*MistralV7Renderer.controls, "[CALL_ID]", "[ARGS]")
    calls = NamedCalls()

    def _write_calls(self, view: ConversationView, index: int, out: Emitter) -> None:
        for call in view.calls(index):
            if self.calls.ids:
                check_call_id(call.id, f"{call.where.removesuffix('.function')}.id")
            self.calls.write(call, out, index)


class MistralV13Renderer(MistralV11Renderer):
    """Mistral with Tekken v13: Magistral since 2507, Devstral since 2507, Ministral 3, Mistral Large 3.

    ::

        <s>[INST]hello[/INST][THINK]A greeting.[/THINK]hi</s>

    Tools are declared before the first user's turn, and ids of calls are not written, so results must be in the order
    of the calls. Reasoning stays in history; a tokenizer without `[THINK]` has no place for it.
    """

    name = "mistral-v13"
    has_reasoning = True
    reasoning_tags = ("[THINK]", "[/THINK]")
    controls = tuple(text for text in MistralV11Renderer.controls if text not in ("[CALL_ID]", "[TOOL_CONTENT]"))
    optional_controls = ("[THINK]", "[/THINK]", "[CALL_ID]", "[TOOL_CONTENT]")
    calls = NamedCalls(ids=False)
    tools_at_first = True

    def _reasoning(self, view: ConversationView, index: int) -> str:
        return (view.reasoning(index) or "") if "[THINK]" in self.encoder.added_ids else ""

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result.

        Raises:
            MessageError: `result_out_of_order`: the results are not in the order of the calls, as far as they have ids.
        """
        first = index
        while first and view.roles[first - 1] == "tool":
            first -= 1
        # Of call, result A, result B: for B, `first` is the place of A, and the message before it has the calls.
        calls = view.calls(first - 1) if first else []
        call_id, number = view.messages[index].get("tool_call_id", ""), index - first
        expected = calls[number].id if number < len(calls) else ""
        if call_id and expected and call_id != expected:
            raise MessageError(
                "result_out_of_order",
                f"message {index}: tool_call_id is {call_id!r}; expected {expected!r}: {self.name} writes no ids, so "
                "the results must be in the order of the calls. Sort them",
            )
        out.turn("[TOOL_RESULTS]", json_again(view.text(index)), "[/TOOL_RESULTS]", index)


def _declare(tools: Tools) -> str:
    """The tools with the three fields that `mistral-common` knows, in its order."""
    functions = (tool["function"] for tool in tools)
    return to_json(
        [
            {
                "type": "function",
                "function": {
                    "name": function["name"],
                    "description": function.get("description") or "",
                    "parameters": function.get("parameters") or {},
                },
            }
            for function in functions
        ]
    )


def json_again(text: str) -> str:
    """A tool's result as `mistral-common` writes it: JSON in one form, and `{}` for nothing."""
    if not text:
        return "{}"
    try:
        again = json.dumps(json.loads(text), ensure_ascii=False)
        again.encode()  # an escape may spell half of a surrogate pair
    except (ValueError, RecursionError):
        return text
    return again
