"""The options that several commands share, each declared once: its flag, its help, its range and its meaning.

A group of options is a frozen dataclass whose fields are the options. A command takes the group as one parameter,
and `grouped` declares the fields in its place::

    @grouped                                   niels-gpt build FILES --loss-on last_message --tool-bodies f
    def build(files, loss: LossFlags): ...     build(files=[...], loss=LossFlags("last_message", ["f"]))

Nothing heavy is imported here: `--help` of a command must not wait for renderers or for torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import typer

from niels_gpt import ranges
from niels_gpt.cli.paths import IN_HOME, existing, existing_tokenizer
from niels_gpt.cli.terminal import note
from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.sources.rows.shapes import DIALECTS, FORMS
from niels_gpt.values import VALUE_HELP, name_and_value

# Only for results of functions: typer resolves the annotations of commands and groups when a command is loaded, so
# what these name is imported at run time.
if TYPE_CHECKING:
    from niels_gpt.builds.executor import UnitExecutor
    from niels_gpt.renderers.family import Family
    from niels_gpt.renderers.loss import LossOn
    from niels_gpt.renderers.registry import RendererOptions
    from niels_gpt.renderers.template.renderer import DefaultRenderer

# Parsing helpers


def one_of(flag: str, names: Iterable[str]) -> dict[str, Any]:
    """typer settings of an option whose value is one of `names`: a check that raises `UsageError` with the nearest."""
    known = tuple(names)

    def checked(value: str | None) -> str | None:
        # `None` where the option is not used: typer calls this function all the same.
        if value is not None and value not in known:
            raise UsageError(f"{flag} is {value!r}; expected one of {', '.join(known)}{did_you_mean(value, known)}")
        return value

    return {"callback": checked}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command in which every parameter that is an option group is replaced by the group's options.

    Typer reads the signature of a function. That of the returned one has the fields of each group; when typer calls it
    with their values, it builds the groups and calls `command`.
    """
    # The modules of commands have postponed annotations, so groups are recognised by their resolved types.
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []  # of the returned function; typer lists options in this order
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        # A group may name the heading of its options in help pages: `rows: Annotated[RowFlags, "Rows"]`.
        kind, *heading = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        groups[name] = kind
        types = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            # Keyword-only, because an option without a default may follow one with a default.
            keyword = inspect.Parameter.KEYWORD_ONLY
            annotation = types[field.name]
            if heading:
                value, info = get_args(annotation)
                info = copy(info)
                info.rich_help_panel = heading[0]
                annotation = Annotated[value, info]
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=annotation))

    @wraps(command)
    def expanded(**values: Any) -> None:
        for name, kind in groups.items():
            # The fields that typer filled in become the group again.
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    # Typer reads both: the signature for names and defaults, the annotations for types and help.
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


# Inputs and outputs

# `\\[` in a help text, here and below: rich would take `[default: ...]` for a tag and drop it.
RowFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="SHAPE",
        help=f"How conversations are stored: {', '.join(DIALECTS)}; or preferences: {', '.join(FORMS)}.  "
        "\\[default: by the keys of the rows]",
        **one_of("--format", [*DIALECTS, *FORMS]),
    ),
]
OutDirectory = Annotated[Path, typer.Option("--out", metavar="DIR", help="The directory to create.", **IN_HOME)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run wrote to --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Split = Literal["train", "val"]
OneSplit = Annotated[Split, typer.Option("--split", help="Which split.")]
RowNumber = Annotated[
    int, typer.Argument(metavar="NUMBER", help="Which row, counted from 0.", **ranges.ROW.option("NUMBER"))
]
TokenTable = Annotated[bool, typer.Option("--table/--no-table", help="Ids and targets, token by token.")]

# Tokenizers

AnyTokenizer = Annotated[
    Path,
    typer.Option(
        "--tokenizer",
        metavar="PATH",
        help="A Hugging Face tokenizer directory or hub name, or a spm.model.",
        parser=str,
        callback=existing_tokenizer,
    ),
]
DatasetTokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="PATH",
        help="The tokenizer that the dataset was built with, or the one to render conversations with.  \\[default: "
        "looked for beside the dataset]",
        parser=str,
        callback=existing_tokenizer,
    ),
]

# Numbers

Seed = Annotated[int, typer.Option("--seed", help="Seed of all random choices.", **ranges.SEED.option())]


def _checked_limit(value: str) -> str:
    from niels_gpt.sources.rejections import BadRowLimit  # `--help` and commands that build nothing do without it

    BadRowLimit.of(value, "--max-bad-rows")
    return value


MaxBadRows = Annotated[
    str,
    typer.Option(
        metavar="N|P%|all",
        help="Unusable rows to leave out (into rejected.jsonl) before giving up: a number, a share such as 5%, or all.",
        callback=_checked_limit,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads for encoding; the result does not depend on it.", **ranges.THREADS.option("--threads")),
]
TokenDtype = Annotated[
    Literal["uint16", "uint32"] | None,
    typer.Option("--token-dtype", help="How ids are stored.  \\[default: the smaller that holds the vocabulary]"),
]


def sequence_length(help_text: str, limits: ranges.Range = ranges.BLOCK_SIZE) -> Any:
    """`--sequence-length`: how many input tokens a row has. Stored rows have one more, the last target."""
    option = limits.option("--sequence-length")
    return typer.Option("--sequence-length", metavar="TOKENS", help=help_text, **option)


# Repeated from format.fitting, which needs numpy; a test compares them.
TOO_LONG: Final = ("head", "tail", "drop_partial_turn", "skip", "error")


def too_long(help_text: str, **options: Any) -> Any:
    """`--too-long`: the policy for rows that are longer than a row of training."""
    return typer.Option(
        "--too-long",
        metavar="POLICY",
        help=f"{help_text} {', '.join(TOO_LONG)}.",
        **one_of("--too-long", TOO_LONG),
        **options,
    )


ShardBytes = Annotated[
    int | None,
    typer.Option(
        "--shard-bytes",
        metavar="BYTES",
        help="The most bytes of ids in one file.",
        **ranges.EPISODES_SHARD_BYTES.option("--shard-bytes"),
    ),
]
# Repeated from builds.documents, which imports tokenizers; a test compares them.
SEPARATORS: Final = ("eos", "bos", "eos+bos", "none")
SeparatorName = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="WHICH",
        help="Which of the tokenizer's own tokens separate texts: eos (after each), bos (before each), eos+bos or "
        "none.  \\[default: eos if the tokenizer has one; a spm.model's is its end-of-turn]",
        **one_of("--separator", SEPARATORS),
    ),
]

# Where a build runs


@dataclass(frozen=True)
class ExecutorFlags:
    """Where a build runs, and how large its units are."""

    threads: Threads = None
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes that encode; the result does not depend on it.  \\[default: 1; all CPUs of Ray]",
            **ranges.WORKERS.option(),
        ),
    ] = None
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option("--engine", help="Processes of this machine, or a Ray cluster (extra ray)."),
    ] = "local"
    unit_bytes: Annotated[
        int | None,
        typer.Option(
            help="Bytes of input in a unit: what is built at once, and lost at most by a crash.  \\[default: 16 MiB]",
            **ranges.UNIT_BYTES.option("--unit-bytes"),
        ),
    ] = None
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The cluster: HOST:PORT, auto (the one that runs on this machine) or local (one of its own).  "
            "\\[default: $RAY_ADDRESS, else local]",
        ),
    ] = None

    def open(self) -> UnitExecutor:
        """The executor that these options describe.

        Raises:
            UsageError: an option belongs to the other engine. MissingExtra: --engine ray, and Ray is not installed.
        """
        from niels_gpt.builds.executor import LocalRunner, UnitExecutor
        from niels_gpt.sources.files.slices import SLICE_BYTES

        size = self.unit_bytes or SLICE_BYTES
        if self.engine == "ray":
            # Here, because importing Ray takes seconds, and it may not be installed.
            from niels_gpt.builds.ray_executor import RayRunner

            ray = RayRunner(self.ray_address, workers=self.workers)
            return UnitExecutor(ray, slice_bytes=size)
        if self.ray_address is not None:
            # Refused, because the local engine would ignore it without a word.
            raise UsageError("--ray-address is for Ray; add --engine ray, or leave it out")
        # One process unless the user names more; Ray above takes all CPUs of its cluster.
        local = LocalRunner(self.workers or 1)
        return UnitExecutor(local, slice_bytes=size)


# Renderers and masks

Template = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A chat template to use in place of the tokenizer's.",
        **existing("a Jinja chat template", "file"),
    ),
]
Date = Annotated[str | None, typer.Option(metavar="DAY", help="The day, 2026-01-31, for formats that contain one.")]
RendererName = Annotated[
    str | None,
    typer.Option(
        "--renderer",
        metavar="NAME",
        help="auto (a family if the model's name, config.json and control tokens prove it, else its chat template), "
        "template, or a family such as qwen3; `niels-gpt renderers` lists them.  \\[default: auto; in builds, a "
        "spm.model is written by its sentinels]",
        show_default=False,
    ),
]
RendererOption = Annotated[
    list[str] | None,
    typer.Option(
        "--renderer-option",
        metavar="NAME=VALUE",
        help="An option of the family, such as enable_thinking=false (`niels-gpt renderers qwen3` lists them), or a "
        f"variable of the chat template. {VALUE_HELP}; repeat for more.",
    ),
]


@dataclass(frozen=True)
class RendererFlags:
    """The options that choose a renderer."""

    renderer: RendererName = None
    renderer_option: RendererOption = None
    template: Template = None
    date: Date = None
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate",
            help="Run the chat template in a process of its own, with 2 GiB of memory and 10 seconds a conversation: "
            "for an untrusted template.",
        ),
    ] = False

    @property
    def named(self) -> bool:
        """Whether any of these options chooses a renderer; a date alone does not."""
        return bool(self.renderer or self.renderer_option or self.template or self.isolate)

    def options(self) -> RendererOptions:
        """The options as one value; checks that need a tokenizer happen when the renderer is opened."""
        return renderer_options(self.renderer, self.renderer_option, self.template, self.date, isolate=self.isolate)

    def open(self, tokenizer: Path, *, images: bool = False, quiet: bool = False) -> Family | DefaultRenderer:
        """The renderer for a tokenizer; which one "auto" took, and why, is a line on stderr unless `quiet`.

        Args:
            images: with the model's image processor.
        """
        options = self.options()
        renderer = options.open(tokenizer, images=images)
        if not quiet:
            note_automatic(options, tokenizer)
        return renderer


def renderer_options(
    name: str | None, options: list[str] | None, template: Path | None, date: str | None, *, isolate: bool = False
) -> RendererOptions:
    """The options about renderers as one value; checks that need a tokenizer happen when the renderer is opened.

    Raises:
        UsageError: no such renderer or option; a text that is not NAME=VALUE; not a date.
    """
    from niels_gpt.renderers.registry import RendererOptions

    # Values remain text: which options are texts is known to the renderer's config, see `typed_options`.
    expected = "NAME=VALUE, such as enable_thinking=false; `niels-gpt renderers NAME` lists the options of a family"
    values = dict(name_and_value("--renderer-option", text, expected) for text in options or ())
    renderer = RendererOptions(name or "auto", template, date, values, isolate)
    renderer.check()
    return renderer


def note_automatic(options: RendererOptions, tokenizer: str | Path) -> None:
    """One line on stderr: which renderer "auto" took for a tokenizer, and on what evidence."""
    from niels_gpt.renderers.registry import automatic_renderer

    # With --template or --isolate it is the template, whatever the tokenizer is.
    if options.name == "auto" and options.template is None and not options.isolate:
        automatic = automatic_renderer(tokenizer)
        note(f"renderer {automatic.renderer}: {automatic.reason} (override with --renderer)")


# Repeated from renderers.loss, which needs numpy; a test compares them.
LOSS_PRESETS: Final = ("all_assistant_turns", "last_assistant_turn", "last_message", "all_tokens")


@dataclass(frozen=True)
class LossFlags:
    """Which tokens are trained."""

    preset: Annotated[
        str | None,
        typer.Option(
            "--loss-on",
            metavar="PRESET",
            help=f"Which tokens are trained: {', '.join(LOSS_PRESETS)}.  \\[default: all_assistant_turns]",
            show_default=False,
        ),
    ] = None
    tool_bodies: Annotated[
        list[str] | None,
        typer.Option("--tool-bodies", metavar="TOOL", help="Also train the results of this tool; repeat for more."),
    ] = None

    @property
    def loss_on(self) -> LossOn | None:
        """Which tokens are trained; `None` where neither option is used.

        Raises:
            UsageError: no such preset.
        """
        from niels_gpt.renderers.loss import LossOn

        # `None`, not the default: a spm.model is then built by its sentinels, without any renderer.
        if self.preset is None and not self.tool_bodies:
            return None
        preset = self.preset or "all_assistant_turns"
        return LossOn(preset, bodies_of_tools=frozenset(self.tool_bodies or ()))  # type: ignore[arg-type]
