"""From a cache or episodes to a directory in another program's format, whole or absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt import ranges
from niels_gpt.checksums import FileRecord
from niels_gpt.errors import CacheError, UsageError, did_you_mean
from niels_gpt.export.arranging import Arrangement, arranged, n_rows
from niels_gpt.export.caches import Stream
from niels_gpt.export.formats import SHARD_TOKENS, Format, Settings
from niels_gpt.export.opening import open_source, splits_of
from niels_gpt.export.registry import format_named
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Examples, Facts, checked_split
from niels_gpt.files import json_bytes, write_atomic
from niels_gpt.manifests import sealed
from niels_gpt.progress import SILENT, Progress
from niels_gpt.staging import StagedDirectory

MANIFEST_NAME = "export.json"
README_NAME = "README.md"
FORMAT_VERSION = 1


def export(
    source: str | Path,
    to: str,
    out: str | Path,
    *,
    split: str | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    too_long: str = "error",
    packing: bool = False,
    shuffle: int | None = None,
    binary: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    overwrite: bool = False,
    progress: Progress = SILENT,
    **options: Any,
) -> dict[str, Any]:
    """Write a cache or episodes in another program's format; the manifest that was written is returned.

    Same source and options: same bytes. Memory does not grow with the source, but by 8 bytes a row where rows are
    packed, or left out for their length.

    Args:
        source: a directory of `episodes build`, `cache build-sft` or `cache build-pretrain`.
        to: the format; see `registry.FORMATS`.
        out: the directory to create; it appears when all is written, with `export.json` and a README in it.
        split: "train" or "val"; default both, as far as they hold something.
        limit: the first so many rows of each split.
        max_length, too_long, packing, shuffle: see `Arrangement`.
        binary: weights between 0 and 1, or above, become 1 where a format keeps only 0 and 1; without it such weights
            are refused.
        shard_tokens: about how many tokens one file holds, in formats of several files.
        overwrite: replace an earlier export at `out`.
        options: of the format alone, for example `assistant_masks=True` of `hf`.

    Raises:
        UsageError: no such format, split or option, or the format cannot hold what the source has.
        CacheError: the source is missing, unfinished or damaged. OutputExists: `out` is taken.
        MissingExtra: a library is not installed. StorageError: the disk refused; `out` is then as it was.
    """
    chosen = format_named(to)
    settings = Settings(packing, max_length, shard_tokens, _options(chosen, options))
    how = Arrangement(limit, max_length, too_long, packing, shuffle, settings.options.get("pad_multiple", 1))
    _check_settings(chosen, settings)
    place = Path(source)
    sources = {name: open_source(place, name) for name in checked_split(split) or splits_of(place)}
    if not sources:
        raise CacheError(f"{place}: no row in any split; nothing to export")
    facts = {name: opened.facts for name, opened in sources.items()}
    with StagedDirectory(Path(out), manifest=MANIFEST_NAME, overwrite=overwrite) as staged, ExitStack() as stack:
        files: dict[str, FileRecord] = {}
        counts: dict[str, dict[str, int]] = {}
        for name, opened in sources.items():
            writer = chosen.open(staged.path, opened.facts, settings)
            stack.callback(writer.abandon)
            counts[name] = _write(opened, how, chosen, binary, writer.write, progress)
            if not counts[name]["rows"]:
                raise UsageError(
                    f"{place}: no row of {name} is left: all are empty, or longer than max_length ({max_length}); "
                    "raise it, or name the other split alone"
                )
            writer.close()
            files |= writer.files
        readme = _readme(chosen, settings, facts, counts).encode()
        files[README_NAME] = write_atomic(staged.path / README_NAME, readme)
        manifest = sealed(_manifest(chosen, settings, how, facts, counts, files))
        write_atomic(staged.path / MANIFEST_NAME, json_bytes(manifest))
        staged.commit()
    return manifest


def _options(chosen: Format, given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in chosen.options:
            known = ", ".join(chosen.options) or "none"
            raise UsageError(
                f"{chosen.name} has no option {name!r}; its options: {known}{did_you_mean(name, chosen.options)}"
            )
    return chosen.options | given


def _check_settings(chosen: Format, settings: Settings) -> None:
    if settings.packing and not chosen.packs:
        raise UsageError(
            f"{chosen.name} has no rows of several texts, or packs by itself; leave packing out (its trainer cuts or "
            "packs the documents)"
        )
    ranges.SHARD_TOKENS.check(settings.shard_tokens)


def _write(
    opened: Examples | Stream, how: Arrangement, chosen: Format, binary: bool, write: Any, progress: Progress
) -> dict[str, int]:
    """One split; returns what was written."""
    facts = opened.facts
    counts = dict.fromkeys(("rows", "texts", "tokens", "trained_tokens"), 0)
    expected = facts.n_tokens if how.limit is None else None
    progress.begin(f"{facts.split} to {chosen.name}", total=expected, unit="tokens")
    for rows in _as_kept(arranged(opened, how), chosen, binary, facts):
        write(rows)
        counts["rows"] += len(rows)
        counts["texts"] += int(np.count_nonzero(rows.begins))
        counts["tokens"] += len(rows.ids)
        counts["trained_tokens"] += int(np.count_nonzero(rows.weights))
        progress.advance(len(rows.ids))
        if how.limit is not None:
            progress.expect(counts["tokens"] * (n_rows(opened, how) or 1) // max(1, counts["rows"]))
    return counts


def _as_kept(portions: Iterator[Rows], chosen: Format, binary: bool, facts: Facts) -> Iterator[Rows]:
    """The rows with weights as the format keeps them.

    Raises:
        UsageError: a weight that it cannot keep, and nobody said what to do with it.
    """
    number = 0
    for rows in portions:
        whole = rows.weights.dtype == np.uint8
        if chosen.mask == "weights" or whole:
            yield rows
        else:
            between = (rows.weights != 0) & (rows.weights != 1)
            if between.any() and not binary and chosen.mask != "none":
                at = int(np.argmax(between))
                row = number + int(np.searchsorted(rows.starts, at, side="right")) - 1
                raise UsageError(
                    f"{facts.path}: row {row:,} of {facts.split} has a token of weight {rows.weights[at]:g}, and "
                    f"{chosen.name} keeps only 0 and 1; pass --binary (binary=True) to train all above 0 alike, or "
                    "choose a format that keeps weights (mds, litdata)"
                )
            yield Rows(rows.ids, rows.lengths, rows.begins, rows.trained.astype(np.uint8))
        number += len(rows)


def _manifest(
    chosen: Format,
    settings: Settings,
    how: Arrangement,
    facts: dict[str, Facts],
    counts: dict[str, dict[str, int]],
    files: dict[str, FileRecord],
) -> dict[str, Any]:
    one = next(iter(facts.values()))
    return {
        "format_version": FORMAT_VERSION,
        "kind": "export",
        "format": chosen.name,
        "mask": chosen.mask,
        "options": settings.options,
        "arrangement": how.to_json(),
        "source": {
            "kind": one.kind,
            "fingerprints": {name: each.fingerprint for name, each in facts.items()},
            "tokenizer_sha256": one.tokenizer_sha256,
            "vocab_size": one.vocab_size,
            "special_token_ids": one.special_token_ids,
        },
        "use": chosen.use(settings, facts),
        "splits": counts,
        "files": {name: record.to_json() for name, record in sorted(files.items())},
    }


def _readme(chosen: Format, settings: Settings, facts: dict[str, Facts], counts: dict[str, dict[str, int]]) -> str:
    """What the directory is and what its reader must be told."""
    lines = [f"# {chosen.title}", "", "Written by `niels-gpt export`. What was written, with checksums: `export.json`."]
    lines += ["", "| split | rows | texts | tokens | trained |", "|---|---|---|---|---|"]
    for name, each in counts.items():
        numbers = " | ".join(f"{each[key]:,}" for key in ("rows", "texts", "tokens", "trained_tokens"))
        lines.append(f"| {name} | {numbers} |")
    return "\n".join([*lines, "", "## Use", "", *(f"* {line}" for line in chosen.use(settings, facts)), ""])
