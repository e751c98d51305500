"""Rules on tool calls: the forms in which arguments come, and what a template makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from niels_gpt.doctor.chats import ChatRow
from niels_gpt.doctor.probes import TOOLS, assistant, call, result, user
from niels_gpt.doctor.report import Evidence
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Tally
from niels_gpt.errors import MessageError

RULES: Final = (
    Rule(
        "tool-arguments-double-encoded",
        "error",
        "tool arguments are JSON inside JSON text",
        "The model learns to write a quoted string where a parser expects an object. Ordinary chats are not touched.",
        "json.dumps was called on arguments that were text already.",
        "Decode them once more before training.",
        ("oumi-ai/oumi#2599", "vortico/flama#258"),
        ("chats",),
    ),
    Rule(
        "tool-arguments-not-json",
        "error",
        "tool arguments are text that is no JSON object",
        "Templates either refuse the row or write the broken call for the model to learn.",
        "Calls collected from a model without checking them.",
        "Repair or drop them.",
        applies=("chats",),
    ),
    Rule(
        "tool-arguments-mixed",
        "warning",
        "some tool arguments are text and some are objects",
        "Many templates write the two differently, so the model sees two formats.",
        "Sources in different dialects, put together.",
        "Bring all to objects (or all to text) before training.",
        ("oumi-ai/oumi#2603", "xorbitsai/inference#4921"),
        ("chats",),
    ),
    Rule(
        "tool-arguments-null",
        "warning",
        "tool arguments hold nulls for parameters that their tool does not have",
        "Arrow gives every row the keys of all rows; the model learns to write every other tool's parameters.",
        "A column of structs in parquet or datasets.",
        "Store arguments as JSON text, or drop keys that hold null.",
        ("oumi-ai/oumi#2599", "NovaSky-AI/SkyRL#1675"),
        ("chats",),
    ),
    Rule(
        "tool-arguments-null-unclear",
        "info",
        "tool arguments hold nulls that the data may mean or Arrow may have invented",
        "In rows from parquet or datasets a null and an absent key look alike. Where the tool's schema allows null the "
        "null is kept, and the model learns to write it.",
        "A column of structs in parquet or datasets, and tools with parameters that may be null.",
        "Store arguments as JSON text, which says which keys are there.",
        ("oumi-ai/oumi#2599",),
        ("chats",),
    ),
    Rule(
        "tool-schema-null",
        "warning",
        "declarations of tools hold nulls",
        "The prompt shows every tool the keys of all others with null, as serving never does.",
        "Declarations that came through Arrow (parquet, datasets) and were written to JSON afterwards.",
        "Drop keys that hold null, or store the tools as JSON text.",
        ("oumi-ai/oumi#2599",),
        ("chats",),
    ),
    Rule(
        "tool-arguments-misrendered",
        "error",
        "the template writes this form of tool arguments wrongly",
        "The call in training is not the call that serving parses; only tool use suffers.",
        "The template expects objects and gets text, or the other way round.",
        "Give the arguments in the other form, or use a renderer of the family (both are the same to it).",
        ("xorbitsai/inference#4921", "oumi-ai/oumi#2603"),
        ("chats",),
        needs=("renderer",),
    ),
)


def check(chats: list[ChatRow], tally: Tally, bad_forms: Mapping[str, str]) -> None:
    """Judge the arguments of all calls.

    Args:
        bad_forms: of `forms`, those that the template writes wrongly, and how.
    """
    for chat in chats:
        for path in _schema_nulls(chat.tools, "tools"):
            tally.add("tool-schema-null", [Evidence(row=chat.number, where=chat.where, note=f"null at {path}")])
            break  # one a row: the others are of the same kind
        for index, form, arguments, tools in _arguments(chat):
            tally.sums[f"arguments as {form}"] += 1
            here = Evidence(row=chat.number, where=chat.where, note="", message=index)
            tally.add("tool-arguments-mixed", [replace(here, note="arguments as text")] * (form == "text"))
            if form in bad_forms:
                tally.add("tool-arguments-misrendered", [replace(here, note=bad_forms[form])])
            if isinstance(arguments, str):
                rule, note = _text_fault(arguments)
            else:
                rule, note = _null_fault(arguments, tools)
            if rule:
                tally.add(rule, [replace(here, note=note)])
            elif chat.arrow and isinstance(arguments, Mapping):  # others were dropped when the row was read
                kept = next(_nulls(arguments, ""), "")
                tally.add("tool-arguments-null-unclear", [replace(here, note=f"null under {kept!r}")] * bool(kept))


def _nulls(held: Any, path: str) -> Iterator[str]:
    """Where nulls are inside objects, as `key.inner`; items of lists are never Arrow's."""
    inner = held.items() if isinstance(held, Mapping) else enumerate(held) if isinstance(held, list) else ()
    for key, value in inner:
        here = f"{path}.{key}" if path else str(key)
        if value is None and isinstance(held, Mapping):
            yield here
        yield from _nulls(value, here)


def _schema_nulls(held: Any, path: str) -> Iterator[str]:
    """Where a declaration holds null and says nothing by it: a default, a constant and a list of values may be null."""
    inner = held.items() if isinstance(held, Mapping) else enumerate(held) if isinstance(held, list) else ()
    for key, value in inner:
        if key in ("default", "const", "enum", "examples"):
            continue
        if value is None:
            yield f"{path}.{key}"
        yield from _schema_nulls(value, f"{path}.{key}")


def _arguments(chat: ChatRow) -> Iterator[tuple[int, str, Any, Mapping[str, Any] | None]]:
    """Message, form, arguments and parameters (if the tool is declared) of each call."""
    for index, message in enumerate(chat.messages):
        for made in message.get("tool_calls") or ():
            function = made["function"]
            declared = [tool.get("function", tool) for tool in chat.tools or ()]
            own = next((tool for tool in declared if tool.get("name") == function["name"]), None)
            parameters = own.get("parameters", {}).get("properties", {}) if own is not None else None
            arguments = function["arguments"]
            yield index, "text" if isinstance(arguments, str) else "object", arguments, parameters


def _text_fault(text: str) -> tuple[str, str]:
    try:
        held = json.loads(text)
    except (ValueError, RecursionError) as error:
        return "tool-arguments-not-json", f"{text[:60]!r}: {error}"
    if isinstance(held, str):
        return "tool-arguments-double-encoded", f"arguments are {text[:60]!r}"
    if not isinstance(held, dict):
        return "tool-arguments-not-json", f"{text[:60]!r} is a JSON {type(held).__name__}; expected an object"
    return "", ""


def _null_fault(arguments: Mapping[str, Any], parameters: Mapping[str, Any] | None) -> tuple[str, str]:
    nulls = [key for key, value in arguments.items() if value is None and key not in (parameters or {})]
    whole = [key for key, value in arguments.items() if isinstance(value, str) and _is_object(value)]
    if nulls:
        return "tool-arguments-null", f"null under {', '.join(map(repr, nulls[:4]))}"
    if len(arguments) == 1 and whole and whole[0] in ("arguments", "input") and whole[0] not in (parameters or {}):
        return "tool-arguments-double-encoded", f"arguments are text under {whole[0]!r}"
    return "", ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def finish(tally: Tally) -> None:
    """Two forms are a finding only if both are there."""
    if not tally.sums["arguments as object"]:
        tally.drop("tool-arguments-mixed")


def bad_forms(renderer: Any) -> dict[str, str]:
    """Which forms of arguments a renderer writes wrongly, "text" or "object", and how; learned from a probe."""
    shown: dict[str, str] = {}
    failed: dict[str, str] = {}
    for form, arguments in (("object", {"city": "Oslo"}), ("text", '{"city": "Oslo"}')):
        messages = [user("Rain?"), call(arguments), result("4 degrees"), assistant("Cold.")]
        try:
            shown[form] = renderer.text(messages, tools=TOOLS)
        except MessageError as error:
            failed[form] = f"the template fails on arguments as {form}: {error}"
    if len(shown) < 2:
        return failed if shown else {}
    if shown["text"] == shown["object"]:
        return {}
    return {form: _excerpt(form, text) for form, text in shown.items() if _looks_wrong(form, shown)}


def _looks_wrong(form: str, shown: Mapping[str, str]) -> bool:
    """Escaped quotes are JSON in JSON; single quotes are Python's; where neither is seen, objects are right."""
    odd = {name: '\\"city' in text or "'city'" in text for name, text in shown.items()}
    return odd[form] if any(odd.values()) else form == "text"


def _excerpt(form: str, text: str) -> str:
    at = max(0, text.find("city", text.find("Rain?")) - 20)
    return f"arguments as {form} are written as {text[at : at + 50]!r}"
