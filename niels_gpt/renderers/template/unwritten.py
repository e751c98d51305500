"""Which texts of a conversation a template passes over.

A template may leave out a message of a role that it does not know, the second of two calls, a system message that comes
late. Nothing in its output says so. A text of which no letter is in the output is not written::

    messages     system "Be brief", user "Hi", developer "Be kind"      template   only of system and user
    unwritten    message 2, content, "Be kind"

Reasoning that the same template writes in the last answer is dropped from history by design, and listed apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from niels_gpt.renderers.notes import Notes, Unwritten
from niels_gpt.renderers.template.letters import Leaf
from niels_gpt.renderers.template.stretches import Stretch
from niels_gpt.renderers.template.strings import forms_of, strings_in

_FIELDS = {"call": "tool_calls", "reasoning": "reasoning_content", "content": "content"}


def notes_of(
    route: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Any,
    seen: tuple[Sequence[Stretch], Sequence[Leaf]],
    writes_reasoning: Callable[[], bool],
) -> Notes:
    """What is not in a rendering.

    Args:
        route: how it was attributed.
        messages: as `letters.given` returns them.
        seen: the stretches of texts, and the parts of texts that are not written.
        writes_reasoning: whether the template writes the reasoning of a last answer.
    """
    stretches, missing = seen
    if not missing:
        return Notes(route)
    written = {id(stretch.leaf.text) for stretch in stretches}
    found: dict[Unwritten, None] = {}
    dropped: dict[Unwritten, None] = {}
    for leaf in missing:
        if leaf.message < 0 or leaf.forms:  # a number may be written in another form
            continue
        one = Unwritten(leaf.message, _FIELDS[leaf.field], leaf.text)
        is_answer = messages[leaf.message]["role"] == "assistant"
        is_reasoning = "</think>" in leaf.text and not leaf.text.rpartition("</think>")[2].strip()
        if is_answer and leaf.field == "content" and (id(leaf.text) in written or is_reasoning):
            dropped[one] = None  # a part of an answer, such as its reasoning before </think>, or nothing but reasoning
        elif is_answer and leaf.field == "reasoning" and writes_reasoning():
            dropped[one] = None
        else:
            found[one] = None
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


def searched_notes(
    route: str, messages: Sequence[Mapping[str, Any]], output: str, writes_reasoning: Callable[[], bool]
) -> Notes:
    """What is not in a rendering that is proven without letters: texts that stand nowhere in it in any form."""

    def is_there(text: str) -> bool:
        return not text.strip() or any(form in output for form in forms_of(text.strip()))

    found: dict[Unwritten, None] = {}
    dropped: dict[Unwritten, None] = {}
    for index, message in enumerate(messages):
        # Of an answer that begins with reasoning in tags, the reasoning may be dropped.
        texts = [(text, text.rpartition("</think>")[2]) for text in _texts(message.get("content"))]
        found |= {Unwritten(index, "content", text): None for text, last in texts if not is_there(last)}
        if not is_there(reasoning := message.get("reasoning_content") or ""):
            one = Unwritten(index, "reasoning_content", reasoning)
            (dropped if writes_reasoning() else found)[one] = None
        for call in message.get("tool_calls") or ():
            name = call["function"]["name"]
            if not any(text.strip() and is_there(text) for text in (name, *strings_in(call["function"]["arguments"]))):
                found[Unwritten(index, "tool_calls", name)] = None
    return Notes(route, tuple(found), tuple(dropped))


def _texts(content: Any) -> list[str]:
    if isinstance(content, list | tuple):
        return [part["text"] for part in content if isinstance(part.get("text"), str)]
    return [content] if isinstance(content, str) else []


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
