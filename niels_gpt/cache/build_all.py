"""`build-all`: the caches of all named sources (`sources.registry`), one after the other, each whole or absent.

::

    CACHE_DIR/tokenizer/{spm.model,meta.json}           or {tokenizer.json,tokenizer_config.json,meta.json}
    CACHE_DIR/pretrain/{fineweb_edu,roam,wikitext}/     built
    CACHE_DIR/pretrain/gutenberg/                       a stub, marked as not built, unless `with_gutenberg`
    CACHE_DIR/sft/{dolly15k,oasst1}/                    built
    CACHE_DIR/build_report.json                         the outcome of each source of the last run

If a source fails, the report says why, and the others are still built. Running the same command again builds those that
are not complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from niels_gpt import ranges
from niels_gpt.builds.documents import SEPARATORS, DocumentEncoder, document_encoder
from niels_gpt.builds.encoder_protocol import CacheTokenizer
from niels_gpt.builds.executor import UnitExecutor
from niels_gpt.builds.splits import ValidationSplit
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache, check_budgets
from niels_gpt.cache.formats import (
    DEFAULT_SHARD_BYTES,
    DEFAULT_VAL_FRAC,
    MAX_TRAIN_TOKENS,
    MAX_VAL_TOKENS,
    UNLIMITED_TOKENS,
    dtype_for,
)
from niels_gpt.cache.meta import read_meta, write_meta
from niels_gpt.cache.tokenizer_copy import TokenizerCopy
from niels_gpt.errors import InputError, Mismatch, NielsError, UsageError, storage_errors
from niels_gpt.options import Option
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.base import SHUFFLE_BUFFER, ChatSource, SourceOptions, TextSource
from niels_gpt.sources.files.hub import HubDataset
from niels_gpt.sources.files.slices import Sliceable
from niels_gpt.sources.hub_corpora import HubSource
from niels_gpt.sources.registry import SOURCES, check_source_name, open_source
from niels_gpt.sources.rejections import BadRowLimit
from niels_gpt.sources.text_files import RoamNotes
from niels_gpt.store.files import json_bytes, write_atomic
from niels_gpt.store.kinds import open_meta
from niels_gpt.store.locks import locked
from niels_gpt.store.schema import META_NAME, SPLITS
from niels_gpt.store.staging import StagedDirectory, recover_interrupted
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH

REPORT_NAME = "build_report.json"
NAMES = tuple(SOURCES)
STUB_NAME = "gutenberg"  # a stub unless `Settings.with_gutenberg`

Status = Literal["built", "already built", "stub", "failed"]


@dataclass(frozen=True)
class Settings:
    """Every option of `build_all`; the defaults are those of the token cache format.

    Attributes:
        tokenizer: of texts and conversations: a path, a name on the hub, or an object. Conversations are rendered in
            its own format; with a SentencePiece model, in the format of the four sentinels.
        datasets: other data sets on the hub, by the name of the source.
        only, skip: names of the sources to build, or not to build.
    """

    cache_dir: Annotated[Path, Option("The directory of all caches.", "DIR")] = Path("cache")
    seed: Annotated[int, Option("Seed of all random choices.", limits=ranges.SEED)] = DEFAULT_SEED
    tokenizer: Any = Path(DEFAULT_TOKENIZER_PATH)
    separator: Annotated[
        str | None,
        Option(
            "Which of the tokenizer's own tokens separate texts: NAMES.  [default: eos if the tokenizer has one; a "
            "spm.model's is its end-of-turn]",
            "WHICH",
            names=SEPARATORS,
        ),
    ] = None
    roam_dir: Annotated[Path, Option("A folder of markdown notes.", "DIR")] = Path("data/roam")
    datasets: dict[str, HubDataset] = field(default_factory=dict)
    max_train_tokens: Annotated[int, Option("The most tokens of train.", limits=ranges.MAX_TRAIN_TOKENS)] = (
        MAX_TRAIN_TOKENS
    )
    max_val_tokens: Annotated[int, Option("The most tokens of val.", limits=ranges.MAX_VAL_TOKENS)] = MAX_VAL_TOKENS
    shuffle_buffer: Annotated[
        int, Option("FineWeb-Edu's shuffle buffer, in documents.", limits=ranges.SHUFFLE_BUFFER)
    ] = SHUFFLE_BUFFER
    shard_bytes: Annotated[
        int, Option("The most bytes of ids in one file.", "BYTES", limits=ranges.CACHE_SHARD_BYTES)
    ] = DEFAULT_SHARD_BYTES
    val_frac: Annotated[float, Option("Share for validation where a corpus has no split.", limits=ranges.VAL_FRAC)] = (
        DEFAULT_VAL_FRAC
    )
    token_dtype: Annotated[
        Literal["uint16", "uint32"] | None,
        Option("How ids are stored.  [default: the smaller that holds the vocabulary]"),
    ] = None
    english_only: Annotated[bool, Option("oasst1: leave out other languages.")] = True
    max_messages: Annotated[
        int | None, Option("oasst1: cut threads to so many messages.", limits=ranges.MAX_MESSAGES)
    ] = None
    max_bad_rows: int | str = 0
    with_gutenberg: Annotated[bool, Option("Build it instead of a stub.")] = False
    threads: int | None = None
    overwrite: Annotated[bool, Option("Replace what an earlier run wrote.")] = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """One cache to build.

    Attributes:
        name: of the source.
        place: the cache's directory, below the cache directory.
        source: `None` for a stub.
        limits: arguments of the build function: budgets and `val_frac`.
    """

    name: str
    place: str
    source: TextSource | ChatSource | None
    limits: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a target; a failed one has a `reason`."""

    name: str
    place: str
    status: Status
    seconds: float = 0.0
    reason: str = ""
    counts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The outcome as it is in the report."""
        return vars(self) | {"seconds": round(self.seconds, 3)}


def plan(settings: Settings) -> list[Target]:
    """The targets that `only` and `skip` leave, in the order of `SOURCES`.

    Raises:
        UsageError: a name that is not one of `NAMES`, or in both; nothing left to build; a number out of range.
    """
    # Checked before anything is built: these numbers concern the build functions alone, which may be called after
    # hours.
    check_budgets(settings.max_train_tokens, settings.max_val_tokens)
    # A shard holds at least one token, which takes four bytes in uint32: the range with the larger minimum.
    shard_range = ranges.EPISODES_SHARD_BYTES if settings.token_dtype == "uint32" else ranges.CACHE_SHARD_BYTES
    shard_range.check(settings.shard_bytes)
    BadRowLimit.of(settings.max_bad_rows)
    ranges.THREADS.check(settings.threads, "threads")
    ranges.VAL_FRAC.check(settings.val_frac)
    ValidationSplit(settings.val_frac, settings.seed)
    # Names are checked in all three before any is used: a misspelt --skip would otherwise build what it was to leave
    # out.
    for name in (*settings.only, *settings.skip, *settings.datasets):
        check_source_name(name)
    if both := sorted(set(settings.only) & set(settings.skip)):
        raise UsageError(f"{both[0]} is named by --only and by --skip; leave one of them out")
    chosen = [name for name in SOURCES if (not settings.only or name in settings.only) and name not in settings.skip]
    if not chosen:
        raise UsageError("--skip names every source, so nothing is left to build; leave one out")
    return [_target(name, settings) for name in chosen]


def _target(name: str, settings: Settings) -> Target:
    options = SourceOptions(
        dataset=settings.datasets.get(name),
        folder=settings.roam_dir,
        seed=settings.seed,
        shuffle_buffer=settings.shuffle_buffer,
        english_only=settings.english_only,
        max_messages=settings.max_messages,
    )
    source = open_source(name, options)
    limits: dict[str, Any] = {"val_frac": settings.val_frac}
    if source.unbounded:  # a stream without end, so the budgets also decide the share of validation
        limits = {"max_train_tokens": settings.max_train_tokens, "max_val_tokens": settings.max_val_tokens}
    elif isinstance(source, TextSource):
        limits |= {"max_train_tokens": UNLIMITED_TOKENS, "max_val_tokens": UNLIMITED_TOKENS}
    is_stub = name == STUB_NAME and not settings.with_gutenberg
    return Target(name, _place(name), None if is_stub else source, limits)


def _place(name: str) -> str:
    return f"{'pretrain' if issubclass(SOURCES[name], TextSource) else 'sft'}/{name}"


def build_all(
    settings: Settings,
    *,
    executor: UnitExecutor | None = None,
    progress: Progress = SILENT,
    finished: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Build every target of the plan and write the report.

    Args:
        executor: builds the sources that can be cut into slices; streamed sources are built in this process.
        finished: called with each outcome as soon as it is known.

    Returns:
        One outcome per target. A failed one has a `reason`; nothing is raised for it.

    Raises:
        UsageError, TokenizerError, Mismatch: before anything is built, if names, numbers or the tokenizer are wrong.
    """
    targets = plan(settings)
    tokenizer = _copied_tokenizer(settings, [target.name for target in targets])
    outcomes = []
    for target in targets:
        outcomes.append(_build(target, tokenizer, settings, executor, progress))
        finished(outcomes[-1])
        report = {
            "seed": settings.seed,
            "tokenizer_sha256": tokenizer.sha256,
            "ok": not any(outcome.status == "failed" for outcome in outcomes),
            "sources": [outcome.to_json() for outcome in outcomes],
        }
        write_atomic(settings.cache_dir / REPORT_NAME, json_bytes(report))  # now: a later source may take hours
    return outcomes


def _copied_tokenizer(settings: Settings, built: list[str]) -> DocumentEncoder:
    """The copy of the tokenizer beside the caches, of which all of a directory are built with the same.

    Raises:
        Mismatch: another tokenizer is there, or other files, and caches that this run does not build again.
        UsageError: `token_dtype` cannot hold its vocabulary, or it cannot be copied.
    """
    tokenizer = document_encoder(settings.tokenizer, settings.separator)
    copy = TokenizerCopy(tokenizer)
    dtype_for(settings.token_dtype, tokenizer.vocab_size)
    folder = settings.cache_dir / "tokenizer"
    with storage_errors("creating the directory", settings.cache_dir):
        settings.cache_dir.mkdir(parents=True, exist_ok=True)
    with locked(settings.cache_dir):  # a second run waits here, and then finds the copy
        recover_interrupted(folder)
        if not copy.is_in(folder):
            again = built if settings.overwrite else ()
            places = [settings.cache_dir / _place(name) for name in SOURCES if name not in again]
            others = [place for place in places if (place / META_NAME).is_file() and not _is_stub(place)]
            if others or (folder.exists() and not settings.overwrite):
                raise Mismatch(
                    f"{folder}: holds another tokenizer, or its files were replaced: caches of two tokenizers would "
                    f"stand in {settings.cache_dir}. Put its files back and pass that tokenizer, choose another "
                    "--cache-dir, or pass --overwrite without --only and --skip to build all caches again"
                )
            copy.write(folder)
    # Built with the copy, not with what was named: so it is certain that the copy reads what these caches hold.
    return document_encoder(folder, settings.separator)


def _build(
    target: Target, tokenizer: DocumentEncoder, settings: Settings, executor: UnitExecutor | None, progress: Progress
) -> Outcome:
    out, started = settings.cache_dir / target.place, time.perf_counter()
    try:
        # If the replacement of a stub by a cache was killed between its two renames, the stub is put back.
        recover_interrupted(out)
        if target.source is None:
            _write_stub(out, target.name)
            return Outcome(target.name, target.place, "stub", reason="not built: pass --with-gutenberg to build it")
        is_there = (out / META_NAME).is_file() and not _is_stub(out) and not settings.overwrite
        _build_cache(target.source, out, target.limits, tokenizer, settings, executor, progress)
        meta = open_meta(out)
    except NielsError as error:
        reason = str(error)
        # A hint for the most common failure: most users have no folder of notes at the default place.
        if isinstance(target.source, RoamNotes) and isinstance(error, InputError):
            reason += "; name your folder of notes with --roam-dir, or leave them out with --skip roam"
        return Outcome(target.name, target.place, "failed", time.perf_counter() - started, reason=reason)
    counts = {"splits": meta["splits"], "dropped": meta["dropped"], "source": meta["dataset_config"]}
    if "bad_rows" in meta:
        counts["bad_rows"] = meta["bad_rows"]
    status: Status = "already built" if is_there else "built"
    return Outcome(target.name, target.place, status, time.perf_counter() - started, counts=counts)


def _build_cache(
    source: TextSource | ChatSource,
    out: Path,
    limits: dict[str, Any],
    tokenizer: DocumentEncoder,
    settings: Settings,
    executor: UnitExecutor | None,
    progress: Progress,
) -> None:
    overwrite, config = settings.overwrite or _is_stub(out), source.config()
    if isinstance(source, HubSource) and source.dataset.revision is None and not overwrite:
        # A finished cache stays, although somebody has committed on the hub since.
        found = read_meta(str(out / META_NAME)).get("dataset_config") if (out / META_NAME).is_file() else None
        config |= {"revision": (found or config).get("revision", config["revision"])}
    arguments: dict[str, Any] = {
        "source_name": source.name,
        "source_config": config,
        "max_bad_rows": settings.max_bad_rows,
        "overwrite": overwrite,
        # Workers read slices of a source; a data set of the hub is streamed from its beginning.
        "executor": executor if isinstance(source, Sliceable) else None,
        "progress": progress,
        "seed": settings.seed,
        "token_dtype": settings.token_dtype,
        "streaming": source.streaming,
        "num_threads": settings.threads,
        **limits,
    }
    if isinstance(source, TextSource):
        # A source either is shuffled where it is read, or is built completely, so that its order does not matter.
        arguments |= {"shard_bytes": settings.shard_bytes, "shuffle_buffer": None}
        build_pretrain_cache(source, str(out), tokenizer=tokenizer, **arguments)
        return
    # Without sentinels, conversations are rendered in the model's format: its family if known, else its chat template.
    has_sentinels = isinstance(tokenizer.tokenizer, CacheTokenizer)
    chats = tokenizer.tokenizer if has_sentinels else create_renderer(settings.tokenizer)
    build_sft_cache(source, str(out), tokenizer=chats, **arguments)


def _is_stub(out: Path) -> bool:
    return (out / META_NAME).is_file() and read_meta(str(out / META_NAME)).get("built") is False


def _write_stub(out: Path, name: str) -> None:
    """Write an empty cache marked as not built, as the cache format allows for Gutenberg."""
    if (out / META_NAME).is_file():  # a stub already, or a cache of an earlier run with --with-gutenberg, which stays
        return
    with StagedDirectory(out, manifest=META_NAME) as staged:
        for split in SPLITS:
            (staged.path / split).mkdir()
        write_meta(str(staged.path / META_NAME), {"kind": "pretrain", "dataset_name": name, "built": False})
        staged.commit()


def parse_dataset(text: str) -> tuple[str, HubDataset]:
    """Parse `NAME=REPO[:CONFIG][@REVISION]`, the value of `--dataset`.

    Raises:
        UsageError: it has another form.
    """
    name, equals, rest = text.partition("=")
    rest, _, revision = rest.partition("@")
    repo, _, config = rest.partition(":")
    if not equals or not repo:
        raise UsageError(f"--dataset {text}: expected NAME=REPO[:CONFIG][@REVISION], NAME one of {', '.join(NAMES)}")
    return name, HubDataset(repo, config or None, revision or None)
