"""`meta.json` of another program, which has the documented keys alone: completed from the files of the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.errors import CacheError
from niels_gpt.store.files import map_array, samples
from niels_gpt.store.index import OffsetIndex
from niels_gpt.store.manifest import Count, ForeignMeta, Manifest, Model, check_fields, check_special_ids
from niels_gpt.store.schema import CACHE_VERSION, EXAMPLES, META_DTYPES, META_NAME, SPLITS, TOKENS_NAME


class _Totals(Model):
    train_tokens: Count = 0
    val_tokens: Count = 0
    train_examples: Count = 0
    val_examples: Count = 0


def completed(folder: Path, meta: Manifest) -> Manifest:
    """Complete a meta that has the documented keys alone, from the files of the cache.

    The totals may be at the top level or in `totals`: the documentation can be read either way.

    Raises:
        CacheError: a key is missing or wrong, or its counts differ from those of the files.
    """
    path = folder / META_NAME
    check_fields(path, meta, ForeignMeta, "token cache")
    totals = {name: meta[name] for name in _Totals.model_fields if name in meta} | meta.get("totals", {})
    check_fields(path, totals, _Totals, "token cache", "totals.")
    # The documented keys do not say the kind, so it is inferred from the names of the files.
    is_sft = any((folder / EXAMPLES.file(split, TOKENS_NAME)).is_file() for split in SPLITS)
    found = {**meta, "format_version": CACHE_VERSION, "kind": "sft" if is_sft else "pretrain", "totals": totals}
    check_special_ids(path, found)
    splits: dict[str, dict[str, int]] = {}
    files: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        names = sorted(folder.glob(f"{split}/shard_*.bin"))
        if is_sft:  # both files of a split; none where the split is absent. One alone is refused when it is sampled.
            both = [folder / EXAMPLES.file(split, name) for name in (TOKENS_NAME, str(EXAMPLES.index))]
            names = both if any(file.is_file() for file in both) else []
        files |= {file.relative_to(folder).as_posix(): _sampled(file) for file in names}
        # Tokens alone: the index ends with .npy.
        size = sum(file.stat().st_size for file in names if file.suffix == ".bin")
        splits[split] = {"tokens": size // np.dtype(META_DTYPES[meta["token_dtype"]]).itemsize}
        if is_sft:
            splits[split]["examples"] = len(OffsetIndex(names[1], splits[split]["tokens"])) if names else 0
        for name, count in splits[split].items():
            # Where the meta records no total, the files' own count becomes it.
            if totals.setdefault(f"{split}_{name}", count) != count:
                raise CacheError(
                    f"{path}: {split}_{name} is {totals[f'{split}_{name}']:,}, but the files hold {count:,}; one of "
                    "them is cut short, or they do not belong together. Copy or build them again"
                )
    return {**found, "splits": splits, "files": files, "without_checksums": True}


def _sampled(path: Path) -> dict[str, Any]:
    """The record of a file without reading all of it: its size, and the hash of samples."""
    if not path.is_file():
        raise CacheError(f"{path}: no such file; expected tokens and index side by side. Copy the missing one")
    seen = hashlib.sha256()
    for part in samples(map_array(path, "u1")):
        seen.update(part)
    # The prefix keeps it from being taken for the hash of all bytes.
    return {"bytes": path.stat().st_size, "sha256": f"samples:{seen.hexdigest()}"}
