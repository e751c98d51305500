"""What ids do not hold of a conversation: changes of it that leave its rendering as it is.

A format is one-to-one only as far as different conversations have different ids. So the conversation is changed in each
respect that formats are known to drop, and rendered once more: where the ids stay the same, the change is lost.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.explorer.inversion import Chat, Reading, Renderer


def lost(renderer: Renderer, reading: Reading) -> list[str]:
    """What these ids do not hold: changes of the conversation that leave the rendering as it is, in sentences."""
    return [
        said
        for said, messages, tools in _changes(reading)
        if _ids(renderer, messages, tools, reading.prompt) == reading.ids
    ]


def _ids(renderer: Renderer, messages: Chat, tools: Any, prompt: bool) -> list[int] | None:
    try:
        return renderer.render(messages, tools=tools, add_generation_prompt=prompt).token_ids  # type: ignore[arg-type]
    except (MessageError, UsageError):  # a change that this format refuses is not lost
        return None


def _changes(reading: Reading) -> Iterator[tuple[str, Chat, Any]]:
    """Conversations that differ from the one that was read in one respect, each with what is lost then."""
    given, tools = reading.messages, reading.tools

    def each(role: str, change: Callable[[dict[str, Any]], dict[str, Any]], where: Callable[[int], bool]) -> Chat:
        return [
            {**message, **change(message)} if message["role"] == role and where(at) else message
            for at, message in enumerate(given)
        ]

    roles = list(dict.fromkeys(message["role"] for message in given))
    for role in roles:
        yield (
            f"White space before and after the content of {role} messages: the format strips it.",
            each(role, lambda message: {"content": f"\n {message['content']} \n"}, lambda at: True),
            tools,
        )
    last_user = max((at for at, message in enumerate(given) if message["role"] == "user"), default=-1)

    def silent(at: int) -> bool:
        return not given[at].get("reasoning_content")

    places: dict[str, Callable[[int], bool]] = {
        "before the last user message": lambda at: at < last_user and silent(at),
        "after the last user message": lambda at: at > last_user and silent(at),
    }
    for name, where in places.items():
        if any(message["role"] == "assistant" and where(at) for at, message in enumerate(given)):
            yield (
                f"Reasoning {name}: the format drops it, so whether there was any is unknown.",
                each("assistant", lambda message: {"reasoning_content": "zqc"}, where),
                tools,
            )
    if any(message.get("tool_calls") for message in given):
        yield from _changes_of_calls(given, tools)
    yield from _changes_of_tools(given, tools)
    if given[0]["role"] == "user" and "\n\n" in given[0]["content"]:
        head, _, rest = given[0]["content"].partition("\n\n")
        merged = [{"role": "system", "content": head}, {**given[0], "content": rest}, *given[1:]]
        yield "Where the system message ends and the first user message begins: the format joins them.", merged, tools
    if "user" in roles:
        named = each("user", lambda message: {"name": "zq"}, lambda at: True)
        yield "Names of users: the format does not write them.", named, tools
    if "assistant" in roles:
        yield (
            "Loss weights and train flags of messages: they choose the mask, and are in no ids.",
            each("assistant", lambda _: {"weight": 0.5}, lambda at: True),
            tools,
        )


def _changes_of_calls(given: Chat, tools: Any) -> Iterator[tuple[str, Chat, Any]]:
    def renamed(change: Callable[[dict[str, Any]], Any]) -> Chat:
        changed = copy.deepcopy(given)
        for message in changed:
            for call in message.get("tool_calls", []):
                change(call)
        return changed

    other = renamed(lambda call: call.update(id=f"zq{call['id']}"))
    for message in other:
        if "tool_call_id" in message:
            message["tool_call_id"] = f"zq{message['tool_call_id']}"
    yield "The ids of tool calls: the format does not write them; those shown are made up.", other, tools

    def reverse(call: dict[str, Any]) -> None:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, dict):
            call["function"]["arguments"] = dict(reversed(arguments.items()))

    if any(len(call["function"]["arguments"]) > 1 for message in given for call in message.get("tool_calls", [])):
        yield "The order of a call's arguments: the format sorts them.", renamed(reverse), tools

    def as_text(call: dict[str, Any]) -> None:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)

    yield "Whether arguments were an object or JSON text: both are written alike.", renamed(as_text), tools
    if any(message.get("name") for message in given if message["role"] == "tool"):
        nameless = [{**message, "name": "zq"} if message["role"] == "tool" else message for message in given]
        yield "The tool's name on its results: the format does not write it there.", nameless, tools


def _changes_of_tools(given: Chat, tools: Any) -> Iterator[tuple[str, Chat, Any]]:
    if not tools:
        function = {"name": "zqname", "description": "zq", "parameters": {"type": "object", "properties": {}}}
        unseen = [{"type": "function", "function": function}]
        yield "Declared tools: the format does not write them, or not here.", given, unseen
        return

    def reversed_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reversed_keys(held) for key, held in reversed(value.items())}
        return [reversed_keys(held) for held in value] if isinstance(value, list) else value

    if len(tools) > 1:
        yield "The order of the tools: the format sorts them.", given, tools[::-1]
    reordered = [reversed_keys(tool) for tool in tools]
    yield "The order of keys in tool schemas: the format writes its own.", given, reordered
    extra = [{**tool, "function": {**tool["function"], "zq": True}} if "function" in tool else tool for tool in tools]
    yield "Unknown fields of tool declarations: the format leaves them out.", given, extra
