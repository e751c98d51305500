"""Which texts of a conversation a template passes over.

A template may leave out a message of a role that it does not know, the second of two calls, a system message that comes
late. Nothing in its output says so. A text of which no letter is in the output is not written::

    messages     system "Be brief", user "Hi", developer "Be kind"      template   only of system and user
    unwritten    message 2, content, "Be kind"

Reasoning that the same template writes in the last answer is dropped from history by design, and listed apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from niels_gpt.renderers.notes import Notes, Unwritten
from niels_gpt.renderers.template.letters import Leaf
from niels_gpt.renderers.template.reads import Reads
from niels_gpt.renderers.template.stretches import Stretch
from niels_gpt.renderers.template.strings import forms_of, strings_in

_FIELDS = {"call": "tool_calls", "reasoning": "reasoning_content", "content": "content"}


def notes_of(
    route: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Any,
    seen: tuple[Sequence[Stretch], Sequence[Leaf]],
    reads: Reads,
) -> Notes:
    """What is not in a rendering.

    Args:
        route: how it was attributed.
        messages: as `Reads.given` returns them.
        seen: the stretches of texts, and the parts of texts that are not written.
        reads: knows whether the template writes the reasoning of a last answer.
    """
    stretches, missing = seen
    written = {id(stretch.leaf.text) for stretch in stretches}
    found: dict[Unwritten, None] = {}
    dropped: dict[Unwritten, None] = {}
    for leaf in missing:
        if leaf.message < 0 or leaf.forms:  # a number may be written in another form
            continue
        is_answer = messages[leaf.message]["role"] == "assistant"
        # Of an answer the reasoning before </think> may be dropped, or all of it if it is nothing but reasoning.
        is_reasoning = "</think>" in leaf.text and not leaf.text.rpartition("</think>")[2].strip()
        by_format = (leaf.field == "content" and (id(leaf.text) in written or is_reasoning)) or (
            leaf.field == "reasoning" and reads.writes_reasoning
        )
        one = Unwritten(leaf.message, _FIELDS[leaf.field], leaf.text)
        (dropped if is_answer and by_format else found)[one] = None
    # The name of a call is a label. It is looked at where nothing else of the call can be written.
    names = {leaf.text for leaf in missing if leaf.message < 0}
    for index, message in enumerate(messages if names else ()):
        if message["role"] != "tool" and message.get("name") in names:
            found[Unwritten(index, "name", message["name"])] = None
        for call in message.get("tool_calls") or ():
            if call["function"]["name"] in names and not any(strings_in(call["function"].get("arguments"))):
                found[Unwritten(index, "tool_calls", call["function"]["name"])] = None
    # Texts of calls count as labels where a declaration has the same, so that a declaration is judged by its others.
    declared = {stretch.leaf.text for stretch in stretches if stretch.leaf.field == "tools"}
    left_out = {leaf.text for leaf in missing if leaf.field == "tools"}
    for tool in tools or () if left_out else ():
        texts = {*strings_in(tool)}
        if texts & left_out and not texts & declared:
            found[Unwritten(-1, "tools", str(tool.get("function", tool).get("name")))] = None
    return Notes(route, _by_call(found, messages), tuple(dropped))


def not_in(output: str, messages: Sequence[Mapping[str, Any]]) -> list[Leaf]:
    """The texts that stand nowhere in an output, in any form; for one that no letters show."""

    def is_there(text: str) -> bool:
        return not text.strip() or any(form in output for form in forms_of(text.strip()))

    found = list[Leaf]()
    for index, message in enumerate(messages):
        content, reasoning = message.get("content") or "", message.get("reasoning_content") or ""
        for text in [content] if isinstance(content, str) else [part.get("text") or "" for part in content]:
            # Of an answer that begins with reasoning in tags, the reasoning may be dropped.
            found += [Leaf(index, "content", text)] * (not is_there(text.rpartition("</think>")[2]))
        found += [Leaf(index, "reasoning", reasoning)] * (not is_there(reasoning))
        for call in message.get("tool_calls") or ():
            name, texts = call["function"]["name"], [*filter(str.strip, strings_in(call["function"]["arguments"]))]
            if not any(map(is_there, filter(str.strip, [name, *texts]))):
                found += [Leaf(index, "call", text) for text in texts] or [Leaf(-1, "label", name)]
    return found


def _by_call(found: Iterable[Unwritten], messages: Sequence[Mapping[str, Any]]) -> tuple[Unwritten, ...]:
    """The same with the name of a call in the place of its texts, where none of them is written."""
    missing = {*found}
    texts = dict.fromkeys(found)
    for index in {one.message for one in texts if one.field == "tool_calls"}:
        for call in messages[index].get("tool_calls") or ():
            own = [Unwritten(index, "tool_calls", text) for text in strings_in(call["function"].get("arguments"))]
            own = [one for one in own if one.text.strip()]
            if own and all(one in missing for one in own):  # two calls may have equal texts
                texts = {one: None for one in texts if one not in own}
                texts[Unwritten(index, "tool_calls", call["function"]["name"])] = None
    return tuple(texts)
