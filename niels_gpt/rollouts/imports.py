"""`import_rollouts`: rollouts that another program wrote as lines of JSON -> a dataset of rollouts.

A line holds one rollout, in one turn or in several::

    {"prompt_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.5, -1.2], "reward": 1.0, "group_id": "task 7"}
    {"turns": [{"prompt_ids": [...], "completion_ids": [...], "logprobs": [...]}, ...], "reward": 0.0}
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import InputError, TokenizerError, UsageError, shown
from niels_gpt.progress import SILENT, Progress
from niels_gpt.rollouts.writer import RolloutWriter
from niels_gpt.sources.inputs import ReadProgress, Rejected, read_jsonl

TURN_FIELDS: Final = ("prompt_ids", "completion_ids", "completion_mask", "version")
LOGPROBS: Final = ("completion_logprobs", "logprobs")
ROW_FIELDS: Final = ("turns", "reward", "advantage", "group_id", "metadata")


def import_rollouts(
    files: Iterable[str | Path],
    out_dir: str | Path,
    renderer: Any = None,
    *,
    progress: Progress = SILENT,
    **options: Any,
) -> int:
    """Write a dataset from files of rollouts; returns how many there are. The ids are stored as they are.

    `logprobs` may hold null where a token was not sampled, which `completion_mask` has to say. Without `group_id`, rows
    with the same ids in the (first) prompt are a group. What a row holds besides becomes its metadata.

    Args:
        files: `.jsonl`, also `.gz` or `.zst`.
        renderer, options: see `RolloutWriter`.

    Raises:
        InputError: a line is no JSON, a field is missing or of another kind, or lists differ in length (file, line and
            field named). OutputExists: `out_dir` is taken. Whatever is raised, `out_dir` is as it was before.
    """
    options = {"name": Path(out_dir).name, **options}
    with RolloutWriter(out_dir, renderer, **options) as writer:
        progress.begin(Path(out_dir).name, unit="rollouts")
        count, paths = ReadProgress(), [Path(file) for file in files]
        count.begin(paths)
        for path in paths:
            for record in read_jsonl(path, count=count):
                if isinstance(record, Rejected):
                    raise InputError(record.detail)
                _add(writer, record.value, record.where, with_logprobs=options.get("logprobs", True))
                progress.advance(1)
                if fraction := count.fraction():
                    progress.expect(int(writer.rollouts / fraction))
        return writer.rollouts


def _add(writer: RolloutWriter, row: Any, where: str, *, with_logprobs: bool) -> None:
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: the row is a {type(row).__name__}; expected an object with prompt_ids")
    try:
        if "reward" not in row:
            raise UsageError(f"no reward; found {', '.join(map(str, row)) or 'nothing'}")
        given = row.get("turns", [row])
        if not isinstance(given, list) or not all(isinstance(turn, Mapping) for turn in given):
            raise UsageError(f"turns is {shown(given)}; expected a list of objects")
        turns = [_turn(turn, with_logprobs) for turn in given]
        others = {name: value for name, value in row.items() if name not in (*ROW_FIELDS, *TURN_FIELDS, *LOGPROBS)}
        metadata = row.get("metadata") or {}
        if not isinstance(metadata, Mapping):
            raise UsageError(f"metadata is {shown(metadata)}; expected an object")
        writer.add(
            row["group_id"] if row.get("group_id") is not None else _prompt_hash(turns),
            turns,
            row["reward"],
            advantage=row.get("advantage"),
            version=row.get("version") if "turns" in row else None,
            metadata={**others, **metadata},
        )
    except (UsageError, TokenizerError) as error:
        raise InputError(f"{where}: {error}") from error


def _turn(turn: Mapping[str, Any], with_logprobs: bool) -> dict[str, Any]:
    found = {name: turn[name] for name in TURN_FIELDS if turn.get(name) is not None}
    logprobs = next((turn[name] for name in LOGPROBS if turn.get(name) is not None), None)
    if not with_logprobs or logprobs is None:
        return found
    if not isinstance(logprobs, list):
        raise UsageError(f"logprobs is {shown(logprobs)}; expected a list of numbers")
    # JSON has no NaN, and writes -1.0 as -1 in some languages.
    return {**found, "completion_logprobs": [math.nan if value is None else _number(value) for value in logprobs]}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"logprobs holds {shown(value)}; expected numbers, or null where a token was not sampled")
    return float(value)


def _prompt_hash(turns: list[dict[str, Any]]) -> str:
    prompt = turns[0].get("prompt_ids") if turns else None
    return hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:16]
