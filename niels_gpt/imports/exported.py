"""What `export.json` says about files that `niels-gpt export` wrote, and whether they are still as they were written.

Most formats have no checksums of their own, so a changed id or a mask that was lost would be imported without a word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import InputError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.manifest import (
    FileRecords,
    Ids,
    Model,
    VocabSize,
    check_fields,
    check_file_records,
    check_manifest_hash,
    read_manifest,
    verify_files,
)
from niels_gpt.store.schema import REPAIR

EXPORT_MANIFEST: Final = "export.json"
_DOCUMENTATION: Final = "README.md"  # is not imported
_AS_IT_IS: Final = f"Copy the export again, or remove {EXPORT_MANIFEST} to import the files as they are"


class Source(Model):
    """What is recorded of the dataset that was exported, of which the manifest of the import is made."""

    vocab_size: VocabSize | None = None
    tokenizer_sha256: str | None = None
    special_token_ids: Ids | None = None


class _Export(Model):
    source: Source | None = None


def exported(source_path: Path, progress: Progress = SILENT) -> dict[str, Any]:
    """The fields of `Source` that an export in a directory, or the one above, records; empty if there is none.

    The files that `source_path` names are compared with their checksums.

    Args:
        source_path: the folder of the export, one in it, a file, or a file without its suffix.

    Raises:
        InputError: a file is missing, or differs from what was written; the message names the first difference.
        CacheError: `export.json` was edited or damaged.
    """
    # The user may pass the data directory inside an export.
    path = next((path for at in (source_path, source_path.parent) if (path := at / EXPORT_MANIFEST).is_file()), None)
    if path is None:
        return {}
    manifest = read_manifest(path)
    check_manifest_hash(path, manifest)
    check_fields(path, manifest, _Export, "manifest of an export")
    if manifest.get("kind") == "export" and "files" in manifest:  # else of another program, or an earlier version
        check_file_records(path, manifest)
        _compare(path.parent, manifest["files"], source_path, progress)
    return dict(manifest.get("source") or {})


def _compare(folder: Path, files: FileRecords, source_path: Path, progress: Progress) -> None:
    wanted = {}
    for name, record in files.items():
        path = folder / name
        if source_path.is_dir():
            is_read = source_path == folder or source_path in path.parents
        else:
            # The files that belong to it begin with its name: train.bin and train_mask.idx to train.idx.
            is_read = path.parent == source_path.parent and path.name.startswith(source_path.name.partition(".")[0])
        if is_read and name != _DOCUMENTATION:
            wanted[name] = record
    # Sizes first: a file that was cut is found without reading gigabytes.
    for name, record in wanted.items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: missing, although {EXPORT_MANIFEST} lists it. {_AS_IT_IS}")
        if (size := path.stat().st_size) != record["bytes"]:
            raise InputError(f"{path}: {size:,} bytes, but {EXPORT_MANIFEST} records {record['bytes']:,}. {_AS_IT_IS}")
    # The first difference is enough; the generator stops there.
    for line in verify_files(folder, wanted, progress):
        raise InputError(f"{line.removesuffix(REPAIR)}{_AS_IT_IS}")
