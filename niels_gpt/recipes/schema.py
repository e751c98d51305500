"""The schema of recipes: every table and key, with types, ranges and defaults.

::

    out = "datasets/assistant"          where everything is written; paths are relative to the recipe's directory

    [tokenizer]                         ids are made with it
    [renderer]                          how conversations are written: a family's grammar or a chat template
    [loss]                              which tokens are trained
    [rows]                              what becomes of conversations that do not fit as they are
    [split]                             the share for validation
    [sequence]                          the rows of training: length, packing, what becomes of longer ones
    [[sources]]                         files, with their format and filters; several
    [duplicates]                        rows that another row says already: `DuplicateOptions`
    [decontaminate]                     rows that contain texts of benchmarks
    [mixture]                           the proportions of the sources
    [[exports]]                         the same data in other trainers' formats; several

Tables are dataclasses, where there is one the very value that the function beneath takes. `reading.check_recipe` makes
them: unknown keys are refused, so that a misspelt one does not silently leave its default in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from niels_gpt import ranges
from niels_gpt.builds.renderer_encoder import RenderingPolicy, Samples
from niels_gpt.builds.rows import MAX_MESSAGE_BYTES
from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.episodes.order.mixture import Proportions
from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.export.registry import FORMATS
from niels_gpt.format.fitting import EPISODE_POLICIES
from niels_gpt.renderers.loss import Preset
from niels_gpt.renderers.registry import RendererOptions
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.curation.duplicates import DuplicateOptions
from niels_gpt.sources.curation.filters import ROLES, RowFilters
from niels_gpt.sources.functions import check_dotted_name
from niels_gpt.sources.mapping import RowMapping
from niels_gpt.sources.rejections import BadRowLimit
from niels_gpt.sources.rows.shapes import DIALECTS

AtLeastOne = Field(min_length=1)
NAME = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")  # of a source: it becomes the name of a directory


def within(limits: ranges.Range) -> Any:
    """A number of this range."""
    return Field(ge=limits.least, le=limits.most)


def one_of(names: Any) -> AfterValidator:
    """One of some names; the message has the nearest."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names:
            raise UsageError(f"found {value!r}; expected one of {', '.join(names)}{did_you_mean(value, names)}")
        return value

    return AfterValidator(check)


@dataclass(frozen=True)
class TokenizerTable:
    """`[tokenizer]`: a directory or hub name of a Hugging Face tokenizer, or a `spm.model`."""

    path: Annotated[str, AtLeastOne]


@dataclass(frozen=True)
class RendererTable(RendererOptions):
    """`[renderer]`: as `--renderer` and the options beside it, and the folder of the images in conversations."""

    images: Path | None = None

    def __post_init__(self) -> None:
        self.check()


@dataclass(frozen=True)
class LossTable:
    """`[loss]`: which tokens are trained, see `renderers.loss.LossOn`, and in how many samples of a conversation."""

    on: Preset = "all_assistant_turns"
    tool_bodies: tuple[str, ...] = ()
    samples: Samples = "per-conversation"


@dataclass(frozen=True)
class RowsTable(RenderingPolicy):
    """`[rows]`: what becomes of conversations that do not fit as they are."""

    max_bad_rows: int | str = 0
    default_system: str | None = None
    max_message_bytes: Annotated[int, within(ranges.MAX_MESSAGE_BYTES)] = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        BadRowLimit.of(self.max_bad_rows)


@dataclass(frozen=True)
class SplitTable:
    """`[split]`: the share of the conversations for validation, drawn with the recipe's seed."""

    val_frac: Annotated[float, within(ranges.VAL_FRAC)] = DEFAULT_VAL_FRAC


@dataclass(frozen=True)
class SequenceTable:
    """`[sequence]`: the rows that training draws. Stored episodes are not cut, so another loader may choose others."""

    length: Annotated[int, within(ranges.BLOCK_SIZE)] = 4096
    packing: bool = True
    too_long: Annotated[str, one_of(EPISODE_POLICIES)] = "skip"


@dataclass(frozen=True)
class SourceTable:
    """`[[sources]]`: files of conversations, how their rows are read, and which of them are used.

    Or a `dataset` that is built already, whose episodes are used as they are. `columns`, `roles` and `default_system`
    are those of `RowMapping`; `function` is the name of a function of yours (`RowFunction`), which runs only where the
    caller allows it.
    """

    name: Annotated[str, NAME]
    files: Annotated[tuple[str, ...], AtLeastOne] | None = None
    dataset: Annotated[str, AtLeastOne] | None = None
    format: Annotated[str | None, one_of(DIALECTS)] = None
    columns: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    default_system: str | None = None
    function: str | None = None
    filter: RowFilters = field(default_factory=RowFilters)

    def __post_init__(self) -> None:
        if (self.files is None) == (self.dataset is None):
            found = "neither files nor a dataset" if self.files is None else "files and a dataset"
            raise UsageError(f"found {found}; expected one of them")
        reading = (self.format, self.columns, self.roles, self.default_system, self.function, self.filter)
        if self.dataset is not None and any(reading):
            raise UsageError("found format, columns or a filter, and a dataset, whose rows are built already")
        if self.function is not None:
            check_dotted_name(self.function)
        RowMapping(self.columns, self.roles)  # refuses unknown columns and roles


@dataclass(frozen=True)
class DecontaminateTable:
    """`[decontaminate]`: leave out rows that contain a stretch of words of a benchmark; see `sources.curation`."""

    files: Annotated[tuple[str, ...], AtLeastOne]
    words: Annotated[int, within(ranges.NGRAM_WORDS)] = 13


@dataclass(frozen=True)
class PhaseTable:
    """`[[mixture.phases]]`: one phase of a curriculum; phases follow each other within an epoch."""

    weights: Mapping[str, float]
    amount: Annotated[int, within(ranges.FILTER_COUNT)]


@dataclass(frozen=True, kw_only=True)
class MixtureTable(Proportions):
    """`[mixture]`: the proportions of the sources in an epoch; without it every row comes once.

    With `phases`, an epoch is a curriculum: each phase has `weights` and an `amount` of its own.
    """

    phases: tuple[PhaseTable, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.FILTER_COUNT.check(self.amount, "amount")
        others = (self.weights, self.temperature, self.amount, self.max_epochs)
        if self.phases and any(value is not None for value in others):
            raise UsageError("found phases, and weights, temperature, amount or max_epochs beside them; leave them out")
        self.proportions()  # refuses values out of range; names are compared with the sources by `Recipe`

    def proportions(self) -> list[Proportions]:
        """The proportions of each phase; one where there are no phases."""
        phases = [Proportions(by=self.by, weights=phase.weights, amount=phase.amount) for phase in self.phases]
        return phases or [self]


@dataclass(frozen=True)
class ExportTable:
    """`[[exports]]`: one of the formats of `niels-gpt export`, from every source."""

    to: Annotated[str, one_of(FORMATS)]
    options: Mapping[str, Any] = field(default_factory=dict)
    split: Literal["train", "val"] | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole recipe. See the module for what each table says."""

    # Strict: "4096" is no number, since a recipe that is read otherwise than it looks cannot be checked by reading it.
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    out: Annotated[str, AtLeastOne]
    seed: Annotated[int, within(ranges.SEED)] = DEFAULT_SEED
    tokenizer: TokenizerTable
    renderer: RendererTable = field(default_factory=RendererTable)
    loss: LossTable | None = None
    rows: RowsTable = field(default_factory=RowsTable)
    split: SplitTable = field(default_factory=SplitTable)
    sequence: SequenceTable = field(default_factory=SequenceTable)
    sources: Annotated[tuple[SourceTable, ...], AtLeastOne]
    duplicates: DuplicateOptions | None = None
    decontaminate: DecontaminateTable | None = None
    mixture: MixtureTable | None = None
    exports: tuple[ExportTable, ...] = ()

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        # Each is a directory: sources/NAME, exports/TO/NAME.
        for what, given in (("sources", names), ("exports", [export.to for export in self.exports])):
            if again := next((name for name in given if given.count(name) > 1), None):
                raise UsageError(f"two {what} are {again!r}, which have one directory; expected each once")
        for role in self.duplicates.roles if self.duplicates else ():
            if role not in ROLES:
                raise UsageError(f"duplicates.roles has {role!r}; expected some of {', '.join(ROLES)}")
        stored = [source.name for source in self.sources if source.dataset is not None]
        if stored and (self.duplicates or self.decontaminate):
            raise UsageError(
                f"found duplicates or decontaminate, and the dataset {stored[0]!r}, whose texts cannot be searched any "
                "more; name its files instead, or leave these tables out"
            )
        for wanted in self.mixture.proportions() if self.mixture else ():
            wanted.check_names(names)
