"""Mixtures: how many rows of each part an epoch has, exactly, from proportions by tokens, trained tokens or rows.

A part is one episodes dataset. Its proportion is turned into a number of rows, because rows are what a loader draws::

    weights by tokens     a 0.75, b 0.25, 8,000 tokens an epoch
    part                  rows    tokens    tokens a row    rows an epoch       tokens
    a                        4     4,000           1,000    6,000 / 1,000 = 6    6,000     1.5 times the part
    b                       10     5,000             500    2,000 /   500 = 4    2,000     0.4 times the part

Each number is rounded to the nearest whole row, so no part is off by more than half a row. A part that an epoch shows
1.5 times continues in the next epoch where it stopped (`order.Order`).

`mixture.json` beside the parts records the numbers, and for which rows they were counted: another sequence length, or
packing, makes other rows. With `phases`, an epoch is a curriculum: the first phase's rows, then the second's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field

from niels_gpt.episodes.packing import group_rows, packing_plan
from niels_gpt.errors import CacheError, UsageError, did_you_mean, storage_errors
from niels_gpt.store.files import json_bytes, release, write_atomic
from niels_gpt.store.index_sets import Span, in_chunks
from niels_gpt.store.manifest import Count, Model, check_fields, check_manifest_hash, read_manifest, with_manifest_hash
from niels_gpt.store.split import IndexedSplit, open_split

MIXTURE_NAME: Final = "mixture.json"
MIXTURE_VERSION: Final = 1
MEASURES: Final = ("tokens", "trained_tokens", "rows")
MIN_TOKENS: Final = 2  # of an episode, the default of loaders: one token to predict from, one to predict
EPISODES_AT_ONCE: Final = 4096


@dataclass(frozen=True)
class Part:
    """The rows of one dataset, as a loader with the mixture's sequence length draws them.

    Attributes:
        name: of the part.
        rows: how many rows it has; packed rows where the mixture is packed.
        tokens, trained_tokens: of all its rows together.
    """

    name: str
    rows: int
    tokens: int
    trained_tokens: int

    def amount(self, by: str) -> int:
        """The size of the part in one of `MEASURES`."""
        return {"tokens": self.tokens, "trained_tokens": self.trained_tokens, "rows": self.rows}[by]


@dataclass(frozen=True, kw_only=True)
class Proportions:
    """The shares of the parts of a mixture, or of one phase of it.

    Attributes:
        by: what the weights measure, one of `MEASURES`.
        weights: the share of each part, numbers of any sum; 0 leaves a part out. `None`: by `temperature`.
        temperature: in place of `weights`: a part of size n weighs n ** (1 / temperature); 1 is by size.
        max_epochs: how often an epoch may show a part at most: one number, or one for some of the parts.
        amount: of one epoch in the unit of `by`; `None`: as much as the parts hold together, or less where
            `max_epochs` allows only less at these proportions.

    Raises:
        UsageError: a value out of range, or both weights and temperature.
    """

    by: str = "tokens"
    weights: Mapping[str, float] | None = None
    temperature: float | None = None
    max_epochs: Mapping[str, float] | float | None = None
    amount: int | None = None

    def __post_init__(self) -> None:
        if self.by not in MEASURES:
            raise UsageError(
                f"by is {self.by!r}; expected one of {', '.join(MEASURES)}{did_you_mean(self.by, MEASURES)}"
            )
        if self.weights is not None and self.temperature is not None:
            raise UsageError("weights and temperature are given; each decides the proportions, so pass one of them")
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise UsageError(f"temperature is {self.temperature!r}; expected a number above 0")
        for name, value in (self.weights or {}).items():
            _check_number(f"the weight of {name!r}", value)
        if self.weights is not None and not any(self.weights.values()):
            raise UsageError(f"the weights {dict(self.weights)} are all 0; expected one above 0")
        limits: Mapping[str, Any] = {"all parts": self.max_epochs} if self.max_epochs is not None else {}
        for name, value in (self.max_epochs if isinstance(self.max_epochs, Mapping) else limits).items():
            _check_number(f"max_epochs of {name}", value, above=0)

    def check_names(self, names: Sequence[str]) -> None:
        """Raise `UsageError` unless weights name every part, and limits only parts that there are."""
        limits = self.max_epochs if isinstance(self.max_epochs, Mapping) else {}
        for name in (*(self.weights or ()), *limits):
            if name not in names:
                raise UsageError(
                    f"the mixture names {name!r}; expected one of {', '.join(names)}{did_you_mean(name, names)}"
                )
        unnamed = [name for name in names if self.weights is not None and name not in self.weights]
        if unnamed:
            raise UsageError(f"no weight for {', '.join(unnamed)}; give each part one, 0 leaves it out")


def _check_number(what: str, value: Any, above: float = -1) -> None:
    # bool is a subclass of int, and `True` is no weight. NaN fails every comparison.
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < math.inf or value < 0:
        expected = "a number above 0" if above == 0 else "a number of 0 or more"
        raise UsageError(f"{what} is {value!r}; expected {expected}")


def rows_of(parts: Sequence[Part], wanted: Proportions) -> dict[str, int]:
    """Rows of each part in one epoch; parts of weight 0 have none.

    Raises:
        UsageError: the proportions cannot be met; the message says which part prevents it, and what can be met.
    """
    wanted.check_names([part.name for part in parts])
    # Fractions are exact: with floats, rounding could decide on which side of a half a number of rows is.
    if wanted.weights is not None:
        weights = {part.name: Fraction(wanted.weights[part.name]) for part in parts}
    else:
        by_size = by_temperature({part.name: part.amount(wanted.by) for part in parts}, wanted.temperature or 1)
        weights = {name: Fraction(weight) for name, weight in by_size.items()}
    used = [part for part in parts if weights[part.name]]
    for part in used:
        if not part.amount(wanted.by):
            raise UsageError(
                f"{part.name} has {part.rows:,} rows and no {wanted.by.replace('_', ' ')}, so no number of its rows "
                "has a share; give it the weight 0, or measure by rows"
            )
    total = sum((weights[part.name] for part in used), Fraction(0))
    amount = _amount(used, weights, total, wanted)
    rows = dict.fromkeys((part.name for part in parts), 0)
    for part in used:
        target = amount * weights[part.name] / total
        # Half a row more, rounded down: 2.5 rows become 3 and 2.4 become 2.
        rows[part.name] = math.floor(target * part.rows / part.amount(wanted.by) + Fraction(1, 2))
        if not rows[part.name]:
            raise UsageError(
                f"the share of {part.name} is {float(target):,.0f} of {float(amount):,.0f} {wanted.by}, less than half "
                f"a row of {part.amount(wanted.by) / part.rows:,.0f}; raise its weight or the epoch, or give it 0"
            )
    return rows


def by_temperature(sizes: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Weights by size: size ** (1 / temperature), scaled so that the largest group weighs 1.

    Sizes 100 and 1 are in the ratio 100 to 1 at temperature 1, 10 to 1 at 2, and equal at infinity.

    Raises:
        UsageError: the temperature is not above 0, or so near it that a group would have no weight.
    """
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not temperature > 0:
        raise UsageError(f"temperature is {temperature!r}; expected a number above 0 (1: by size, large: all alike)")
    # Divided by the largest before the power, or sizes of billions at a low temperature would overflow.
    most = max(sizes.values()) or 1
    weight_of = {name: (size / most) ** (1 / temperature) for name, size in sizes.items()}
    # At a temperature near 0 the power is too small for a float. As 0 it would leave the group out silently.
    if lost := next((name for name, weight in weight_of.items() if not weight and sizes[name]), None):
        raise UsageError(f"the weight of {lost} is 0 at temperature {temperature:g}; raise the temperature")
    return weight_of


def _amount(used: Sequence[Part], weights: Mapping[str, Fraction], total: Fraction, wanted: Proportions) -> Fraction:
    """The size of an epoch in the unit of the proportions."""
    # The epoch in which a part comes out exactly `limit` times: a part of 100 tokens with a share of a quarter, at most
    # 2 epochs, allows 100 * 2 * 4 = 800 tokens.
    most = {
        part.name: part.amount(wanted.by) * limit * total / weights[part.name]
        for part in used
        if (limit := _limit(part.name, wanted)) is not None
    }
    available = Fraction(sum(part.amount(wanted.by) for part in used))
    if wanted.amount is None:
        return min([available, *most.values()])
    # An epoch that the caller asks for is never shortened silently, as the default one is.
    for name, allowed in most.items():
        if wanted.amount > allowed:
            raise UsageError(
                f"an epoch of {wanted.amount:,} {wanted.by.replace('_', ' ')} would show {name} "
                f"{float(wanted.amount / allowed * (_limit(name, wanted) or 1)):.2f} times, and max_epochs is "
                f"{float(_limit(name, wanted) or 0):g}; at these weights at most {math.floor(allowed):,} are possible. "
                "Lower the epoch or the weight, or raise max_epochs"
            )
    return Fraction(wanted.amount)


def _limit(name: str, wanted: Proportions) -> Fraction | None:
    limit = wanted.max_epochs.get(name) if isinstance(wanted.max_epochs, Mapping) else wanted.max_epochs
    return None if limit is None else Fraction(limit)


def measured(
    datasets: Sequence[Path],
    names: Sequence[str],
    *,
    sequence_length: int,
    packing: bool,
    too_long: str,
) -> list[Part]:
    """The train rows of several datasets, as a loader of all of them with these settings draws them.

    Reads every index and mask once; a packing plan is stored beside the first dataset, where the loader finds it.

    Raises:
        CacheError: a dataset is missing or damaged, or an episode is too long where `too_long` is "error".
    """
    width = sequence_length + 1  # a row holds one token more, the last target
    split = open_split(list(datasets), "train", width=width, min_tokens=MIN_TOKENS, too_long=too_long)
    members = {f"dataset {number}": span for number, span in enumerate(split.positions_of_datasets())}
    # Packed rows are those of one part each, so that an exact number of them can be drawn from every part.
    if packing:
        rows = [len(span) for span in group_rows(packing_plan(split, width, groups=members), members).values()]
    else:
        rows = [len(span) for span in members.values()]
    return [
        Part(name, n, *_amounts(split, span, width))
        for name, n, span in zip(names, rows, members.values(), strict=True)
    ]


def _amounts(split: IndexedSplit, span: Span, width: int) -> tuple[int, int]:
    """Tokens and trained tokens of some episodes, of which rows hold at most `width` tokens each."""
    tokens = trained = 0
    for positions in in_chunks(span, EPISODES_AT_ONCE):
        episodes = split.filtered[positions]
        shards, starts, lengths = split.locate(episodes)
        stops = starts + np.minimum(lengths, width)
        tokens += int((stops - starts).sum())
        # A row's first token is no target: nothing comes before it.
        firsts = np.minimum(starts + 1, stops)
        for number in np.unique(shards).tolist():
            here, mask = shards == number, split.shards[number].mask
            begins, ends = firsts[here], stops[here]
            if mask is None:  # all tokens are trained
                trained += int((ends - begins).sum())
                continue
            # The mask is read once from the first of these episodes to the last: a dataset has them in this order.
            first = int(begins.min())
            # Mask # . # # from token 10 on: counts 0 1 1 2 3, so tokens 11 and 12 have counts[3] - counts[1] = 1.
            counts = np.concatenate([[0], np.cumsum(mask[first : int(ends.max())] != 0)])
            trained += int((counts[ends - first] - counts[begins - first]).sum())
            release(mask)
    return tokens, trained


@dataclass(frozen=True)
class Mixture:
    """The contents of `mixture.json`.

    Attributes:
        sequence_length, packing, too_long: which rows were counted, see `GPTEpisodeDataLoader`.
        seed: of the order.
        parts: the datasets, by name in the order of the recipe.
        folders: where each part is, relative to the directory of `mixture.json`.
        phases: rows of each part in each phase of an epoch; one phase unless there is a curriculum.
    """

    sequence_length: int
    packing: bool
    too_long: str
    seed: int
    parts: tuple[Part, ...]
    folders: Mapping[str, str]
    phases: tuple[Mapping[str, int], ...]

    def rows(self, name: str) -> int:
        """Rows of a part in an epoch, all phases together."""
        return sum(phase[name] for phase in self.phases)

    def to_json(self) -> dict[str, Any]:
        """As in the file."""
        return {"format_version": MIXTURE_VERSION, "kind": "mixture", **asdict(self)}


def write_mixture(folder: Path, mixture: Mixture) -> None:
    """Write `mixture.json`, whole or not at all.

    Raises:
        StorageError: the disk refused.
    """
    # With its own hash, so that a count that somebody edits is noticed when the file is read.
    with storage_errors("writing", folder / MIXTURE_NAME):
        write_atomic(folder / MIXTURE_NAME, json_bytes(with_manifest_hash(mixture.to_json())))


class _Part(Model, extra="forbid"):
    name: str
    rows: Count
    tokens: Count
    trained_tokens: Count


class _Fields(Model):
    sequence_length: Annotated[Count, Field(ge=1)]
    packing: bool
    too_long: str
    seed: Count
    parts: list[_Part]
    folders: dict[str, str]
    phases: list[dict[str, Count]]


def read_mixture(folder: Path) -> Mixture | None:
    """The mixture in a directory; `None` if there is none.

    Raises:
        CacheError: the file is damaged, or of another version.
    """
    path = folder / MIXTURE_NAME
    if not path.is_file():
        return None
    found = read_manifest(path)
    if found.get("format_version") != MIXTURE_VERSION:
        raise CacheError(
            f"{path}: version {found.get('format_version')!r}; expected {MIXTURE_VERSION}. Build the recipe again"
        )
    check_manifest_hash(path, found)
    # Also the fields: an edit may have left the hash out, and then nothing says that it was made.
    check_fields(path, found, _Fields, "mixture")
    names = {part["name"] for part in found["parts"]}
    if names != set(found["folders"]) or any(set(phase) - names for phase in found["phases"]):
        raise CacheError(f"{path}: parts, folders and phases name different sources. Build the recipe again")
    return Mixture(
        sequence_length=found["sequence_length"],
        packing=found["packing"],
        too_long=found["too_long"],
        seed=found["seed"],
        parts=tuple(Part(**part) for part in found["parts"]),
        folders=found["folders"],
        phases=tuple(found["phases"]),
    )


def mixture_for(
    path: Any, *, sequence_length: int | None, packing: bool | None, too_long: str | None = None
) -> Mixture | None:
    """The mixture of a directory that a recipe built; `None` for anything else, such as an episodes dataset.

    Its parts are named by their directories, as a loader names them.

    Args:
        path: as `dataset_dir` of a loader.
        sequence_length, packing, too_long: what the caller passed, if anything.

    Raises:
        UsageError: the caller wants other rows than those that the mixture counts. CacheError: see `read_mixture`.
    """
    if not isinstance(path, str | Path) or (found := read_mixture(Path(path))) is None:
        return None
    for name, wanted, counted in (
        ("sequence_length", sequence_length, found.sequence_length),
        ("packing", packing, found.packing),
        ("too_long", too_long, found.too_long),
    ):
        # The numbers of rows hold for the rows that were counted: another length or packing makes other rows.
        if wanted is not None and wanted != counted:
            raise UsageError(
                f"{name} is {wanted!r}, but {Path(path) / MIXTURE_NAME} counts rows with {name} {counted!r}; leave it "
                "out, build the recipe with the other value, or pass the directories in sources/ with proportions"
            )
    # A recipe's directory may be moved, so folders are recorded relative to it. A loader names datasets by their paths.
    places = {name: str(Path(path) / folder) for name, folder in found.folders.items()}
    return replace(
        found,
        parts=tuple(replace(part, name=places[part.name]) for part in found.parts),
        folders={place: place for place in places.values()},
        phases=tuple({places[name]: rows for name, rows in phase.items()} for phase in found.phases),
    )
