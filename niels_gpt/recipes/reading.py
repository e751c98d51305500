"""Reads a recipe from TOML or YAML, with settings of the command line on top, and with errors that name the key.

::

    read_recipe("assistant.toml", ["seed=7", "sources.chats.format=sharegpt"])

    assistant.toml: sources.0.fromat: unknown key; expected one of name, files, format, filter; did you mean 'format'?
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from niels_gpt.errors import InputError, MissingExtra, UsageError, did_you_mean, shown
from niels_gpt.recipes.schema import Recipe, Table
from niels_gpt.store.files import read_file
from niels_gpt.store.published import is_url
from niels_gpt.values import name_and_value, option_value

YAML_SUFFIXES: Final = (".yaml", ".yml")
MOST_ERRORS: Final = 5  # in one message
MOST_VALUES: Final = 100_000  # in a YAML file; a value counts once for each alias of it
Location = tuple[str | int, ...]  # of a value: keys of tables and numbers in lists
# In place of messages of pydantic that do not fit after "expected", or that use Python's terms for tables and texts.
_EXPECTED: Final = {
    "too_short": "at least one",
    "string_too_short": "at least one character",
    "model_type": "a table",
    "dict_type": "a table",
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}


@dataclass(frozen=True)
class LoadedRecipe:
    """A checked recipe and where it was read from.

    Attributes:
        recipe: its values.
        path: the file.
        base: the directory of the file, to which the recipe's paths are relative.
    """

    recipe: Recipe
    path: Path
    base: Path

    def place(self, name: str) -> Path:
        """The local path that a name in the recipe means."""
        return self.base / name

    def address(self, name: str) -> str:
        """The path, pattern or URL that a name in the recipe means."""
        return name if is_url(name) else str(self.base / name)


def read_recipe(path: str | Path, settings: Sequence[str] = ()) -> LoadedRecipe:
    """Read and check a recipe.

    Args:
        path: a `.toml`, `.yaml` or `.yml` file.
        settings: values that replace those of the file, as `key.key=value`; a table in a list is chosen by its number
            or its `name`. Values are written as in TOML; anything that is not a TOML value is text.

    Raises:
        InputError: the file is missing, or not TOML or YAML. UsageError: a wrong or unknown key or value; the message
            has the file and the key. MissingExtra: YAML without PyYAML.
    """
    file = Path(path)
    values = _read(file)
    # Before the check, so that a setting may repair a recipe, and is checked like the file.
    changed = [set_value(values, text) for text in settings]
    return LoadedRecipe(check_recipe(values, file, changed), file, file.resolve().parent)


def check_recipe(values: Mapping[str, Any], file: Path, settings: Sequence[Location] = ()) -> Recipe:
    """Check the values of a file and return them as a `Recipe`.

    Raises:
        UsageError: a key or value is wrong; the message names up to `MOST_ERRORS` of them.
    """
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        found = [_sentence(each, values, file, settings) for each in error.errors()]
        more = f" (and {len(found) - MOST_ERRORS} more)" if len(found) > MOST_ERRORS else ""
        raise UsageError("; ".join(found[:MOST_ERRORS]) + more) from error


def _read(file: Path) -> dict[str, Any]:
    if file.is_dir():
        raise InputError(f"{file}: a directory; expected a recipe: a .toml, .yaml or .lock.json file")
    if not file.is_file():
        raise InputError(f"{file}: no such file; expected a recipe (see docs/recipes.md)")
    if not file.name.endswith((".toml", *YAML_SUFFIXES)):
        raise UsageError(f"{file}: expected a recipe in TOML (.toml) or YAML (.yaml, .yml), or a lock (.lock.json)")
    data = read_file(file)
    try:
        text = data.decode().removeprefix("\ufeff")  # the byte order mark, which editors of Windows write
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: byte {error.start:,} is not UTF-8; save the recipe as UTF-8") from error
    if file.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}: not valid TOML: {_reason(error)}") from error
    return _read_yaml(file, text)


def _read_yaml(file: Path, text: str) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra("yaml") from error
    try:
        if (root := yaml.compose(text, Loader=yaml.SafeLoader)) is not None:
            _check_nodes(root, file)
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: not valid YAML: {_reason(error)}") from error
    if not isinstance(values, dict):
        raise InputError(f"{file}: holds {type(values).__name__}; expected keys and values, such as `out: datasets/x`")
    return values


def _check_nodes(root: Any, file: Path) -> None:
    """Refuse what PyYAML does not, in its nodes, before values are made of them.

    Raises:
        InputError: a table has a key twice, of which PyYAML silently uses the last; or a few lines of aliases that
            contain aliases hold billions of values ("billion laughs").
    """
    nodes, values = [root], 0
    while nodes:
        node = nodes.pop()
        values += 1
        if values > MOST_VALUES:
            raise InputError(f"{file}: holds more than {MOST_VALUES:,} values; write them out without so many aliases")
        if node.id == "mapping":
            keys = [key.value for key, _ in node.value if key.id == "scalar"]
            if again := next((key for key in keys if keys.count(key) > 1), None):
                raise InputError(f"{file}: the key {again!r} again; expected it once")
            nodes += [value for _, value in node.value]
        elif node.id == "sequence":
            nodes += node.value


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())


# ---- errors


def _sentence(error: ErrorDetails, values: Any, file: Path, settings: Sequence[Location]) -> str:
    place = _place_of(error["loc"], values)
    name = ".".join(map(str, place)) or "the recipe"
    where = "--set" if any(place[: len(setting)] == setting for setting in settings) else str(file)
    return f"{where}: {name}: {_problem(error, place)}"


def _place_of(location: Location, values: Any) -> Location:
    """pydantic's location without the parts that name a type, such as the branch of a union.

    ::

        ("mixture", "max_epochs", "dict[str,float]", "chats")      is the place ("mixture", "max_epochs")
        ("tokenizer", "path"), which is missing                    is the place ("tokenizer", "path")
    """
    place: Location = ()
    for part in location:
        if isinstance(values, list):
            is_held = isinstance(part, int) and part < len(values)
        else:
            is_held = isinstance(values, Mapping) and part in values
        if not is_held:
            # The location of a missing key ends with that key, which is retained; the name of a type is not.
            return (*place, part) if part in _fields_at(place) else place
        values = values[part]
        place = (*place, part)
    return place


def _problem(error: ErrorDetails, place: Location) -> str:
    if error["type"] == "extra_forbidden":
        known = _fields_at(place[:-1])
        return f"unknown key; expected one of {', '.join(known)}{did_you_mean(str(place[-1]), known)}"
    if error["type"] == "missing":
        return "missing; add it"
    if error["type"] == "value_error":  # raised by a check in `schema.py`, whose message is complete
        return str(error["ctx"]["error"])
    expected = _EXPECTED.get(error["type"]) or error["msg"].removeprefix("Input should be ")
    return f"found {shown(error['input'])}; expected {expected}"


def _fields_at(place: Location) -> list[str]:
    """The keys that the table at a place may have; empty where any key is allowed, as in `weights`."""
    table: type[Table] | None = Recipe
    for part in place:
        if isinstance(part, int) or table is None:
            continue
        field = table.model_fields.get(part)
        table = None if field is None else _table_in(field.annotation)
    return [] if table is None else list(table.model_fields)


def _table_in(annotation: Any) -> type[Table] | None:
    """The table class in a type such as `list[SourceTable]` or `MixtureTable | None`; `None` for `dict[str, Any]`."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    return next(filter(None, map(_table_in, get_args(annotation))), None)


# ---- settings from the command line


def set_value(values: dict[str, Any], text: str) -> Location:
    """Set `key.key=value` in the values of a file, in place; returns the location that was set.

    The value is read by `option_value`.

    Raises:
        UsageError: no `=`, no such table in a list, or a key below something that is not a table.
    """
    name, value = name_and_value("--set", text, "KEY.KEY=VALUE, such as sequence.length=8192")
    place: Location = ()
    here: Any = values
    *path, last = name.strip().split(".")
    for part in path:
        key = _key_in(here, part, text)
        place = (*place, key)
        here = here.setdefault(key, {}) if isinstance(here, dict) else here[key]
    key = _key_in(here, last, text)
    here[key] = option_value(value.strip())
    return (*place, key)


def _key_in(here: Any, part: str, text: str) -> str | int:
    if isinstance(here, dict):
        return part
    if isinstance(here, list):
        names = [table.get("name", number) if isinstance(table, dict) else number for number, table in enumerate(here)]
        # Names before numbers: a source may be named "1".
        if part in names:
            return names.index(part)
        if part.isdigit() and int(part) < len(here):
            return int(part)
        raise UsageError(f"--set {text}: no {part!r} among {', '.join(map(str, names))}; use a name or a number")
    raise UsageError(f"--set {text}: {part!r} is below {shown(here)}, which is no table")
