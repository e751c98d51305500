"""Lazy public names of a package: each is imported when it is first used, so importing the package stays fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str], subpackages: Sequence[str] = ()) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562).

    Args:
        package: the package's `__name__`.
        modules: public name -> the module of the package that defines it, such as `{"diagnose": "run"}`.
        subpackages: modules of the package that are attributes of it before anybody imports them.
    """

    def attribute(name: str) -> Any:
        # Importing a submodule makes it an attribute of the package, so this is called once for each.
        if name in subpackages:
            return import_module(f"{package}.{name}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return attribute
