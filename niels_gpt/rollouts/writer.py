"""`RolloutWriter`: writes what an inference engine sampled as episodes with log-probabilities and rewards.

::

    add("task 7", {"prompt_ids": [1, 2], "completion_ids": [3, 4], "completion_logprobs": [-0.5, -1.2]}, reward=1.0)

    tokens.bin, mask.bin     1 2 3 4       . . # #            by EpisodeWriter, as for any episodes
    logprobs.bin             nan nan -0.5 -1.2
    rollouts.bin             group 0, reward 1.0, prompt_length 2, ...
    rollouts.jsonl           {"group_id": "task 7", "metadata": {}}

The ids are stored as they are passed. Rollouts are checked at once and written together once there are some: single
ones are small. Files are written in a staging directory, which is renamed when all is written: a writer that is killed
leaves no incomplete dataset, and the next writer of the same path deletes what it left.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from niels_gpt.builds.build import Build, check_ids
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.episodes.format import FORMAT_VERSION, MANIFEST_NAME, SPLITS
from niels_gpt.episodes.writer import EpisodeWriter
from niels_gpt.errors import DataError, UsageError, shown, storage_errors
from niels_gpt.rollouts.format import (
    KIND,
    LINES_NAME,
    LOGPROB_DTYPE,
    LOGPROBS_NAME,
    NO_VERSION,
    RECORDS_NAME,
    ROLLOUT,
    SPLIT,
    VERSION_DTYPE,
    VERSIONS_NAME,
)
from niels_gpt.rollouts.turns import RolloutTokens, joined
from niels_gpt.storage.checksums import FileRecord
from niels_gpt.storage.files import HashedWriter

WAITING_TOKENS: Final = 1 << 18  # tokens that are collected before they are written, since single rollouts are small
MOST: Final = float(np.finfo(np.float32).max)  # of rewards and advantages, which batches hold as float32

GroupId = str | int


class RolloutWriter:
    """Writes one dataset of rollouts; use it with `with`, at whose end the dataset appears, unless there was an error.

    Example::

        with RolloutWriter("rollouts/step_7", renderer) as writer:
            writer.add("task 12", turns, reward=1.0, version=7)

    Args:
        path: the directory to create. One for each step of training; loaders read several.
        renderer: the renderer of the prompts, or a tokenizer with the four sentinels. It is recorded, so that readers
            know which tokenizer the ids are of, and ids outside its vocabulary are refused; `None` records nothing.
        logprobs: every sampled token has a log-probability; False stores none.
        token_versions: also store which version of the policy sampled each token, for engines that take new weights in
            the middle of a completion.
        name: recorded as `dataset_name`.
        overwrite: replace an earlier dataset at `path`.

    Raises:
        UsageError: no renderer. OutputExists, StorageError: see `StagedDirectory`; raised by `with`.
    """

    def __init__(
        self,
        path: str | Path,
        renderer: Any = None,
        *,
        logprobs: bool = True,
        token_versions: bool = False,
        name: str | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        encoder = None if renderer is None else as_encoder(renderer)
        self._vocab_size = None if encoder is None else encoder.vocab_size
        recipe = {
            "format_version": FORMAT_VERSION,
            "kind": KIND,
            "dataset_name": name,
            "dataset_config": None,
            "token_dtype": "uint32",
            "mask_dtype": "uint8",
            "logprob_dtype": "float32" if logprobs else None,
            "version_dtype": "int32" if token_versions else None,
            "vocab_size": self._vocab_size,
            **({"tokenizer_sha256": None, "template_sha256": None} if encoder is None else encoder.describe()),
        }
        self._build = Build(self.path, recipe, max_bad_rows=0, overwrite=overwrite, manifest=MANIFEST_NAME)
        self._logprobs, self._token_versions = logprobs, token_versions
        self._files: _RolloutFiles | None = None
        self._groups: dict[GroupId, int] = {}
        self._waiting: list[_Rollout] = []
        self._waiting_tokens = self.rollouts = 0

    def __enter__(self) -> RolloutWriter:
        if self._files is not None:
            raise UsageError(f"{self.path}: this writer was used before; make a new one")
        self._build.__enter__()
        try:
            self._episodes = self._build.add(EpisodeWriter(self._build.path, SPLIT))
            self._files = self._build.add(_RolloutFiles(self._build.path, self._logprobs, self._token_versions))
        except BaseException:  # Ctrl-C too: `__exit__` is not called when `__enter__` raises
            self._build.__exit__(None, None, None)
            raise
        return self

    def add(
        self,
        group_id: GroupId,
        turns: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        reward: float,
        *,
        advantage: float | None = None,
        version: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Append one rollout. The rollouts of a group may come in any order, between those of other groups.

        Args:
            group_id: of the prompt: rollouts with the same one are compared with each other.
            turns: what the engine returned, one mapping or several in order, with `prompt_ids`, `completion_ids`,
                `completion_logprobs` (natural logarithms of the sampled tokens' probabilities), and optionally
                `completion_mask` and `version`; see `trajectory`.
            reward: a finite number.
            advantage: a finite number, if it is computed already; loaders compute it from rewards else.
            version: of the policy that sampled turns without a `version` of their own.
            metadata: what else is stored; anything that JSON can hold.

        Raises:
            UsageError: a value is of another kind, out of range, or there is not one for each token. Nothing of the
                rollout is written then. StorageError: the disk refused.
        """
        if self._files is None:
            raise UsageError(f"{self.path}: the writer is not open; write: with RolloutWriter(...) as writer")
        row = joined([turns] if isinstance(turns, Mapping) else turns, NO_VERSION if version is None else version)
        if not row.prompt_length:
            raise UsageError("prompt_ids is empty; expected at least one id, from which the first token is predicted")
        if len(row.ids) == row.prompt_length:
            raise UsageError("completion_ids is empty; expected at least one id. Leave out what sampled nothing")
        check_ids(row.ids, self._vocab_size)
        if self._logprobs and np.isnan(row.logprobs[row.mask]).any():
            raise UsageError(
                "no completion_logprobs; expected one for each sampled token: ask the engine for them, or write with "
                "RolloutWriter(..., logprobs=False)"
            )
        number = _finite("reward", reward)
        given = math.nan if advantage is None else _finite("advantage", advantage)
        line = _line(group_id, metadata)
        # After all checks, so that a refused rollout does not begin a group.
        group = self._groups.setdefault(group_id, len(self._groups))
        self._waiting.append(_Rollout(row, group, number, given, line))
        self._waiting_tokens += len(row.ids)
        self.rollouts += 1
        if self._waiting_tokens >= WAITING_TOKENS:
            self._flush()

    def _flush(self) -> None:
        assert self._files is not None
        if not self._waiting:
            return
        rows = [rollout.tokens for rollout in self._waiting]
        lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
        mask = np.concatenate([row.mask for row in rows])
        self._episodes.write(np.concatenate([row.ids for row in rows]), lengths, mask)
        self._files.write(self._waiting)
        self._waiting, self._waiting_tokens = [], 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                return
            if not self.rollouts:
                raise DataError(f"{self.path}: no rollouts, nothing was written; add() at least one")
            self._flush()
            self._build.close_writers()
            counts = {**self._episodes.counts(), "groups": len(self._groups)}
            # Both splits are in the manifest, as in that of any dataset of episodes; rollouts are all in one.
            splits = {name: counts if name == SPLIT else dict.fromkeys(counts, 0) for name in SPLITS}
            self._build.finish({f"{name}_episodes": splits[name]["episodes"] for name in SPLITS}, splits)
        finally:
            # Deletes the staging directory, unless `finish` has renamed it.
            self._build.__exit__(kind, error, trace)


@dataclass(frozen=True, eq=False)
class _Rollout:
    """A checked rollout that is not written yet.

    Attributes:
        group: the number of its group.
        advantage: NaN for none.
        line: of `rollouts.jsonl`.
    """

    tokens: RolloutTokens
    group: int
    reward: float
    advantage: float
    line: bytes


class _RolloutFiles:
    """Writes the files of rollouts that episodes do not have: records, lines, log-probabilities and versions."""

    def __init__(self, root: Path, logprobs: bool, versions: bool) -> None:
        self.files: dict[str, FileRecord] = {}
        self._line_bytes = 0
        folder = root / SPLIT
        with storage_errors("creating the directory", folder):
            folder.mkdir(parents=True, exist_ok=True)
        names = {RECORDS_NAME: True, LINES_NAME: True, LOGPROBS_NAME: logprobs, VERSIONS_NAME: versions}
        self._writers = {name: HashedWriter(folder / name) for name, wanted in names.items() if wanted}

    def write(self, rollouts: Sequence[_Rollout]) -> None:
        rows = [rollout.tokens for rollout in rollouts]
        records = np.zeros(len(rollouts), dtype=ROLLOUT)
        records["group"] = [rollout.group for rollout in rollouts]
        records["version"] = [row.oldest for row in rows]
        records["reward"] = [rollout.reward for rollout in rollouts]
        records["advantage"] = [rollout.advantage for rollout in rollouts]
        records["prompt_length"] = [row.prompt_length for row in rows]
        records["line_bytes"] = [len(rollout.line) for rollout in rollouts]
        # Lines of 30 and 20 bytes after 100 others end at 130 and 150, and begin at 100 and 130.
        ends = self._line_bytes + np.cumsum(records["line_bytes"], dtype=np.int64)
        records["line"] = ends - records["line_bytes"]
        self._line_bytes = int(ends[-1])
        self._writers[RECORDS_NAME].write(records)
        self._writers[LINES_NAME].write(b"".join(rollout.line for rollout in rollouts))
        if LOGPROBS_NAME in self._writers:
            self._writers[LOGPROBS_NAME].write(np.concatenate([row.logprobs for row in rows]).astype(LOGPROB_DTYPE))
        if VERSIONS_NAME in self._writers:
            self._writers[VERSIONS_NAME].write(np.concatenate([row.versions for row in rows]).astype(VERSION_DTYPE))

    def close(self) -> None:
        self.files = {f"{SPLIT}/{name}": writer.close() for name, writer in self._writers.items()}

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()


def _finite(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):  # float() would read "1.5", and text is more likely a mistake
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise UsageError(f"{name} is {shown(value)}; expected a number") from None
    if not abs(number) <= MOST:
        raise UsageError(f"{name} is {number}; expected a finite number of float32, as which batches hold it")
    return number


def _line(group_id: Any, metadata: Mapping[str, Any] | None) -> bytes:
    """The line of `rollouts.jsonl`."""
    if isinstance(group_id, bool) or not isinstance(group_id, str | int):
        raise UsageError(f"group_id is {shown(group_id)}; expected a text or a whole number")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise UsageError(f"metadata is {shown(metadata)}; expected a mapping")
    try:
        _check_keys(metadata)
        text = json.dumps({"group_id": group_id, "metadata": dict(metadata or {})}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"metadata cannot be written as JSON: {error}") from error
    return text.encode() + b"\n"


def _check_keys(value: Any) -> None:
    """Refuse keys that are not text: JSON would write 1 and "1" as the same key."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"metadata has the key {shown(key)}; expected texts as keys")
        value = list(value.values())
    for one in value if isinstance(value, list | tuple) else ():
        _check_keys(one)
