"""`build-all`: document 001's caches from their five sources, one after the other, each whole or absent.

::

    CACHE_DIR/tokenizer/{spm.model,meta.json}
    CACHE_DIR/pretrain/{fineweb_edu,roam,wikitext}/     built
    CACHE_DIR/pretrain/gutenberg/                       a marked stub, unless asked for
    CACHE_DIR/sft/{dolly15k,oasst1}/                    built
    CACHE_DIR/build_report.json                         what became of each

A source that fails says why and the others go on; the same command later continues with what is not complete. The
report keeps the last outcome of every source, also of those that a run with `--only` leaves alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from niels_gpt import ranges
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache, check_budgets
from niels_gpt.cache.formats import (
    MAX_TRAIN_TOKENS,
    MAX_VAL_TOKENS,
    META_NAME,
    SEED,
    SHARD_BYTES,
    SPLITS,
    UNLIMITED_TOKENS,
    VAL_FRAC,
    dtype_for,
)
from niels_gpt.cache.meta import open_meta, read_meta, sha256_file, write_meta
from niels_gpt.errors import CacheError, InputError, Mismatch, NielsError, UsageError, storage_errors
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

Status = Literal["built", "already built", "pinned", "stub", "failed"]


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
    token_dtype: str = "uint16"
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
        UsageError: a name that is not one of `NAMES`, or in both; nothing left to build; a number out of range.
    """
    _check_numbers(settings)
    for name in (*settings.only, *settings.skip, *settings.datasets):
        if name not in NAMES:
            raise UsageError(f"no source {name!r}; known: {', '.join(NAMES)}")
    if both := sorted(set(settings.only) & set(settings.skip)):
        raise UsageError(f"{both[0]} is named by --only and by --skip; leave one of them out")
    targets = _all_targets(settings)
    chosen = [t for t in targets if (not settings.only or t.name in settings.only) and t.name not in settings.skip]
    if not chosen:
        raise UsageError("--skip names every source, so nothing is left to build; leave one out")
    return chosen


def _check_numbers(settings: Settings) -> None:
    """What no source checks when it is made, before anything is built."""
    check_budgets(settings.max_train_tokens, settings.max_val_tokens)
    (ranges.EPISODES_SHARD_BYTES if settings.token_dtype == "uint32" else ranges.SHARD_BYTES).check(
        settings.shard_bytes
    )
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
        UsageError, TokenizerError, Mismatch, InputError: before anything is built, if names, numbers, the tokenizer or
            the report of an earlier run are wrong.
    """
    targets = plan(settings)
    _reported(settings.cache_dir / REPORT_NAME)
    tokenizer = _keep_tokenizer(settings, targets)
    outcomes = []
    for target in targets:
        outcomes.append(_build(target, tokenizer, settings, engine, progress))
        finished(outcomes[-1])
        _report(settings, tokenizer, outcomes[-1])
    return outcomes


def _keep_tokenizer(settings: Settings, targets: list[Target]) -> SentencePieceTokenizer:
    """Copy the tokenizer beside the caches; a directory holds caches of one tokenizer only.

    Raises:
        Mismatch: another tokenizer is there, its model was replaced, or a cache that stays was built with another.
        UsageError: `token_dtype` cannot hold its vocabulary.
    """
    tokenizer = load_tokenizer(settings.tokenizer)
    dtype_for(settings.token_dtype, tokenizer.vocab_size)
    kept = settings.cache_dir / "tokenizer"
    with storage_errors("creating the directory", settings.cache_dir):
        settings.cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(settings.cache_dir):  # a second run waits, and then finds it there
        tidy_up(kept)
        there = _is_kept(tokenizer, kept, settings)
        _refuse_caches_of_another(tokenizer, settings, {target.name for target in targets})
        if not there:
            _copy(tokenizer, kept)
    return load_tokenizer(kept)


def _is_kept(tokenizer: SentencePieceTokenizer, kept: Path, settings: Settings) -> bool:
    """Is this tokenizer there, as its `meta.json` records it? Another one is refused, unless all is built again."""
    if not (kept / META_NAME).is_file():
        return False
    model, recorded = kept / MODEL_NAME, read_meta(str(kept / META_NAME)).get("sha256")
    found = sha256_file(str(model)) if model.is_file() else None
    if settings.overwrite:
        return found == recorded == tokenizer.sha256
    if found != recorded:
        what = "is missing" if found is None else f"has sha256 {found[:12]}"
        raise Mismatch(
            f"{model}: {what}, but {META_NAME} beside it records {str(recorded)[:12]}, the tokenizer of the caches "
            "here; put that model back, choose another --cache-dir, or pass --overwrite to build all caches again"
        )
    if recorded != tokenizer.sha256:
        raise Mismatch(
            f"{kept}: holds tokenizer {str(recorded)[:12]}, now {tokenizer.sha256[:12]}; choose another --cache-dir, "
            "or pass --overwrite to build all caches again"
        )
    return True


def _refuse_caches_of_another(tokenizer: SentencePieceTokenizer, settings: Settings, built: set[str]) -> None:
    """A cache that this run leaves as it is must be of this tokenizer: two in one directory cannot be trained on."""
    for target in _all_targets(settings):
        meta = settings.cache_dir / target.place / META_NAME
        if not meta.is_file() or (target.name in built and settings.overwrite):
            continue
        try:
            found = read_meta(str(meta)).get("tokenizer_sha256")
        except CacheError:  # a damaged one has no tokenizer that could be compared; its own build says what is wrong
            continue
        if found not in (None, tokenizer.sha256):
            raise Mismatch(
                f"{meta.parent}: a cache of tokenizer {str(found)[:12]}, now {tokenizer.sha256[:12]}; give that "
                "tokenizer, choose another --cache-dir, or pass --overwrite without --only and --skip to build all "
                "caches again"
            )


def _copy(tokenizer: SentencePieceTokenizer, kept: Path) -> None:
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


def _build(
    target: Target, tokenizer: SentencePieceTokenizer, settings: Settings, engine: Engine, progress: Progress
) -> Outcome:
    out = settings.cache_dir / target.place
    started = time.perf_counter()
    tidy_up(out)  # a stub whose replacement was killed counts as the stub again
    before = (out / META_NAME).stat().st_mtime_ns if (out / META_NAME).is_file() else None
    newer = ""
    try:
        if target.source is None:
            _write_stub(out, target.name)
            return Outcome(target.name, target.place, "stub", reason="not built: pass --with-gutenberg to build it")
        config, newer = _pinned(target.source, out, settings)
        _build_cache(target, out, config, tokenizer, settings, engine, progress)
        meta = open_meta(out)
    except NielsError as error:
        reason = f"{error}{_way_out(target, error)}"
        return Outcome(target.name, target.place, "failed", time.perf_counter() - started, reason=reason)
    status: Status = "already built" if before == (out / META_NAME).stat().st_mtime_ns else "built"
    counts = {"splits": meta["splits"], "dropped": meta["dropped"], "source": meta["dataset_config"]}
    seconds = time.perf_counter() - started
    return Outcome(target.name, target.place, "pinned" if newer else status, seconds, newer, counts)


def _pinned(source: TextSource | ChatSource, out: Path, settings: Settings) -> tuple[dict[str, Any], str]:
    """What the source is, and, where its data set has a newer commit than the finished cache, a note that says so.

    A finished cache stays what it is: without --overwrite or a revision that is asked for, its commit is meant.
    """
    config = source.config()
    if settings.overwrite or not isinstance(source, HubSource) or source.dataset.revision is not None:
        return config, ""
    if not (out / META_NAME).is_file() or _is_stub(out):
        return config, ""
    kept = (read_meta(str(out / META_NAME)).get("dataset_config") or {}).get("revision")
    if not kept or kept == config["revision"]:
        return config, ""
    newer = f"pinned to {kept}, newer exists: {config['revision']}; --overwrite builds that one"
    return config | {"revision": kept}, newer


def _way_out(target: Target, error: NielsError) -> str:
    """What else the command line offers: most people have no notes, and document 001's folder is only a default."""
    if isinstance(target.source, RoamNotes) and isinstance(error, InputError):
        return "; name your folder of notes with --roam-dir, or leave them out with --skip roam"
    return ""


def _build_cache(
    target: Target,
    out: Path,
    source_config: dict[str, Any],
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
        "source_config": source_config,
        "token_dtype": settings.token_dtype,
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


def _report(settings: Settings, tokenizer: SentencePieceTokenizer, outcome: Outcome) -> None:
    """Put an outcome into the report, in place of an earlier one of that source; other runs may be at it, too."""
    path = settings.cache_dir / REPORT_NAME
    with _locked(settings.cache_dir):
        sources = {source["name"]: source for source in _reported(path)}
        sources[outcome.name] = outcome.to_json() | {"seed": settings.seed, "tokenizer_sha256": tokenizer.sha256}
        report = {
            "seed": settings.seed,
            "tokenizer_sha256": tokenizer.sha256,
            "ok": not any(source["status"] == "failed" for source in sources.values()),
            "sources": [sources[name] for name in NAMES if name in sources],
        }
        write_atomic(path, json_bytes(report))


def _reported(path: Path) -> list[dict[str, Any]]:
    """The sources of an earlier report.

    Raises:
        InputError: a file of that name that is no report.
    """
    if not path.is_file():
        return []
    try:
        sources = json.loads(path.read_bytes())["sources"]
        return [{"name": str(source["name"]), "status": str(source["status"]), **source} for source in sources]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a report of build-all ({error}); delete it, and the next run writes a new one"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a directory for the block, so that no lock file is left over."""
    with storage_errors("locking", folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        with storage_errors("locking", folder):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
