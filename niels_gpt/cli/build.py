"""`niels-gpt build`: a dataset of any kind from files, or what a recipe describes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from niels_gpt import ranges
from niels_gpt.builds.rows import MAX_MESSAGE_BYTES
from niels_gpt.cache.formats import DEFAULT_VAL_FRAC, MAX_TRAIN_TOKENS, MAX_VAL_TOKENS
from niels_gpt.cli.datasets import print_built
from niels_gpt.cli.options import (
    ExecutorFlags,
    IsolatingFlags,
    Json,
    LossFlags,
    MaxBadRows,
    RowFormat,
    Seed,
    SeparatorName,
    ShardBytes,
    TokenDtype,
    grouped,
)
from niels_gpt.cli.paths import EXISTING, EXISTING_TOKENIZER, existing
from niels_gpt.cli.terminal import ShownProgress
from niels_gpt.errors import UsageError
from niels_gpt.options import Argument, Option
from niels_gpt.renderers.notes import OnUnwritten
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.mapping import COLUMNS, ROLES, RowMapping, pairs_of
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH
from niels_gpt.values import VALUE_HELP

RECIPE_SUFFIXES: Final = (".toml", ".yaml", ".yml", ".lock.json")

# Parameters that datasets of some kinds have no place for; all kinds take the others.
_ONLY: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("episodes",): ("samples", "images", "mask_dtype", "metadata"),
    ("episodes", "sft"): ("preset", "tool_bodies", "columns", "roles", "default_system", "max_message_bytes", "prove"),
    ("episodes", "preferences", "sft"): (
        *("form", "allow_partial", "on_unwritten", "renderer", "renderer_option", "template", "date", "isolate"),
    ),
    ("pretrain",): ("separator", "shuffle_buffer", "max_train_tokens", "max_val_tokens"),
    ("sft", "pretrain"): ("token_dtype",),
    ("episodes", "preferences", "pretrain"): ("shard_bytes",),
    ("recipe",): ("settings", "dry_run", "allow_code"),
    ("episodes", "preferences", "sft", "pretrain"): (
        *("directory", "kind", "tokenizer", "val_frac", "seed", "max_bad_rows"),
    ),
}


# No keywords of `ng.build`: see `RowFlags.mapping`.
_OF_ROWS: Final = ("form", "columns", "roles", "default_system")


@dataclass(frozen=True)
class RowFlags:
    """How the rows of conversations are read, and what is done with rows that cannot be used unchanged."""

    form: RowFormat = None
    columns: Annotated[
        list[str] | None,
        Option(
            f"Where the rows have what: NAME is one of {', '.join(COLUMNS)}; PATH a column, data.turns or a[0].text. "
            "Several with commas, or repeat.",
            "NAME=PATH",
        ),
    ] = None
    roles: Annotated[
        list[str] | None,
        Option(
            f"What the rows' roles mean, such as bot=assistant,human=user: one of {', '.join(ROLES)}.", "THEIRS=ROLE"
        ),
    ] = None
    default_system: Annotated[
        str | None,
        Option(
            "System message of conversations without one.  [default: none; with a spm.model that of its format]", "TEXT"
        ),
    ] = None
    max_bad_rows: MaxBadRows = "0"
    allow_partial: Annotated[
        bool, Option("Use rows of which a template does not show who wrote every token; masks may train scaffold.")
    ] = False
    on_unwritten: Annotated[
        OnUnwritten | None,
        Option(
            "Rows with a text that the format has no place for: content refuses them where it is a message's text or a "
            "call, and counts them where it is reasoning, tools or a name; error refuses all; drop counts all.  "
            "[default: content]"
        ),
    ] = None
    max_message_bytes: Annotated[
        int, Option("With a spm.model: a longer message makes its row unusable.", limits=ranges.MAX_MESSAGE_BYTES)
    ] = MAX_MESSAGE_BYTES
    prove: Annotated[
        bool,
        Option(
            "Refuse rows whose rendering does not give them again (an answer that spells a call, reasoning that spells "
            "its end), and count the others."
        ),
    ] = False

    @property
    def mapping(self) -> RowMapping:
        """The mapping of the rows' columns and roles to those of a conversation.

        Raises:
            UsageError: a column or role is unknown, or a value is not NAME=VALUE.
        """
        columns = pairs_of("--columns", self.columns, f"NAME=PATH, NAME one of {', '.join(COLUMNS)}")
        return RowMapping(columns, pairs_of("--roles", self.roles, f"THEIRS=ROLE, ROLE one of {', '.join(ROLES)}"))


@dataclass(frozen=True)
class StorageFlags:
    """What is stored of each row, and how."""

    samples: Annotated[
        Literal["per-conversation", "per-turn", "auto"],
        Option(
            "The samples that a conversation makes: one (per-conversation), one for each answer (per-turn), or auto: "
            "as many as train every turn on the ids with which it was produced, where the format drops reasoning from "
            "history.",
            "HOW",
        ),
    ] = "per-conversation"
    images: Annotated[
        Path | None,
        Option(
            "The folder of the images in conversations; paths in rows are relative to it. The model's image processor, "
            "which says how many tokens an image takes, is loaded from where the tokenizer is.",
            "DIRECTORY",
            check=existing("the folder of the conversations' images"),
        ),
    ] = None
    mask_dtype: Annotated[
        Literal["uint8", "float32", "none"],
        Option(
            "How episodes store the loss mask: 0 and 1, weights, or no mask.bin at all.",
            flag="--mask",
            check=lambda name: None if name == "none" else name,
        ),
    ] = "uint8"
    metadata: Annotated[bool, Option("Store each row's type and source, to sample by, and weight (needs pyarrow).")] = (
        False
    )
    token_dtype: TokenDtype = None
    shard_bytes: ShardBytes = None
    val_frac: Annotated[
        float | None,
        Option(
            f"Share of the rows for validation.  [default: {DEFAULT_VAL_FRAC}; of texts as their budgets]",
            limits=ranges.VAL_FRAC,
        ),
    ] = None
    seed: Seed = DEFAULT_SEED


@dataclass(frozen=True)
class TextFlags:
    """How texts are joined, and how many tokens of them are taken."""

    separator: SeparatorName = None
    shuffle_buffer: Annotated[
        int | None, Option("Documents of the shuffle buffer.  [default: keep the order]", limits=ranges.SHUFFLE_BUFFER)
    ] = None
    max_train_tokens: Annotated[int, Option("The most tokens of train.", limits=ranges.MAX_TRAIN_TOKENS)] = (
        MAX_TRAIN_TOKENS
    )
    max_val_tokens: Annotated[int, Option("The most tokens of val.", limits=ranges.MAX_VAL_TOKENS)] = MAX_VAL_TOKENS


@dataclass(frozen=True)
class RecipeFlags:
    """The options of recipes alone."""

    settings: Annotated[
        list[str] | None,
        Option(
            "A value in place of the recipe's, such as sequence.length=8192 or sources.chats.format=alpaca. "
            f"{VALUE_HELP}; repeat for more.",
            "KEY=VALUE",
            flag="--set",
        ),
    ] = None
    dry_run: Annotated[bool, Option("Check everything and build nothing.")] = False
    allow_code: Annotated[bool, Option("Run the Python functions that the recipe names for its sources.")] = False


@grouped
def build(
    ctx: typer.Context,
    inputs: Annotated[
        list[str],
        Argument(
            "Conversations, preferences or texts: .jsonl, .json, .parquet, .gz, .zst; text files and directories of "
            "them; patterns or URLs, read in this order. Or a recipe (.toml, .yaml, .lock.json).",
            "INPUTS",
            check=EXISTING,
        ),
    ],
    rows: Annotated[RowFlags, "Rows"],
    renderer: Annotated[IsolatingFlags, "Rendering"],
    loss: Annotated[LossFlags, "Rendering"],
    storage: StorageFlags,
    texts: Annotated[TextFlags, "Texts"],
    recipe: Annotated[RecipeFlags, "Recipes"],
    executor: Annotated[ExecutorFlags, "Where it runs"],
    directory: Annotated[Path | None, Option("The directory to create.", "DIR", flag="--out")] = None,
    kind: Annotated[
        Literal["episodes", "preferences", "sft", "pretrain"] | None,
        Option(
            "episodes (whole conversations), preferences, sft (a cache of examples) or pretrain (a cache of a token "
            "stream).  [default: by the rows]"
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        Option(
            f"A Hugging Face tokenizer directory or hub name, or a spm.model.  [default: {DEFAULT_TOKENIZER_PATH}]",
            "PATH",
            check=EXISTING_TOKENIZER,
        ),
    ] = None,
    overwrite: Annotated[bool, Option("Replace what an earlier build wrote.")] = False,
    as_json: Json = False,
) -> None:
    """Build a dataset of any kind from files, or what a recipe describes.

    Conversations become episodes, rows with chosen and rejected preferences, texts a pretraining cache. Run it again to
    continue.

    Example: niels-gpt build chats.jsonl --tokenizer ~/models/Qwen3-8B --out ep

    Texts: niels-gpt build notes/ --tokenizer tokenizer --out cache/notes

    A cache of masked examples: niels-gpt build chats.jsonl --kind sft --out sft

    Other columns: --columns messages=data.turns --roles bot=assistant

    A recipe: niels-gpt build recipe.toml --workers 8
    """
    runner = executor.open()  # refuses options of the other engine, before anything is read
    if len(inputs) == 1 and inputs[0].endswith(RECIPE_SUFFIXES):
        _refuse_others(ctx, "recipe", inputs[0])
        from niels_gpt.cli.recipes import build_from_recipe

        build_from_recipe(Path(inputs[0]), recipe, runner, executor.threads, overwrite=overwrite, as_json=as_json)
        return
    if directory is None:
        raise UsageError("Missing option '--out'.")
    tokenizer = tokenizer or EXISTING_TOKENIZER(DEFAULT_TOKENIZER_PATH)
    import niels_gpt as ng
    from niels_gpt.building import kind_of

    mapping = rows.mapping
    chosen = kind_of(inputs, kind, rows.form, mapping)
    given = _refuse_others(ctx, chosen, inputs[0])
    # What is not on the command line has the default of `ng.build`.
    choices = {**vars(rows), **vars(storage), **vars(texts)}
    own = {name: value for name, value in choices.items() if name in given and name not in _OF_ROWS}
    with ShownProgress() as progress:
        ng.build(
            inputs,
            directory,
            tokenizer,
            kind=chosen,  # type: ignore[arg-type]
            renderer=renderer.options(),
            loss_on=loss.loss_on,
            format=rows.form,
            mapping=replace(mapping, default_system=rows.default_system),
            progress=progress,
            num_threads=executor.threads,
            overwrite=overwrite,
            executor=runner,
            **own,
        )
    print_built(directory, as_json=as_json, tokenizer=tokenizer)


def _refuse_others(ctx: typer.Context, kind: str, first: str) -> set[str]:
    """The parameters that are on the command line.

    Raises:
        UsageError: this kind of dataset, or a recipe, has no place for one.
    """
    flags = {str(param.name): param.opts[0] for param in ctx.command.params}
    given = {name for name in flags if (source := ctx.get_parameter_source(name)) and source.name == "COMMANDLINE"}
    for kinds, names in _ONLY.items():
        if kind not in kinds and (name := next((name for name in names if name in given), None)):
            found = f"{first} is a recipe" if kind == "recipe" else f"this builds {kind}"
            raise UsageError(f"{flags[name]} is for {', '.join(kinds)}, and {found}; leave it out")
    return given
