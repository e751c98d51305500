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
    [duplicates]                        rows that another row says already
    [decontaminate]                     rows that contain texts of benchmarks
    [mixture]                           the proportions of the sources
    [[exports]]                         the same data in other trainers' formats; several

Unknown keys are refused, so that a misspelt one does not silently leave its default in force.
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from niels_gpt import ranges
from niels_gpt.builds.renderer_encoder import Samples
from niels_gpt.builds.rows import MAX_MESSAGE_BYTES
from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.episodes.order.mixture import MEASURES, Proportions
from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.export.registry import FORMATS
from niels_gpt.format.fitting import EPISODE_POLICIES
from niels_gpt.renderers.notes import OnUnwritten
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.curation.duplicates import DuplicateOptions
from niels_gpt.sources.curation.filters import ROLES, RowFilters
from niels_gpt.sources.functions import check_dotted_name
from niels_gpt.sources.mapping import RowMapping
from niels_gpt.sources.rejections import BadRowLimit
from niels_gpt.sources.rows.shapes import DIALECTS

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # of a source: it becomes the name of a directory


def within(limits: ranges.Range) -> AfterValidator:
    """A number of this range, as commands and functions check it."""

    def check(value: Any) -> Any:
        limits.check(value)  # UsageError is a ValueError, which pydantic reports with the key
        return value

    return AfterValidator(check)


def _bad_row_limit(value: int | str) -> int | str:
    BadRowLimit.of(value)
    return value


def _dotted_name(value: str | None) -> str | None:
    return value if value is None else check_dotted_name(value)


def one_of(names: Any) -> AfterValidator:
    """One of some names; the message has the nearest."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names:
            raise UsageError(f"found {value!r}; expected one of {', '.join(names)}{did_you_mean(value, names)}")
        return value

    return AfterValidator(check)


def _day(value: str | None) -> str | None:
    try:
        datetime.date.fromisoformat(value or "2026-01-31")  # any day where there is none
    except ValueError as error:
        raise UsageError(f"found {value!r}; expected a day like 2026-01-31") from error
    return value


def _source_name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise UsageError(
            f"found {value!r}; expected a name of up to 64 letters, digits, '-', '_' and '.', because it becomes the "
            "name of a directory"
        )
    return value


def _as_text(value: Any) -> Any:
    # TOML and YAML have dates of their own: 2026-01-31 without quotation marks is one.
    return value.isoformat() if isinstance(value, datetime.date) else value


class Table(BaseModel):
    """A table of a recipe: unknown keys are refused, values are not converted, instances do not change."""

    # strict: "4096" is no number, since a recipe that is read otherwise than it looks cannot be checked by reading it.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TokenizerTable(Table):
    """`[tokenizer]`: a directory or hub name of a Hugging Face tokenizer, or a `spm.model`."""

    path: Annotated[str, Field(min_length=1)]


class RendererTable(Table):
    """`[renderer]`: as `--renderer` and the options beside it; see `renderers.registry.RendererOptions`."""

    name: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    template: str | None = None
    date: Annotated[str | None, BeforeValidator(_as_text), AfterValidator(_day)] = None
    isolate: bool = False
    images: str | None = None


class LossTable(Table):
    """`[loss]`: which tokens are trained, see `renderers.loss.LossOn`, and in how many samples of a conversation."""

    on: Literal["all_assistant_turns", "last_assistant_turn", "last_message", "all_tokens"] = "all_assistant_turns"
    tool_bodies: list[str] = Field(default_factory=list)
    samples: Samples = "per-conversation"


class RowsTable(Table):
    """`[rows]`: what becomes of conversations that do not fit as they are."""

    max_bad_rows: Annotated[int | str, AfterValidator(_bad_row_limit)] = 0
    on_unwritten: OnUnwritten | None = None
    allow_partial: bool = False
    default_system: str | None = None
    max_message_bytes: Annotated[int, within(ranges.MAX_MESSAGE_BYTES)] = MAX_MESSAGE_BYTES


class SplitTable(Table):
    """`[split]`: the share of the conversations for validation, drawn with the recipe's seed."""

    val_frac: Annotated[float, within(ranges.VAL_FRAC)] = DEFAULT_VAL_FRAC


class SequenceTable(Table):
    """`[sequence]`: the rows that training draws. Stored episodes are not cut, so another loader may choose others."""

    length: Annotated[int, within(ranges.BLOCK_SIZE)] = 4096
    packing: bool = True
    too_long: Annotated[str, one_of(EPISODE_POLICIES)] = "skip"


class FilterTable(Table):
    """`[sources.filter]`: conversations that are left out on purpose; see `sources.curation.filters.RowFilters`."""

    min_messages: Annotated[int | None, within(ranges.FILTER_COUNT)] = None
    max_messages: Annotated[int | None, within(ranges.FILTER_COUNT)] = None
    min_characters: Annotated[int | None, within(ranges.FILTER_COUNT)] = None
    max_characters: Annotated[int | None, within(ranges.FILTER_COUNT)] = None
    min_answer_characters: Annotated[int | None, within(ranges.FILTER_COUNT)] = None
    match: str | None = None
    exclude: str | None = None
    role: Annotated[str | None, one_of(ROLES)] = None
    languages: list[str] | None = None

    @model_validator(mode="after")
    def _possible(self) -> FilterTable:
        self.row_filters()  # refuses what cannot be, such as a minimum above its maximum
        return self

    def row_filters(self) -> RowFilters:
        """The filters as the value that a source takes."""
        values = self.model_dump()
        return RowFilters(**values | {"languages": None if self.languages is None else tuple(self.languages)})


class SourceTable(Table):
    """`[[sources]]`: files of conversations, how their rows are read, and which of them are used.

    Or a `dataset` that is built already, whose episodes are used as they are.

    `columns`, `roles` and `default_system` are those of `sources.mapping.RowMapping`; `function` is the name of one of
    a function of yours (`sources.functions.RowFunction`), which runs only where the caller allows it.
    """

    name: Annotated[str, AfterValidator(_source_name)]
    files: Annotated[list[str] | None, Field(min_length=1)] = None
    dataset: Annotated[str | None, Field(min_length=1)] = None
    format: Annotated[str | None, one_of(DIALECTS)] = None
    columns: dict[str, str] = Field(default_factory=dict)
    roles: dict[str, str] = Field(default_factory=dict)
    default_system: str | None = None
    function: Annotated[str | None, AfterValidator(_dotted_name)] = None
    filter: FilterTable = Field(default_factory=FilterTable)

    @model_validator(mode="after")
    def _possible(self) -> SourceTable:
        if (self.files is None) == (self.dataset is None):
            found = "neither files nor a dataset" if self.files is None else "files and a dataset"
            raise UsageError(f"found {found}; expected one of them")
        if self.dataset is not None:
            # A lock sets every key, most of them to their defaults.
            fields = type(self).model_fields
            others = [
                name
                for name in sorted(self.model_fields_set - {"name", "dataset", "files"})
                if getattr(self, name) != fields[name].get_default(call_default_factory=True)
            ]
            for name in others:
                raise UsageError(f"found {name} and a dataset, whose rows are built already; leave one of them out")
        RowMapping.of(self.columns, self.roles)  # refuses unknown columns and roles
        return self


class PhaseTable(Table):
    """`[[mixture.phases]]`: one phase of a curriculum; phases follow each other within an epoch."""

    weights: dict[str, float]
    amount: Annotated[int, within(ranges.FILTER_COUNT)]


class DuplicatesTable(Table):
    """`[duplicates]`: leave out rows that another row, of any source, repeats; see `sources.curation`."""

    exact: bool = True
    near: float | None = None
    words: Annotated[int, within(ranges.NGRAM_WORDS)] = 5
    roles: list[Annotated[str, one_of(ROLES)]] = Field(default_factory=lambda: ["user", "assistant"])

    @model_validator(mode="after")
    def _possible(self) -> DuplicatesTable:
        self.options()
        return self

    def options(self) -> DuplicateOptions:
        """The table as the value that `find_duplicates` takes."""
        return DuplicateOptions(exact=self.exact, near=self.near, words=self.words, roles=tuple(self.roles))


class DecontaminateTable(Table):
    """`[decontaminate]`: leave out rows that contain a stretch of words of a benchmark; see `sources.curation`."""

    files: Annotated[list[str], Field(min_length=1)]
    words: Annotated[int, within(ranges.NGRAM_WORDS)] = 13


class MixtureTable(Table):
    """`[mixture]`: the proportions of the sources in an epoch; without it every row comes once.

    `weights` are shares of any sum, measured `by` tokens, trained tokens or rows; `temperature` makes the shares from
    the sizes; `max_epochs` limits how often an epoch shows a source; `amount` is the size of an epoch in the same unit.
    With `phases`, an epoch is a curriculum: each phase has `weights` and an `amount` of its own.
    """

    by: Annotated[str, one_of(MEASURES)] = "tokens"
    weights: dict[str, float] | None = None
    temperature: float | None = None
    max_epochs: dict[str, float] | float | None = None
    amount: Annotated[int | None, within(ranges.FILTER_COUNT)] = None
    phases: list[PhaseTable] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_way(self) -> MixtureTable:
        if self.phases and (self.weights is not None or self.temperature is not None or self.amount is not None):
            raise UsageError("found phases and weights, temperature or amount beside them; put these into the phases")
        if self.phases and self.max_epochs is not None:
            raise UsageError("found phases and max_epochs; a phase says by its amount how much it shows")
        self.proportions()  # refuses values out of range; names are compared with the sources by `Recipe`
        return self

    def proportions(self) -> list[Proportions]:
        """The proportions of each phase; one where there are no phases."""
        if self.phases:
            return [Proportions(by=self.by, weights=phase.weights, amount=phase.amount) for phase in self.phases]
        limits, amount = self.max_epochs, self.amount
        keywords = {"weights": self.weights, "temperature": self.temperature, "max_epochs": limits, "amount": amount}
        return [Proportions(by=self.by, **keywords)]  # type: ignore[arg-type]


class ExportTable(Table):
    """`[[exports]]`: one of the formats of `niels-gpt export`, from every source."""

    to: Annotated[str, one_of(FORMATS)]
    options: dict[str, Any] = Field(default_factory=dict)
    split: Literal["train", "val"] | None = None


class Recipe(Table):
    """A whole recipe. See the module for what each table says."""

    out: Annotated[str, Field(min_length=1)]
    seed: Annotated[int, within(ranges.SEED)] = DEFAULT_SEED
    tokenizer: TokenizerTable
    renderer: RendererTable = Field(default_factory=RendererTable)
    loss: LossTable | None = None
    rows: RowsTable = Field(default_factory=RowsTable)
    split: SplitTable = Field(default_factory=SplitTable)
    sequence: SequenceTable = Field(default_factory=SequenceTable)
    sources: Annotated[list[SourceTable], Field(min_length=1)]
    duplicates: DuplicatesTable | None = None
    decontaminate: DecontaminateTable | None = None
    mixture: MixtureTable | None = None
    exports: list[ExportTable] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names(self) -> Recipe:
        names = [source.name for source in self.sources]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UsageError(f"two sources are named {twice[0]!r}; expected a name of its own for each")
        # Every export is written to exports/TO/NAME.
        formats = [export.to for export in self.exports]
        again = [name for name in formats if formats.count(name) > 1]
        if again:
            raise UsageError(
                f"two exports are to {again[0]!r}, which have one directory; expected each format once. Build the "
                "other with niels-gpt export"
            )
        stored = [source.name for source in self.sources if source.dataset is not None]
        for table in ("duplicates", "decontaminate") if stored else ():
            if getattr(self, table) is not None:
                raise UsageError(
                    f"found {table} and the dataset {stored[0]!r}, whose texts cannot be searched any more; name its "
                    f"files instead, or leave {table} out"
                )
        for wanted in self.mixture.proportions() if self.mixture else ():
            wanted.check_names(names)
        return self
