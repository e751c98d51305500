"""`import_rollouts`: reads rollouts that another program wrote as lines of JSON.

A line has one rollout, of one turn or more::

    {"prompt_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.5, -1.2], "reward": 1.0, "group_id": "task 7"}
    {"turns": [{"prompt_ids": [...], "completion_ids": [...], "logprobs": [...]}, ...], "reward": 0.0}

Each becomes the arguments of `RolloutWriter.add`, which checks all values::

    group_id, reward, advantage      the keys of these names
    turns                            the list `turns`, or the line itself as the only turn
    metadata                         `metadata`, and all keys that are known nowhere else
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
from niels_gpt.sources.files.inputs import ReadProgress, Rejected, read_jsonl

# Keys of a turn, and of the line around turns.
TURN_FIELDS: Final = ("prompt_ids", "completion_ids", "completion_mask", "version")
LOGPROBS: Final = ("completion_logprobs", "logprobs")  # our own name, and a shorter one
ROW_FIELDS: Final = ("turns", "reward", "advantage", "group_id", "metadata")
_FIELDS_OF_TOKENS: Final = ("prompt_ids", "completion_ids", "completion_mask", *LOGPROBS)


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
    with the same ids in the (first) prompt are a group. What a row holds besides becomes its metadata, and what its
    turns hold besides becomes `turns` in it.

    Args:
        files: `.jsonl`, also `.gz` or `.zst`.
        renderer, options: see `RolloutWriter`.

    Raises:
        InputError: a line is no JSON, a field is missing or of another kind, or lists differ in length (file, line and
            field named). OutputExists: `out_dir` is taken. Whatever is raised, `out_dir` is as it was before.
    """
    options = {"name": Path(out_dir).name, **options}
    # Whatever is raised inside of `with` deletes what was written.
    with RolloutWriter(out_dir, renderer, **options) as writer:
        progress.begin(Path(out_dir).name, unit="rollouts")
        count, paths = ReadProgress(), [Path(file) for file in files]
        count.begin(paths)
        for path in paths:
            if path.suffix in (".parquet", ".arrow"):  # the reader of lines would call them damaged texts
                expected = "expected lines of JSON: .jsonl, .jsonl.gz or .jsonl.zst"
                raise InputError(f"{path}: rollouts are not read from {path.suffix} files; {expected}")
            for record in read_jsonl(path, count=count):
                if isinstance(record, Rejected):
                    raise InputError(record.detail)
                _add(writer, record.value, record.where, with_logprobs=options.get("logprobs", True))
                progress.advance(1)
                # The number of lines is not known before they are read; the share of the bytes that were read gives it.
                if fraction := count.fraction():
                    progress.expect(int(writer.rollouts / fraction))
        return writer.rollouts


def _add(writer: RolloutWriter, row: Any, where: str, *, with_logprobs: bool) -> None:
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: the row is a {type(row).__name__}; expected an object with prompt_ids")
    try:
        if "reward" not in row:
            raise UsageError(f"no reward; found {', '.join(map(str, row)) or 'nothing'}")
        # A row without `turns` is the only turn.
        rows = row.get("turns", [row])
        if not isinstance(rows, list) or not all(isinstance(turn, Mapping) for turn in rows):
            raise UsageError(f"turns is {shown(rows)}; expected a list of objects")
        beside = [name for name in _FIELDS_OF_TOKENS if "turns" in row and row.get(name) is not None]
        if beside:
            raise UsageError(f"turns and {' and '.join(beside)} beside them; expected these in each turn")
        turns = [_turn(turn, with_logprobs) for turn in rows]
        group_id = row.get("group_id")
        if group_id is None:
            # Rows with the same first prompt are a group. A hash, because every line of the dataset holds the id.
            prompt = turns[0].get("prompt_ids") if turns else None
            group_id = hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:16]
        writer.add(
            group_id,
            turns,
            row["reward"],
            advantage=row.get("advantage"),
            version=row.get("version") if "turns" in row else None,  # else it is the only turn's own
            metadata=_metadata(row),
        )
    except (UsageError, TokenizerError) as error:
        raise InputError(f"{where}: {error}") from error


def _metadata(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row, or of its turns, that are not part of a rollout."""
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise UsageError(f"metadata is {shown(metadata)}; expected an object")
    known = (*TURN_FIELDS, *LOGPROBS)
    others = {name: value for name, value in row.items() if name not in (*ROW_FIELDS, *known)}
    of_turns = [{name: value for name, value in turn.items() if name not in known} for turn in row.get("turns", ())]
    if any(of_turns):
        others["turns"] = of_turns
    for name in others.keys() & metadata.keys():
        if others[name] != metadata[name]:
            raise UsageError(
                f"{name} is {shown(others[name])} in the row and {shown(metadata[name])} in its metadata; expected "
                "one of them, because both would be stored under one name"
            )
    return {**others, **metadata}


def _turn(turn: Mapping[str, Any], with_logprobs: bool) -> dict[str, Any]:
    found = {name: turn[name] for name in TURN_FIELDS if turn.get(name) is not None}
    both = [turn[name] for name in LOGPROBS if turn.get(name) is not None]
    if len(both) > 1 and both[0] != both[1]:
        raise UsageError(f"{' and '.join(LOGPROBS)} are given, and differ; expected one of them")
    logprobs = both[0] if both else None
    if not with_logprobs or logprobs is None:
        return found
    if not isinstance(logprobs, list):
        raise UsageError(f"logprobs is {shown(logprobs)}; expected a list of numbers")
    # JSON has no NaN, and writes -1.0 as -1 in some languages.
    return {**found, "completion_logprobs": [math.nan if value is None else _number(value) for value in logprobs]}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"logprobs holds {shown(value)}; expected numbers, or null where a token was not sampled")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # refused as infinite numbers are, with its token
