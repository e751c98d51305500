"""Checkpoint states: a `Place` as plain values, and back, if the state belongs to the loader that takes it.

::

    Place(2, 96) --state_of--> {"version": 3, "fingerprint": "9f…", "seed": 7, "epoch": 2, "position": 96}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from niels_gpt.errors import Mismatch, UsageError, shown
from niels_gpt.seeds import MAX_LENGTH

STATE_VERSION = 3
STATE_KEYS = ("version", "fingerprint", "seed", "epoch", "position")


@dataclass(frozen=True)
class Place:
    """How far a split has been read: `position` rows of epoch `epoch`, counted over all ranks."""

    epoch: int = 0
    position: int = 0


def state_of(place: Place, *, fingerprint: str, seed: int) -> dict[str, Any]:
    """A place as a checkpoint holds it: a dict of plain values that JSON can store."""
    return {
        "version": STATE_VERSION,
        "fingerprint": fingerprint,
        "seed": seed,
        "epoch": place.epoch,
        "position": place.position,
    }


def place_in(state: dict[str, Any], *, fingerprint: str, seed: int, rows: int | None) -> Place:
    """The place in a checkpoint state, if the state belongs to a loader with this fingerprint and seed.

    Args:
        rows: in an epoch; `None` if there are no epochs.

    Raises:
        Mismatch: the state has another version, dataset, order or seed.
        UsageError: it is not a state, or its numbers are out of range.
    """
    if not isinstance(state, dict) or any(key not in state for key in STATE_KEYS):
        raise UsageError(f"the state is {shown(state)}; expected what state_dict() returned")
    version = state["version"]
    if version != STATE_VERSION:
        raise Mismatch(
            f"the state is of version {shown(version)}; this version of niels_gpt reads {STATE_VERSION}. Resume with "
            "the version that wrote it"
        )
    # The seed is compared here, because the fingerprint does not cover it.
    if state["seed"] != seed:
        raise Mismatch(f"the state is of seed {shown(state['seed'])}, the loader's is {seed}; pass the former")
    if state["fingerprint"] != fingerprint:
        raise Mismatch(
            f"the state is of fingerprint {shown(state['fingerprint'])}, the loader's is {fingerprint}: the dataset, "
            "its filter, block_size, too_long, packing or the order differs. Open the loader as it was when the state "
            "was saved"
        )
    epoch, position = state["epoch"], state["position"]
    most = MAX_LENGTH if rows is None else rows
    # A state comes from a file, so nothing of it is trusted. `position == rows` is valid: the end of an epoch.
    integers = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (epoch, position))
    # An epoch is limited also where there are none: numpy's int64 must hold what is computed from it.
    if not integers or epoch > MAX_LENGTH or position > most:
        raise UsageError(
            f"the state has epoch {epoch!r}, position {position!r}; expected an epoch of 0 to 2**62 and a position of "
            f"0 to {most}"
        )
    # Rows are numbered through all epochs, and numpy's int64 must hold their numbers and what is added to them.
    if epoch * (rows or 0) + position > MAX_LENGTH:
        raise UsageError(f"the state has epoch {epoch} of {rows:,} rows each, together more than 2**62 rows")
    return Place(epoch, position)
