"""Packing plans of a dataset: made once, kept beside it, found again by what they were made from."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.errors import StorageError
from niels_gpt.files import write_atomic
from niels_gpt.format.packing import PackPlan, pack

Int64s = npt.NDArray[np.int64]

PLANS_FOLDER = "packing"
PLAN_VERSION = 1  # raise it whenever `pack` may give another plan, so that old files are not taken for new ones

_log = logging.getLogger("niels_gpt.episodes")


def packing_plan(
    split: EpisodeSplit, width: int, *, groups: Mapping[str, Int64s] | None = None, folder: Path | None = None
) -> PackPlan:
    """The plan of a split for rows of `width` tokens: read from `folder`, or made and left there.

    Items are positions (after filtering). With `groups` no row mixes two of them, and rows come group after group.
    Every rank may call this: all make the same plan, and files appear whole. A folder that cannot be written to is
    reported in the log; the plan is then made again next time.

    Args:
        folder: default `packing/` in the first dataset.
    """
    folder = folder or split.datasets[0] / PLANS_FOLDER
    path = folder / f"{split.split}-{width}-{_key(split, width, groups)}.npz"
    n = len(split) if groups is None else sum(map(len, groups.values()))  # a weight of 0 leaves a group out
    found = _load(path, n, width)
    if found is not None:
        return found
    lengths = np.minimum(split.lengths(), width)
    plan = pack(lengths, width) if groups is None else _pack_groups(lengths, width, groups)
    try:
        folder.mkdir(exist_ok=True)
        _save(path, plan)
    except (StorageError, OSError) as error:
        _log.warning("[EpisodeLoader] the packing plan is not kept: %s", error)
    return plan


def group_rows(plan: PackPlan, groups: Mapping[str, Int64s]) -> dict[str, Int64s]:
    """Which rows of a plan belong to each group."""
    owner = np.empty(int(max((members.max(initial=-1) for members in groups.values()), default=-1)) + 1, dtype=np.int64)
    for number, members in enumerate(groups.values()):
        owner[members] = number
    of_row = owner[plan.items[plan.offsets[:-1]]]
    return {name: np.flatnonzero(of_row == number) for number, name in enumerate(groups)}


def _pack_groups(lengths: Int64s, width: int, groups: Mapping[str, Int64s]) -> PackPlan:
    plans = [(members, pack(lengths[members], width)) for members in groups.values()]
    items = [members[plan.items] for members, plan in plans]
    row_sizes = [np.diff(plan.offsets) for _, plan in plans]
    return PackPlan(
        items=np.concatenate(items),
        offsets=np.concatenate([[0], np.cumsum(np.concatenate(row_sizes))]),
        capacity=width,
        tokens=sum(plan.tokens for _, plan in plans),
    )


def _key(split: EpisodeSplit, width: int, groups: Mapping[str, Int64s] | None) -> str:
    """Same key, same plan."""
    digest = hashlib.sha256(json.dumps([PLAN_VERSION, split.fingerprint, len(split), width]).encode())
    for name, members in (groups or {}).items():
        digest.update(name.encode() + members.tobytes())
    return digest.hexdigest()[:16]


def _save(path: Path, plan: PackPlan) -> None:
    data = io.BytesIO()
    np.savez(data, items=plan.items, offsets=plan.offsets, tokens=np.int64(plan.tokens))
    write_atomic(path, data.getvalue())


def _load(path: Path, n: int, width: int) -> PackPlan | None:
    """A kept plan; `None` if there is none. One that is damaged is made again: it holds nothing that is not derived."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as data, np.load(data, allow_pickle=False) as file:  # by its name, numpy leaves it open
            plan = PackPlan(items=file["items"], offsets=file["offsets"], capacity=width, tokens=int(file["tokens"]))
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        _log.warning("[EpisodeLoader] %s: not a whole plan (%s); making it again", path, error)
        return None
    if len(plan.items) != n or plan.offsets[-1] != n:
        _log.warning("[EpisodeLoader] %s: a plan for %d episodes, not %d; making it again", path, len(plan.items), n)
        return None
    return plan
