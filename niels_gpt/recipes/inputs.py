"""Opens what a recipe names: its sources with their filters, its finished datasets, and its encoder.

What is refused, and what is read, in this order; the quick before the slow::

    options of exports and of the renderer, libraries, consent to functions      nothing is read
    names of files and datasets                                                  the hub, directories, manifests
    the tokenizer, and whether finished datasets have ids of it                  seconds
    hashes of all input files                                                    one pass over them
    duplicates                                                                   every row, once more

A row passes the checks of its source in one order: its own filter, benchmarks, duplicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.encoder_protocol import ConversationEncoder
from niels_gpt.builds.renderer_encoder import RenderingPolicy, Samples
from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.errors import InputError, Mismatch, UsageError
from niels_gpt.export.run import recorded_choices
from niels_gpt.extras import check_library
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT
from niels_gpt.progress import SILENT, Progress
from niels_gpt.recipes.reading import LoadedRecipe
from niels_gpt.recipes.schema import RendererTable, SourceTable
from niels_gpt.renderers.loss import LossOn
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.sources.curation.contamination import Benchmarks
from niels_gpt.sources.curation.duplicates import LIST_NAME, Duplicates, find_duplicates
from niels_gpt.sources.curation.filters import RowCheck
from niels_gpt.sources.files.listing import pinned
from niels_gpt.sources.functions import RowFunction
from niels_gpt.sources.mapping import RowMapping
from niels_gpt.store.kinds import open_manifest, require_episodes, require_plain_episodes
from niels_gpt.store.manifest import HASH_KEY
from niels_gpt.store.published import is_url
from niels_gpt.store.schema import MANIFEST_NAME
from niels_gpt.store.staging import StagedDirectory
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.load import is_sentencepiece


@dataclass(frozen=True)
class OpenedRecipe:
    """A recipe with its sources and its encoder.

    Attributes:
        loaded: the recipe, in which each address on the hub names a commit.
        sources: by name, the sources that have to be built, in the recipe's order.
        datasets: by name, the directories of sources that are finished datasets.
        configs: by name, what identifies each source: files with hashes, format and filters; or a dataset's manifest.
        encoder: turns conversations into ids and masks.
    """

    loaded: LoadedRecipe
    sources: Mapping[str, ChatSource]
    datasets: Mapping[str, Path]
    configs: Mapping[str, dict[str, Any]]
    encoder: ConversationEncoder

    @property
    def out(self) -> Path:
        """The directory of everything that the recipe makes."""
        return self.loaded.place(self.loaded.recipe.out)

    @property
    def names(self) -> list[str]:
        """The names of all sources, in the recipe's order."""
        return [table.name for table in self.loaded.recipe.sources]

    def folder(self, name: str) -> Path:
        """The directory of a source's episodes: the given dataset's, or the one that the build makes."""
        return self.datasets.get(name, self.out / "sources" / name)


def open_recipe(
    loaded: LoadedRecipe,
    *,
    threads: int | None = None,
    duplicates: bool = True,
    allow_code: bool = False,
    progress: Progress = SILENT,
) -> OpenedRecipe:
    """Open the files and the tokenizer of a recipe. Reads every input file once, for its hash.

    Args:
        duplicates: look for duplicates if the recipe wants that; it reads every row once more and writes to
            `OUT/duplicates`. If false, rows are not checked for duplicates.
        allow_code: allow the Python functions that sources name.

    Raises:
        UsageError: a renderer or format without such an option, or a function without `allow_code`.
        InputError: a file is missing or empty.
        TokenizerError: the tokenizer cannot be used. Else see `chat_files` and `RendererOptions.open`.
    """
    _check_early(loaded)
    # From here on addresses have commits, so that hashes, rows and lock are of one state of a repository.
    loaded = _at_commits(loaded)
    recipe = loaded.recipe
    datasets = {table.name: _dataset(loaded, table) for table in recipe.sources if table.dataset is not None}
    wanted = recipe.decontaminate
    # One for all sources, so that the benchmarks are read and hashed once.
    shared = [] if wanted is None else [Benchmarks.of([loaded.address(file) for file in wanted.files], wanted.words)]
    tables = [table for table in recipe.sources if table.dataset is None]
    sources = {table.name: _source(loaded, table, shared, allow_code) for table in tables}
    encoder = _encoder(loaded, threads)
    # After the encoder, because ids of another tokenizer are refused.
    configs = {name: _config_of_dataset(name, folder, encoder) for name, folder in datasets.items()}
    if recipe.duplicates is not None and duplicates:
        # After the other checks: otherwise, of two equal rows, the retained one could be one that a filter leaves out.
        found = _duplicates(loaded, sources, progress)
        sources = {name: replace(source, checks=(*source.checks, found[name])) for name, source in sources.items()}
    configs |= {name: source.config(progress) for name, source in sources.items()}
    return OpenedRecipe(loaded, sources, datasets, configs, encoder)


def _check_early(loaded: LoadedRecipe) -> None:
    """Refuse what can be refused before any file is read: building may take hours, and exports come last."""
    recipe = loaded.recipe
    for table in recipe.exports:
        try:
            recorded_choices(table.to, **table.options)
        except UsageError as error:
            raise UsageError(f"exports: {table.to}: {error}") from error
    if recipe.duplicates is not None and recipe.duplicates.near is not None:
        check_library("rensa")


def _at_commits(loaded: LoadedRecipe) -> LoadedRecipe:
    """The recipe with the commit in each address of the hub, so that its lock names what was read."""
    recipe, benchmarks = loaded.recipe, loaded.recipe.decontaminate
    sources = tuple(
        table if table.files is None else replace(table, files=tuple(map(pinned, table.files)))
        for table in recipe.sources
    )
    if benchmarks is not None:
        benchmarks = replace(benchmarks, files=tuple(map(pinned, benchmarks.files)))
    return replace(loaded, recipe=replace(recipe, sources=sources, decontaminate=benchmarks))


def _dataset(loaded: LoadedRecipe, table: SourceTable) -> Path:
    name = table.dataset or ""
    if is_url(name):
        raise UsageError(f"source {table.name}: {name} is in a store; fetch it first: niels-gpt fetch {name}")
    folder = loaded.place(name)
    require_episodes(folder)
    manifest = open_manifest(folder)
    if manifest is None:
        raise InputError(f"source {table.name}: {folder} has no {MANIFEST_NAME}, which identifies its episodes")
    require_plain_episodes(folder, manifest)
    return folder


def _config_of_dataset(name: str, folder: Path, encoder: ConversationEncoder) -> dict[str, Any]:
    """The configuration of a finished dataset, by which a lock recognises it.

    Raises:
        Mismatch: its ids are those of another tokenizer.
    """
    manifest = open_manifest(folder) or {}
    found, wanted = manifest.get("tokenizer_sha256"), encoder.describe()["tokenizer_sha256"]
    if found != wanted:
        raise Mismatch(
            f"source {name}: {folder} has ids of the tokenizer {str(found)[:12]}, and the recipe's is "
            f"{str(wanted)[:12]}; expected one tokenizer for all sources"
        )
    return {"dataset": {"manifest_sha256": manifest.get(HASH_KEY), "files": manifest["files"]}}


def _source(loaded: LoadedRecipe, table: SourceTable, shared: list[Benchmarks], allow_code: bool) -> ChatFiles:
    """The rows of a source; each passes its own filter, then the benchmarks."""
    if table.function is not None and not allow_code:
        raise UsageError(
            f"source {table.name}: function {table.function} is Python code, which a recipe may not run without your "
            f"consent; read it (in {loaded.base}, or an installed module), then pass --allow-code (allow_code=True)"
        )
    function = None if table.function is None else RowFunction.load(table.function, loaded.base)
    system = table.default_system
    if system is None and not _writes_sentinels(loaded):  # the encoder of sentinels adds the recipe's one
        system = loaded.recipe.rows.default_system
    mapping = RowMapping(table.columns, table.roles, system, function)
    checks: tuple[RowCheck, ...] = (*([table.filter] if table.filter else []), *shared)
    try:
        files = chat_files([loaded.address(file) for file in table.files or ()], table.format, mapping)
    except InputError as error:
        raise InputError(f"source {table.name}: {error}") from error
    return replace(files, checks=checks)


def _duplicates(loaded: LoadedRecipe, sources: Mapping[str, ChatFiles], progress: Progress) -> dict[str, Duplicates]:
    """The check for duplicates of each source; what is found is in OUT/duplicates."""
    options, folder = loaded.recipe.duplicates, loaded.place(loaded.recipe.out) / "duplicates"
    assert options is not None
    with StagedDirectory(folder, manifest=LIST_NAME, overwrite=True) as staged:
        found = find_duplicates(sources, options, staged.path, progress)
        staged.commit()
    return {name: replace(each, folder=folder) for name, each in found.items()}


def _tokenizer(loaded: LoadedRecipe) -> str:
    """The path of the tokenizer, resolved against the recipe's directory, or its name on the hub."""
    name = loaded.recipe.tokenizer.path
    local = loaded.base / Path(name).expanduser()
    return str(local) if local.exists() or name.startswith((".", "/", "~")) else name


def _encoder(loaded: LoadedRecipe, threads: int | None) -> ConversationEncoder:
    recipe, tokenizer, rows = loaded.recipe, _tokenizer(loaded), loaded.recipe.rows
    # `None` and the defaults of [loss] mean the same to a renderer; sentinels allow only `None`.
    loss = None if recipe.loss is None else LossOn(recipe.loss.on, bodies_of_tools=frozenset(recipe.loss.tool_bodies))
    if _writes_sentinels(loaded):
        if loss is not None:
            raise UsageError(
                "loss is for renderers; a spm.model without a renderer is written by our own sentinels, which train "
                'every assistant turn. Set renderer.name = "ngpt" to choose'
            )
        return SentinelEncoder(
            load_tokenizer(Path(tokenizer)),
            default_system_text=rows.default_system or DEFAULT_SYSTEM_TEXT,
            max_message_bytes=rows.max_message_bytes,
            num_threads=threads,
        )
    policy = RenderingPolicy(rows.allow_partial, rows.on_unwritten, rows.prove)
    samples: Samples = "per-conversation" if recipe.loss is None else recipe.loss.samples
    table = recipe.renderer
    options = table if table.template is None else replace(table, template=loaded.place(table.template))
    images = None if table.images is None else loaded.place(table.images)
    return as_encoder(options.open(tokenizer, images=images is not None), loss, policy, samples, images)


def _writes_sentinels(loaded: LoadedRecipe) -> bool:
    """Whether conversations are written with sentinels: the tokenizer is SentencePiece and no renderer is set."""
    return is_sentencepiece(_tokenizer(loaded)) and loaded.recipe.renderer == RendererTable()
