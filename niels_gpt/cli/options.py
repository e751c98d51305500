"""The options that several commands share, and how the fields of a dataclass become options of a command.

::

    @grouped                                   niels-gpt build FILES --loss-on last_message --tool-bodies f
    def build(files, loss: LossFlags): ...     build(files=[...], loss=LossFlags("last_message", ["f"]))

Nothing heavy is imported here: `--help` of a command must not wait for renderers or for torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import typer

from niels_gpt import ranges
from niels_gpt.cli.paths import EXISTING_TEMPLATE, EXISTING_TOKENIZER, in_home
from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.options import Argument, Option
from niels_gpt.sources.rows.shapes import DIALECTS, FORMS
from niels_gpt.values import VALUE_HELP, name_and_value

# Only for results of functions: typer resolves the annotations of commands and groups when a command is loaded, so
# what these name is imported at run time.
if TYPE_CHECKING:
    from niels_gpt.builds.executor import UnitExecutor
    from niels_gpt.renderers.loss import LossOn
    from niels_gpt.renderers.registry import RendererOptions


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters with an `Option` are options; a dataclass is replaced by its fields that have one.

    Typer reads the signature of a function. That of the returned one has the fields of each dataclass; when typer calls
    it with their values, it makes the dataclasses and calls `command`.
    """
    # The modules of commands have postponed annotations, so dataclasses are recognised by their resolved types.
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []  # of the returned function; typer lists options in this order
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        # A dataclass may name the heading of its options in help pages: `rows: Annotated[RowFlags, "Rows"]`.
        kind, *more = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        if not is_dataclass(kind):
            parameters.append(_parameter(name, hints[name], parameter.default, None))
            continue
        types = get_type_hints(kind, include_extras=True)
        found = [field for field in fields(kind) if get_origin(types[field.name]) is Annotated]
        groups[name] = (kind, [field.name for field in found])
        for field in found:
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(_parameter(field.name, types[field.name], default, more[0] if more else None))

    @wraps(command)
    def expanded(**values: Any) -> None:
        for name, (kind, names) in groups.items():
            # The fields that typer filled in become the dataclass again.
            values[name] = kind(**{each: values.pop(each) for each in names})
        command(**values)

    # Typer reads both: the signature for names and defaults, the annotations for types and help.
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _parameter(name: str, annotation: Any, default: Any, panel: str | None) -> inspect.Parameter:
    """A parameter as typer reads it. Keyword-only: one without a default may follow one with a default."""
    kind, *more = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    info = next((each for each in more if isinstance(each, Option)), None)
    if info is not None:
        annotation = Annotated[kind, _typer_option(info, info.flag or f"--{name.replace('_', '-')}", default, panel)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typer_option(option: Option, flag: str, default: Any, panel: str | None) -> Any:
    def checked(value: Any) -> Any:
        # `None` where the option is not used: typer calls this function all the same.
        if value is not None and option.names and value not in option.names:
            known = f"{', '.join(option.names)}{did_you_mean(value, option.names)}"
            raise UsageError(f"{flag} is {value!r}; expected one of {known}")
        if option.limits is not None:
            option.limits.check(value, flag)
        return in_home(value) if option.check is None else option.check(value)

    if isinstance(option, Argument):
        told = option.help.replace("[", "\\[")
        return typer.Argument(metavar=option.metavar, help=told, callback=checked, show_default=False)
    return typer.Option(
        f"{flag}/--no-{flag[2:]}" if default is True else flag,  # a switch that is on can be turned off
        metavar=option.metavar,
        # Rich would take [default: ...] for a tag and drop it.
        help=option.help.replace("NAMES", ", ".join(option.names)).replace("[", "\\["),
        callback=checked,
        rich_help_panel=panel,
        show_default="[default:" not in option.help,
    )


# Inputs and outputs

RowFormat = Annotated[
    str | None,
    Option(
        "How conversations or preferences are stored: NAMES.  [default: by the keys of the rows]",
        "SHAPE",
        names=(*DIALECTS, *FORMS),
        flag="--format",
    ),
]
OutDirectory = Annotated[Path, Option("The directory to create.", "DIR", flag="--out")]
Overwrite = Annotated[bool, Option("Replace what an earlier run wrote to --out.")]
Json = Annotated[bool, Option("Print the result as JSON.", flag="--json")]
Split = Literal["train", "val"]
OneSplit = Annotated[Split, Option("Which split.")]
RowNumber = Annotated[int, Argument("Which row, counted from 0.", "NUMBER", limits=ranges.ROW, flag="NUMBER")]
TokenTable = Annotated[bool, Option("Ids and targets, token by token.")]
Seed = Annotated[int, Option("Seed of all random choices.", limits=ranges.SEED)]
Tokenizer = Annotated[
    str, Option("A Hugging Face tokenizer directory or hub name, or a spm.model.", "PATH", check=EXISTING_TOKENIZER)
]
DatasetTokenizer = Annotated[
    str | None,
    Option(
        "The tokenizer that the dataset was built with, or the one to render conversations with.  [default: looked for "
        "beside the dataset]",
        "PATH",
        check=EXISTING_TOKENIZER,
        flag="--tokenizer",
    ),
]


def _checked_limit(value: str) -> str:
    from niels_gpt.sources.rejections import BadRowLimit  # `--help` and commands that build nothing do without it

    BadRowLimit.of(value, "--max-bad-rows")
    return value


MaxBadRows = Annotated[
    str,
    Option(
        "Unusable rows to leave out (into rejected.jsonl) before giving up: a number, a share such as 5%, or all.",
        "N|P%|all",
        check=_checked_limit,
    ),
]
TokenDtype = Annotated[
    Literal["uint16", "uint32"] | None, Option("How ids are stored.  [default: the smaller that holds the vocabulary]")
]
ShardBytes = Annotated[
    int | None, Option("The most bytes of ids in one file.", "BYTES", limits=ranges.EPISODES_SHARD_BYTES)
]
# These and LOSS_PRESETS are repeated from modules that import numpy or tokenizers; a test compares them.
TOO_LONG: Final = ("head", "tail", "drop_partial_turn", "skip", "error")
SEPARATORS: Final = ("eos", "bos", "eos+bos", "none")
LOSS_PRESETS: Final = ("all_assistant_turns", "last_assistant_turn", "last_message", "all_tokens")
SeparatorName = Annotated[
    str | None,
    Option(
        "Which of the tokenizer's own tokens separate texts: eos (after each), bos (before each), eos+bos or none.  "
        "[default: eos if the tokenizer has one; a spm.model's is its end-of-turn]",
        "WHICH",
        names=SEPARATORS,
        flag="--separator",
    ),
]


# Where a build runs


@dataclass(frozen=True)
class ExecutorFlags:
    """Where a build runs, and how large its units are."""

    threads: Annotated[
        int | None, Option("Threads for encoding; the result does not depend on it.", limits=ranges.THREADS)
    ] = None
    workers: Annotated[
        int | None,
        Option(
            "Processes that encode; the result does not depend on it.  [default: 1; all CPUs of Ray]",
            limits=ranges.WORKERS,
        ),
    ] = None
    engine: Annotated[Literal["local", "ray"], Option("Processes of this machine, or a Ray cluster (extra ray).")] = (
        "local"
    )
    unit_bytes: Annotated[
        int | None,
        Option(
            "Bytes of input in a unit: what is built at once, and lost at most by a crash.  [default: 16 MiB]",
            limits=ranges.UNIT_BYTES,
        ),
    ] = None
    ray_address: Annotated[
        str | None,
        Option(
            "The cluster: HOST:PORT, auto (the one that runs on this machine) or local (one of its own).  [default: "
            "$RAY_ADDRESS, else local]",
            "ADDRESS",
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

            return UnitExecutor(RayRunner(self.ray_address, workers=self.workers), slice_bytes=size)
        if self.ray_address is not None:
            # Refused, because the local engine would ignore it without a word.
            raise UsageError("--ray-address is for Ray; add --engine ray, or leave it out")
        return UnitExecutor(LocalRunner(self.workers or 1), slice_bytes=size)


# Renderers and masks


@dataclass(frozen=True)
class RendererFlags:
    """The options that choose a renderer; their values are those of `RendererOptions`."""

    renderer: Annotated[
        str | None,
        Option(
            "auto (a family if the model's name, config.json and control tokens prove it, else its chat template), "
            "template, or a family such as qwen3; `niels-gpt renderers` lists them.  [default: auto; in builds, a "
            "spm.model is written by its sentinels]",
            "NAME",
        ),
    ] = None
    renderer_option: Annotated[
        list[str] | None,
        Option(
            "An option of the family, such as enable_thinking=false (`niels-gpt renderers qwen3` lists them), or a "
            f"variable of the chat template. {VALUE_HELP}; repeat for more.",
            "NAME=VALUE",
        ),
    ] = None
    template: Annotated[
        Path | None,
        Option("A chat template to use in place of the tokenizer's.", "FILE", check=EXISTING_TEMPLATE),
    ] = None
    date: Annotated[str | None, Option("The day, 2026-01-31, for formats that contain one.", "DAY")] = None
    isolate = False  # see `IsolatingFlags`

    @property
    def named(self) -> bool:
        """Whether any of these options chooses a renderer; a date alone does not."""
        return self != type(self)(date=self.date)

    def options(self) -> RendererOptions:
        """The options as one value; checks that need a tokenizer happen when the renderer is opened.

        Raises:
            UsageError: no such renderer or option; a text that is not NAME=VALUE; not a date.
        """
        from niels_gpt.renderers.registry import RendererOptions

        # Values remain text: which options are texts is known to the renderer's config, see `typed_options`.
        expected = "NAME=VALUE, such as enable_thinking=false; `niels-gpt renderers NAME` lists the options of a family"
        values = dict(name_and_value("--renderer-option", text, expected) for text in self.renderer_option or ())
        renderer = RendererOptions(self.renderer or "auto", self.template, self.date, values, self.isolate)
        renderer.check()
        return renderer


@dataclass(frozen=True)
class IsolatingFlags(RendererFlags):
    """The same, of commands that also run strangers' templates."""

    isolate: Annotated[
        bool,
        Option(
            "Run the chat template in a process of its own, with 2 GiB of memory and 10 seconds a conversation: for an "
            "untrusted template."
        ),
    ] = False


@dataclass(frozen=True)
class TemplateFlags(IsolatingFlags):
    """The same, but for --renderer: it is the chat template."""

    renderer: str | None = "template"


@dataclass(frozen=True)
class LossFlags:
    """Which tokens are trained."""

    preset: Annotated[
        str | None,
        Option(
            f"Which tokens are trained: {', '.join(LOSS_PRESETS)}.  [default: all_assistant_turns]",
            "PRESET",
            flag="--loss-on",
        ),
    ] = None
    tool_bodies: Annotated[
        list[str] | None, Option("Also train the results of this tool; repeat for more.", "TOOL")
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
