"""The reasoning of a message, under any of the names in use, or as parts of its content: `reasoning_content` here.

::

    {"reasoning": "hm", "reasoning_content": ""}                               ->  reasoning_content "hm"
    {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}          ->  the same
    {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}]}
                                                                 ->  the same, content "4"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.messages import keys
from niels_gpt.messages.notes import Notes, shown, wrong_type
from niels_gpt.messages.types import NO_CONTENT, Message


def reasoning_of(message: Message) -> str | None:
    """The reasoning of a normalised message; `None` if it has none."""
    return None if len(message) == 2 else message.get("reasoning_content")


def read_reasoning(fields: dict[str, Any], where: str, notes: Notes) -> dict[str, Any]:
    """A message with its reasoning as one text, in the place of the first of its names.

    Raises:
        MessageError: it is no text (`wrong_type`), two texts differ (`reasoning_twice`), or it comes after another part
            of the content (`late_thinking`); `unsupported_block`: only its provider can read it.
    """
    # A number says something about the reasoning.
    given = {name: fields[name] for name in keys.REASONING if not isinstance(fields.get(name, 0), int | float)}
    content = fields.get("content")
    parts = content if isinstance(content, list) and fields.get("role") == "assistant" else []
    has_parts = any(map(_is_reasoning, parts))
    is_ours = [*given] == ["reasoning_content"] and isinstance(fields["reasoning_content"], str)
    if not has_parts and (is_ours or not given):
        return fields
    texts = {name: _text(value, where + name, notes) for name, value in given.items()}
    if has_parts:
        thoughts, rest = _divided(parts, where, notes)
        texts["the thinking parts"] = "".join(thoughts)
        is_text = len(rest) == 1 and rest[0].keys() == {"type", "text"} and isinstance(rest[0]["text"], str)
        fields = fields | {"content": rest[0]["text"] if is_text else rest or NO_CONTENT}
    filled = {name: text for name, text in texts.items() if text.strip()}
    # Providers that send two of them join their parts in two ways.
    if len({"".join(text.split()) for text in filled.values()}) > 1:
        both = " and ".join(f"{name} is {shown(text)}" for name, text in filled.items())
        raise MessageError("reasoning_twice", f"{where}{both}; expected one of them. Drop the others")
    reasoning = next(iter(filled.values()), next(iter(texts.values()), ""))
    notes.changes["reasoning_renamed"] += 1
    found: dict[str, Any] = {}
    for key, value in fields.items():
        if key not in given:
            found[key] = value
        elif "reasoning_content" not in found:
            found["reasoning_content"] = reasoning
    return {**found, "reasoning_content": reasoning}


def _divided(content: list[dict[str, Any]], where: str, notes: Notes) -> tuple[list[str], list[dict[str, Any]]]:
    """The texts of the thinking parts, and the other parts."""
    thoughts: list[str] = []
    rest: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        at = f"{where}content.{number}"
        if part.get("type") == "redacted_thinking":
            raise MessageError(
                "unsupported_block", f"{at} is redacted_thinking, which only the provider can read; drop the row"
            )
        if not _is_reasoning(part):
            rest.append(part)
        elif any(earlier.get("text") != "" for earlier in rest):
            raise MessageError(
                "late_thinking",
                f"{at} is a thinking part after another part; expected thinking first, as formats write it. Make "
                "two messages of it, or move the part",
            )
        else:
            name = next((name for name in ("thinking", *keys.REASONING_TEXTS) if name in part), "thinking")
            thoughts.append(_text(part.get(name), f"{at}.{name}", notes))
    return thoughts, rest


def _is_reasoning(part: Mapping[str, Any]) -> bool:
    return part.get("type") in (*keys.REASONING_PARTS, "redacted_thinking")


def _text(value: Any, where: str, notes: Notes) -> str:
    """A text, or the texts of a list of objects with one; what is encrypted is counted as unread.

    Raises:
        MessageError: `wrong_type`.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(where, value, "a text, or a list of text parts")
    texts: list[str] = []
    for part in value:
        fields = part if isinstance(part, Mapping) else {}
        text = next((fields[name] for name in keys.REASONING_TEXTS if isinstance(fields.get(name), str | list)), None)
        if text is not None:
            texts.append(_text(text, where, notes))
        elif isinstance(fields.get("data"), str):  # encrypted, for its provider alone
            notes.unread[f"message.{where.rpartition(' ')[2]}"] += 1
        else:
            raise wrong_type(where, value, "a text, or a list of text parts")
    return "".join(texts)
