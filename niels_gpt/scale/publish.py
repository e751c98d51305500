"""`publish`: uploads a finished cache or episodes dataset to a URL: what is missing there, its manifest last.

::

    each file   there with its size and sha256? else send it, read it back, compare its sha256
    manifest    last: a reader that finds it finds everything
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from niels_gpt.errors import CacheError, DataError, Mismatch, StorageError, without_passwords
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.checksums import file_record
from niels_gpt.store.files import atomic_file, read_file, write_atomic
from niels_gpt.store.kinds import has_checksums, open_dataset_manifest
from niels_gpt.store.manifest import Manifest, bytes_of
from niels_gpt.store.remote import READ_BYTES, RemoteFile, file_system, is_local, remote_errors, size_at
from niels_gpt.store.retries import repeated
from niels_gpt.store.schema import MANIFEST_NAME, MANIFESTS, META_NAME


@dataclass(frozen=True)
class Published:
    """The result of `publish`.

    Attributes:
        files: number of files of the dataset, with the manifest.
        uploaded, skipped: number of files that were sent, and that had arrived before.
        uploaded_bytes: bytes that this run sent.
    """

    files: int
    uploaded: int
    skipped: int
    uploaded_bytes: int = 0


def publish(folder: str | Path, url: str, *, overwrite: bool = False, progress: Progress = SILENT) -> Published:
    """Upload a finished cache or episodes dataset. Run it again after an interruption: files that are there stay.

    Args:
        url: the directory to create, `s3://bucket/episodes/chats`.
        overwrite: replace another dataset there; its manifest is deleted first.

    Raises:
        CacheError: `folder` is not a finished dataset. DataError: a file of it is damaged.
        Mismatch: another dataset is at `url`. StorageError: the store refused, or a file arrived damaged.
        MissingExtra: no fsspec, or no s3fs.
    """
    folder, url = Path(folder), url.rstrip("/")
    manifest_name, manifest = _manifest_of(folder)
    data = read_file(folder / manifest_name)
    fs, root = file_system(url)
    files = manifest["files"]
    at, digest = f"{root}/{manifest_name}", sha256(data).hexdigest()
    if has_file(f"{url}/{manifest_name}", len(data), digest):  # then all files have arrived
        progress.note(f"{without_passwords(url)}: already published, nothing to do")
        return Published(files=len(files) + 1, uploaded=0, skipped=len(files) + 1)
    _make_room(fs, root, url, overwrite)
    # Twice the bytes, because every file is sent and then read back.
    progress.begin(f"publishing {folder.name}", total=2 * bytes_of(files), unit="bytes")
    sent = [name for name, record in files.items() if _send(folder / name, f"{url}/{name}", record, progress)]
    # Last, so that a reader that finds the manifest also finds all files that it lists.
    with remote_errors("writing", f"{url}/{manifest_name}"):
        if is_local(fs):  # fsspec's local files appear before they are complete
            write_atomic(Path(at), data)
        else:
            repeated(lambda: fs.pipe_file(at, data))
    if not has_file(f"{url}/{manifest_name}", len(data), digest):
        raise StorageError(f"{url}/{manifest_name}: arrived damaged; run the same command again")
    size = sum(files[name]["bytes"] for name in sent) + len(data)
    return Published(len(files) + 1, len(sent) + 1, len(files) - len(sent), size)


def _manifest_of(folder: Path) -> tuple[str, Manifest]:
    """The name and contents of the manifest of a finished dataset; the sizes of all files are checked.

    Raises:
        CacheError: there is none, or a file is missing; or it has no checksums to compare.
    """
    kind, manifest = open_dataset_manifest(folder)
    name = MANIFEST_NAME if kind == "episodes" else META_NAME
    if manifest is None or not has_checksums(manifest):
        lacking = "not there" if manifest is None else "written by another program, without the checksums"
        raise CacheError(
            f"{folder / name}: {lacking}; a publication compares those that niels_gpt writes. Build the dataset with it"
        )
    return name, manifest


def _make_room(fs: Any, root: str, url: str, overwrite: bool) -> None:
    for name in MANIFESTS:
        if size_at(fs, f"{root}/{name}") is not None:
            if not overwrite:
                raise Mismatch(
                    f"{url}: holds another dataset ({name} differs). Choose another place, or pass --overwrite "
                    "(overwrite=True) to replace it"
                )
            # Before the first file is replaced, so that no reader mixes files of two datasets.
            with remote_errors("removing the manifest of the dataset that is replaced", url):
                fs.rm_file(f"{root}/{name}")


def _send(source: Path, url: str, record: dict[str, Any], progress: Progress) -> bool:
    """Upload a file and check it; false if it was there."""
    size, digest = record["bytes"], record["sha256"]
    if has_file(url, size, digest, progress):
        progress.advance(size)  # `has_file` has counted them once; the total counts them twice
        progress.note(f"{without_passwords(url)}: exists already")
        return False
    fs, path = file_system(url)
    with remote_errors("writing", url):
        if is_local(fs):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as file, atomic_file(Path(path)) as target:
                while chunk := file.read(READ_BYTES):
                    target.write(chunk)
                    progress.advance(len(chunk))
        else:
            repeated(lambda: fs.put_file(str(source), path, callback=_callback(progress)), name=url)
    if has_file(url, size, digest, progress):
        return True
    if file_record(source).sha256 != digest:
        raise DataError(f"{source}: differs from what was written (sha256); run `verify`, and build it again")
    raise StorageError(f"{url}: arrived damaged; run the same command again: it continues with this file")


def _callback(progress: Progress) -> Any:
    """What fsspec reports sent bytes to."""
    from fsspec.callbacks import Callback

    class Advancing(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            progress.advance(inc)

    return Advancing()


def has_file(url: str, size: int, wanted: str, progress: Progress = SILENT) -> bool:
    """Whether a file of this size and sha256 is at `url`. If the size is right, the whole file is read back."""
    file = RemoteFile(url)
    return file.size() == size and file_record(file, progress).sha256 == wanted
