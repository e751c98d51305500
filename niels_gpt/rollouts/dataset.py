"""`RolloutDataset`: the rollouts of one or several datasets, by number and by group.

::

    dataset      step_7            step_8
    rollout      0  1  2  3        4  5  6         in the order in which they were written
    group        0  1  0  1        2  2  3         numbered through all datasets
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import require_episodes
from niels_gpt.episodes.remote import is_url
from niels_gpt.errors import CacheError, Mismatch, UsageError, did_you_mean, storage_errors
from niels_gpt.rollouts.advantages import ADVANTAGES, group_advantages
from niels_gpt.rollouts.format import (
    KIND,
    LINES_NAME,
    LOGPROB_DTYPE,
    LOGPROBS_NAME,
    SPLIT,
    VERSION_DTYPE,
    VERSIONS_NAME,
    open_records,
    open_values,
)

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rollout:
    """One rollout as it was written.

    Attributes:
        ids: uint32, shape (n,): the first prompt, and all that follows it.
        mask: bool, shape (n,): True on tokens that the policy sampled, which are trained.
        logprobs: float32, shape (n,): of the token at the same index; NaN where the mask is False; `None`: not stored.
        versions: int32, shape (n,): of the policy that sampled it, -1 where the mask is False; `None`: not stored.
        prompt_length: tokens of the first prompt.
        reward: its reward. advantage: as it was written; NaN if none was.
        version: of the policy; of several, the oldest; -1: not known.
        group: the number of the group in the dataset. group_id: what the writer called it.
        metadata: what the writer added.
    """

    ids: npt.NDArray[np.uint32]
    mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32] | None
    versions: npt.NDArray[np.int32] | None
    prompt_length: int
    reward: float
    advantage: float
    version: int
    group: int
    group_id: str | int
    metadata: dict[str, Any]


class RolloutDataset:
    """The rollouts of one or several datasets, one after the other. Opening reads records (64 bytes each), not tokens.

    Args:
        paths: a directory that `RolloutWriter` wrote, or several.

    Attributes:
        episodes: the files; an episode is a rollout.
        groups: the group of each rollout, int64, shape (rollouts,).
        n_groups: how many groups there are.
        rewards: float64, shape (rollouts,). versions, prompt_lengths, lengths: int64, shape (rollouts,).
        stored_advantages: float64, shape (rollouts,); NaN: none.
        logprobs, token_versions: of each dataset the mapped files, arrays of shape (tokens,); `None`: not stored.

    Raises:
        UsageError: no path. CacheError: no rollouts, damaged files, or datasets with and without log-probabilities.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path]) -> None:
        self.paths = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
        if not self.paths:
            raise UsageError("no dataset of rollouts; expected at least one directory")
        # The names as they were passed in: `Path` would make one slash of the two in a URL.
        for name in [paths] if isinstance(paths, str | Path) else paths:
            if is_url(str(name)):
                raise UsageError(f"{name}: rollouts are read from a local directory; download them: niels-gpt fetch")
        for path in self.paths:
            require_episodes(path)
        self.episodes = EpisodeSplit(self.paths, SPLIT)
        for path, manifest in zip(self.paths, self.episodes.manifests, strict=True):
            if manifest is None or manifest["kind"] != KIND:
                found = "episodes without a manifest" if manifest is None else f"a dataset of {manifest['kind']}"
                raise CacheError(f"{path}: {found}; expected rollouts, as RolloutWriter writes them")
        if not self.episodes.has_mask:
            raise CacheError(f"{self.episodes.why_no_mask}; rollouts need a mask of the sampled tokens. Copy it again")
        self._records = [open_records(shard.folder, len(shard.records)) for shard in self.episodes.shards]
        self.groups, self.n_groups = self._numbered()
        records = np.concatenate([np.asarray(part) for part in self._records])
        # Copies of the two columns, so that the table of all columns leaves the memory.
        self.rewards, self.stored_advantages = records["reward"].copy(), records["advantage"].copy()
        self.versions, self.prompt_lengths = (records[name].astype(np.int64) for name in ("version", "prompt_length"))
        self.lengths = self.episodes.lengths()
        wrong = (self.prompt_lengths < 1) | (self.prompt_lengths >= self.lengths) | ~np.isfinite(self.rewards)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise CacheError(
                f"{self.episodes.describe(at)}: a prompt of {self.prompt_lengths[at]:,} of {self.lengths[at]:,} "
                f"tokens, reward {self.rewards[at]}; expected a shorter prompt and a finite reward. Copy them again"
            )
        self.logprobs = self._values(LOGPROBS_NAME, LOGPROB_DTYPE)
        self.token_versions = self._values(VERSIONS_NAME, VERSION_DTYPE)

    def __len__(self) -> int:
        return len(self.groups)

    def __repr__(self) -> str:
        """One line of counts."""
        return (
            f"<RolloutDataset: {len(self):,} rollouts of {self.n_groups:,} groups, {self.episodes.n_tokens:,} tokens>"
        )

    def __getitem__(self, number: int) -> Rollout:
        """The rollout with this number.

        Raises:
            UsageError: there is none. CacheError: its line of `rollouts.jsonl` is damaged.
        """
        if not 0 <= number < len(self):
            raise UsageError(f"{self.paths[0]}: rollouts 0 to {len(self) - 1:,}; there is no {number:,}")
        # Of one rollout: its dataset, and its tokens in the files of this dataset.
        (shard,), (start,), (length,) = self.episodes.locate(np.array([number]))
        at, files = slice(start, start + length), self.episodes.shards[shard]
        assert files.mask is not None
        line = self._line(int(shard), number)
        return Rollout(
            ids=files.tokens[at].astype(np.uint32),
            mask=files.mask[at].astype(np.bool_),
            logprobs=None if self.logprobs is None else self.logprobs[shard][at].copy(),
            versions=None if self.token_versions is None else self.token_versions[shard][at].copy(),
            prompt_length=int(self.prompt_lengths[number]),
            reward=float(self.rewards[number]),
            advantage=float(self.stored_advantages[number]),
            version=int(self.versions[number]),
            group=int(self.groups[number]),
            group_id=line["group_id"],
            metadata=line["metadata"],
        )

    def group(self, number: int) -> Int64s:
        """The numbers of a group's rollouts, ascending.

        Raises:
            UsageError: there is no such group.
        """
        if not 0 <= number < self.n_groups:
            raise UsageError(f"{self.paths[0]}: groups 0 to {self.n_groups - 1:,}; there is no {number:,}")
        order, begins = self.by_group
        return order[begins[number] : begins[number + 1]]

    @cached_property
    def by_group(self) -> tuple[Int64s, Int64s]:
        """The rollouts, group after group, int64, shape (rollouts,); and where each begins, shape (groups + 1,)."""
        # Groups 1 0 1 0: order 1 3 0 2, begins 0 2 4. Stable, so that the rollouts of a group ascend.
        order = np.argsort(self.groups, kind="stable")
        return order, np.searchsorted(self.groups[order], np.arange(self.n_groups + 1))

    def advantages(self, formula: str | None = None) -> npt.NDArray[np.float64]:
        """The advantage of every rollout, float64, shape (rollouts,).

        Args:
            formula: "grpo" or "mean", see `niels_gpt.rollouts.advantages`; "stored": what the writer was given; `None`:
                what was stored if anything was, else "grpo".

        Raises:
            UsageError: no such formula, or only some rollouts have a stored advantage.
        """
        missing = np.isnan(self.stored_advantages)
        if formula is None:
            formula = "grpo" if missing.all() else "stored"
        if formula not in ADVANTAGES:
            expected = f"expected one of {', '.join(ADVANTAGES)}{did_you_mean(str(formula), ADVANTAGES)}"
            raise UsageError(f"advantages are {formula!r}; {expected}")
        if formula != "stored":
            return group_advantages(self.rewards, self.groups, formula)
        if missing.any():
            raise UsageError(
                f"{self.paths[0]}: {int(missing.sum()):,} of {len(self):,} rollouts have no stored advantage, the "
                f"first is {int(np.argmax(missing)):,}; expected all, or compute them: advantages='grpo' or 'mean'"
            )
        return self.stored_advantages.copy()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content, 32 hex digits; copies elsewhere have the same."""
        return hashlib.sha256(f"rollouts {self.episodes.fingerprint}".encode()).hexdigest()[:32]

    def _numbered(self) -> tuple[Int64s, int]:
        """The groups of all rollouts, numbered through all datasets."""
        parts, before = [], 0
        for shard, records in zip(self.episodes.shards, self._records, strict=True):
            groups = records["group"]
            # Numbers come in the order in which groups were first written, so none is above the number of rollouts.
            if len(groups) and groups.max() >= len(groups):
                at = int(np.argmax(groups >= len(groups)))
                raise CacheError(
                    f"{shard.folder}: record {at:,}: group {int(groups[at]):,} of {len(groups):,} rollouts; the files "
                    "are damaged or do not belong together. Copy them again"
                )
            parts.append(groups.astype(np.int64) + before)
            before += int(groups.max(initial=0)) + 1
        return np.concatenate([np.empty(0, np.int64), *parts]), before

    def _values(self, name: str, dtype: str) -> list[Array] | None:
        """An optional file with a value per token, of all datasets or of none."""
        shards = self.episodes.shards
        found = [open_values(shard.folder / name, dtype, len(shard.tokens)) for shard in shards]
        present = [values for values in found if values is not None]
        if present and len(present) < len(found):
            lacking = next(shard.folder for shard, values in zip(shards, found, strict=True) if values is None)
            raise CacheError(f"{lacking / name}: no such file, but other datasets have one; read them separately")
        return present or None

    def _line(self, shard: int, number: int) -> dict[str, Any]:
        path = self.episodes.shards[shard].folder / LINES_NAME
        first = sum(map(len, self._records[:shard]))  # the number of the shard's first rollout
        record = self._records[shard][number - first]
        # Lines are looked up in the file, because metadata of any size would not fit into memory.
        with storage_errors("reading", path), path.open("rb") as file:
            file.seek(int(record["line"]))
            text = file.read(int(record["line_bytes"]))
        try:
            line = json.loads(text)
            return {"group_id": line["group_id"], "metadata": line["metadata"]}
        except (ValueError, KeyError, TypeError) as error:
            raise CacheError(f"{path}: the line of rollout {number:,} is damaged; copy the file again") from error

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for a worker, the files are opened again there."""
        return _reopen, (self.paths, self.fingerprint)


def _reopen(paths: list[Path], fingerprint: str) -> RolloutDataset:
    opened = RolloutDataset(paths)
    if opened.fingerprint != fingerprint:
        raise Mismatch(f"{paths[0]}: no longer what it was when the loader opened it; do not replace rollouts in use")
    return opened
