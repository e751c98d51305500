"""One publisher at a time: a small file beside the data says who is at work.

No clock decides anything, because the clocks of two machines may differ: a lock is stale when its process is known to
be dead. That can be told of processes of this machine only; of another machine's the caller must say so (`break_lock`).
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import OutputExists, without_passwords
from niels_gpt.files import json_bytes
from niels_gpt.progress import Progress
from niels_gpt.remote import remote_errors
from niels_gpt.scale.uploads import create_small

LOCK_NAME: Final = ".publishing.json"


def remove_dead_lock(fs: Any, root: str) -> None:
    """Delete the lock of a publisher that was killed when all was there.

    Raises:
        StorageError: see `remote_errors`.
    """
    path = f"{root}/{LOCK_NAME}"
    with remote_errors("unlocking", root), suppress(FileNotFoundError):
        if _is_dead(_read(fs, path)):
            fs.rm_file(path)


@contextmanager
def publishing_lock(fs: Any, root: str, *, break_lock: bool, progress: Progress) -> Iterator[None]:
    """Hold the lock of a remote directory for the block.

    Raises:
        OutputExists: another publisher is at work there, or died on another machine. StorageError: see `remote_errors`.
    """
    path, mine = f"{root}/{LOCK_NAME}", _holder()
    with remote_errors("locking", root):
        if not _create(fs, path, mine):
            _free(fs, path, break_lock, progress)
            if not _create(fs, path, mine):
                raise OutputExists(_busy(path, _read(fs, path)))
        if _read(fs, path).get("token") != mine["token"]:  # a store that does not refuse a second creation
            raise OutputExists(_busy(path, _read(fs, path)))
    try:
        yield
    finally:
        with remote_errors("unlocking", root), suppress(FileNotFoundError):  # broken by somebody at this moment
            if _read(fs, path).get("token") == mine["token"]:
                fs.rm_file(path)


def _create(fs: Any, path: str, holder: dict[str, Any]) -> bool:
    """False if the lock is there. Stores with conditional writes decide themselves; others are asked first."""
    return not fs.exists(path) and create_small(fs, path, json_bytes(holder))


def _read(fs: Any, path: str) -> dict[str, Any]:
    try:
        found = json.loads(fs.cat_file(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _free(fs: Any, path: str, break_lock: bool, progress: Progress) -> None:
    holder = _read(fs, path)
    if not break_lock and not _is_dead(holder):
        raise OutputExists(_busy(path, holder))
    why = "as asked" if break_lock else "it is dead"
    progress.note(f"{without_passwords(path)}: the lock of {_name(holder)} is removed; {why}")
    with suppress(FileNotFoundError):
        fs.rm_file(path)


def _busy(path: str, holder: dict[str, Any]) -> str:
    return (
        f"{path}: {_name(holder)} is publishing here since {holder.get('since', 'an unknown time')} (by its clock); "
        "wait for it, or if it is surely gone, pass --break-lock (break_lock=True)"
    )


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', '?')} on {holder.get('host', 'an unknown machine')}"


def _holder() -> dict[str, Any]:
    return {
        "token": uuid.uuid4().hex,
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _is_dead(holder: dict[str, Any]) -> bool:
    """A process of this machine that is gone: it rebooted, or the pid is free or another's by now."""
    if holder.get("host") != socket.gethostname() or not holder.get("boot"):
        return False
    return bool(holder["boot"] != _boot() or _started(holder["pid"]) != holder["started"])


def _boot() -> str:
    """Which run of this machine's system this is; containers of one host share it."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _started(pid: int) -> str:
    """When a process began, in ticks since the boot; empty if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""
