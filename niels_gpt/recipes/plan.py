"""Plans a recipe: the rows, tokens, disk space and time of a build, estimated from a sample of every source.

::

    slices of a source       0 1 2 ... 30          parts of about equal size
    chosen                   0   2 ... 30          up to `SLICES`, evenly spaced, with both ends
    of each                  its first rows, up to `ROWS_OF_SLICE`, are encoded as in the build; the others are counted
    estimate                 counts of the encoded rows, times (all rows of the source / encoded rows)

So the counts of a source whose rows are all encoded are exact, and the time is a measurement. Sources that are finished
datasets are not sampled: their manifest and index hold the counts.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
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
from niels_gpt.recipes.schema import Recipe, SequenceTable
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
        estimates.append(_of_dataset(opened, name) if name in opened.datasets else _of_files(opened, name, progress))
    phases = []
    # A mixture of a source without training rows cannot be met; the estimates show which source that is.
    if recipe.mixture is not None and all(each.training_rows for each in estimates):
        parts = [Part(each.name, each.training_rows, each.tokens, each.trained_tokens) for each in estimates]
        phases = [rows_of(parts, wanted) for wanted in recipe.mixture.proportions()]
    return Plan(estimates, phases, str(opened.out), recipe.rows.max_bad_rows)


def _of_dataset(opened: OpenedRecipe, name: str) -> SourceEstimate:
    """The counts of a source that is a finished dataset: exact, from its manifest and its index."""
    folder, sequence = opened.folder(name), opened.loaded.recipe.sequence
    manifest = open_manifest(folder) or {}
    splits, files = manifest["splits"].values(), manifest["files"].values()
    lengths = EpisodeSplit([folder], "train", min_tokens=0).lengths()
    (part,) = measured(
        [folder],
        [name],
        sequence_length=sequence.length,
        packing=sequence.packing,
        too_long=sequence.too_long,
        share_prefixes=sequence.share_prefixes,
    )
    rows = sum(split["episodes"] for split in splits)
    median, percentile_95, longest = _percentiles(lengths)
    return SourceEstimate(
        name=name,
        files=len(files),
        bytes=sum(record["bytes"] for record in files),
        rows=rows,
        sampled=rows,
        exact=True,
        left_out={},
        bad_rows=0,
        stops=False,
        used=rows,
        tokens=sum(split["tokens"] for split in splits),
        trained_tokens=sum(split["trained_tokens"] for split in splits),
        median=median,
        percentile_95=percentile_95,
        longest=longest,
        too_long=int(np.count_nonzero(lengths > sequence.length + 1)),
        training_rows=part.rows,
        # The build writes nothing of it.
        disk_bytes=0,
        seconds=0.0,
    )


def _of_files(opened: OpenedRecipe, name: str, progress: Progress) -> SourceEstimate:
    """The counts of a source that has to be built, estimated from a sample."""
    resolved: Any = opened.sources[name].resolved()  # type: ignore[attr-defined]
    slices = _slices(resolved, name, opened.configs[name], progress)
    # Of 31 slices 0 2 4 ... 30; of 16 or fewer, all.
    last, number_chosen = len(slices) - 1, min(SLICES, len(slices))
    chosen = {round(number * last / max(1, number_chosen - 1)) for number in range(number_chosen)}
    # A source of one slice gives as many rows as one of many.
    limit = SLICES * ROWS_OF_SLICE if len(slices) == 1 else ROWS_OF_SLICE
    task = EpisodeTask(opened.encoder, "uint8", prefixes=isinstance(opened.encoder, SampleEncoder))
    sample = _Sample()
    progress.begin(f"sampling {name}", total=len(chosen), unit="parts")
    for number in sorted(chosen):
        with tempfile.TemporaryDirectory() as folder:
            sample.add(task, resolved.read(slices[number]), limit, Path(folder))
        progress.advance(1)
    # Slices have about equal sizes, so those that were not read are assumed to have as many rows on average.
    rows = round(sample.rows * len(slices) / max(1, len(chosen)))
    return _scaled(opened.loaded.recipe, name, opened.configs[name], sample, rows)


def _slices(source: Any, name: str, config: Mapping[str, Any], progress: Progress) -> list[Slice]:
    """The slices of a source. Finding where lines begin takes one pass over the files, which the progress shows."""
    total = sum(int(one["bytes"]) for one in config.get("inputs", ()))
    progress.begin(f"finding parts of {name}", total=total, unit="bytes")
    slices: list[Slice] = []
    for part in source.slices(SLICE_BYTES):
        # `read` is the share of the source up to the end of a slice.
        progress.advance(int(part.read * total) - int(slices[-1].read * total if slices else 0))
        slices.append(part)
    return slices


@dataclass
class _Sample:
    """The counts of the rows that were read of a source; added to slice by slice.

    Attributes:
        rows: all rows of the slices that were read, also those that were only counted.
        seen: rows that were encoded.
        left_out: of these, the rows that are left out, by reason.
        bad_rows: of these, the unusable ones; the others were left out by filters.
        stored: of each chunk, int64 of shape (samples,), the tokens that are stored of each sample.
        shared: in the same form, the tokens before these that an earlier sample stores (`prefixes.idx`).
        trained: tokens in the loss.
        seconds: of encoding.
    """

    rows: int = 0
    seen: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    bad_rows: int = 0
    stored: list[npt.NDArray[np.int64]] = field(default_factory=list)
    shared: list[npt.NDArray[np.int64]] = field(default_factory=list)
    trained: int = 0
    seconds: float = 0.0

    def add(self, task: EpisodeTask, rows: Iterator[Any], limit: int, folder: Path) -> None:
        """Encode the first rows of a slice, up to `limit`, and count the others.

        Args:
            folder: where rejected rows are written; a temporary directory.
        """
        rows = iter(rows)
        first = list(islice(rows, limit))
        rejections = Rejections(folder, ALL)
        started = time.perf_counter()
        for chunk in task.chunks(first, rejections):
            self.stored.append(chunk.lengths)
            # Chunks have metadata only where samples of a conversation may share a beginning.
            prefixes = [row[PREFIX][1] for row in chunk.metadata] or [0] * len(chunk.lengths)
            self.shared.append(np.array(prefixes, np.int64))
            self.trained += int(np.count_nonzero(chunk.weights))
        self.seconds += time.perf_counter() - started
        rejections.close()
        self.left_out.update(rejections.dropped)
        self.bad_rows += rejections.bad_rows
        self.seen += len(first)
        self.rows += len(first) + sum(1 for _ in rows)


def _scaled(recipe: Recipe, name: str, config: dict[str, Any], sample: _Sample, rows: int) -> SourceEstimate:
    """The counts of a sample as those of a source with this many rows."""
    none = np.zeros(0, np.int64)
    stored, shared = np.concatenate([none, *sample.stored]), np.concatenate([none, *sample.shared])
    lengths = stored + shared
    scale = rows / max(1, sample.seen)
    # The limit on unusable rows is one on the rows that no filter leaves out.
    unfiltered = sample.seen - (sample.left_out.total() - sample.bad_rows)
    median, percentile_95, longest = _percentiles(lengths)
    tokens = round(int(stored.sum()) * scale)
    return SourceEstimate(
        name=name,
        files=len(config["inputs"]),
        bytes=sum(one["bytes"] for one in config["inputs"]),
        rows=rows,
        sampled=sample.seen,
        exact=sample.seen == rows,
        left_out=dict(sample.left_out),
        bad_rows=sample.bad_rows,
        stops=not BadRowLimit.of(recipe.rows.max_bad_rows).allows(sample.bad_rows, unfiltered),
        used=round(len(lengths) * scale),
        tokens=tokens,
        trained_tokens=round(sample.trained * scale),
        median=median,
        percentile_95=percentile_95,
        longest=longest,
        too_long=round(int(np.count_nonzero(lengths > recipe.sequence.length + 1)) * scale),
        training_rows=round(_training_rows(recipe.sequence, stored, shared) * scale),
        disk_bytes=tokens * BYTES_OF_TOKEN,
        seconds=sample.seconds * scale,
    )


def _training_rows(sequence: SequenceTable, stored: npt.NDArray[np.int64], shared: npt.NDArray[np.int64]) -> int:
    """How many rows of training these samples give."""
    width = sequence.length + 1  # the last token of a row is a target only
    sizes = stored + shared
    if sequence.share_prefixes and len(stored):
        # All samples of a conversation are in one row, which stores their common beginning once. A sample with nothing
        # shared begins a conversation: stored 5 2 3 4, shared 0 5 7 0 gives the sizes 10 4.
        first = np.flatnonzero(shared == 0)
        sizes = np.add.reduceat(stored, first) if len(first) else sizes
    if sequence.too_long == "skip":
        sizes = sizes[sizes <= width]
    sizes = np.minimum(sizes, width)  # with the other policies longer ones are cut
    return len(pack(sizes, width).offsets) - 1 if sequence.packing and len(sizes) else len(sizes)


def _percentiles(lengths: npt.NDArray[np.int64]) -> tuple[int, int, int]:
    """The median, the 95th percentile and the largest of some lengths; 0 0 0 of none."""
    if not len(lengths):
        return 0, 0, 0
    median, high, longest = (int(value) for value in np.percentile(lengths, (50, 95, 100)))
    return median, high, longest
