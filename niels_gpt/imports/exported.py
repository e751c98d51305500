"""What `export.json` says about files that `niels-gpt export` wrote, and whether they are still as they were written.

Most formats have no checksums of their own, so a changed id or a mask that was lost would be imported without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import InputError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.manifest import (
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


@dataclass(frozen=True)
class Exported:
    """The record of an export.

    Attributes:
        folder: of the export.
        source: what is known of the dataset that was exported: `Source`.
        files: the records of its files, by their path in `folder`.
    """

    folder: Path
    source: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]

    def check(self, source_path: Path, progress: Progress = SILENT) -> None:
        """Read the files that `source_path` names, and compare them with their checksums.

        Args:
            source_path: the folder of the export, one in it, a file, or a file without its suffix.

        Raises:
            InputError: a file is missing, or differs from what was written; the message names the first difference.
        """
        wanted: dict[str, Mapping[str, Any]] = {}
        for name, record in self.files.items():
            path = self.folder / name
            if source_path.is_dir():
                is_read = source_path == self.folder or source_path in path.parents
            else:
                # The files that belong to it begin with its name: train.bin and train_mask.idx to train.idx.
                is_read = path.parent == source_path.parent and path.name.startswith(source_path.name.partition(".")[0])
            if is_read and name != _DOCUMENTATION:
                wanted[name] = record
        # Sizes first: a file that was cut is found without reading gigabytes.
        for name, record in wanted.items():
            path = self.folder / name
            if not path.is_file():
                raise InputError(f"{path}: missing, although {EXPORT_MANIFEST} lists it. {_AS_IT_IS}")
            if (size := path.stat().st_size) != record["bytes"]:
                raise InputError(
                    f"{path}: {size:,} bytes, but {EXPORT_MANIFEST} records {record['bytes']:,}. {_AS_IT_IS}"
                )
        # The first difference is enough; the generator stops there.
        for line in verify_files(self.folder, wanted, progress):
            raise InputError(f"{line.removesuffix(REPAIR)}{_AS_IT_IS}")


def exported(source_path: Path) -> Exported | None:
    """The record of the export in a directory or the one above; `None` if there is none.

    Raises:
        InputError: it is not valid JSON. CacheError: it was edited or damaged.
    """
    # The user may pass the data directory inside an export.
    for folder in (source_path, source_path.parent):
        path = folder / EXPORT_MANIFEST
        if path.is_file():
            manifest = read_manifest(path)
            check_manifest_hash(path, manifest)
            check_fields(path, manifest, _Export, "manifest of an export")
            source = dict(manifest.get("source") or {})
            if manifest.get("kind") != "export" or "files" not in manifest:  # of another program, or an earlier version
                return Exported(folder, source, {})
            check_file_records(path, manifest)
            return Exported(folder, source, manifest["files"])
    return None
