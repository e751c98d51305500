"""Reads a recipe from TOML or YAML, with settings of the command line on top, and with errors that name the key.

::

    read_recipe("assistant.toml", ["seed=7", "sources.chats.format=sharegpt"])

    assistant.toml: sources.0.fromat: unknown key; expected one of name, files, format, filter; did you mean 'format'?
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from niels_gpt.errors import InputError, MissingExtra, UsageError, did_you_mean, shown
from niels_gpt.recipes.schema import Recipe
from niels_gpt.store.files import read_file
from niels_gpt.store.published import is_url
from niels_gpt.values import name_and_value, option_value

RECIPE: Final = TypeAdapter(Recipe)


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

    def place(self, name: str | Path) -> Path:
        """The local path that a name in the recipe means."""
        return self.base / name

    def address(self, name: str) -> str:
        """The path, pattern or URL that a name in the recipe means."""
        return name if is_url(name) else str(self.base / name)


def read_recipe(path: str | Path, settings: Sequence[str] = ()) -> LoadedRecipe:
    """Read and check a recipe.

    Args:
        path: a `.toml`, `.yaml` or `.yml` file.
        settings: values that replace those of the file, as `key.key=value`; see `set_value`.

    Raises:
        InputError: the file is missing, or not TOML or YAML. UsageError: a wrong or unknown key or value; the message
            has the file and the key. MissingExtra: YAML without PyYAML.
    """
    file = Path(path)
    return check_recipe(_read(file), file, settings)


def check_recipe(values: dict[str, Any], file: Path, settings: Sequence[str] = ()) -> LoadedRecipe:
    """The recipe in the values of a file, which settings may repair first.

    Raises:
        UsageError: a key or value is wrong; the message names all of them.
    """
    for text in settings:
        set_value(values, text)
    try:
        # As JSON, which has no types of its own for days: 2026-01-31 without quotation marks is one in TOML.
        recipe = RECIPE.validate_json(json.dumps(values, default=datetime.date.isoformat))
    except ValidationError as error:
        raise UsageError("; ".join(f"{file}: {_sentence(each)}" for each in error.errors())) from error
    return LoadedRecipe(recipe, file, file.resolve().parent)


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InputError(f"{file}: {'a directory' if file.is_dir() else 'no such file'}; expected a recipe")
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise UsageError(f"{file}: expected a recipe in TOML (.toml) or YAML (.yaml, .yml), or a lock (.lock.json)")
    try:
        text = read_file(file).decode("utf-8-sig")  # without the byte order mark, which editors of Windows write
        values = tomllib.loads(text) if file.suffix == ".toml" else _yaml(text)
    except (ValueError, RecursionError) as error:  # what is not UTF-8 is a ValueError
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise InputError(f"{file}: not valid {'TOML' if file.suffix == '.toml' else 'YAML'}: {reason}") from error
    if not isinstance(values, dict):
        raise InputError(f"{file}: holds {type(values).__name__}; expected keys and values, such as `out: datasets/x`")
    return values


def _yaml(text: str) -> Any:
    """The values of a YAML file as YAML 1.2 reads them: `on` and `no` are texts, `010` is 10, `1e-3` a number.

    PyYAML itself reads YAML 1.1, where these are True, False, 8 and a text.

    Raises:
        ValueError: no YAML, or a key twice, of which PyYAML would use the last. MissingExtra: no PyYAML.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra("yaml") from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            if again := next((key for key in keys if keys.count(key) > 1), None):
                raise ValueError(f"the key {again!r} again; expected it once")
            return super().construct_mapping(node, deep)

    for tag, form in _YAML.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{form})\Z"), None)
    Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(error) from error


# The core schema of YAML 1.2; the order matters, because a number without a fraction also has the form of a float.
_YAML: Final = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
}


def _sentence(error: ErrorDetails) -> str:
    """An error of pydantic with the path of its key, such as `sources.0.format`."""
    place, kind = error["loc"], error["type"]
    if kind == "unexpected_keyword_argument":
        known = _keys_at(place[:-1])
        problem = f"unknown key; expected one of {', '.join(known)}{did_you_mean(str(place[-1]), known)}"
    elif kind == "missing":
        problem = "missing; add it"
    elif kind == "value_error":  # raised by a check of ours, whose message is complete
        problem = str(error["ctx"]["error"])
    else:
        # "Input should be a valid integer" -> "expected a valid integer"
        problem = f"found {shown(error['input'])}; expected {error['msg'].split('should be ')[-1]}"
    return f"{'.'.join(map(str, place)) or 'the recipe'}: {problem}"


def _keys_at(place: Sequence[str | int]) -> list[str]:
    """The keys that the table at a place may have."""
    table: Any = Recipe
    for key in place:
        if isinstance(key, str):
            table = _table_in(get_type_hints(table)[key])
    return [field.name for field in dataclasses.fields(table)]


def _table_in(annotation: Any) -> Any:
    """The dataclass in a type such as `tuple[SourceTable, ...]` or `MixtureTable | None`."""
    if dataclasses.is_dataclass(annotation):
        return annotation
    return next(filter(None, map(_table_in, get_args(annotation))), None)


def set_value(values: dict[str, Any], text: str) -> None:
    """Set `key.key=value` in the values of a file, in place; a table in a list is chosen by its `name` or number.

    The value is read by `option_value`.

    Raises:
        UsageError: no `=`, no such table in a list, or a key below something that is not a table.
    """
    name, value = name_and_value("--set", text, "KEY.KEY=VALUE, such as sequence.length=8192")
    here: Any = values
    *path, last = name.strip().split(".")
    for part in path:
        key = _key_in(here, part, text)
        here = here.setdefault(key, {}) if isinstance(here, dict) else here[key]
    here[_key_in(here, last, text)] = option_value(value.strip())


def _key_in(here: Any, part: str, text: str) -> str | int:
    if isinstance(here, dict):
        return part
    if not isinstance(here, list):
        raise UsageError(f"--set {text}: {part!r} is below {shown(here)}, which is no table")
    # Names before numbers: a source may be named "1".
    names = [table.get("name", "") if isinstance(table, Mapping) else "" for table in here]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(here):
        return int(part)
    raise UsageError(f"--set {text}: no {part!r} among {', '.join(map(str, names))}; use a name or a number")
