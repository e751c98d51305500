"""Directories that appear complete or not at all: built in a staging directory, flushed, then renamed.

::

    out/.chats.partial     being built; its builder holds a lock on it
    out/chats              finished
    out/.chats.replaced    the earlier build, from the first rename of a replacement until it is deleted

If a process is killed, the next build of the same directory, or `recover_interrupted`, deletes what is unfinished and
puts back an earlier build that had been moved away.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from niels_gpt.errors import OutputExists, StorageError, storage_errors
from niels_gpt.store import locks
from niels_gpt.store.files import sync_directory


def real_path(target: Path) -> Path:
    """`target` through links, absolute; a directory that replaces it replaces what they lead to.

    Raises:
        OutputExists: it is a root. StorageError: the path, or a part of it, cannot be examined.
    """
    found = Path(os.path.realpath(target))  # Path.resolve() raises for a cycle of links
    if not found.name:
        raise OutputExists(f"{target}: a file system's root cannot be replaced; name a directory in it")
    # `lstat` fails if the name is too long or the directory may not be read: better now than after a long build.
    with storage_errors("looking for the directory", found), suppress(FileNotFoundError):
        staging_path(found).lstat()
    return found


def staging_path(target: Path) -> Path:
    """The staging directory of `target`: `out/chats` is built in `out/.chats.partial`."""
    target = target.absolute()
    return target.with_name(f".{target.name}.partial")


def check_target_free(target: Path, *, replaceable: str | None = None) -> None:
    """Raise `OutputExists` unless `target` is new or empty, or may be replaced.

    Args:
        replaceable: name of a manifest; a directory that holds it is an earlier build and may be replaced. Directories
            without it may hold anything, so they never are.
    """
    if target.is_dir():
        if not any(target.iterdir()) or (replaceable and (target / replaceable).is_file()):
            return
        if replaceable:
            raise OutputExists(
                f"{target}: not empty and without {replaceable}, so it is not a finished build and is not "
                "overwritten. Choose another directory, or delete it yourself"
            )
        raise OutputExists(
            f"{target}: the directory is not empty; expected a new or empty one. "
            "Choose another, or pass --overwrite (overwrite=True) to replace an earlier build"
        )
    if target.exists():
        raise OutputExists(f"{target}: this is a file; expected a directory to create. Choose another path")


class StagedDirectory:
    """A directory that appears complete or not at all.

    ::

        with StagedDirectory(Path("out/chats"), manifest="meta.json") as staged:
            ...                        # write files below staged.path, the manifest last
            staged.commit()            # without this, leaving the block removes everything

    What a killed process left is removed by the next one. A running process holds a lock, and a second one is refused.

    Raises:
        OutputExists: `target` is taken, or another process is building it. With `overwrite`, a directory
            that holds `manifest` is replaced at `commit`; anything else is still refused.
        StorageError: the file system refused; an earlier directory at `target` is then unchanged.
    """

    def __init__(self, target: Path, *, manifest: str, overwrite: bool = False) -> None:
        self.target = real_path(target)
        self.path = staging_path(self.target)
        self._replaceable = manifest if overwrite else None
        self._lock: int | None = None

    def __enter__(self) -> StagedDirectory:
        try:
            with storage_errors("creating the directory", self.target):
                self.path.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # another process has finished, or failed, at this moment
                    # The lock is on the directory itself, so that no lock file can remain.
                    self._lock = os.open(self.path, os.O_RDONLY)
            with storage_errors("locking", self.path):
                is_free = self._lock is not None and locks.take(self._lock, wait=False)
            # Before it was locked, another process may have renamed it: then the lock is that of a finished dataset.
            if not (is_free and self._is_ours()):
                self._unlock()
                raise OutputExists(
                    f"{self.target}: another process is building here right now; wait for it or choose another path"
                )
            # Only the holder of the lock may recover: without it, a replacement under way looks like an interrupted
            # one. One that was killed between its two renames is undone; one that was killed after them is finished.
            with storage_errors("clearing an earlier unfinished build", self.path):
                aside = _aside(self.target)
                if aside.exists() and not self.target.exists():
                    aside.rename(self.target)
                _delete(aside)
                check_target_free(self.target, replaceable=self._replaceable)
                for entry in self.path.iterdir():
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        except BaseException:  # also Ctrl-C: neither the lock nor the directory must remain
            self.__exit__(None, None, None)
            raise
        return self

    def _is_ours(self) -> bool:
        """Whether the staging path is still the directory that was locked."""
        try:
            return self._lock is not None and self.path.lstat().st_ino == os.fstat(self._lock).st_ino
        except FileNotFoundError:
            return False

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def commit(self) -> None:
        """Flush everything below the staging directory and give it its real name."""
        aside = _aside(self.target)
        with storage_errors("moving the finished build into place", self.target):
            check_target_free(self.target, replaceable=self._replaceable)  # files may have appeared there
            # Writers flushed the contents of files. That a directory lists a file is only on the disk once the
            # directory itself is flushed.
            for folder, _, _ in os.walk(self.path, topdown=False):
                sync_directory(Path(folder))
            try:
                # A rename replaces an empty directory, and refuses any other.
                if self.target.is_dir() and any(self.target.iterdir()):
                    self.target.rename(aside)
                self.path.rename(self.target)
                sync_directory(self.path.parent)
            finally:  # also after Ctrl-C, there is one of the two directories, under its name
                if aside.exists() and not self.target.exists():
                    aside.rename(self.target)
                _delete(aside)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ours():  # not after `commit`: the path may be another process's then
            shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.replaced")


def recover_interrupted(target: Path) -> None:
    """Undo or finish a killed replacement of `target`, and delete an unfinished build of it.

    For callers that only look whether `target` is finished; a `StagedDirectory` does the same when it is entered.
    Nothing happens while another process builds `target`, or where nothing can be written.
    """
    target = real_path(target)
    if staging_path(target).exists() or _aside(target).exists():
        with suppress(OutputExists, StorageError), StagedDirectory(target, manifest=""):
            pass


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)  # another process may delete it at the same time
    finally:  # also after Ctrl-C
        if folder.exists():
            shutil.rmtree(folder)


def rename_and_delete(path: Path) -> None:
    """Delete a directory, if it exists, under another name, also what a killed process left of doing so.

    A process that is still writing into it finds no directory any more, instead of recreating parts of it.
    """
    trash = path.with_name(f"{path.name}.trash")
    try:
        if trash.exists():
            _delete(trash)
        with suppress(FileNotFoundError):
            path.rename(trash)
    finally:  # also after Ctrl-C: the command then says that nothing half-written remains
        _delete(trash)
