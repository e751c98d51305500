"""`import_episodes`: a token dataset of another program as episodes, complete or absent; and all import formats.

::

    corpus/train.bin, val.bin                                another program's files
      exported       was it written by `niels-gpt export`? Then its checksums are compared
      FORMATS[form]  SplitFiles of train and of val: the files, whether they have masks, how they are read
      HashedFiles    the hash of every file, for the manifest
      _write_rows    Rows -> EpisodeWriter: ids 5 7 2 9 2 with eos_id 2 are the episodes 5 7 2 and 9 2
    out/train/tokens.bin, mask.bin, episodes.idx ...         and last, out/episodes.json

Whatever is wrong with the input is found before anything is written, as far as the sizes of its files show it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt import ranges
from niels_gpt.builds.build import Build, BuildOptions, Kind, write_dataset
from niels_gpt.episodes.writer import EpisodeWriter
from niels_gpt.errors import InputError, UsageError, did_you_mean
from niels_gpt.imports.exported import exported
from niels_gpt.inputs.arrays import TOKENS
from niels_gpt.inputs.id_columns import HF
from niels_gpt.inputs.megatron import MEGATRON
from niels_gpt.inputs.token_formats import SplitFiles, TokenFormat, TokenOptions
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.files.hashed_files import HashedFiles
from niels_gpt.store.kinds import is_dataset, open_manifest
from niels_gpt.store.manifest import read_manifest
from niels_gpt.store.schema import FORMAT_VERSION, MANIFEST_NAME, SPLITS
from niels_gpt.store.staging import check_target_free, real_path

FORMATS: dict[str, TokenFormat] = {form.name: form for form in (HF, MEGATRON, TOKENS)}


def format_named(name: str) -> TokenFormat:
    """The format of this name.

    Raises:
        UsageError: there is none; the nearest name is suggested.
    """
    if name not in FORMATS:
        raise UsageError(f"{name!r} cannot be imported; {', '.join(FORMATS)} can{did_you_mean(name, FORMATS)}")
    return FORMATS[name]


def import_episodes(
    path: str | Path,
    form: str,
    out: str | Path,
    *,
    eos_id: int | None = None,
    dtype: str | None = None,
    vocab_size: int | None = None,
    shard_bytes: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write episodes from a token dataset of another program, and return their manifest.

    Each text of a packed row is an episode. From a directory that `niels-gpt export` wrote, the vocabulary size, the
    tokenizer's hash and the ids of special tokens are copied, and its files are compared with their checksums first.

    Args:
        path: a directory or file (for megatron also a path without its suffix).
        form: a name of `FORMATS`.
        out: the episodes dataset to create.
        eos_id: the id that ends documents; required by `tokens`, but for arrays of two dimensions.
        dtype: of the ids in files without a header ("uint16", "uint32", ...); required by `tokens` for these.
        vocab_size: recorded in the manifest; ids must be below it.
        shard_bytes: as for `build_episodes`.

    Raises:
        UsageError: an unknown format, a dataset of ours, or a missing option that the files require; OutputExists:
            `out` exists already.
        InputError: files that are missing, cut or of another kind, labels that are shifted, or files of an export that
            differ from what was written.
        StorageError: writing failed; `out` is then as it was before.
    """
    ranges.TOKEN_ID.check(eos_id, "eos_id")
    ranges.VOCAB_SIZE.check(vocab_size)
    ranges.EPISODES_SHARD_BYTES.check(shard_bytes)
    # Before anything is written: an unknown format, a changed export, missing or damaged files.
    source, source_format = Path(path), format_named(form)
    if is_dataset(source):
        raise UsageError(
            f"{source}: a dataset of ours, which needs no import; look at it: niels-gpt info {source}; or write it for "
            "another trainer: niels-gpt export"
        )
    recorded = exported(source, progress)
    splits = source_format.open(source, TokenOptions(eos_id, dtype, progress))
    mask_dtype = _mask_dtype(source, splits)
    if eos_id is not None and vocab_size is not None and eos_id >= vocab_size:
        raise UsageError(f"eos_id is {eos_id:,}, outside of the vocabulary of {vocab_size:,}; expected one of its ids")
    # Before the input is hashed, which may take hours; the build looks again.
    check_target_free(real_path(Path(out)), replaceable=MANIFEST_NAME if overwrite else None)
    hashed = HashedFiles()
    inputs = {name: hashed.fingerprint(found.files, progress) for name, found in splits.items()}
    # What the user passes wins over the record of an export.
    vocab_size = vocab_size if vocab_size is not None else recorded.get("vocab_size")
    # The settings that decide the dataset's bytes, in the order in which the manifest records them.
    recipe = {
        "format_version": FORMAT_VERSION,
        "kind": "episodes",
        "dataset_name": source.name,
        "dataset_config": {"imported_from": source_format.name, "eos_id": eos_id, "inputs": inputs},
        "token_dtype": "uint32",
        "mask_dtype": mask_dtype,
        "shard_bytes": shard_bytes,
        "vocab_size": vocab_size,
        "encoder": f"imported from {source_format.name}",
        "tokenizer_sha256": recorded.get("tokenizer_sha256"),
        "template_sha256": None,
        "special_token_ids": recorded.get("special_token_ids") or {},
    }
    files: dict[str, Any] = {"mask_dtype": mask_dtype, "shard_bytes": shard_bytes}

    def open_writers(path: Path) -> dict[str, EpisodeWriter]:
        return {name: EpisodeWriter(path, name, **files) for name in SPLITS}

    def fill(build: Build, writers: dict[str, EpisodeWriter]) -> dict[str, dict[str, int]]:
        for name, found in splits.items():
            progress.begin(f"{source.name} {name}", total=found.tokens, unit="tokens")
            _write_rows(writers[name], found, vocab_size, source, progress)
            # The manifest records their hashes, so they must not have changed while they were read.
            hashed.check(found.files)
        if not any(writer.episodes for writer in writers.values()):
            raise InputError(f"{source}: no file contains rows; nothing was written")
        return {name: writer.counts() for name, writer in writers.items()}

    kind = Kind(MANIFEST_NAME, open_manifest, "episodes", "row")
    write_dataset(Path(out), recipe, BuildOptions(overwrite=overwrite, progress=progress), kind, open_writers, fill)
    return read_manifest(Path(out) / MANIFEST_NAME)


def _mask_dtype(source: Path, splits: dict[str, SplitFiles]) -> str | None:
    """The dtype of the episodes' masks, which all splits have or none."""
    masks = {found.has_mask for found in splits.values()}
    if len(masks) > 1:
        raise InputError(f"{source}: one split has a mask and the other does not; import them one by one")
    return "uint8" if masks == {True} else None


def _write_rows(
    writer: EpisodeWriter, files: SplitFiles, vocab_size: int | None, source: Path, progress: Progress
) -> None:
    """Write each text of a split as an episode.

    Raises:
        UsageError: an id is not in the vocabulary, or the one that ends documents occurs nowhere.
    """
    n_tokens = n_ends = 0
    for rows in files.read():
        if vocab_size is not None and rows.ids.size and rows.ids.max() >= vocab_size:
            raise UsageError(
                f"{source}: id {int(rows.ids.max()):,} is outside the vocabulary of {vocab_size:,}; pass the right "
                "vocab_size, or check the format and the dtype"
            )
        weights = None if rows.trained is None else rows.trained.astype(np.uint8)
        if weights is not None:  # nothing predicts the first token
            weights[np.cumsum(rows.lengths) - rows.lengths] = 0
        writer.write(rows.ids, rows.lengths, weights)
        progress.advance(len(rows.ids))
        n_tokens += len(rows.ids)
        n_ends += 0 if files.eos_id is None else int(np.count_nonzero(rows.ids == files.eos_id))
    if files.eos_id is not None and n_tokens and not n_ends:
        raise UsageError(
            f"{files.files[0]}: {files.eos_id} is none of its {n_tokens:,} ids, so no document would end; pass the id "
            "that ends documents (--eos-id), and the dtype in which ids were written (--dtype)"
        )
