"""`export`: a cache or episodes as a directory in another program's format, complete or absent."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt import ranges
from niels_gpt.errors import CacheError, UsageError, did_you_mean, shown
from niels_gpt.export.arranging import Arrangement, arrange
from niels_gpt.export.formats import SHARD_TOKENS, Format, Settings, SplitWriter
from niels_gpt.export.preferences import PreferenceFormat, PreferenceSource, check_options
from niels_gpt.export.registry import format_named
from niels_gpt.export.source import Source, check_bytes, open_source, splits_of
from niels_gpt.export.writers import HubFiles
from niels_gpt.extras import check_library
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.checksums import FileRecord
from niels_gpt.store.files import json_bytes, write_atomic
from niels_gpt.store.manifest import with_manifest_hash
from niels_gpt.store.staging import StagedDirectory

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
    """Write a cache or episodes in another program's format, and return the manifest (export.json).

    The same source and options give the same bytes. The source's files are compared with their checksums first, but not
    with a `limit`, which reads only the beginning. Memory does not grow with the source, except for 8 bytes a row
    where rows are packed, or left out for their length.

    Args:
        source: the directory of a dataset.
        to: the name of the format; see `registry.FORMATS`, and for preferences `preferences.PREFERENCE_FORMATS`.
        out: the directory to create. It appears when everything is written, with export.json and README.md in it.
        split: "train" or "val"; by default both, unless one is empty.
        limit, max_length, too_long, packing, shuffle: which rows, in which order, cut and packed how, see
            `arranging.Arrangement`.
        binary: in formats that hold only 0 and 1, write weights above 0 as 1; without it other weights are refused.
        shard_tokens: the most tokens of a file, in formats of several files; a longer row has a file of its own.
        overwrite: replace an earlier export at `out`.
        options: options of this format only, for example `assistant_masks=True` of `hf`.

    Raises:
        UsageError: an unknown format, split or option, or data that the format cannot hold.
        CacheError: the source is missing, unfinished or damaged. OutputExists: `out` exists already.
        MissingExtra: a library is not installed. StorageError: writing failed; `out` is then as it was before.
    """
    arrangement = {"limit": limit, "max_length": max_length, "too_long": too_long}
    # First: whether an option exists does not depend on the data.
    form, settings = _checked_arguments(
        to, {**arrangement, "packing": packing, "shuffle": shuffle}, binary, shard_tokens, options
    )
    path = Path(source)
    # Whatever can be refused without reading all rows is refused first: val comes last, perhaps after hours.
    splits: dict[str, _Conversations | PreferenceSource] = {
        name: PreferenceSource(path, name, form, settings)
        if isinstance(form, PreferenceFormat)
        else _Conversations(
            open_source(path, name, None if form.mask == "weights" else form.name, binary), form, settings
        )
        for name in ([split] if split is not None else splits_of(path))
    }
    if not splits:
        raise CacheError(f"{path}: no split contains rows; there is nothing to export")
    with StagedDirectory(Path(out), manifest=MANIFEST_NAME, overwrite=overwrite) as staged, ExitStack() as stack:
        writers: dict[str, SplitWriter | HubFiles] = {}
        for name, opened in splits.items():
            writers[name] = opened.open_files(staged.path, settings)
            # After an error in any split all writers close their files, before the staged directory is removed.
            stack.callback(writers[name].abandon)
        if limit is None:
            check_bytes(path, progress)
        files: dict[str, FileRecord] = {}
        counts: dict[str, dict[str, int]] = {}
        for name, writer in writers.items():
            counts[name] = splits[name].write(progress)
            writer.close()
            files |= writer.files
        return _finish(staged, form, settings, {name: opened.source for name, opened in splits.items()}, counts, files)


def _checked_arguments(
    to: str, arrangement: dict[str, Any], binary: bool, shard_tokens: int, options: dict[str, Any]
) -> tuple[Format | PreferenceFormat, Settings]:
    """The arguments of `export`, checked."""
    form = format_named(to)
    for name, value in options.items():
        if name not in form.options:
            known = ", ".join(form.options) or "none"
            raise UsageError(
                f"{form.name} has no option {name!r}; its options: {known}{did_you_mean(name, form.options)}"
            )
        # A text such as "no" would be taken as true.
        if isinstance(form.options[name], bool) and not isinstance(value, bool):
            raise UsageError(f"{name} is {shown(value)}; expected true or false")
    format_options = form.options | options
    if isinstance(form, PreferenceFormat):
        check_options(format_options)
    # The arrangement must know of padding: packed rows are planned with the lengths of padded texts.
    how = Arrangement(**arrangement, pad_multiple=format_options.get("pad_multiple", 1))
    if how.packing and not form.packs:
        raise UsageError(
            f"{form.name} has no rows of several texts; leave packing out (its trainer cuts or packs the documents "
            "itself)"
        )
    ranges.SHARD_TOKENS.check(shard_tokens)
    if form.library is not None:
        check_library(form.library)
    return form, Settings(how, shard_tokens, format_options, binary)


def recorded_choices(
    to: str, *, binary: bool = False, shard_tokens: int = SHARD_TOKENS, **options: Any
) -> dict[str, Any]:
    """The arguments of `export` as export.json records them, except for the splits.

    Raises:
        UsageError: as `export`.
    """
    # `pad_multiple` is an option of the format.
    names = [name for name in Arrangement().to_json() if name in options and name != "pad_multiple"]
    arrangement = {name: options.pop(name) for name in names}
    return _recorded(*_checked_arguments(to, arrangement, binary, shard_tokens, options))


def _recorded(form: Format | PreferenceFormat, settings: Settings) -> dict[str, Any]:
    """The arguments as export.json records them; a recipe compares them to see whether an export is up to date."""
    return {
        "format": form.name,
        "mask": form.mask,
        "options": settings.options,
        "binary": settings.binary,
        "shard_tokens": settings.shard_tokens,
        "arrangement": settings.how.to_json(),
    }


def _finish(
    staged: StagedDirectory,
    form: Format | PreferenceFormat,
    settings: Settings,
    sources: dict[str, Source],
    counts: dict[str, dict[str, int]],
    files: dict[str, FileRecord],
) -> dict[str, Any]:
    """Write README and manifest, the manifest last: a directory with export.json is complete."""
    use = form.use if isinstance(form, PreferenceFormat) else form.use(settings, sources)
    readme = [f"# {form.title}", "", "Written by `niels-gpt export`. `export.json` lists the files with checksums."]
    readme += ["", "| split | rows | texts | tokens | trained |", "|---|---|---|---|---|"]
    for name, of_split in counts.items():
        numbers = " | ".join(f"{of_split[key]:,}" for key in ("rows", "texts", "tokens", "trained_tokens"))
        readme.append(f"| {name} | {numbers} |")
    readme += ["", "## How to use it", "", *(f"* {line}" for line in use), ""]
    files[README_NAME] = write_atomic(staged.path / README_NAME, "\n".join(readme).encode())
    dataset = next(iter(sources.values())).dataset
    manifest = with_manifest_hash(
        {
            "format_version": FORMAT_VERSION,
            "kind": "export",
            **_recorded(form, settings),
            "source": {
                "kind": dataset.kind,
                "fingerprints": {name: source.split.fingerprint for name, source in sources.items()},
                "tokenizer_sha256": dataset.tokenizer_sha256,
                "vocab_size": dataset.vocab_size,
                "special_token_ids": dataset.special_token_ids,
            },
            "use": use,
            "splits": counts,
            "files": {name: record.to_json() for name, record in sorted(files.items())},
        }
    )
    write_atomic(staged.path / MANIFEST_NAME, json_bytes(manifest))
    staged.commit()
    return manifest


class _Conversations:
    """One split of conversations or documents, opened and arranged."""

    def __init__(self, source: Source, form: Format, settings: Settings) -> None:
        self.source, self._form, self._how = source, form, settings.how
        # `arrange` checks when it is called and reads when it is iterated over.
        self._rows = arrange(source, settings.how)

    def open_files(self, folder: Path, settings: Settings) -> SplitWriter:
        """The files that `write` fills, below the export's directory."""
        self._writer = self._form.open(folder, self.source, settings)
        return self._writer

    def write(self, progress: Progress) -> dict[str, int]:
        """Write all rows, and return how many rows, texts, tokens and trained tokens there were."""
        split, counts = self.source.split, dict.fromkeys(("rows", "texts", "tokens", "trained_tokens"), 0)
        expected = split.n_tokens if self._how.limit is None else None
        progress.begin(f"{split.name} to {self._form.name}", total=expected, unit="tokens")
        for rows in self._rows:
            self._writer.write(rows)
            counts["rows"] += len(rows)
            counts["texts"] += int(np.count_nonzero(rows.begins))
            counts["tokens"] += len(rows.ids)
            counts["trained_tokens"] += int(np.count_nonzero(rows.trained))
            progress.advance(len(rows.ids))
        return counts
