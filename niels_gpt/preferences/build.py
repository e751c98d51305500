"""`build_preferences`: preferences -> a dataset of episodes in which the completions of a prompt are neighbours.

::

    rows --executor, PreferenceTask--> completions --whole groups, split--> train / val EpisodeWriter --> files

The files are those of an episodes dataset, and `completions.bin` beside them; see docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from niels_gpt.builds.build import BuildFields, BuildOptions
from niels_gpt.builds.conversation_encoders import as_encoder, refuse_image_folder
from niels_gpt.builds.renderer_encoder import RenderingPolicy
from niels_gpt.builds.splits import ValidationSplit
from niels_gpt.builds.tasks import Chunk
from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.episodes.build import build_splits, recipe_of
from niels_gpt.episodes.format import COMPLETION, open_manifest
from niels_gpt.episodes.writer import EpisodeWriter
from niels_gpt.preferences.encode import PreferenceTask
from niels_gpt.ranges import EPISODES_SHARD_BYTES, VAL_FRAC
from niels_gpt.renderers.notes import OnUnwritten
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.preference_files import PreferenceFiles
from niels_gpt.sources.rows.preference_rows import Preference


def build_preferences(
    preferences: PreferenceFiles | Iterable[Preference | Rejected],
    out_dir: str | Path,
    *,
    encoder: Any,
    form: str | None = None,
    val_frac: float = DEFAULT_VAL_FRAC,
    seed: int = DEFAULT_SEED,
    shard_bytes: int | None = None,
    allow_partial: bool = False,
    on_unwritten: OnUnwritten | None = None,
    **fields: Unpack[BuildFields],
) -> None:
    """Write a dataset of preferences. Same rows, encoder, options and seed: same bytes.

    Args:
        preferences: all of one form; consumed once, never held in memory.
        encoder: a renderer, a tokenizer with the four sentinels, or a `ConversationEncoder`.
        form: one of `sources.rows.preference_rows.FORMS`; for `PreferenceFiles` it is detected.
        val_frac: share of the rows for val, at least 0 and below 1. All completions of a row go to the same split.
        shard_bytes: cut `tokens.bin` into shards of at most so many bytes; the completions of a row stay together.
        seed, allow_partial, on_unwritten, fields: as in `build_episodes`.

    Raises:
        UsageError: an option out of range. OutputExists, Mismatch: `out_dir` is taken.
        DataError: too many bad rows, or no usable one. TokenizerError: the encoder gave invalid ids.
        StorageError: the disk refused. Whatever is raised, `out_dir` is as it was before.
    """
    options = BuildOptions(**fields)
    EPISODES_SHARD_BYTES.check(shard_bytes)
    options.check()
    VAL_FRAC.check(val_frac)
    if form is None:
        form = preferences.detected_form() if isinstance(preferences, PreferenceFiles) else "preference"
    rows = preferences if isinstance(preferences, PreferenceFiles) else _of_one_form(preferences, form)
    conversation_encoder = as_encoder(encoder, policy=RenderingPolicy(allow_partial, on_unwritten))
    refuse_image_folder(conversation_encoder, "preferences")
    settings = {"form": form, "mask_dtype": "uint8", "shard_bytes": shard_bytes}
    recipe = recipe_of(conversation_encoder, options, seed, val_frac, settings, kind="preferences")
    task = PreferenceTask(conversation_encoder)
    build_splits(
        Path(out_dir),
        recipe,
        options,
        check=open_manifest,
        files={"shard_bytes": shard_bytes, "with_completions": True},
        chunks=lambda build: whole_groups(build.chunks(task, rows, options, groups_in)),
        write=partial(_write_chunk, split=ValidationSplit(val_frac, seed)),
    )


def _of_one_form(rows: Iterable[Preference | Rejected], form: str) -> Iterator[Preference | Rejected]:
    for number, row in enumerate(rows):
        if isinstance(row, Preference) and not row.where:
            row = replace(row, where=f"example {number}")
        if isinstance(row, Preference) and row.form != form:
            detail = f"{row.where}: a row of the form {row.form!r} in a dataset of {form!r}; build one dataset of each"
            yield Rejected(row.where, "other_form", detail)
        else:
            yield row


def groups_in(chunk: Chunk) -> int:
    """How many groups begin in a chunk: with the numbers 0 1 0 1 2, two."""
    return sum(each["number"] == 0 for each in chunk.metadata)


def whole_groups(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same completions in chunks that begin and end with a row's: executors cut chunks anywhere.

    Numbers 0 1 0 | 1 0 1 become 0 1 | 0 1 0 1.
    """
    waiting: Chunk | None = None
    for part in chunks:
        chunk = part
        if waiting is not None:
            chunk = Chunk(
                np.concatenate([waiting.ids, part.ids]),
                np.concatenate([waiting.lengths, part.lengths]),
                np.concatenate([waiting.weights, part.weights]),
                [*waiting.groups, *part.groups],
                [*waiting.metadata, *part.metadata],
            )
            waiting = None
        last = chunk.metadata[-1]
        if last["number"] + 1 < last["size"]:
            # The group that is cut waits for its other completions. Numbers 0 1 0 1 2 of sizes 2 2 4 4 4: the first 2
            # episodes are complete, which is 5 - (2 + 1).
            n = len(chunk.lengths) - (int(last["number"]) + 1)
            chunk, waiting = _cut(chunk, n)
        if len(chunk.lengths):
            yield chunk


def _cut(chunk: Chunk, n: int) -> tuple[Chunk, Chunk]:
    """The first `n` episodes of a chunk, and the others."""
    tokens = int(chunk.lengths[:n].sum())
    first, others = (
        replace(
            chunk,
            ids=chunk.ids[ids],
            lengths=chunk.lengths[rows],
            weights=chunk.weights[ids],
            groups=chunk.groups[rows],
            metadata=chunk.metadata[rows],
        )
        for ids, rows in ((slice(0, tokens), slice(0, n)), (slice(tokens, None), slice(n, None)))
    )
    return first, others


def _write_chunk(chunk: Chunk, writers: dict[str, EpisodeWriter], *, split: ValidationSplit) -> None:
    # Records of `completions.bin`. What a row does not give is -1, or NaN where -1 is a legal value.
    records = np.zeros(len(chunk.metadata), dtype=COMPLETION)
    for name, missing in (("number", 0), ("prompt_length", 0), ("rank", -1), ("label", -1)):
        records[name] = [missing if row[name] is None else int(row[name]) for row in chunk.metadata]
    for name in ("score", "margin"):
        records[name] = [np.nan if row[name] is None else row[name] for row in chunk.metadata]
    begins = records["number"] == 0
    # Drawn once for each group, and repeated for its completions: numbers 0 1 0 1 2 belong to groups 0 0 1 1 1.
    drawn = [split.draw(chunk.groups[at]) for at in np.flatnonzero(begins).tolist()]
    in_val = np.array(drawn, dtype=np.bool_)[np.cumsum(begins) - 1]
    for name, chosen in (("train", ~in_val), ("val", in_val)):
        ids = np.repeat(chosen, chunk.lengths)
        writers[name].write(chunk.ids[ids], chunk.lengths[chosen], chunk.weights[ids], completions=records[chosen])
