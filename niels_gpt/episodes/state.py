"""Where a loader stands, as a checkpoint keeps it: (version, fingerprint, seed, epoch, position)."""

from __future__ import annotations

from typing import Any

from niels_gpt.episodes.schedule import Place
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.seeds import MAX_LENGTH

STATE_VERSION = 1
KEYS = ("version", "fingerprint", "seed", "epoch", "position")


def state_of(place: Place, *, fingerprint: str, seed: int) -> dict[str, Any]:
    """The state of a place: plain values that JSON can hold."""
    return dict(zip(KEYS, (STATE_VERSION, fingerprint, seed, place.epoch, place.position), strict=True))


def place_in(state: dict[str, Any], *, fingerprint: str, seed: int, rows: int | None) -> Place:
    """The place that a state keeps, if it is one of this fingerprint and seed.

    Args:
        rows: in an epoch; `None` if there are no epochs.

    Raises:
        Mismatch: of another version, dataset, order or seed. UsageError: not a state, or numbers out of range.
    """
    if not isinstance(state, dict) or any(key not in state for key in KEYS):
        raise UsageError(f"the state is {state!r}; expected what state_dict() returned")
    if state["version"] != STATE_VERSION:
        raise Mismatch(
            f"the state is of version {state['version']}; this version of niels_gpt reads {STATE_VERSION}. "
            "Resume with the version that wrote it"
        )
    if state["seed"] != seed:
        raise Mismatch(f"the state is of seed {state['seed']}, the loader's is {seed}; pass the former")
    if state["fingerprint"] != fingerprint:
        raise Mismatch(
            f"the state is of fingerprint {state['fingerprint']}, the loader's is {fingerprint}: the dataset, its "
            "filter, its packing or its order is another. Open what the state was taken from"
        )
    numbers = [state["epoch"], state["position"]]
    most = MAX_LENGTH if rows is None else rows
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers) or numbers[1] > most:
        raise UsageError(
            f"the state says epoch {numbers[0]!r}, position {numbers[1]!r}; expected an epoch of 0 or more and a "
            f"position of 0 to {most}"
        )
    if numbers[0] * (rows or 0) + numbers[1] > MAX_LENGTH:
        raise UsageError(f"the state says epoch {numbers[0]} of {rows:,} rows each, together more than 2**62 rows")
    return Place(*numbers)
