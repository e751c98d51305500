"""Optional libraries: a clear error if one is missing, or older than the versions that are tested."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final, ParamSpec, TypeVar

from niels_gpt.errors import EXTRA_OF_LIBRARY, MissingExtra, UsageError

P = ParamSpec("P")
R = TypeVar("R")

# Equal to the versions in pyproject's extras, which a test checks.
MINIMUM_VERSIONS: Final = {
    "datasets": "4",
    "fsspec": "2024.6",
    "httpx": "0.27",
    "huggingface_hub": "1.3",
    "lightning": "2.4",
    "pyarrow": "15",
    "ray": "2.40",
    "rensa": "0.5",
    "s3fs": "2024.6",
    "tokenizers": "0.22.1",
    "torch": "2.2",
    "transformers": "5",
}


def check_library(name: str) -> None:
    """Import an optional library and check its version.

    Raises:
        MissingExtra: it is not installed. UsageError: it is too old, or its version is unknown.
    """
    try:
        library = import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, None):
            raise  # the library is there, but lacks one of its own dependencies
        raise MissingExtra(name) from error
    try:
        found: str | None = version(name)
    except PackageNotFoundError as error:
        # A directory on the path, such as one called datasets beside the script, is imported as an empty package.
        if library.__spec__ is not None and library.__spec__.origin is None:
            raise MissingExtra(name) from error
        # Built from source and put on the path; such a torch still says its own version.
        found = vars(library).get("__version__")
    least = MINIMUM_VERSIONS[name]
    if found is None or _numbers(found) < _numbers(least):
        there = f"{name} is installed without its version" if found is None else f"{name} {found} is installed"
        raise UsageError(
            f"{there}; this needs {least} or newer: pip install --upgrade 'niels-gpt[{EXTRA_OF_LIBRARY[name]}]'"
        )


def with_extras_named(function: Callable[P, R]) -> Callable[P, R]:
    """The function, but the import of an optional library that is missing, wherever in it, raises `MissingExtra`."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            if error.name in EXTRA_OF_LIBRARY:
                raise MissingExtra(error.name) from error
            raise

    return called


def _numbers(version_text: str) -> tuple[int, ...]:
    """The numbers that a version begins with: 5.13.0rc1 -> 5 13 0."""
    found = re.match(r"\d+(\.\d+)*", version_text)
    return tuple(map(int, found.group().split("."))) if found else ()
