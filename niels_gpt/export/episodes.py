"""Episodes as a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.reading import check_whole
from niels_gpt.export.rows import Int64s, Rows, rows_of, runs
from niels_gpt.export.source import Examples, Facts, check


def episodes(path: Path, split: str) -> Examples:
    """An episodes dataset's split, without empty episodes."""
    opened = EpisodeSplit([path], split, min_tokens=1)
    manifest = opened.manifests[0] or {}
    weighted = [shard.mask.dtype != np.uint8 for shard in opened.shards if shard.mask is not None]
    if len(set(weighted)) > 1:  # together they are read as float32, where 255 would pass
        check_whole(opened)
    facts = Facts(
        path=path,
        kind="episodes",
        split=split,
        n_tokens=opened.n_tokens,
        vocab_size=opened.vocab_size,
        has_mask=opened.has_mask,
        has_weights=opened.has_mask and any(weighted),
        several_texts=opened.has_segments,
        special_token_ids=dict(manifest.get("special_token_ids") or {}),
        tokenizer_sha256=manifest.get("tokenizer_sha256"),
        fingerprint=opened.fingerprint,
    )
    reader = _EpisodeReader(opened, facts)
    return Examples(facts, len(opened), reader.lengths, reader.read)


class _EpisodeReader:
    """Reads episodes by position."""

    def __init__(self, split: EpisodeSplit, facts: Facts) -> None:
        self._split, self._facts = split, facts

    def lengths(self, numbers: Int64s) -> Int64s:
        return self._split.locate(self._split.kept[numbers])[2]

    def read(self, numbers: Int64s) -> Rows:
        episodes = self._split.kept[numbers]
        shard, starts, lengths = self._split.locate(episodes)
        ids = self._gather([s.tokens for s in self._split.shards], shard, starts, lengths)
        weights = begins = None
        if self._facts.has_mask:
            weights = self._gather([s.mask for s in self._split.shards], shard, starts, lengths)
        if self._facts.several_texts:
            segments = [np.zeros(0, np.uint8) if s.segments is None else s.segments for s in self._split.shards]
            found = self._gather(segments, shard, starts, lengths)
            begins = np.zeros(len(ids), dtype=np.bool_)
            begins[1:] = found[1:] != found[:-1]
        rows = rows_of(ids, lengths, weights, begins)
        check(rows, self._facts, lambda row: self._split.describe(int(episodes[row])))
        return rows

    def _gather(self, files: list[Any], shard: Int64s, starts: Int64s, lengths: Int64s) -> npt.NDArray[Any]:
        """Runs of several files, in the order asked for."""
        used = np.unique(shard).tolist()
        if len(used) == 1:
            return _of(files[used[0]], starts, lengths)
        places = np.cumsum(lengths) - lengths
        values = np.empty(int(lengths.sum()), dtype=np.result_type(*(files[number] for number in used)))
        everywhere = np.arange(len(values))
        for number in used:
            here = shard == number
            values[runs(everywhere, places[here], lengths[here])] = _of(files[number], starts[here], lengths[here])
        return values


def _of(file: npt.NDArray[Any], starts: Int64s, lengths: Int64s) -> npt.NDArray[Any]:
    """Runs of a file; zeros of an optional file that a shard does not have."""
    return runs(file, starts, lengths) if len(file) else np.zeros(int(lengths.sum()), dtype=file.dtype)
