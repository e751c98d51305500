"""The benchmarks can still be loaded: they use parts of the package that change. `make bench` runs them."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

NAMES = sorted(found.name for found in pkgutil.iter_modules(benchmarks.__path__) if found.name != "__main__")


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_loaded(name: str) -> None:
    pytest.importorskip("torch")
    importlib.import_module(f"benchmarks.{name}")


def test_what_is_remembered_of_tools_can_be_forgotten() -> None:
    from benchmarks.fresh import forget
    from niels_gpt.renderers.conversation import tools_of

    offered = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    first, second, third = (tools_of([*offered]) for _ in range(3))
    assert second is third is not first
    forget()
    assert tools_of([*offered]) is not third
