"""`build-all`: document 001's caches from their five sources, one after the other, each whole or absent.

::

    CACHE_DIR/tokenizer/{spm.model,meta.json}
    CACHE_DIR/pretrain/{fineweb_edu,roam,wikitext}/     built
    CACHE_DIR/pretrain/gutenberg/                       a marked stub, unless asked for
    CACHE_DIR/sft/{dolly15k,oasst1}/                    built
    CACHE_DIR/build_report.json                         what became of each

A source that fails says why and the others go on; the same command later continues with what is not complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from niels_gpt import ranges
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cache.formats import (
    MAX_TRAIN_TOKENS,
    MAX_VAL_TOKENS,
    META_NAME,
    SEED,
    SHARD_BYTES,
    SPLITS,
    UNLIMITED_TOKENS,
    VAL_FRAC,
)
from niels_gpt.cache.meta import open_meta, read_meta, write_meta
from niels_gpt.errors import Mismatch, NielsError, UsageError
from niels_gpt.files import json_bytes, write_atomic
from niels_gpt.portions import SERIAL, Engine
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.base import ChatSource, TextSource
from niels_gpt.sources.dolly import Dolly
from niels_gpt.sources.fineweb_edu import SHUFFLE_BUFFER, FineWebEdu
from niels_gpt.sources.gutenberg import Gutenberg
from niels_gpt.sources.hub import HubDataset, HubSource
from niels_gpt.sources.oasst1 import OpenAssistant
from niels_gpt.sources.roam import RoamNotes
from niels_gpt.sources.slices import Sliceable
from niels_gpt.sources.wikitext import WikiText
from niels_gpt.splits import ValidationSplit
from niels_gpt.staging import StagedDirectory, tidy_up
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH, SentencePieceTokenizer, load_tokenizer
from niels_gpt.tokenizer.sentencepiece import MODEL_NAME

REPORT_NAME = "build_report.json"
TOKENIZER_META_NAME = "tokenizer_meta.json"
NAMES = ("fineweb_edu", "roam", "wikitext", "gutenberg", "dolly15k", "oasst1")

Status = Literal["built", "already built", "stub", "failed"]


@dataclass(frozen=True)
class Settings:
    """Every constant of the build; the defaults are document 001's.

    `datasets` replaces a source's data set on the hub, by name.
    """

    cache_dir: Path = Path("cache")
    seed: int = SEED
    tokenizer: Path = Path(DEFAULT_TOKENIZER_PATH)
    roam_dir: Path = Path("data/roam")
    datasets: dict[str, HubDataset] = field(default_factory=dict)
    max_train_tokens: int = MAX_TRAIN_TOKENS
    max_val_tokens: int = MAX_VAL_TOKENS
    shuffle_buffer: int = SHUFFLE_BUFFER
    shard_bytes: int = SHARD_BYTES
    val_frac: float = VAL_FRAC
    english_only: bool = True
    max_messages: int | None = None
    max_bad_rows: int = 0
    with_gutenberg: bool = False
    threads: int | None = None
    overwrite: bool = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """One cache to build: its name, its place below the cache directory, and where its rows come from."""

    name: str
    place: str
    source: TextSource | ChatSource | None  # None: a stub
    limits: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a target."""

    name: str
    place: str
    status: Status
    seconds: float = 0.0
    reason: str = ""
    counts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The outcome as it stands in the report."""
        return vars(self) | {"seconds": round(self.seconds, 3)}


def plan(settings: Settings) -> list[Target]:
    """The targets that `only` and `skip` leave, in document 001's order.

    Raises:
        UsageError: a name that is not one of `NAMES`.
    """
    _check_numbers(settings)
    for name in (*settings.only, *settings.skip, *settings.datasets):
        if name not in NAMES:
            raise UsageError(f"no source {name!r}; known: {', '.join(NAMES)}")
    targets = _all_targets(settings)
    return [t for t in targets if (not settings.only or t.name in settings.only) and t.name not in settings.skip]


def _check_numbers(settings: Settings) -> None:
    """What no source checks when it is made, before anything is built."""
    ranges.MAX_TRAIN_TOKENS.check(settings.max_train_tokens)
    ranges.MAX_VAL_TOKENS.check(settings.max_val_tokens)
    ranges.SHARD_BYTES.check(settings.shard_bytes)
    ranges.MAX_BAD_ROWS.check(settings.max_bad_rows)
    ranges.THREADS.check(settings.threads, "threads")
    ranges.VAL_FRAC.check(settings.val_frac)
    ValidationSplit(settings.val_frac, settings.seed)


def _all_targets(settings: Settings) -> list[Target]:
    def hub(name: str) -> dict[str, Any]:
        return {"dataset": settings.datasets[name]} if name in settings.datasets else {}

    budgets = {"max_train_tokens": settings.max_train_tokens, "max_val_tokens": settings.max_val_tokens}
    share = {"val_frac": settings.val_frac}
    everything = {"max_train_tokens": UNLIMITED_TOKENS, "max_val_tokens": UNLIMITED_TOKENS, **share}
    fineweb = FineWebEdu(seed=settings.seed, shuffle_buffer=settings.shuffle_buffer, **hub("fineweb_edu"))
    oasst1 = OpenAssistant(english_only=settings.english_only, max_messages=settings.max_messages, **hub("oasst1"))
    gutenberg = Gutenberg(**hub("gutenberg")) if settings.with_gutenberg else None
    return [
        Target("fineweb_edu", "pretrain/fineweb_edu", fineweb, budgets),
        Target("roam", "pretrain/roam", RoamNotes(settings.roam_dir), everything),
        Target("wikitext", "pretrain/wikitext", WikiText(**hub("wikitext")), everything),
        Target("gutenberg", "pretrain/gutenberg", gutenberg, everything),
        Target("dolly15k", "sft/dolly15k", Dolly(**hub("dolly15k")), share),
        Target("oasst1", "sft/oasst1", oasst1, share),
    ]


def build_all(
    settings: Settings,
    *,
    engine: Engine = SERIAL,
    progress: Progress = SILENT,
    finished: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Build every target of the plan and write the report.

    Args:
        engine: runs the work of sources that can be cut, see `scale`; what is streamed is built in this process.
        finished: called with each outcome as soon as it is known.

    Returns:
        One outcome a target. A failed one has a `reason`; nothing is raised for it.

    Raises:
        UsageError, TokenizerError, Mismatch: before anything is built, if names or the tokenizer are wrong.
    """
    targets = plan(settings)
    tokenizer = _keep_tokenizer(settings)
    outcomes = []
    for target in targets:
        outcomes.append(_build(target, tokenizer, settings, engine, progress))
        finished(outcomes[-1])
        _write_report(settings, tokenizer, outcomes)
    return outcomes


def _keep_tokenizer(settings: Settings) -> SentencePieceTokenizer:
    """Copy the tokenizer beside the caches; a directory holds caches of one tokenizer only."""
    tokenizer = load_tokenizer(settings.tokenizer)
    kept = settings.cache_dir / "tokenizer"
    tidy_up(kept)
    if (kept / META_NAME).is_file():
        found = read_meta(str(kept / META_NAME)).get("sha256")
        if found == tokenizer.sha256:
            return load_tokenizer(kept)
        if not settings.overwrite:
            raise Mismatch(
                f"{kept}: holds tokenizer {str(found)[:12]}, now {tokenizer.sha256[:12]}; choose another --cache-dir, "
                "or pass --overwrite to build all caches again"
            )
    with StagedDirectory(kept, manifest=META_NAME, overwrite=True) as staged:
        record = write_atomic(staged.path / MODEL_NAME, Path(tokenizer.model_path).read_bytes())
        trained = Path(tokenizer.model_path).with_name(TOKENIZER_META_NAME)
        meta = {
            "kind": "tokenizer",
            "sha256": record.sha256,
            "bytes": record.bytes,
            "vocab_size": tokenizer.vocab_size,
            "special_token_ids": tokenizer.special_token_ids(),
            "training": read_meta(str(trained)) if trained.is_file() else None,
        }
        write_meta(str(staged.path / META_NAME), meta)
        staged.commit()
    return load_tokenizer(kept)


def _build(
    target: Target, tokenizer: SentencePieceTokenizer, settings: Settings, engine: Engine, progress: Progress
) -> Outcome:
    out = settings.cache_dir / target.place
    started = time.perf_counter()
    tidy_up(out)  # a stub whose replacement was killed counts as the stub again
    before = (out / META_NAME).stat().st_mtime_ns if (out / META_NAME).is_file() else None
    try:
        if target.source is None:
            _write_stub(out, target.name)
            return Outcome(target.name, target.place, "stub", reason="not built: pass --with-gutenberg to build it")
        _build_cache(target, out, tokenizer, settings, engine, progress)
        meta = open_meta(out)
    except NielsError as error:
        return Outcome(target.name, target.place, "failed", time.perf_counter() - started, reason=str(error))
    status: Status = "already built" if before == (out / META_NAME).stat().st_mtime_ns else "built"
    counts = {"splits": meta["splits"], "dropped": meta["dropped"], "source": meta["dataset_config"]}
    return Outcome(target.name, target.place, status, time.perf_counter() - started, counts=counts)


def _build_cache(
    target: Target,
    out: Path,
    tokenizer: SentencePieceTokenizer,
    settings: Settings,
    engine: Engine,
    progress: Progress,
) -> None:
    source = target.source
    assert source is not None
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "seed": settings.seed,
        "source_name": source.name,
        "source_config": source.config(),
        "streaming": source.streaming,
        "max_bad_rows": settings.max_bad_rows,
        "num_threads": settings.threads,
        "overwrite": settings.overwrite or _is_stub(out),
        "engine": engine if isinstance(source, Sliceable) else SERIAL,
        "read_share": source.read_share,
        "progress": progress,
        **target.limits,
    }
    if isinstance(source, TextSource):
        # Rows of the hub come shuffled by the source; documents of a folder are few enough to need no buffer.
        options |= {"shard_bytes": settings.shard_bytes, "shuffle_buffer": None}
        build_pretrain_cache(source, str(out), **options)
    else:
        build_sft_cache(source, str(out), **options)


def _is_stub(out: Path) -> bool:
    return (out / META_NAME).is_file() and read_meta(str(out / META_NAME)).get("built") is False


def _write_stub(out: Path, name: str) -> None:
    """Directories and a meta that says "not built", as document 001 allows for Gutenberg."""
    if (out / META_NAME).is_file():
        return
    with StagedDirectory(out, manifest=META_NAME) as staged:
        for split in SPLITS:
            (staged.path / split).mkdir()
        write_meta(str(staged.path / META_NAME), {"kind": "pretrain", "dataset_name": name, "built": False})
        staged.commit()


def _write_report(settings: Settings, tokenizer: SentencePieceTokenizer, outcomes: list[Outcome]) -> None:
    report = {
        "seed": settings.seed,
        "tokenizer_sha256": tokenizer.sha256,
        "ok": not any(outcome.status == "failed" for outcome in outcomes),
        "sources": [outcome.to_json() for outcome in outcomes],
    }
    write_atomic(settings.cache_dir / REPORT_NAME, json_bytes(report))


def describe(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """The plan in words, without asking the hub: name, place, and where the rows come from."""
    for target in plan(settings):
        if target.source is None:
            yield target.name, target.place, "a stub; --with-gutenberg builds it"
        elif isinstance(target.source, RoamNotes):
            yield target.name, target.place, f"markdown files of {target.source.folder}"
        else:
            assert isinstance(target.source, HubSource)
            yield target.name, target.place, f"hub: {target.source.dataset}"


def parse_dataset(given: str) -> tuple[str, HubDataset]:
    """`NAME=REPO[:CONFIG][@REVISION]`, as the command line takes it.

    Raises:
        UsageError: another shape.
    """
    name, equals, rest = given.partition("=")
    rest, _, revision = rest.partition("@")
    repo, _, config = rest.partition(":")
    if not equals or not repo:
        raise UsageError(f"--dataset {given}: expected NAME=REPO[:CONFIG][@REVISION], NAME one of {', '.join(NAMES)}")
    return name, HubDataset(repo, config or None, revision or None)
