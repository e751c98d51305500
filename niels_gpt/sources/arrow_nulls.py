"""Drops the nulls that Arrow adds to rows that are read through it (parquet, `datasets`, the hub).

A column of structs has one schema, so every row gets the keys of all rows, with null where it has none itself::

    written   {"city": "Oslo"}                {"query": "tea", "limit": 5}
    read      {"city": "Oslo",                {"city": null,
               "query": null,                  "query": "tea",
               "limit": null}                  "limit": 5}

An added null cannot be distinguished from one that was written. The rule is:

* among the arguments of a call, a null is dropped unless the tool's own JSON schema names the parameter and allows
  null;
* in declarations of tools, nulls are dropped, except a `default` or `const` of a schema that allows null;
* items of lists stay, because Arrow adds none there; JSON text is not changed, so nulls in arguments or tools that are
  stored as text stay, too.

Calls and tools may have the shape of any interface that `chat_shapes` reads, such as Anthropic's or Gemini's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.messages import Notes, read_tools

_CHATS: Final = (
    "messages",
    "conversations",
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "contents",
)  # columns that hold messages
_ARGUMENTS: Final = ("arguments", "input", "args", "response")  # of a call (or its result), beside its name
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # name -> schema
_DATA: Final = ("default", "const", "examples", "enum")  # values, not schemas
_BRANCHES: Final = ("anyOf", "oneOf", "allOf")
_DEEPEST: Final = 32  # the deepest level of nested schemas that is examined


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
    tools = row.get("tools")
    if isinstance(tools, list):
        result["tools"] = tools = [nulls.declaration(tool) for tool in tools]
    nulls.schemas = _parameters(tools)
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
        """A tool declaration, or a part of its schema, without nulls."""
        if isinstance(node, list):
            return [self.declaration(one) for one in node]
        if not isinstance(node, Mapping):
            return node
        result: dict[str, Any] = {}
        for key, value in node.items():
            if value is None:
                # Arrow adds `default` to all properties where one has it. A null counts as written if the rest of the
                # schema allows null.
                if key in ("default", "const") and _allows_null({one: node[one] for one in node if one != key}, {}):
                    result[key] = None
                else:
                    self.dropped += 1
            elif key in _NAMED and isinstance(value, Mapping):
                result[key] = {name: self.declaration(schema) for name, schema in value.items() if schema is not None}
                self.dropped += len(value) - len(result[key])
            elif key in _DATA:
                result[key] = self.value(value, node, node)
            else:
                result[key] = self.declaration(value)
        return result

    def message(self, node: Any) -> Any:
        """A message, whose own keys may hold null (`normalise` drops those), without the nulls inside its values."""
        if not isinstance(node, Mapping):
            return node
        return {key: value if value is None else self.inside(value) for key, value in node.items()}

    def inside(self, node: Any) -> Any:
        """A part of a message: content parts, calls and anything else."""
        if isinstance(node, list):
            return [self.inside(one) for one in node]
        if not isinstance(node, Mapping):
            return node
        # A call, its function, or a result: what has a name may be described by the tool of this name.
        name = node.get("name")
        schema = self.schemas.get(name) if isinstance(name, str) else None
        result: dict[str, Any] = {}
        for key, value in node.items():
            if value is None:
                if key == "arguments" and isinstance(name, str):  # a call without arguments; without the key it is none
                    result[key] = None
                continue
            # A tool's schema describes its arguments, not what it returns.
            described = schema if key != "response" else None
            # Other keys hold parts of the message, whose own nulls only say that a part has no such field.
            # `input`, `args` and `response` are data beside a name only; elsewhere they may be any field.
            is_data = key in _ARGUMENTS and (key == "arguments" or "name" in node)
            result[key] = self.value(value, described, described) if is_data else self.inside(value)
        return result

    def value(self, node: Any, schema: Any, root: Any) -> Any:
        """Data described by a schema; a null under a key that the schema does not name is dropped."""
        if isinstance(node, list):
            items = _inner(schema, root, "items")
            return [self.value(one, items.get("") if items else None, root) for one in node]
        if not isinstance(node, Mapping):
            return node
        named, result = _inner(schema, root, "properties"), {}
        for key, value in node.items():
            value_schema = named.get(key, named.get(""))
            if value is None and (value_schema is None or not _allows_null(value_schema, root)):
                self.dropped += 1
            else:
                result[key] = self.value(value, value_schema, root)
        return result


def _parameters(tools: Any) -> dict[str, Any]:
    """The JSON schemas of the arguments of each tool, by name."""
    try:
        read = read_tools(tools, Notes()) or []
    except MessageError:  # reported when the row is read
        return {}
    return {tool["function"]["name"]: tool["function"].get("parameters") for tool in read}


def _inner(schema: Any, root: Any, what: str) -> dict[str, Any]:
    """The schemas of an object's properties or a list's items, by key; "" is the schema of all other keys."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting = [schema]
    # A loop with `seen`, because schemas may refer to themselves (`#/$defs/node` inside of node).
    while waiting:  # a schema's own entries take precedence over those of its branches
        node = waiting.pop()
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        waiting += [referred_schema(node, root), *(branch for key in _BRANCHES for branch in _listed(node.get(key)))]
        rest = node.get("additionalProperties" if what == "properties" else "items")
        properties = node.get("properties") if what == "properties" else None
        own_entries = dict(properties) if isinstance(properties, Mapping) else {}
        found = own_entries | ({"": rest} if isinstance(rest, Mapping) else {}) | found
    return found


def _allows_null(schema: Any, root: Any, known: dict[int, bool] | None = None, depth: int = 0) -> bool:
    """Whether a schema allows null. One that does not restrict the type allows it.

    Args:
        known: results for other schemas, by `id`. A schema that refers to itself counts as allowing null meanwhile.
    """
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return schema is not False
    known = {} if known is None else known
    if id(schema) not in known:
        known[id(schema)] = True
        branches = {key: _listed(schema.get(key)) for key in ("anyOf", "oneOf")}
        needed = [*_listed(schema.get("allOf")), *([referred_schema(schema, root)] if "$ref" in schema else [])]
        kinds, enum = schema.get("type"), schema.get("enum")
        own_entries_allow_it = (
            (kinds is None or "null" in _listed(kinds))
            and not (isinstance(enum, list) and None not in enum)
            and schema.get("const") is None
        )
        # "nullable" is OpenAPI's and Gemini's way to write it, beside a type that does not name null.
        known[id(schema)] = schema.get("nullable") is True or (
            own_entries_allow_it
            and all(_allows_null(one, root, known, depth + 1) for one in needed)
            and all(
                any(_allows_null(one, root, known, depth + 1) for one in each) for each in branches.values() if each
            )
        )
    return known[id(schema)]


def referred_schema(schema: Mapping[str, Any], root: Any) -> Any:
    """The schema that a `$ref` within the same document (`#/$defs/name`) names; `None` without one."""
    target = schema.get("$ref")
    if not isinstance(target, str) or not target.startswith("#"):
        return None
    found = root
    for step in target.split("/")[1:]:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _listed(node: Any) -> list[Any]:
    return node if isinstance(node, list) else [] if node is None else [node]
