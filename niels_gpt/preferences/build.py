"""`build_preferences`: preferences -> a dataset of episodes in which the completions of a prompt are neighbours.

::

    rows --PreferenceTask--> completions --split, by group--> train / val EpisodeWriter --> files

The files are those of an episodes dataset, and `completions.bin` beside them; see docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.build import Build, BuildFields, BuildOptions, Kind, write_dataset
from niels_gpt.builds.conversation_encoders import as_encoder, refuse_image_folder
from niels_gpt.builds.renderer_encoder import RenderingPolicy
from niels_gpt.builds.splits import ValidationSplit
from niels_gpt.builds.tasks import Chunk
from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.episodes.build import recipe_of
from niels_gpt.episodes.writer import EpisodeWriter
from niels_gpt.preferences.encode import PreferenceTask
from niels_gpt.ranges import EPISODES_SHARD_BYTES, VAL_FRAC
from niels_gpt.renderers.notes import OnUnwritten
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.preference_files import PreferenceFiles
from niels_gpt.sources.rows.preference_rows import Preference
from niels_gpt.store.kinds import open_manifest
from niels_gpt.store.schema import COMPLETION, MANIFEST_NAME, SPLITS


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
        form: one of `sources.rows.shapes.FORMS`; for `PreferenceFiles` it is detected.
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
    VAL_FRAC.check(val_frac)
    split = ValidationSplit(val_frac, seed)
    if form is None:
        form = preferences.detected_form() if isinstance(preferences, PreferenceFiles) else "preference"
    rows = preferences if isinstance(preferences, PreferenceFiles) else _of_one_form(preferences, form)
    conversation_encoder = as_encoder(encoder, policy=RenderingPolicy(allow_partial, on_unwritten))
    refuse_image_folder(conversation_encoder, "preferences")
    settings = {"form": form, "mask_dtype": "uint8", "shard_bytes": shard_bytes}
    recipe = recipe_of(conversation_encoder, options, seed, val_frac, settings, kind="preferences")

    def open_writers(path: Path) -> dict[str, EpisodeWriter]:
        return {name: EpisodeWriter(path, name, shard_bytes=shard_bytes, with_completions=True) for name in SPLITS}

    def in_val(chunk: Chunk) -> npt.NDArray[np.bool_]:
        # Drawn once for each group, and repeated for its completions: numbers 0 1 0 1 2 are of groups 0 0 1 1 1.
        begins = _begins(chunk)
        drawn = split.draws([chunk.groups[at] for at in np.flatnonzero(begins).tolist()])
        of_completions: npt.NDArray[np.bool_] = drawn[np.cumsum(begins) - 1]
        return of_completions

    def fill(build: Build, writers: dict[str, EpisodeWriter]) -> dict[str, dict[str, int]]:
        def write(name: str, rows: Chunk) -> None:
            writers[name].write(rows.ids, rows.lengths, rows.weights, completions=_records(rows))

        chunks = build.chunks(PreferenceTask(conversation_encoder), rows, lambda chunk: int(_begins(chunk).sum()))
        build.divide(chunks, in_val, write)
        return {name: writer.counts() for name, writer in writers.items()}

    kind = Kind(MANIFEST_NAME, open_manifest, "episodes", "usable preference")
    write_dataset(Path(out_dir), recipe, options, kind, open_writers, fill)


def _of_one_form(rows: Iterable[Preference | Rejected], form: str) -> Iterator[Preference | Rejected]:
    for number, row in enumerate(rows):
        if isinstance(row, Rejected):
            yield row
            continue
        where = row.prompt.where or f"example {number}"
        if row.form == form:
            yield replace(row, prompt=replace(row.prompt, where=where))
        else:
            detail = f"{where}: a row of the form {row.form!r} in a dataset of {form!r}; build one dataset of each"
            yield Rejected(where, "other_form", detail)


def _begins(chunk: Chunk) -> npt.NDArray[np.bool_]:
    """Where a group begins: its first completion has the number 0. A chunk holds whole groups."""
    return np.array([row["number"] == 0 for row in chunk.metadata], dtype=np.bool_)


def _records(chunk: Chunk) -> npt.NDArray[np.void]:
    """Records of `completions.bin`. What a row does not give is -1, or NaN where -1 is a legal value."""
    records = np.zeros(len(chunk.metadata), dtype=COMPLETION)
    for name, missing in (("number", 0), ("prompt_length", 0), ("rank", -1), ("label", -1)):
        records[name] = [missing if row[name] is None else int(row[name]) for row in chunk.metadata]
    for name in ("score", "margin"):
        records[name] = [np.nan if row[name] is None else row[name] for row in chunk.metadata]
    return records
