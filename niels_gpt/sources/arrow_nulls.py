"""Nulls that Arrow invented, dropped from rows that came through it (parquet, `datasets`, the hub).

A column of structs has one schema, so every row gets the keys of all rows, with null where it has none itself::

    written   {"city": "Oslo"}                {"query": "tea", "limit": 5}
    read      {"city": "Oslo",                {"city": null,
               "query": null,                  "query": "tea",
               "limit": null}                  "limit": 5}

A null and an absent key cannot be told apart any more. So a null among the arguments of a call is dropped unless the
tool's own JSON schema names the parameter and allows null there; that null stays, because the data may mean it. From
declarations of tools nulls are dropped except a `default` or `const` of a schema that allows null. Items of lists stay:
Arrow invents none. JSON text is not touched, so arguments and tools that are stored as text keep what they say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_CHATS: Final = ("messages", "conversations", "prompt", "completion")  # columns that hold messages
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # name -> schema
_DATA: Final = ("default", "const", "examples", "enum")  # values, not schemas
_BRANCHES: Final = ("anyOf", "oneOf", "allOf")
_DEEPEST: Final = 32  # schemas nested deeper are not looked into


def without_arrow_nulls(row: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """A row of conversations without the nulls that Arrow invented in its calls and tools.

    Args:
        row: a row as `datasets` or pyarrow hands it out: `messages` (or `conversations`, `prompt`, `completion`), and
            `tools` beside them. It is not changed.

    Returns:
        The row, and how many nulls were dropped from arguments and declarations of tools.
    """
    door = _Door()
    made = dict(row)
    tools = row.get("tools")
    if isinstance(tools, list):
        made["tools"] = tools = [door.declaration(tool) for tool in tools]
    door.schemas = _parameters(tools)
    for key in _CHATS:
        if isinstance(row.get(key), list):
            made[key] = [door.message(message) for message in row[key]]
    return made, door.dropped


class _Door:
    """Drops nulls and counts them."""

    def __init__(self) -> None:
        self.dropped = 0
        self.schemas: dict[str, Any] = {}

    def declaration(self, held: Any) -> Any:
        """A tool, or a part of its schema, without nulls."""
        if isinstance(held, list):
            return [self.declaration(one) for one in held]
        if not isinstance(held, Mapping):
            return held
        made: dict[str, Any] = {}
        for key, value in held.items():
            if value is None:
                if key in ("default", "const") and _allows_null(_without(held, key), {}):
                    made[key] = None
                else:
                    self.dropped += 1
            elif key in _NAMED and isinstance(value, Mapping):
                made[key] = {name: self.declaration(schema) for name, schema in value.items() if schema is not None}
                self.dropped += len(value) - len(made[key])
            elif key in _DATA:
                made[key] = self.value(value, held, held)
            else:
                made[key] = self.declaration(value)
        return made

    def message(self, held: Any) -> Any:
        """A message, whose own keys may hold null (`normalise` drops those), without the nulls inside its values."""
        if not isinstance(held, Mapping):
            return held
        return {key: value if value is None else self.inside(value) for key, value in held.items()}

    def inside(self, held: Any) -> Any:
        """A part of a message: content parts, calls, and whatever else it keeps."""
        if isinstance(held, list):
            return [self.inside(one) for one in held]
        if not isinstance(held, Mapping):
            return held
        made = {key: self.inside(value) for key, value in held.items() if value is not None and key != "arguments"}
        if held.get("arguments") is None:
            return made
        schema = self.schemas.get(held["name"]) if isinstance(held.get("name"), str) else None
        made["arguments"] = self.value(held["arguments"], schema, schema)
        return {key: made[key] for key in held if key in made}  # in the order of the row

    def value(self, held: Any, schema: Any, root: Any) -> Any:
        """Data that a schema describes; where it names no such key, a null has no place."""
        if isinstance(held, list):
            items = _inner(schema, root, "items")
            return [self.value(one, items.get("") if items else None, root) for one in held]
        if not isinstance(held, Mapping):
            return held
        named, made = _inner(schema, root, "properties"), {}
        for key, value in held.items():
            own = named.get(key, named.get(""))
            if value is None and (own is None or not _allows_null(own, root)):
                self.dropped += 1
            else:
                made[key] = self.value(value, own, root)
        return made


def _parameters(tools: Any) -> dict[str, Any]:
    """The JSON schemas of the arguments of each tool, by name; tools may be JSON text."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):  # reading the row says so
            tools = None
    found = {}
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function.get("parameters")
    return found


def _inner(schema: Any, root: Any, what: str) -> dict[str, Any]:
    """The schemas inside an object's or a list's schema, by key; "" is that of all keys without their own."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting = [schema]
    while waiting:  # what a schema says itself comes before what its branches say
        held = waiting.pop()
        if not isinstance(held, Mapping) or id(held) in seen:
            continue
        seen.add(id(held))
        waiting += [_referred(held, root), *(branch for key in _BRANCHES for branch in _listed(held.get(key)))]
        rest = held.get("additionalProperties" if what == "properties" else "items")
        properties = held.get("properties") if what == "properties" else None
        own = dict(properties) if isinstance(properties, Mapping) else {}
        found = own | ({"": rest} if isinstance(rest, Mapping) else {}) | found
    return found


def _allows_null(schema: Any, root: Any, known: dict[int, bool] | None = None, depth: int = 0) -> bool:
    """A schema takes null; so does one that does not say of which type its values are.

    Args:
        known: what was found of other schemas, by their place in memory; a schema that refers to itself is open.
    """
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return schema is not False
    known = {} if known is None else known
    if id(schema) not in known:
        known[id(schema)] = True
        branches = {key: _listed(schema.get(key)) for key in ("anyOf", "oneOf")}
        needed = [*_listed(schema.get("allOf")), *([_referred(schema, root)] if "$ref" in schema else [])]
        known[id(schema)] = schema.get("nullable") is True or (
            _own_words_allow_null(schema)
            and all(_allows_null(one, root, known, depth + 1) for one in needed)
            and all(
                any(_allows_null(one, root, known, depth + 1) for one in each) for each in branches.values() if each
            )
        )
    return known[id(schema)]


def _own_words_allow_null(schema: Mapping[str, Any]) -> bool:
    kinds, enum = schema.get("type"), schema.get("enum")
    if kinds is not None and "null" not in _listed(kinds):
        return False
    if isinstance(enum, list) and None not in enum:
        return False
    return schema.get("const") is None


def _referred(schema: Mapping[str, Any], root: Any) -> Any:
    """What a `$ref` within the same schema (`#/$defs/name`) means; `None` without one."""
    target = schema.get("$ref")
    if not isinstance(target, str) or not target.startswith("#"):
        return None
    found = root
    for step in target.split("/")[1:]:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _listed(held: Any) -> list[Any]:
    return held if isinstance(held, list) else [] if held is None else [held]


def _without(held: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in held.items() if name != key}
