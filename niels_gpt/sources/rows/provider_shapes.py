"""Rows as the interfaces of model providers write them, converted to messages: Anthropic, Gemini and Harmony.

====================  ==============================================================================================
anthropic             `messages` whose contents are blocks: text, thinking, tool_use, tool_result; `system` beside them
gemini                `contents` of `parts`: text, functionCall, functionResponse; `systemInstruction` beside them
harmony               `messages` with `channel` (analysis, commentary, final) and `recipient`
====================  ==============================================================================================

What our messages have no place for (redacted thinking, text after a call) is an error that names it. Two things are
not taken over, because they say nothing of the conversation: signatures of reasoning, which only the provider can
check, and marks for its cache. `is_error` of a tool result stays as a key of its message, for templates that read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from niels_gpt.errors import MessageError, shown
from niels_gpt.media import refuse_media

Row = Mapping[str, Any]
Turn = dict[str, Any]

# Blocks that only Anthropic's interface has: by one of these a row of `messages` is recognised.
ANTHROPIC_BLOCKS: Final = frozenset({"tool_use", "tool_result", "redacted_thinking"})


def looks_like(messages: Any, row: Row) -> str | None:
    """The provider interface that wrote a row of `messages`; `None` if it is none of these or cannot be seen."""
    if not isinstance(messages, list):
        return None
    turns = [turn for turn in messages if isinstance(turn, Mapping)]
    if any("channel" in turn or "recipient" in turn for turn in turns):
        return "harmony"
    blocks = [block for turn in turns if isinstance(turn.get("content"), list) for block in turn["content"]]
    if any(isinstance(block, Mapping) and block.get("type") in ANTHROPIC_BLOCKS for block in blocks):
        return "anthropic"
    tools = row.get("tools")
    if isinstance(tools, list) and any(isinstance(tool, Mapping) and "input_schema" in tool for tool in tools):
        return "anthropic"
    return None


# ---- Anthropic


def anthropic(row: Row) -> list[Any]:
    """The messages of a row as Anthropic's interface writes it."""
    turns: list[Any] = []
    if row.get("system"):
        turns.append({"role": "system", "content": _text_of(row["system"], "system")})
    for index, turn in enumerate(list_at(row, "messages")):
        # A content that is one text is written as in OpenAI's format; what is no message is refused by `normalise`.
        if not isinstance(turn, Mapping) or not isinstance(turn.get("content"), list):
            turns.append(turn)
        else:
            turns += _anthropic_turn(turn, index)
    return turns


def _anthropic_turn(turn: Row, index: int) -> list[Turn]:
    """A message; results of tools are messages of their own before it."""
    is_answer = turn.get("role") == "assistant"
    results: list[Turn] = []
    parts: list[Any] = []
    calls: list[Any] = []
    for number, block in enumerate(turn["content"]):
        kind, where = _kind(block, index, number)
        if is_answer and kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"type": "function", "id": block.get("id"), "function": function})
        elif calls:
            # A message has its calls after its content, so this order would be lost.
            raise MessageError(
                "text_after_call", f"{where} is {kind} after a tool_use; expected calls last. Split the message"
            )
        elif is_answer or kind != "tool_result":
            parts.append({key: value for key, value in block.items() if key != "cache_control"})
        elif parts:  # results become messages before the user's, so this order would also be lost
            raise MessageError(
                "result_after_text", f"{where} is a tool_result after other blocks; expected results first"
            )
        else:
            content = _text_of(block.get("content") or "", where)
            result = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
            results.append(result | ({"is_error": True} if block.get("is_error") else {}))
    if not parts and not is_answer:
        return results
    texts = [part["text"] for part in parts if part.get("type") == "text"]
    # A single text becomes a string, as in most rows: some formats and templates take no lists of parts.
    # `None` where only calls are left: some templates treat a missing content differently from an empty one.
    held = texts[0] if len(parts) == len(texts) == 1 else parts or None
    message = {key: value for key, value in turn.items() if key != "content"} | {"content": held}
    return [*results, message | ({"tool_calls": calls} if calls else {})]


def _kind(block: Any, index: int, number: int) -> tuple[str, str]:
    where = f"message {index}: content.{number}"
    if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
        raise MessageError("wrong_type", f"{where} is {shown(block)}; expected an object with a type")
    if block["type"] == "text" and not isinstance(block.get("text"), str):
        raise MessageError("wrong_type", f"{where}.text is {shown(block.get('text'))}; expected a text")
    return block["type"], where


def _text_of(value: Any, where: str) -> str:
    """A text, or the texts of a list of text blocks."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)
        for block in value
    ):
        return "".join(block["text"] for block in value)
    raise MessageError("wrong_type", f"{where} is {shown(value)}; expected a text or text blocks")


# ---- Gemini


def gemini(row: Row) -> list[Any]:
    """The messages of a row as Gemini's interface writes it."""
    turns: list[Any] = []
    system = row.get("systemInstruction") or row.get("system_instruction")
    if system:
        parts = system.get("parts") if isinstance(system, Mapping) else None
        content = _gemini_texts(parts, "system") if isinstance(parts, list) else system
        turns.append({"role": "system", "content": content})
    calls = 0  # over all messages, because their numbers become ids, which must differ within a conversation
    for index, turn in enumerate(list_at(row, "contents")):
        if not isinstance(turn, Mapping) or not isinstance(turn.get("parts"), list):
            raise MessageError("missing_field", f"message {index}: expected an object with 'role' and 'parts'")
        role = turn.get("role")
        if role in ("model", "assistant"):
            turns.append(_gemini_answer(turn["parts"], index, calls))
            calls += len(turns[-1].get("tool_calls", ()))
        elif role in ("user", "function", None):
            turns += _gemini_question(turn["parts"], index, turns)
        else:
            raise MessageError("unknown_role", f"message {index}: role is {role!r}; expected user, model or function")
    return turns


def _gemini_answer(parts: list[Any], index: int, calls: int) -> Turn:
    """An assistant message. `calls`: how many calls there are before it; by their numbers they get ids."""
    texts: dict[bool, list[str]] = {False: [], True: []}  # by whether they are thoughts
    tool_calls: list[Any] = []
    for number, part in enumerate(parts):
        where = f"message {index}: parts.{number}"
        call = _part(part, "functionCall", "function_call")
        if call is not None:
            function = {"name": call.get("name"), "arguments": call.get("args") or {}}
            # Gemini's calls often have no id: then they get one of their number, and their results name it.
            call_id = call.get("id") or f"call_{calls + len(tool_calls) + 1}"
            tool_calls.append({"type": "function", "id": call_id, "function": function})
            continue
        text = _gemini_texts([part], where)
        if tool_calls:
            raise MessageError("text_after_call", f"{where} is text after a functionCall; expected calls last")
        texts[bool(part.get("thought"))].append(text)
    answer: Turn = {"role": "assistant", "content": "".join(texts[False]) if texts[False] or not tool_calls else None}
    if texts[True]:
        answer["reasoning_content"] = "".join(texts[True])
    return answer | ({"tool_calls": tool_calls} if tool_calls else {})


def _gemini_question(parts: list[Any], index: int, before: list[Any]) -> list[Turn]:
    """Results of functions, each for the call of its id or name in the message before, and what the user says."""
    # Those of the last message alone: Gemini takes results only right after their calls.
    open_calls = list(before[-1].get("tool_calls", [])) if before else []
    results: list[Turn] = []
    texts: list[str] = []
    for number, part in enumerate(parts):
        where = f"message {index}: parts.{number}"
        response = _part(part, "functionResponse", "function_response")
        if response is None:
            texts.append(_gemini_texts([part], where))
            continue
        call = _call_of(response, open_calls, where)
        value = response.get("response")
        # Gemini's results are objects; a tool message has a text.
        content = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        results.append({"role": "tool", "name": response.get("name"), "tool_call_id": call["id"], "content": content})
    return [*results, {"role": "user", "content": "".join(texts)}] if texts else results


def _call_of(response: Row, calls: list[Any], where: str) -> Any:
    """The call that a result is for, taken from the list, so that calls of one name get their results in order."""
    name, call_id = response.get("name"), response.get("id")
    for number, call in enumerate(calls):
        if call["id"] == call_id if call_id is not None else call["function"]["name"] == name:
            return calls.pop(number)
    found = ", ".join(f"{call['function']['name']} ({call['id']})" for call in calls) or "none"
    raise MessageError(
        "result_without_call",
        f"{where} is a result of {name!r}{'' if call_id is None else f' with id {call_id!r}'}, and the calls before it "
        f"that have no result yet are: {found}",
    )


def _part(part: Any, *names: str) -> Row | None:
    found = next((part[name] for name in names if isinstance(part, Mapping) and name in part), None)
    return found if isinstance(found, Mapping) else None


def _gemini_texts(parts: list[Any], where: str) -> str:
    for part in parts:
        refuse_media(part, where)
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            found = ", ".join(map(repr, part)) if isinstance(part, Mapping) else shown(part)
            raise MessageError(
                "unsupported_part", f"{where} has {found}; expected text, functionCall or functionResponse"
            )
    return "".join(part["text"] for part in parts)


# ---- Harmony


def harmony(row: Row) -> list[Any]:
    """The messages of a row as the format of gpt-oss writes them, with channels and recipients."""
    turns: list[Any] = []
    thought: str | None = None
    given = list_at(row, "messages")
    for index, turn in enumerate([*given, None]):
        is_answer = isinstance(turn, Mapping) and turn.get("role") == "assistant"
        if thought is not None and not is_answer:
            raise MessageError(
                "reasoning_alone",
                f"message {index - 1}: an analysis that no answer or call follows; drop it, or drop the row",
            )
        if not isinstance(turn, Mapping):
            turns.append(turn)  # no message, which `normalise` refuses; the last is taken away again
            continue
        channel, recipient, content = turn.get("channel"), turn.get("recipient"), turn.get("content")
        # A thought is a message of its own before the answer or call that it belongs to; it becomes its reasoning.
        if is_answer and channel == "analysis" and recipient in (None, "all"):
            thought = (thought or "") + _text_of(content, f"message {index}: content")
            continue
        message = {key: value for key, value in turn.items() if key not in ("channel", "recipient")}
        if not is_answer:
            if isinstance(message.get("name"), str):
                message["name"] = message["name"].removeprefix("functions.")
            turns.append(message)
            continue
        message.pop("content_type", None)
        if thought is not None:
            message["reasoning_content"], thought = thought, None
        # A message to a function is a call: its content holds the arguments.
        if recipient not in (None, "all"):
            function = {"name": str(recipient).removeprefix("functions."), "arguments": content}
            message |= {"content": None, "tool_calls": [{"type": "function", "function": function}]}
        elif channel not in ("final", "commentary", None):
            known = "analysis, commentary, final"
            raise MessageError("unknown_channel", f"message {index}: channel is {channel!r}; expected one of {known}")
        turns.append(message)
    return turns[:-1]


# ---- helpers


def list_at(row: Row, key: str) -> list[Any]:
    """The list in a column.

    Raises:
        MessageError: it holds something else (`messages_not_a_list`).
    """
    value = row[key]
    if not isinstance(value, list):
        raise MessageError("messages_not_a_list", f"{key} is a {type(value).__name__}; expected a list of objects")
    return value
