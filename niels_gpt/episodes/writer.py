"""Conversations -> an episodes dataset (document 002); `episodes.json` is written last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt import ranges
from niels_gpt.builds import Build, already_built, tell_changes
from niels_gpt.encoders import Choices, OnUnsupported, Rows, encoder_of
from niels_gpt.episodes.format import FORMAT_VERSION, MANIFEST_NAME, SPLITS, open_manifest
from niels_gpt.episodes.shards import EpisodeWriter
from niels_gpt.errors import DataError
from niels_gpt.portions import SERIAL, Engine, EpisodeWork, Portion, finishing
from niels_gpt.progress import SILENT, Progress
from niels_gpt.splits import ValidationSplit

__all__ = ["EpisodeWriter", "build_episodes"]


def build_episodes(
    conversations: Rows,
    out_dir: str | Path,
    *,
    encoder: Any,
    val_frac: float = 0.1,
    seed: int = 42,
    mask_dtype: str | None = "uint8",
    shard_bytes: int | None = None,
    metadata: bool = False,
    source_name: str | None = None,
    source_config: dict[str, Any] | None = None,
    max_bad_rows: int = 0,
    allow_partial: bool = False,
    on_unsupported: OnUnsupported = "drop",
    overwrite: bool = False,
    engine: Engine = SERIAL,
    read_share: Callable[[], float | None] = lambda: None,
    progress: Progress = SILENT,
) -> None:
    """Write an episodes dataset from conversations. Same rows, encoder, options and seed: same bytes.

    Args:
        conversations: lists of messages or `Conversation`s, in order; consumed once, never held.
        encoder: what makes ids and masks: a renderer, a tokenizer with the four sentinels, or one of `encoders`.
        val_frac: share of episodes for val, 0 or more and below 1. Conversations of one group stay together.
        seed: of the split.
        mask_dtype: "uint8", "float32" where messages have weights between, or `None` for no mask.
        shard_bytes: cut `tokens.bin` into shards of at most so many bytes; episodes are never cut.
        metadata: write each row's `type`, `source` and `weight` to `episodes.parquet`, to sample by.
        source_name, source_config: recorded; a dataset of the same `source_config` is not built twice.
        max_bad_rows: how many unusable rows to leave out (into `rejected.jsonl`) before giving up.
        allow_partial, on_unsupported: of renderers, see `encoders.Choices`. Encoders have their own.
        overwrite: replace an earlier dataset at `out_dir`.
        engine: runs the work, see `scale`; the bytes do not depend on it.
        read_share: how much of the input has been read, 0 to 1, to tell the time left.

    Raises:
        UsageError: an option out of range. OutputExists, Mismatch: `out_dir` is taken.
        DataError: too many bad rows, or no usable conversation. TokenizerError: ids that should not be.
        StorageError: the disk refused. Whatever is raised, `out_dir` is as it was before.
    """
    ranges.EPISODES_SHARD_BYTES.check(shard_bytes)
    ranges.MAX_BAD_ROWS.check(max_bad_rows)
    ranges.VAL_FRAC.check(val_frac)
    made_by = encoder_of(encoder, choices=Choices(allow_partial, on_unsupported))
    split, out = ValidationSplit(val_frac, seed), Path(out_dir)
    recipe = {
        "format_version": FORMAT_VERSION,
        "kind": "episodes",
        "dataset_name": source_name,
        # Of an encoder that cannot be told from others nothing is "already built".
        "dataset_config": source_config if made_by.identified else None,
        "seed": seed,
        "val_frac": val_frac,
        "token_dtype": "uint32",
        "mask_dtype": mask_dtype,
        "shard_bytes": shard_bytes,
        "metadata": metadata,
        "vocab_size": made_by.vocab_size,
        **made_by.describe(),
    }
    if not overwrite and already_built(out, recipe, progress, manifest=MANIFEST_NAME, check=open_manifest):
        engine.discard(out)
        return
    build = Build(out, recipe, max_bad_rows=max_bad_rows, overwrite=overwrite, manifest=MANIFEST_NAME)
    with finishing(engine, out, progress), build:
        files: dict[str, Any] = {"mask_dtype": mask_dtype, "shard_bytes": shard_bytes, "with_metadata": metadata}
        writers = {name: build.add(EpisodeWriter(build.path, name, **files)) for name in SPLITS}
        progress.begin(out.name, unit="tokens")
        work = EpisodeWork(made_by, mask_dtype, metadata, source_name)
        for portion in engine.portions(
            work, conversations, build.rejections, out=out, recipe=recipe, progress=progress
        ):
            _write(portion, split, writers)
            progress.advance(len(portion.ids))
            if share := read_share() or engine.read_share():
                progress.expect(int(sum(writer.tokens for writer in writers.values()) / share))
        build.close_writers()
        totals = {f"{name}_episodes": writer.episodes for name, writer in writers.items()}
        if not sum(totals.values()):
            dropped = dict(build.rejections.dropped) or "none"
            raise DataError(f"{out}: the input holds no usable conversation, nothing was written; left out: {dropped}")
        build.finish(totals, {name: writer.counts() for name, writer in writers.items()})
        tell_changes(out, build.rejections.changed, progress)


def _write(portion: Portion, split: ValidationSplit, writers: dict[str, EpisodeWriter]) -> None:
    in_val = np.array([split.draw(group) for group in portion.groups], dtype=np.bool_)
    for name, chosen in (("train", ~in_val), ("val", in_val)):
        ids = np.repeat(chosen, portion.lengths)
        own = [portion.facts[number] for number in np.flatnonzero(chosen).tolist()] if portion.facts else []
        writers[name].write(portion.ids[ids], portion.lengths[chosen], portion.weights[ids], own)
