"""In which line of a recipe each key is, for messages that name it; tomllib and pydantic do not say.

::

    1  seed = 7                        ("seed",)                         1
    2  [[sources]]                     ("sources", 0)                    2
    3  name = "chats"                  ("sources", 0, "name")            3
    4  [sources.filter]                ("sources", 0, "filter")          4
    5  match = "x"                     ("sources", 0, "filter", "match") 5
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import InputError

Location = tuple[str | int, ...]  # of a value: keys of tables and numbers in lists
Lines = dict[Location, int]

MOST_PLACES: Final = 100_000  # values in a YAML file; a value counts once for each alias of it
# A header `[table]` or `[[table]]`, and the key of a line `key.key = value`; both may have a comment after them.
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")


def toml_lines(text: str) -> Lines:
    """For each key its line, counted from 1. tomllib does not give lines, so they are searched in the text.

    Only a key at the beginning of a line is found. For one in an inline table, messages name the table's line.
    """
    lines: Lines = {}
    table: Location = ()
    tables: dict[Location, int] = {}  # how many [[tables]] of each name have begun
    # Not `splitlines`, which also ends lines at characters that TOML allows in a text, such as U+2028.
    for number, line in enumerate(text.split("\n"), 1):
        # tomllib refuses keys that occur twice, so a later line that looks like one again is a line of a text.
        if header := _HEADER.match(line):
            table = _in_arrays(_parts(header[2]), tables)
            if header[1] == "[[":
                count = tables[table] = tables.get(table, 0) + 1
                table = (*table, count - 1)
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_parts(key[1])), number)
    return lines


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in re.findall(r"""[^."']+|"[^"]*"|'[^']*'""", dotted)]


def _in_arrays(parts: Sequence[str], tables: Mapping[Location, int]) -> Location:
    """The location of a table, with numbers for arrays of tables.

    `[sources.filter]` belongs to the last `[[sources]]` before it: after the second one it is ("sources", 1, "filter").
    """
    place: Location = ()
    for position, part in enumerate(parts):
        place = (*place, part)
        if place in tables and position < len(parts) - 1:
            place = (*place, tables[place] - 1)
    return place


def yaml_lines(root: Any, file: Path) -> Lines:
    """The line of every key below the root of PyYAML's nodes.

    Raises:
        InputError: a table has a key twice, of which PyYAML silently uses the last; or aliases make too many values.
    """
    lines: Lines = {}
    _walk(root, (), lines, file)
    return lines


def _walk(node: Any, place: Location, lines: Lines, file: Path) -> None:
    lines.setdefault(place, node.start_mark.line + 1)
    # A few lines of aliases that contain aliases can hold billions of values ("billion laughs").
    if len(lines) > MOST_PLACES:
        raise InputError(f"{file}: holds more than {MOST_PLACES:,} values; write them out without so many aliases")
    if node.id == "mapping":
        for key, value in node.value:
            if key.id != "scalar":  # `safe_load` refuses it too, but its message names no file and line
                raise InputError(f"{file}:{key.start_mark.line + 1}: a list or table as a key; expected a text")
            inner = (*place, key.value)
            if inner in lines:
                raise InputError(f"{file}:{key.start_mark.line + 1}: the key {key.value!r} again; expected it once")
            lines[inner] = key.start_mark.line + 1
            _walk(value, inner, lines, file)
    elif node.id == "sequence":
        for number, value in enumerate(node.value):
            _walk(value, (*place, number), lines, file)
