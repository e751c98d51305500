"""`niels-gpt build`: a dataset of any kind from files, or what a recipe describes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from niels_gpt import ranges
from niels_gpt.builds.rows import MAX_MESSAGE_BYTES
from niels_gpt.cache.formats import DEFAULT_VAL_FRAC, MAX_TRAIN_TOKENS, MAX_VAL_TOKENS
from niels_gpt.cli.datasets import print_built
from niels_gpt.cli.options import (
    ExecutorFlags,
    Json,
    LossFlags,
    MaxBadRows,
    RendererFlags,
    RowFormat,
    Seed,
    SeparatorName,
    ShardBytes,
    TokenDtype,
    grouped,
)
from niels_gpt.cli.paths import EXISTING, IN_HOME, existing, existing_tokenizer
from niels_gpt.cli.terminal import ShownProgress
from niels_gpt.errors import UsageError
from niels_gpt.renderers.notes import OnUnwritten
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.mapping import COLUMNS, ROLES, RowMapping, pairs_of
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH
from niels_gpt.values import VALUE_HELP

if TYPE_CHECKING:
    from niels_gpt.builds.renderer_encoder import RenderingPolicy

DEFAULT_TOKENIZER: Final = Path(DEFAULT_TOKENIZER_PATH)
RECIPE_SUFFIXES: Final = (".toml", ".yaml", ".yml", ".lock.json")

# Parameters that datasets of some kinds have no place for; all kinds take the others.
_ONLY: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("episodes",): ("samples", "images", "mask", "metadata"),
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


@dataclass(frozen=True)
class RowFlags:
    """How the rows of conversations are read, and what is done with rows that cannot be used unchanged."""

    form: RowFormat = None
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help=f"Where the rows have what: NAME is one of {', '.join(COLUMNS)}; PATH a column, data.turns or "
            "a[0].text. Several with commas, or repeat.",
        ),
    ] = None
    roles: Annotated[
        list[str] | None,
        typer.Option(
            metavar="THEIRS=ROLE",
            help=f"What the rows' roles mean, such as bot=assistant,human=user: one of {', '.join(ROLES)}.",
        ),
    ] = None
    default_system: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="System message of conversations without one.  \\[default: none; with a spm.model that of its format]",
        ),
    ] = None
    max_bad_rows: MaxBadRows = "0"
    allow_partial: Annotated[
        bool,
        typer.Option(
            "--allow-partial",
            help="Use rows of which a template does not show who wrote every token; masks may train scaffold.",
        ),
    ] = False
    on_unwritten: Annotated[
        OnUnwritten | None,
        typer.Option(
            "--on-unwritten",
            help="Rows with a text that the format has no place for: content refuses them where it is a message's text "
            "or a call, and counts them where it is reasoning, tools or a name; error refuses all; drop counts all.  "
            "\\[default: content]",
        ),
    ] = None
    max_message_bytes: Annotated[
        int,
        typer.Option(
            help="With a spm.model: a longer message makes its row unusable.", **ranges.MAX_MESSAGE_BYTES.option()
        ),
    ] = MAX_MESSAGE_BYTES
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Refuse rows whose rendering does not give them again (an answer that spells a call, reasoning that "
            "spells its end), and count the others.",
        ),
    ] = False

    @property
    def mapping(self) -> RowMapping:
        """The mapping of the rows' columns and roles to those of a conversation.

        Raises:
            UsageError: a column or role is unknown, or a value is not NAME=VALUE.
        """
        columns = pairs_of("--columns", self.columns, f"NAME=PATH, NAME one of {', '.join(COLUMNS)}")
        return RowMapping.of(columns, pairs_of("--roles", self.roles, f"THEIRS=ROLE, ROLE one of {', '.join(ROLES)}"))

    @property
    def policy(self) -> RenderingPolicy:
        """What becomes of rows that a format does not hold whole."""
        from niels_gpt.builds.renderer_encoder import RenderingPolicy

        return RenderingPolicy(self.allow_partial, self.on_unwritten, self.prove)


@dataclass(frozen=True)
class StorageFlags:
    """What is stored of each row, and how."""

    samples: Annotated[
        Literal["per-conversation", "per-turn", "auto"],
        typer.Option(
            metavar="HOW",
            help="The samples that a conversation makes: one (per-conversation), one for each answer (per-turn), or "
            "auto: as many as train every turn on the ids with which it was produced, where the format drops "
            "reasoning from history.",
        ),
    ] = "per-conversation"
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="The folder of the images in conversations; paths in rows are relative to it. The model's image "
            "processor, which says how many tokens an image takes, is loaded from where the tokenizer is.",
            **existing("the folder of the conversations' images", "directory"),
        ),
    ] = None
    mask: Annotated[
        Literal["uint8", "float32", "none"],
        typer.Option(help="How episodes store the loss mask: 0 and 1, weights, or no mask.bin at all."),
    ] = "uint8"
    metadata: Annotated[
        bool,
        typer.Option("--metadata", help="Store each row's type and source, to sample by, and weight (needs pyarrow)."),
    ] = False
    token_dtype: TokenDtype = None
    shard_bytes: ShardBytes = None
    val_frac: Annotated[
        float | None,
        typer.Option(
            "--val-frac",
            help=f"Share of the rows for validation.  \\[default: {DEFAULT_VAL_FRAC}; of texts as their budgets]",
            **ranges.VAL_FRAC.option(),
        ),
    ] = None
    seed: Seed = DEFAULT_SEED


@dataclass(frozen=True)
class TextFlags:
    """How texts are joined, and how many tokens of them are taken."""

    separator: SeparatorName = None
    shuffle_buffer: Annotated[
        int | None,
        typer.Option(
            help="Documents of the shuffle buffer.  \\[default: keep the order]", **ranges.SHUFFLE_BUFFER.option()
        ),
    ] = None
    max_train_tokens: Annotated[
        int, typer.Option(help="The most tokens of train.", **ranges.MAX_TRAIN_TOKENS.option())
    ] = MAX_TRAIN_TOKENS
    max_val_tokens: Annotated[int, typer.Option(help="The most tokens of val.", **ranges.MAX_VAL_TOKENS.option())] = (
        MAX_VAL_TOKENS
    )


@dataclass(frozen=True)
class RecipeFlags:
    """The options of recipes alone."""

    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A value in place of the recipe's, such as sequence.length=8192 or sources.chats.format=alpaca. "
            f"{VALUE_HELP}; repeat for more.",
        ),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and build nothing.")] = False
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Run the Python functions that the recipe names for its sources.")
    ] = False


@grouped
def build(
    ctx: typer.Context,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUTS",
            help="Conversations, preferences or texts: .jsonl, .json, .parquet, .gz, .zst; text files and "
            "directories of them; patterns or URLs, read in this order. Or a recipe (.toml, .yaml, .lock.json).",
            **EXISTING,
        ),
    ],
    rows: Annotated[RowFlags, "Rows"],
    renderer: Annotated[RendererFlags, "Rendering"],
    loss: Annotated[LossFlags, "Rendering"],
    storage: StorageFlags,
    texts: Annotated[TextFlags, "Texts"],
    recipe: Annotated[RecipeFlags, "Recipes"],
    executor: Annotated[ExecutorFlags, "Where it runs"],
    directory: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The directory to create.", **IN_HOME)
    ] = None,
    kind: Annotated[
        Literal["episodes", "preferences", "sft", "pretrain"] | None,
        typer.Option(
            "--kind",
            help="episodes (whole conversations), preferences, sft (a cache of examples) or pretrain (a cache of a "
            "token stream).  \\[default: by the rows]",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="PATH",
            help=f"A Hugging Face tokenizer directory or hub name, or a spm.model.  \\[default: {DEFAULT_TOKENIZER}]",
            parser=str,
            callback=existing_tokenizer,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier build wrote.")] = False,
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
    tokenizer = tokenizer or existing_tokenizer(DEFAULT_TOKENIZER) or DEFAULT_TOKENIZER
    from niels_gpt.building import Encoding, kind_of, open_source, write
    from niels_gpt.tokenizer import load_tokenizer

    # Whatever can be refused without a tokenizer is refused first: loading one takes seconds.
    mapping = rows.mapping
    chosen = kind_of(inputs, kind, rows.form, mapping)
    _refuse_others(ctx, chosen, inputs[0])
    rendered = chosen != "pretrain" and uses_renderer(tokenizer, renderer, loss)
    if rendered:
        renderer.options()
        # The encoder of sentinels adds the default system message itself, and records it.
        mapping = replace(mapping, default_system=rows.default_system)
    source = open_source(inputs, chosen, rows.form, mapping)
    encoding = Encoding(
        loss.loss_on,
        rows.policy,
        storage.samples,
        storage.images,
        default_system=None if rendered else rows.default_system,
        max_message_bytes=rows.max_message_bytes,
        threads=executor.threads,
    )

    def opened() -> Any:
        if chosen == "pretrain":
            return str(tokenizer)
        if not rendered:
            return load_tokenizer(tokenizer)
        return renderer.open(tokenizer, images=storage.images is not None, quiet=as_json)

    options: dict[str, Any] = {"val_frac": storage.val_frac, "shard_bytes": storage.shard_bytes}
    options |= {"token_dtype": storage.token_dtype}
    options = {name: value for name, value in options.items() if value is not None}
    if chosen == "episodes":
        options |= {"mask_dtype": None if storage.mask == "none" else storage.mask, "metadata": storage.metadata}
    if chosen == "pretrain":
        options |= vars(texts)
    options |= {"seed": storage.seed, "max_bad_rows": rows.max_bad_rows, "overwrite": overwrite, "executor": runner}
    with ShownProgress() as progress:
        write(chosen, source, directory, opened, encoding, progress, **options)
    print_built(directory, as_json=as_json, tokenizer=tokenizer)


def uses_renderer(tokenizer: Path, renderer: RendererFlags, loss: LossFlags) -> bool:
    """Whether a build uses a renderer; without one, a spm.model is written with its own sentinels.

    Raises:
        UsageError: --loss-on or --tool-bodies without a renderer: with sentinels every assistant turn is trained.
    """
    from niels_gpt.tokenizer.load import is_sentencepiece

    if renderer.named or not is_sentencepiece(tokenizer):
        return True
    if loss.loss_on is not None:
        raise UsageError(
            "--loss-on and --tool-bodies are for renderers; our own sentinels train every assistant turn. Add "
            "--renderer ngpt to choose"
        )
    return False


def _refuse_others(ctx: typer.Context, kind: str, first: str) -> None:
    """Raise `UsageError` for an option on the command line that this kind of dataset, or a recipe, has no place for."""
    flags = {param.name: param.opts[0] for param in ctx.command.params if param.name is not None}
    for kinds, names in _ONLY.items():
        for name in names:
            source = ctx.get_parameter_source(name)
            if kind not in kinds and source is not None and source.name == "COMMANDLINE":
                found = f"{first} is a recipe" if kind == "recipe" else f"this builds {kind}"
                raise UsageError(f"{flags[name]} is for {', '.join(kinds)}, and {found}; leave it out")
