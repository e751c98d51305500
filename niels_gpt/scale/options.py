"""What command lines say about where a build runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from niels_gpt import ranges
from niels_gpt.errors import UsageError
from niels_gpt.scale.engine import UnitEngine
from niels_gpt.scale.local import LocalRunner
from niels_gpt.sources.slices import SLICE_BYTES

EngineName = Annotated[
    Literal["local", "ray"], typer.Option("--engine", help="Processes of this machine, or a Ray cluster (extra ray).")
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes that encode; the result does not depend on it.  \\[default: 1; all CPUs of Ray]",
        **ranges.WORKERS.option(),
    ),
]
UnitBytes = Annotated[
    int,
    typer.Option(
        help="Bytes of input in a unit: what is built at once, and lost at most by a crash.",
        **ranges.UNIT_BYTES.option("--unit-bytes"),
    ),
]
UnitTimeout = Annotated[
    float | None,
    typer.Option(
        help="Seconds after which a unit's worker counts as hung.  \\[default: never]",
        **ranges.UNIT_TIMEOUT.option("--unit-timeout"),
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="The cluster: HOST:PORT, auto (the one that runs on this machine) or local (one of its own).  "
        "\\[default: $RAY_ADDRESS, else local]"
    ),
]
UNIT_BYTES = SLICE_BYTES


def open_engine(
    name: str, workers: int | None, unit_bytes: int, unit_timeout: float | None, ray_address: str | None
) -> UnitEngine:
    """The engine that these options describe.

    Raises:
        UsageError: options that belong to the other engine. MissingExtra: Ray is asked for and not installed.
    """
    if name == "ray":
        from niels_gpt.scale.rays import RayRunner

        return UnitEngine(RayRunner(ray_address, workers=workers, timeout=unit_timeout), slice_bytes=unit_bytes)
    if ray_address is not None:
        raise UsageError("--ray-address is for Ray; add --engine ray, or leave it out")
    return UnitEngine(LocalRunner(workers or 1, timeout=unit_timeout), slice_bytes=unit_bytes)
