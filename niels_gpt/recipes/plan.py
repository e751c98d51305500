"""Plans a recipe: the rows, tokens, disk space and time of a build, estimated from a sample of every source.

Up to `ROWS_OF_SLICE` rows are taken from each of up to `SLICES` evenly spaced slices of a source. They are encoded as
in the build, so the counts of a small source are exact, and the time is a measurement.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.conversations import PREFIX, EpisodeTask
from niels_gpt.builds.sample_encoder import SampleEncoder
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import open_manifest
from niels_gpt.episodes.order.mixture import Part, measured, rows_of
from niels_gpt.format.packing import pack
from niels_gpt.progress import SILENT, Progress
from niels_gpt.recipes.inputs import OpenedRecipe
from niels_gpt.recipes.schema import Recipe
from niels_gpt.sources.files.slices import SLICE_BYTES, Slice
from niels_gpt.sources.rejections import ALL, BadRowLimit, Rejections

SLICES: Final = 16
ROWS_OF_SLICE: Final = 256
BYTES_OF_TOKEN: Final = 5  # on disk: an id of 4 bytes, a mask of 1


@dataclass(frozen=True)
class SourceEstimate:
    """The estimated size of a source once it is built.

    Attributes:
        files, bytes: of the input.
        rows: all rows of the source, usable or not; estimated unless `exact`.
        sampled: how many of them were encoded for the estimate.
        exact: whether all rows were encoded, so that the counts are not estimates.
        left_out: rows of the sample that would be left out, by reason.
        bad_rows: the number of those that are unusable, in contrast to rows that a filter leaves out.
        stops: whether `bad_rows` exceed `rows.max_bad_rows`, so that a build would stop.
        used, tokens, trained_tokens: of the whole source.
        median, percentile_95, longest: tokens of a conversation, in the sample.
        too_long: conversations longer than a row, of the whole source.
        training_rows: rows of the recipe's sequence length.
        disk_bytes: of the episodes.
        seconds: of encoding in one process.
    """

    name: str
    files: int
    bytes: int
    rows: int
    sampled: int
    exact: bool
    left_out: dict[str, int]
    bad_rows: int
    stops: bool
    used: int
    tokens: int
    trained_tokens: int
    median: int
    percentile_95: int
    longest: int
    too_long: int
    training_rows: int
    disk_bytes: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The plan of a whole recipe.

    Attributes:
        sources: in the recipe's order.
        phases: estimated rows of each source in each phase of an epoch; empty without a mixture.
        out: the directory that a build would create.
        max_bad_rows: of each source, before the build stops.
    """

    sources: list[SourceEstimate]
    phases: list[dict[str, int]]
    out: str
    max_bad_rows: int | str

    def to_json(self) -> dict[str, Any]:
        """The plan as `--json` prints it."""
        return asdict(self)


def plan_recipe(opened: OpenedRecipe, progress: Progress = SILENT) -> Plan:
    """Estimate what a build of the recipe makes.

    Raises:
        UsageError: the mixture cannot be met. Else as reading the sources raises.
    """
    recipe = opened.loaded.recipe
    estimates = []
    for name in opened.names:
        estimates.append(_counted(opened, name) if name in opened.datasets else _estimate(opened, name, progress))
    phases = []
    if recipe.mixture is not None and all(each.training_rows for each in estimates):
        parts = [Part(each.name, each.training_rows, each.tokens, each.trained_tokens) for each in estimates]
        phases = [rows_of(parts, wanted) for wanted in recipe.mixture.proportions()]
    return Plan(estimates, phases, str(opened.out), recipe.rows.max_bad_rows)


def _counted(opened: OpenedRecipe, name: str) -> SourceEstimate:
    """The counts of a source that is a finished dataset: exact, from its manifest and its index."""
    folder, sequence = opened.folder(name), opened.loaded.recipe.sequence
    manifest = open_manifest(folder) or {}
    lengths = EpisodeSplit([folder], "train", min_tokens=0).lengths()
    (part,) = measured(
        [folder],
        [name],
        sequence_length=sequence.length,
        packing=sequence.packing,
        too_long=sequence.too_long,
        share_prefixes=sequence.share_prefixes,
    )
    rows = sum(row["episodes"] for row in manifest["splits"].values())
    size = sum(record["bytes"] for record in manifest["files"].values())
    # All rows count as seen, since the index has the length of every one; nothing is extrapolated.
    sample = _Sample(rows=rows, seen=rows, lengths=[lengths], shared=[np.zeros_like(lengths)], trained=0)
    return replace(
        _scaled(opened.loaded.recipe, name, {"inputs": []}, sample, rows),
        files=len(manifest["files"]),
        bytes=size,
        used=rows,
        tokens=sum(row["tokens"] for row in manifest["splits"].values()),
        trained_tokens=sum(row["trained_tokens"] for row in manifest["splits"].values()),
        training_rows=part.rows,
        disk_bytes=0,
    )


@dataclass
class _Sample:
    """The counts of the rows that were read of a source; added to slice by slice.

    Attributes:
        rows: all rows of the slices that were read, also those that were only counted.
        seen: rows that were encoded.
        expected: of these, the rows that filters left out.
        lengths: of each chunk, int64 of shape (samples,), the tokens that are stored of each sample.
        shared: in the same form, the tokens before these that an earlier sample stores (`prefixes.idx`).
    """

    rows: int = 0
    seen: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    bad_rows: int = 0
    expected: int = 0
    lengths: list[npt.NDArray[np.int64]] = field(default_factory=list)
    shared: list[npt.NDArray[np.int64]] = field(default_factory=list)
    trained: int = 0
    seconds: float = 0.0


def _estimate(opened: OpenedRecipe, name: str, progress: Progress) -> SourceEstimate:
    recipe, source = opened.loaded.recipe, opened.sources[name]
    resolved: Any = source.resolved()  # type: ignore[attr-defined]
    slices = _listed(resolved, name, opened.configs[name], progress)
    sample = _Sample()
    # Evenly spaced with both ends: of 31 slices 0 2 4 ... 30; of 16 or fewer, all.
    last, number_chosen = len(slices) - 1, min(SLICES, len(slices))
    chosen = {round(number * last / max(1, number_chosen - 1)) for number in range(number_chosen)}
    task = EpisodeTask(opened.encoder, "uint8", prefixes=isinstance(opened.encoder, SampleEncoder))
    progress.begin(f"sampling {name}", total=len(chosen), unit="parts")
    for number in sorted(chosen):
        with tempfile.TemporaryDirectory() as folder:
            _look(task, resolved, slices[number], Path(folder), sample, whole=len(slices) == 1)
        progress.advance(1)
    # Slices have about equal sizes, so those that were not read are assumed to have as many rows on average.
    rows = round(sample.rows * len(slices) / max(1, len(chosen)))
    return _scaled(recipe, name, opened.configs[name], sample, rows)


def _listed(source: Any, name: str, config: Mapping[str, Any], progress: Progress) -> list[Slice]:
    """The slices of a source. Finding where lines begin takes one pass over the files, which the progress shows."""
    total = sum(int(one["bytes"]) for one in config.get("inputs", ()))
    progress.begin(f"finding parts of {name}", total=total, unit="bytes")
    slices: list[Slice] = []
    for part in source.slices(SLICE_BYTES):
        progress.advance(int(part.read * total) - int(slices[-1].read * total if slices else 0))
        slices.append(part)
    return slices


def _look(task: EpisodeTask, source: Any, part: Slice, folder: Path, sample: _Sample, *, whole: bool) -> None:
    """Encode the first rows of a slice and count the others, adding to `sample`.

    Args:
        folder: where rejected rows are written; a temporary directory.
        whole: the slice is the whole source, so the rows of all `SLICES` are taken from it.
    """
    rows: Iterator[Any] = iter(source.read(part))
    limit = SLICES * ROWS_OF_SLICE if whole else ROWS_OF_SLICE
    first = list(islice(rows, limit))
    rejections = Rejections(folder, ALL)
    started = time.perf_counter()
    for chunk in task.chunks(first, rejections):
        sample.lengths.append(chunk.lengths)
        sample.shared.append(np.array([row[PREFIX][1] for row in chunk.metadata] or [0] * len(chunk.lengths), np.int64))
        sample.trained += int(np.count_nonzero(chunk.weights))
    sample.seconds += time.perf_counter() - started
    rejections.close()
    sample.rejections.update(rejections.dropped)
    sample.bad_rows += rejections.bad_rows
    sample.expected += rejections.dropped.total() - rejections.bad_rows
    sample.seen += len(first)
    sample.rows += len(first) + sum(1 for _ in rows)


def _scaled(recipe: Recipe, name: str, config: dict[str, Any], sample: _Sample, rows: int) -> SourceEstimate:
    none = np.zeros(0, np.int64)
    stored, shared = np.concatenate([none, *sample.lengths]), np.concatenate([none, *sample.shared])
    lengths = stored + shared
    exact, scale = sample.seen == rows, rows / max(1, sample.seen)
    width = recipe.sequence.length + 1
    # With `share_prefixes` all samples of a conversation are in one row, which stores their common beginning once. A
    # sample with nothing shared begins a conversation: stored 5 2 3 4, shared 0 5 7 0 gives the sizes 10 4.
    first = np.flatnonzero(shared == 0)
    drawn = np.add.reduceat(stored, first) if recipe.sequence.share_prefixes and len(first) else lengths
    fitting = drawn if recipe.sequence.too_long != "skip" else drawn[drawn <= width]
    fitting = np.minimum(fitting, width)
    training_rows = len(fitting)
    if recipe.sequence.packing and len(fitting):
        training_rows = len(pack(fitting, width).offsets) - 1
    median, high, longest = (
        (int(value) for value in np.percentile(lengths, (50, 95, 100))) if len(lengths) else (0, 0, 0)
    )
    tokens = round(int(stored.sum()) * scale)
    return SourceEstimate(
        name=name,
        files=len(config["inputs"]),
        bytes=sum(one["bytes"] for one in config["inputs"]),
        rows=rows,
        sampled=sample.seen,
        exact=exact,
        left_out=dict(sample.rejections),
        bad_rows=sample.bad_rows,
        stops=not BadRowLimit.of(recipe.rows.max_bad_rows).allows(sample.bad_rows, sample.seen - sample.expected),
        used=round(len(lengths) * scale),
        tokens=tokens,
        trained_tokens=round(sample.trained * scale),
        median=median,
        percentile_95=high,
        longest=longest,
        too_long=round(int(np.count_nonzero(lengths > width)) * scale),
        training_rows=round(training_rows * scale),
        disk_bytes=tokens * BYTES_OF_TOKEN,
        seconds=sample.seconds * scale,
    )
