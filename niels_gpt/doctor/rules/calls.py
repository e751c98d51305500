"""Rules on tool calls: their arguments, and the declarations of their tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.rows import ChatRow, Fault, texts_of

SHOWN: Final = 6  # names in a note
DECLARING: Final = "rows that declare tools"


def _schema_null(chat: ChatRow) -> Iterable[Fault]:
    """The first null of the tool declarations; the others of a row have the same cause."""
    path = next(_schema_nulls(chat.tools, "tools"), None)
    return () if path is None else [(None, f"null at {path}")]


def _not_offered(chat: ChatRow) -> Iterable[Fault]:
    """Calls of tools that the conversation does not declare, as tools of the row or by name in a system message.

    Where no conversation declares any, the data came without declarations, which is a remark; see `finish`.
    """
    names = list(_declared(chat))
    for index, name, _ in _calls(chat):
        if not names:
            # Declarations may be written into a system message, which then names the tool.
            systems = (message for message in chat.messages if message["role"] in ("system", "developer"))
            if not any(name in text for message in systems for text in texts_of(message)):
                yield index, f"calls {name!r}; the row has no tools"
        elif name not in names:
            offered = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            yield index, f"calls {name!r}; offered are {offered}"


def _unknown_arguments(chat: ChatRow) -> Iterable[Fault]:
    """Arguments under names that the tool's parameters do not have, and missing ones."""
    if not chat.tools:
        return
    declared = _declared(chat)
    for index, name, arguments in _calls(chat):
        parameters = declared.get(name)
        fault = _argument_fault(parameters, arguments) if isinstance(parameters, Mapping) else None
        if fault:
            yield index, f"{name}: {fault}"


UNCLEAR: Final = "tool-arguments-null: of Arrow, or of the data"  # candidates; see `finish`


def check(chats: list[ChatRow], counters: Counters) -> None:
    """Judge all calls and declarations."""
    for chat in chats:
        for rule, faults in (
            ("tool-schema-null", _schema_null(chat)),
            ("tool-not-offered", _not_offered(chat)),
            ("tool-arguments-unknown", _unknown_arguments(chat)),
        ):
            counters.add(rule, [chat.evidence(index, note) for index, note in faults])
        counters.sums[DECLARING] += bool(chat.tools)
        declared = _declared(chat)
        for index, name, arguments in _calls(chat):
            parameters = _mapping(_mapping(declared[name]).get("properties")) if name in declared else {}
            rule, note = _fault(arguments, parameters)
            if rule:
                counters.add(rule, [chat.evidence(index, note)])
            elif chat.arrow:  # elsewhere a null is in the data, not Arrow's
                null = next(_nulls(arguments, ""), "")
                if null:
                    counters.add(UNCLEAR, [chat.evidence(index, f"null under {null!r}")])


def _nulls(value: Any, path: str) -> Iterator[str]:
    """Paths of nulls inside objects, as `key.inner`. Nulls that are items of lists do not come from Arrow."""
    for key, inner in _items(value):
        here = f"{path}.{key}" if path else str(key)
        if inner is None and isinstance(value, Mapping):
            yield here
        yield from _nulls(inner, here)


def _schema_nulls(value: Any, path: str) -> Iterator[str]:
    """Paths of meaningless nulls in declarations; a default, a constant and a list of values may well be null."""
    for key, inner in _items(value):
        if key in ("default", "const", "enum", "examples"):
            continue
        if inner is None:
            yield f"{path}.{key}"
        yield from _schema_nulls(inner, f"{path}.{key}")


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of an object, indexes and items of a list; nothing of anything else."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    """The value, or an empty mapping for anything else: declarations are written by hand, and hold nulls and lists."""
    return value if isinstance(value, Mapping) else {}


def _declared(chat: ChatRow) -> dict[str, Any]:
    """The parameters of each tool by its name. Tools may be declared with or without OpenAI's wrapper."""
    tools = [_mapping(_mapping(tool).get("function", tool)) for tool in chat.tools or ()]
    return {tool["name"]: tool.get("parameters") for tool in tools if isinstance(tool.get("name"), str)}


def _calls(chat: ChatRow) -> Iterator[tuple[int, str, Any]]:
    """Message index, name and arguments of each call."""
    for index, message in enumerate(chat.messages):
        for tool_call in message.get("tool_calls") or ():
            yield index, tool_call["function"]["name"], tool_call["function"]["arguments"]


def _argument_fault(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """The first way in which arguments violate a JSON schema of type object, in words; `None` if they fit it."""
    properties, required = parameters.get("properties"), parameters.get("required")
    # Without properties a tool takes anything; JSON schema allows others where it says so.
    if not isinstance(properties, Mapping) or not properties or parameters.get("patternProperties"):
        return None
    # Arguments that are one text are double-encoded, which is another finding.
    if len(arguments) == 1 and set(arguments) <= {"arguments", "input"}:
        return None
    # A null may come from Arrow, which rules of its own judge.
    unknown = [key for key, value in arguments.items() if key not in properties and value is not None]
    if unknown and not parameters.get("additionalProperties"):
        known = ", ".join(map(str, list(properties)[:SHOWN]))
        return f"no parameter {', '.join(map(repr, unknown[:SHOWN]))}; it has {known}"
    missing = [key for key in required if key not in arguments] if isinstance(required, list) else []
    return f"the required {', '.join(map(repr, missing[:SHOWN]))} is missing" if missing else None


def _fault(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, str]:
    """The rule that fires on arguments, and its note; both empty if none does."""
    # A null of a declared parameter may be meant; Arrow adds nulls under names of other calls.
    nulls = [key for key, value in arguments.items() if value is None and key not in parameters]
    whole = [key for key, value in arguments.items() if isinstance(value, str) and _is_object(value)]
    if nulls:
        return "tool-arguments-null", f"null under {', '.join(map(repr, nulls[:4]))}"
    # Some tools wrap all arguments as one text: {"arguments": "{...}"}.
    if len(arguments) == 1 and whole and whole[0] in ("arguments", "input") and whole[0] not in parameters:
        return "tool-arguments-double-encoded", f"arguments are text under {whole[0]!r}"
    return "", ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def finish(counters: Counters) -> None:
    """Missing declarations are a remark where no row has any; so are nulls that the data itself may hold."""
    if "tool-arguments-null" not in counters.hits:
        counters.milder["tool-arguments-null"] = "info"
        counters.move(UNCLEAR, "tool-arguments-null")
    counters.drop(UNCLEAR)
    if not counters.sums[DECLARING]:
        counters.milder["tool-not-offered"] = "info"
