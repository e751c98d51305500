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


def test_what_is_remembered_of_tools_can_be_forgotten() -> None:
    from benchmarks.fresh import forget
    from niels_gpt.renderers.conversation import Tools

    written: list[str] = []

    def declare(tools: Tools) -> str:
        written.append(tools[0]["function"]["name"])
        return written[-1]

    offered = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert [Tools([*offered]).declaration(declare) for _ in range(3)] == ["look"] * 3
    assert written == ["look"]
    forget()
    assert Tools([*offered]).declaration(declare) == "look"
    assert written == ["look"] * 2
