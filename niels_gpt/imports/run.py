"""From another program's token dataset to episodes, whole or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from niels_gpt import ranges
from niels_gpt.builds import Build
from niels_gpt.episodes.format import FORMAT_VERSION, MANIFEST_NAME
from niels_gpt.episodes.shards import EpisodeWriter
from niels_gpt.errors import InputError, UsageError
from niels_gpt.export.rows import Rows
from niels_gpt.fields import IDS, OBJECT, TEXT, VOCAB_SIZE, check_fields
from niels_gpt.imports.formats import Asked
from niels_gpt.imports.registry import format_named
from niels_gpt.inputs import fingerprint
from niels_gpt.manifests import check_seal, read_manifest
from niels_gpt.progress import SILENT, Progress

EXPORT_MANIFEST = "export.json"
SOURCE_FIELDS = {
    "vocab_size": VOCAB_SIZE.or_null(),
    "tokenizer_sha256": TEXT.or_null(),
    "special_token_ids": IDS.or_null(),
}


def import_episodes(
    path: str | Path,
    form: str,
    out: str | Path,
    *,
    eos_id: int | None = None,
    token_dtype: str | None = None,
    vocab_size: int | None = None,
    shard_bytes: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write episodes from a token dataset of another program; the manifest that was written is returned.

    Rows of several texts become an episode each. What `niels-gpt export` wrote keeps what it says of its tokenizer.

    Args:
        path: a directory or file (for megatron also a prefix).
        form: "hf", "megatron", "nanogpt" or "olmo".
        out: the episodes dataset to create.
        eos_id: the id that ends documents; `nanogpt` needs it.
        token_dtype: "uint16" or "uint32", where the files do not tell.
        vocab_size: ids must be below it; recorded.
        shard_bytes: as in `build_episodes`.

    Raises:
        UsageError: no such format, or something that the files do not say is missing; OutputExists.
        InputError: files that are missing, cut or of another kind, or labels that are shifted.
        StorageError: the disk refused; `out` is then as it was.
    """
    ranges.TOKEN_ID.check(eos_id, "eos_id")
    ranges.VOCAB_SIZE.check(vocab_size)
    ranges.EPISODES_SHARD_BYTES.check(shard_bytes)
    place, chosen = Path(path), format_named(form)
    splits = chosen.open(place, Asked(eos_id, token_dtype))
    masks = {found.has_mask for found in splits.values()}
    if len(masks) > 1:
        raise InputError(f"{place}: one split says what is trained and the other does not; import them one by one")
    known = _recorded(place)
    size = vocab_size if vocab_size is not None else known.get("vocab_size")
    mask_dtype = "uint8" if masks == {True} else None
    inputs = {name: fingerprint(found.files) for name, found in splits.items()}
    recipe = {
        "format_version": FORMAT_VERSION,
        "kind": "episodes",
        "dataset_name": place.name,
        "dataset_config": {"imported_from": chosen.name, "eos_id": eos_id, "inputs": inputs},
        "token_dtype": "uint32",
        "mask_dtype": mask_dtype,
        "shard_bytes": shard_bytes,
        "vocab_size": size,
        "encoder": f"imported from {chosen.name}",
        "tokenizer_sha256": known.get("tokenizer_sha256"),
        "template_sha256": None,
        "special_token_ids": known.get("special_token_ids") or {},
    }
    with Build(Path(out), recipe, max_bad_rows=0, overwrite=overwrite, manifest=MANIFEST_NAME) as build:
        counts = {}
        for name, found in splits.items():
            writer = build.add(EpisodeWriter(build.path, name, mask_dtype=mask_dtype, shard_bytes=shard_bytes))
            progress.begin(f"{place.name} {name}", unit="tokens")
            for rows in found.read():
                _check(rows, size, place)
                writer.write(rows.ids, rows.lengths, rows.weights if mask_dtype else None)
                progress.advance(len(rows.ids))
            counts[name] = writer.counts()
        if not sum(each["episodes"] for each in counts.values()):
            raise InputError(f"{place}: no row in any file; nothing was written")
        build.close_writers()
        empty = {"episodes": 0, "tokens": 0, "trained_tokens": 0}
        splits_of = {name: counts.get(name, empty) for name in ("train", "val")}
        build.finish({f"{name}_episodes": each["episodes"] for name, each in splits_of.items()}, splits_of)
    return read_manifest(Path(out) / MANIFEST_NAME)


def _recorded(place: Path) -> dict[str, Any]:
    """What our own export says of the tokenizer, if there is one in the directory or above."""
    for folder in (place, place.parent):
        path = folder / EXPORT_MANIFEST
        if path.is_file():
            try:
                manifest = json.loads(path.read_bytes())
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}: not valid JSON ({error}); copy the export again") from error
            source = manifest.get("source") if isinstance(manifest, dict) else None
            if isinstance(manifest, dict):
                check_seal(path, manifest)
            check_fields(path, {"source": source}, {"source": OBJECT.or_null()})
            check_fields(path, source or {}, SOURCE_FIELDS, "source.")
            return dict(source or {})
    return {}


def _check(rows: Rows, vocab_size: int | None, place: Path) -> None:
    if vocab_size is not None and rows.ids.size and rows.ids.max() >= vocab_size:
        raise UsageError(
            f"{place}: id {int(rows.ids.max()):,} is outside the vocabulary of {vocab_size:,}; pass the right "
            "vocab_size, or check the format and the dtype"
        )
