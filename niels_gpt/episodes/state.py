"""Where a loader stands, as a checkpoint keeps it: (version, fingerprint, seed, epoch, position)."""

from __future__ import annotations

import logging
from typing import Any

from niels_gpt.episodes.schedule import Place
from niels_gpt.errors import Mismatch, UsageError, shown
from niels_gpt.seeds import MAX_LENGTH

STATE_VERSION = 2
EARLIER_VERSION = 1  # its fingerprints left out what cuts a row: too_long and block_size
KEYS = ("version", "fingerprint", "seed", "epoch", "position")

_log = logging.getLogger("niels_gpt.episodes")


def state_of(place: Place, *, fingerprint: str, seed: int) -> dict[str, Any]:
    """The state of a place: plain values that JSON can hold."""
    return dict(zip(KEYS, (STATE_VERSION, fingerprint, seed, place.epoch, place.position), strict=True))


def place_in(
    state: dict[str, Any], *, fingerprint: str, earlier: str, cutting: str, seed: int, rows: int | None
) -> Place:
    """The place that a state keeps, if it is one of this fingerprint and seed.

    A state of version 1 is accepted where its fingerprint agrees; a warning in the log names what it did not record.

    Args:
        earlier: the fingerprint as version 1 computed it.
        cutting: the settings that version 1 did not record, in words, as the loader has them.
        rows: in an epoch; `None` if there are no epochs.

    Raises:
        Mismatch: of another version, dataset, order or seed. UsageError: not a state, or numbers out of range.
    """
    if not isinstance(state, dict) or any(key not in state for key in KEYS):
        raise UsageError(f"the state is {shown(state)}; expected what state_dict() returned")
    version = state["version"]
    if isinstance(version, bool) or version not in (EARLIER_VERSION, STATE_VERSION):
        raise Mismatch(
            f"the state is of version {shown(version)}; this version of niels_gpt reads {STATE_VERSION} and "
            f"{EARLIER_VERSION}. Resume with the version that wrote it"
        )
    if state["seed"] != seed:
        raise Mismatch(f"the state is of seed {shown(state['seed'])}, the loader's is {seed}; pass the former")
    expected = earlier if version == EARLIER_VERSION else fingerprint
    if state["fingerprint"] != expected:
        raise Mismatch(
            f"the state is of fingerprint {shown(state['fingerprint'])}, the loader's is {expected}: the dataset, its "
            "filter, block_size, too_long, packing or the order is another. Open what the state was taken from, in the "
            "same way"
        )
    if version == EARLIER_VERSION:
        _log.warning(
            "[DataLoader] the state is of version %d, which did not record how rows are cut; it is taken to be of a "
            "loader with %s, as this one",
            EARLIER_VERSION,
            cutting,
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
