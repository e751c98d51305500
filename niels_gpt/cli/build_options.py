"""The options of commands that build from conversations or texts, in addition to those of `options.py`.

A module of its own, because their defaults come from modules that take long to import, and commands that build nothing
do without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from niels_gpt import ranges
from niels_gpt.builds.build import BuildFields
from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.builds.rows import MAX_MESSAGE_BYTES
from niels_gpt.cli.options import EXECUTION, ROWS, LossFlags, MaxBadRows, RendererFlags, Threads, one_of
from niels_gpt.errors import UsageError
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT
from niels_gpt.progress import Progress
from niels_gpt.renderers.notes import OnUnwritten
from niels_gpt.sources.files.slices import SLICE_BYTES
from niels_gpt.sources.mapping import COLUMNS, ROLES, RowMapping, pairs_of
from niels_gpt.sources.rows.shapes import DIALECTS
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH
from niels_gpt.tokenizer.load import is_sentencepiece

DEFAULT_TOKENIZER: Final = Path(DEFAULT_TOKENIZER_PATH)

ChatFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="SHAPE",
        help=f"How conversations are stored: {', '.join(DIALECTS)}.  \\[default: by the keys of the rows]",
        **one_of("--format", DIALECTS),
    ),
]


def uses_renderer(tokenizer: Path, renderer: RendererFlags, loss: LossFlags) -> bool:
    """Whether a build uses a renderer; without one, a spm.model is written with its own sentinels.

    Raises:
        UsageError: --loss-on or --tool-bodies without a renderer: with sentinels every assistant turn is trained.
    """
    if renderer.named or not is_sentencepiece(tokenizer):
        return True
    if loss.loss_on is not None:
        raise UsageError(
            "--loss-on and --tool-bodies are for renderers; our own sentinels train every assistant turn. Add "
            "--renderer ngpt to choose"
        )
    return False


@dataclass(frozen=True)
class ChatRowFlags:
    """How the rows of conversations are read, and what is done with rows that cannot be used unchanged."""

    form: ChatFormat = None
    allow_partial: Annotated[
        bool,
        typer.Option(
            "--allow-partial",
            help="Use rows of which a template does not show who wrote every token; masks may train scaffold.",
            rich_help_panel=ROWS,
        ),
    ] = False
    on_unwritten: Annotated[
        OnUnwritten | None,
        typer.Option(
            "--on-unwritten",
            help="Rows with a text that the format has no place for: content refuses them where it is a message's text "
            "or a call, and counts them where it is reasoning, tools or a name; error refuses all; drop counts all.  "
            "\\[default: content]",
            rich_help_panel=ROWS,
        ),
    ] = None
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Refuse rows whose rendering does not give them again (an answer that spells a call, reasoning that "
            "spells its end), and count the others.",
            rich_help_panel=ROWS,
        ),
    ] = False
    default_system: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="System message of conversations without one.  \\[default: none; with a spm.model "
            f"'{DEFAULT_SYSTEM_TEXT}']",
            rich_help_panel=ROWS,
        ),
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help=f"Where the rows have what: NAME is one of {', '.join(COLUMNS)}; PATH a column, data.turns or "
            "a[0].text. Several with commas, or repeat.",
            rich_help_panel=ROWS,
        ),
    ] = None
    roles: Annotated[
        list[str] | None,
        typer.Option(
            metavar="THEIRS=ROLE",
            help=f"What the rows' roles mean, such as bot=assistant,human=user: one of {', '.join(ROLES)}.",
            rich_help_panel=ROWS,
        ),
    ] = None
    system_column: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="The column with the system message: --columns system=PATH.", rich_help_panel=ROWS
        ),
    ] = None
    max_bad_rows: MaxBadRows = "0"
    max_message_bytes: Annotated[
        int,
        typer.Option(
            help="A longer message makes its row unusable.",
            rich_help_panel=ROWS,
            **ranges.MAX_MESSAGE_BYTES.option(),
        ),
    ] = MAX_MESSAGE_BYTES

    def mapping(self, *, sentinels: bool) -> RowMapping:
        """The mapping of the rows' columns and roles to those of a conversation.

        Args:
            sentinels: rows are written with sentinels, whose encoder adds the default system message and records
                it, so the mapping must not.

        Raises:
            UsageError: a column or role is unknown, or a value is not NAME=VALUE.
        """
        columns = pairs_of("--columns", self.columns, f"NAME=PATH, NAME one of {', '.join(COLUMNS)}")
        if self.system_column is not None:
            if "system" in columns:
                raise UsageError("found --system-column and --columns system=; expected one of them")
            columns["system"] = self.system_column
        roles = pairs_of("--roles", self.roles, f"THEIRS=ROLE, ROLE one of {', '.join(ROLES)}")
        return RowMapping.of(columns, roles, None if sentinels else self.default_system)

    @property
    def sentinel_system(self) -> str:
        """The default system message of rows that are written with sentinels."""
        return DEFAULT_SYSTEM_TEXT if self.default_system is None else self.default_system


@dataclass(frozen=True)
class ExecutorFlags:
    """Where a build runs, and how large its units are."""

    threads: Threads = None
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes that encode; the result does not depend on it.  \\[default: 1; all CPUs of Ray]",
            rich_help_panel=EXECUTION,
            **ranges.WORKERS.option(),
        ),
    ] = None
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            "--engine", help="Processes of this machine, or a Ray cluster (extra ray).", rich_help_panel=EXECUTION
        ),
    ] = "local"
    unit_bytes: Annotated[
        int,
        typer.Option(
            help="Bytes of input in a unit: what is built at once, and lost at most by a crash.",
            rich_help_panel=EXECUTION,
            **ranges.UNIT_BYTES.option("--unit-bytes"),
        ),
    ] = SLICE_BYTES
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The cluster: HOST:PORT, auto (the one that runs on this machine) or local (one of its own).  "
            "\\[default: $RAY_ADDRESS, else local]",
            rich_help_panel=EXECUTION,
        ),
    ] = None

    def open(self) -> UnitExecutor:
        """The executor that these options describe.

        Raises:
            UsageError: an option belongs to the other engine. MissingExtra: --engine ray, and Ray is not installed.
        """
        if self.engine == "ray":
            # Here, because importing Ray takes seconds, and it may not be installed.
            from niels_gpt.builds.ray_executor import RayRunner

            ray = RayRunner(self.ray_address, workers=self.workers)
            return UnitExecutor(ray, slice_bytes=self.unit_bytes)
        if self.ray_address is not None:
            # Refused, because the local engine would ignore it without a word.
            raise UsageError("--ray-address is for Ray; add --engine ray, or leave it out")
        # One process unless the user names more; Ray above takes all CPUs of its cluster.
        local = LocalRunner(self.workers or 1)
        return UnitExecutor(local, slice_bytes=self.unit_bytes)


def source_options(
    source: Any,
    config: dict[str, Any],
    executor: UnitExecutor,
    max_bad_rows: str,
    progress: Progress,
    *,
    overwrite: bool,
) -> BuildFields:
    """The `BuildOptions` of a source, as keywords: how its build runs, and what its manifest records about it."""
    return BuildFields(
        source_name=source.name,
        # As the caller has computed it, with progress: it hashes every file.
        source_config=config,
        max_bad_rows=max_bad_rows,
        overwrite=overwrite,
        executor=executor,
        progress=progress,
    )
