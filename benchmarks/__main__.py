"""`python -m benchmarks [NAME...] [--json FILE]`: run the benches, print a table, write the numbers."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import (
    collate,
    conversations,
    cuda,
    doctor,
    episodes,
    families,
    memory,
    opening,
    order,
    packing,
    pretrain,
    renderers,
    streaming,
    tokenizer,
    windows,
)
from benchmarks.pairs import Result

BENCHES: dict[str, Callable[[Path], list[Result]]] = {
    "memory": memory.run,
    "windows": windows.run,
    "conversations": conversations.run,
    "collate": collate.run,
    "opening": opening.run,
    "episodes": episodes.run,
    "order": order.run,
    "packing": packing.run,
    "tokenizer": tokenizer.run,
    "pretrain": pretrain.run,
    "renderers": renderers.run,
    "families": families.run,
    "streaming": streaming.run,
    "doctor": doctor.run,
    "cuda": cuda.run,
}


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(BENCHES)}; all by default.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers there too.")] = None,
) -> None:
    """Run the chosen benches, all by default, each in a temporary directory of its own."""
    chosen = names or list(BENCHES)
    unknown = [name for name in chosen if name not in BENCHES]
    if unknown:
        raise typer.BadParameter(f"no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    # What the numbers depend on; a load that is not near 0 says that others were using the machine.
    machine = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processors": f"{os.cpu_count()} ({platform.machine()})",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "load": f"{os.getloadavg()[0]:.1f}",
    }
    console.print("  ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    results: list[Result] = []
    for name in chosen:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as folder:
            found = BENCHES[name](Path(folder))
        console.print(_table(name, found, time.perf_counter() - started))
        results += found
    if json_file:
        document = {"machine": machine, "results": [asdict(result) for result in results]}
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _table(name: str, results: list[Result], seconds: float) -> Table:
    table = Table(title=f"{name} ({seconds:.0f} s)", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("case", "way", "time", "rate", "first = 1"):
        table.add_column(column, justify="left" if column in ("case", "way") else "right", no_wrap=True)
    case = ""
    for result in results:
        rates = ", ".join(f"{_scaled(rate)}{what}/s" for what, rate in result.rates.items())
        if result.case != case:
            case = result.case
            table.add_row(case, result.way, _amount(result), rates, "", style="bold")
        else:
            table.add_row("", result.way, _amount(result), rates, f"{result.ratio:.3g}")
    return table


def _amount(result: Result) -> str:
    return f"{_scaled(result.value)}s" if result.unit == "s" else f"{result.value:.0f} {result.unit}"


def _scaled(value: float) -> str:
    """Three digits and a prefix: 0.00012 -> '120 µ', 3.2e9 -> '3.2 G'."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value / 1e-6:.3g} µ"


if __name__ == "__main__":
    typer.run(main)
