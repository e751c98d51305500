"""Drops the nulls that Arrow adds to rows that are read through it (parquet, `datasets`, the hub).

A column of structs has one schema, so every row gets the keys of all rows, with null where it has none itself::

    written   {"city": "Oslo"}                {"query": "tea", "limit": 5}
    read      {"city": "Oslo",                {"city": null,
               "query": null,                  "query": "tea",
               "limit": null}                  "limit": 5}

An added null cannot be distinguished from one that was written. The rule is:

* among the arguments of a call, a null is dropped unless the `properties` of the tool's own JSON schema name the
  parameter, and its schema says that it may be null;
* in declarations of tools, nulls are dropped, except a `default` or `const` of a schema that may be null;
* items of lists stay, because Arrow adds none there; JSON text is not changed, so nulls in arguments or tools that are
  stored as text also stay.

Calls and tools may have the shape of any interface that `rows` reads, such as Anthropic's or Gemini's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.messages import Notes, read_tools

_CHATS: Final = ("messages", "conversations", "prompt", "completion", "chosen", "rejected", "contents")
_ARGUMENTS: Final = ("arguments", "input", "args", "response")  # of a call (or its result), beside its name


def without_arrow_nulls(row: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """A row of conversations without the nulls that Arrow added to its calls and tools.

    Args:
        row: a row as `datasets` or pyarrow returns it: `messages` (or `conversations`, `prompt`, `completion`), and
            `tools` beside them. It is not changed.

    Returns:
        The row, and how many nulls were dropped from arguments and declarations of tools.
    """
    nulls = _NullFilter()
    result = dict(row)
    if isinstance(row.get("tools"), list):
        result["tools"] = nulls.declaration(row["tools"])
    try:
        read: list[Any] = read_tools(result.get("tools"), Notes()) or []
    except MessageError:  # reported when the row is read
        read = []
    nulls.schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in read}
    for key in _CHATS:
        if isinstance(row.get(key), list):
            result[key] = [nulls.message(message) for message in row[key]]
    return result, nulls.dropped


class _NullFilter:
    """Drops nulls and counts them; `schemas` are the parameter schemas of the row's tools, by name."""

    def __init__(self) -> None:
        self.dropped = 0
        self.schemas: dict[str, Any] = {}

    def declaration(self, node: Any) -> Any:
        """Declarations of tools, or a part of a schema."""
        if isinstance(node, list):
            return [self.declaration(one) for one in node]
        if not isinstance(node, Mapping):
            return node
        # Arrow adds `default` to all properties where one has it.
        kept = ("default", "const") if _may_be_null(node) else ()
        found = {key: value for key, value in node.items() if value is not None or key in kept}
        self.dropped += len(node) - len(found)
        return {key: self.declaration(value) for key, value in found.items()}

    def message(self, node: Any) -> Any:
        """A message, whose own keys may hold null (`normalise` drops those), without the nulls inside its values."""
        if not isinstance(node, Mapping):
            return node
        return {key: value if value is None else self._inside(value) for key, value in node.items()}

    def _inside(self, node: Any) -> Any:
        """A part of a message: content parts, calls and anything else."""
        if isinstance(node, list):
            return [self._inside(one) for one in node]
        if not isinstance(node, Mapping):
            return node
        # A call, its function, or a result: what has a name may be described by the tool of this name.
        name = node.get("name")
        schema = self.schemas.get(name) if isinstance(name, str) else None
        result: dict[str, Any] = {}
        for key, value in node.items():
            # `input`, `args` and `response` are data beside a name only; elsewhere they may be any field.
            if value is not None and key in _ARGUMENTS and (key == "arguments" or "name" in node):
                # A tool's schema describes its arguments, not what it returns.
                result[key] = self._data(value, schema if key != "response" else None)
            elif value is not None:
                result[key] = self._inside(value)
            elif key == "arguments" and isinstance(name, str):  # a call without arguments; without the key it is none
                result[key] = None
        return result

    def _data(self, node: Any, schema: Any) -> Any:
        """Data described by a schema; a null under a key that the schema does not name is dropped."""
        schema = schema if isinstance(schema, Mapping) else {}
        if isinstance(node, list):
            return [self._data(one, schema.get("items")) for one in node]
        if not isinstance(node, Mapping):
            return node
        named = schema.get("properties")
        named = named if isinstance(named, Mapping) else {}
        found = {key: value for key, value in node.items() if value is not None or _may_be_null(named.get(key))}
        self.dropped += len(node) - len(found)
        return {key: self._data(value, named.get(key)) for key, value in found.items()}


def _may_be_null(schema: Any) -> bool:
    """Whether a schema says that null is a value: by its type, as one of its values, or in a branch."""
    if not isinstance(schema, Mapping):
        return False
    # "nullable" is OpenAPI's and Gemini's way to write it, beside a type that does not name null.
    if schema.get("nullable") is True or "null" in _listed(schema.get("type")) or None in _listed(schema.get("enum")):
        return True
    return any(_may_be_null(branch) for key in ("anyOf", "oneOf") for branch in _listed(schema.get(key)))


def _listed(node: Any) -> list[Any]:
    return node if isinstance(node, list) else [] if node is None else [node]
