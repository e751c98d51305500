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
    if name == "beside":
        pytest.importorskip("tml_renderers")
    importlib.import_module(f"benchmarks.{name}")
