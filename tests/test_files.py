"""Files and directories are whole or absent, whatever is killed, refused or full."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import OutputExists, StorageError
from niels_gpt.store import staging
from niels_gpt.store.checksums import file_record
from niels_gpt.store.files import write_atomic
from niels_gpt.store.staging import StagedDirectory, recover_interrupted

MANIFEST = "meta.json"


def tree(folder: Path) -> dict[str, str]:
    """Every file below `folder` and its text, and every empty directory."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else "directory"
        for path in sorted(folder.rglob("*"))
        if path.is_file() or not any(path.iterdir())
    }


def build(
    target: Path, text: str, *, overwrite: bool = False, before_commit: Callable[[], None] = lambda: None
) -> None:
    """A small finished build."""
    with StagedDirectory(target, manifest=MANIFEST, overwrite=overwrite) as staged:
        (staged.path / "sub").mkdir()
        (staged.path / "sub" / "data").write_text(text)
        write_atomic(staged.path / MANIFEST, text.encode())
        before_commit()
        staged.commit()


def built(text: str) -> dict[str, str]:
    return {f"out/{MANIFEST}": text, "out/sub/data": text}


def raising(error: BaseException | type[BaseException]) -> Callable[..., None]:
    """A function that fails, to stand in for one that may."""

    def call(*_: object) -> None:
        raise error

    return call


def python(script: str, *arguments: object) -> list[str]:
    """The command line that runs `script` in a process of its own."""
    return [sys.executable, "-c", script, *map(str, arguments)]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# --- HashedWriter and write_atomic


@pytest.mark.parametrize("before", [None, "older and longer than the new one"])
def test_write_atomic(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_text(before)
    record = write_atomic(path, b"new")
    assert record == file_record(path)
    assert tree(tmp_path) == {"file": "new"}


def test_write_atomic_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "fsync", raising(OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(StorageError, match=r"writing failed: Input/output error"):
        write_atomic(tmp_path / "file", b"new")
    assert tree(tmp_path) == {"file": "old"}


WRITE_SLOWLY = """
import sys, time
from pathlib import Path
from niels_gpt.store.files import atomic_file
with atomic_file(Path(sys.argv[1])) as file:
    file.write(b"slow")
    print("open", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_writer_left_is_removed_and_a_live_one_is_left_alone(tmp_path: Path) -> None:
    path, mine = tmp_path / "file[1].json", tmp_path / ".file[1].json.mine.tmp"
    mine.write_text("a person's own")
    killed, live = (
        subprocess.Popen(
            [sys.executable, "-c", WRITE_SLOWLY, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    )
    for process in (killed, live):
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    killed.kill()
    killed.communicate()
    assert len(list(tmp_path.iterdir())) == 3
    write_atomic(path, b"new")
    assert len(list(tmp_path.iterdir())) == 3  # the live one's, the new file and `mine`
    live.communicate(timeout=60)
    assert live.returncode == 0
    assert tree(tmp_path) == {path.name: "slow", mine.name: "a person's own"}


def test_writers_of_one_file_at_once_all_succeed(tmp_path: Path) -> None:
    """Each looks for abandoned files while the others have just opened theirs."""
    path, writers = tmp_path / "file", 4
    script = "import sys; from pathlib import Path; from niels_gpt.store.files import write_atomic\n"
    script += "for n in range(300): write_atomic(Path(sys.argv[1]), sys.argv[2].encode() * 1000)"
    processes = [subprocess.Popen([sys.executable, "-c", script, str(path), str(n)]) for n in range(writers)]
    assert [process.wait(timeout=120) for process in processes] == [0] * writers
    assert path.read_text() in {str(n) * 1000 for n in range(writers)}
    assert tree(tmp_path) == {"file": path.read_text()}


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "report").write_text("old")
    for name, target in (("link", "real/report"), ("dead", "real/new"), ("circle", "circle")):
        (tmp_path / name).symlink_to(target)
        write_atomic(tmp_path / name, b"new")
    assert (tmp_path / "link").is_symlink()
    assert tree(tmp_path / "real") == {"report": "new", "new": "new"}
    assert (tmp_path / "circle").read_text() == "new"  # it pointed to nothing


@pytest.mark.parametrize("through", ["", "link"])
def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path, through: str) -> None:
    """Nor a device: `--out /dev/null`, as root, put a file into its place once."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(OutputExists, match=r"a device or a pipe; expected a file to create or replace"):
        write_atomic(tmp_path / (through or "pipe"), b"new")
    assert (tmp_path / "pipe").is_fifo()
    assert len(list(tmp_path.iterdir())) == 2


# --- StagedDirectory in one process


@pytest.mark.parametrize("name", ["out", "new/parents/out"])
def test_absent_until_commit(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    with StagedDirectory(target, manifest=MANIFEST) as staged:
        (staged.path / "data").write_text("x")
        assert not target.exists()
        staged.commit()
        assert tree(target) == {"data": "x"}
    assert tree(target.parent) == {"out/data": "x"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [{}, built("old")])
def test_an_exception_removes_what_was_built(
    tmp_path: Path, error: type[BaseException], before: dict[str, str]
) -> None:
    if before:
        build(tmp_path / "out", "old")
    with pytest.raises(error):
        build(tmp_path / "out", "new", overwrite=True, before_commit=raising(error))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["photos", "file"])
def test_what_is_not_ours_is_refused(tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").write_text("x")
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputExists, match=f"{name}: .*[Cc]hoose another"):
        build(tmp_path / name, "new", overwrite=overwrite)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_finished_build_is_refused_without_overwrite(tmp_path: Path) -> None:
    build(tmp_path / "out", "old")
    with pytest.raises(OutputExists, match=r"not empty; expected a new or empty one\..* --overwrite"):
        build(tmp_path / "out", "new")
    assert tree(tmp_path) == built("old")


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_put_there_during_the_build_are_refused_too(tmp_path: Path, overwrite: bool) -> None:
    def put() -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "precious").write_text("mine")

    with pytest.raises(OutputExists, match="not empty"):
        build(tmp_path / "out", "new", overwrite=overwrite, before_commit=put)
    assert tree(tmp_path) == {"out/precious": "mine"}


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_replacement_leaves_one_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Ctrl-C before or after any step of `commit`: the earlier or the new directory, and nothing beside it."""
    seen = point = 0

    def interrupted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal seen
            seen += 1
            own = seen
            if own == point and not after:
                raise KeyboardInterrupt
            found = real(*given, **named)
            if own == point:
                raise KeyboardInterrupt
            return found

        return call

    left = set()
    for number in range(1, 30):
        out = tmp_path / f"{number}" / "out"
        build(out, "old")
        with monkeypatch.context() as patch:
            for place, name in ((Path, "rename"), (shutil, "rmtree"), (staging, "sync_directory")):
                patch.setattr(place, name, interrupted(getattr(place, name)))
            with StagedDirectory(out, manifest=MANIFEST, overwrite=True) as staged:
                (staged.path / "sub").mkdir()
                (staged.path / "sub" / "data").write_text("new")
                (staged.path / MANIFEST).write_text("new")
                seen, point = 0, number
                try:
                    staged.commit()
                except KeyboardInterrupt:
                    point = 0
                else:
                    break
        left.add(str(tree(out.parent)))
        assert tree(out.parent) in (built("old"), built("new"))
    assert number > 6
    assert len(left) == 2


# --- StagedDirectory and other processes

HOLD = """
import sys, time
from pathlib import Path
from niels_gpt.store.staging import StagedDirectory
with StagedDirectory(Path(sys.argv[1]), manifest="meta.json") as staged:
    (staged.path / "half").mkdir()
    (staged.path / "half" / "data").write_text("x")
    print("building", flush=True)
    time.sleep(600)
"""


@contextmanager
def other_builder(target: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is building `target` and never gets done; killed at the end."""
    with subprocess.Popen(python(HOLD, target), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "building\n"
            yield process
        finally:
            process.kill()


def test_a_second_builder_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    leftover = {".out.partial/half/data": "x"}
    with other_builder(tmp_path / "out") as process:
        for overwrite in (False, True):
            with pytest.raises(OutputExists, match="another process is building here right now; wait for it or choose"):
                build(tmp_path / "out", "mine", overwrite=overwrite)
        assert tree(tmp_path) == leftover
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert tree(tmp_path) == leftover
    build(tmp_path / "out", "mine")
    assert tree(tmp_path) == built("mine")


def test_what_a_killed_process_left_is_gone_before_the_next_one_writes(tmp_path: Path) -> None:
    with other_builder(tmp_path / "out"):
        pass
    (tmp_path / ".out.partial" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("mine")
    with StagedDirectory(tmp_path / "out", manifest=MANIFEST) as staged:
        assert list(staged.path.iterdir()) == []
    assert tree(tmp_path) == {"elsewhere/precious": "mine"}


DIE_BETWEEN_RENAMES = """
import os, signal, sys
from pathlib import Path
from niels_gpt.store.staging import StagedDirectory
rename = Path.rename
def dying(self, target):
    if self.name == ".out.partial":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
Path.rename = dying
with StagedDirectory(Path(sys.argv[1]), manifest="meta.json", overwrite=True) as staged:
    (staged.path / "meta.json").write_text("never seen")
    staged.commit()
"""


@pytest.mark.parametrize("then", ["look", "fail", "replace"])
def test_a_replacement_killed_between_its_renames_is_undone(tmp_path: Path, then: str) -> None:
    build(tmp_path / "out", "old")
    assert run(python(DIE_BETWEEN_RENAMES, tmp_path / "out")).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    if then == "replace":
        build(tmp_path / "out", "new", overwrite=True)
        assert tree(tmp_path) == built("new")
    elif then == "fail":
        with pytest.raises(ZeroDivisionError):
            build(tmp_path / "out", "new", overwrite=True, before_commit=raising(ZeroDivisionError))
        assert tree(tmp_path) == built("old")
    else:
        with pytest.raises(OutputExists):
            build(tmp_path / "out", "new")
        assert tree(tmp_path / "out") == {MANIFEST: "old", "sub/data": "old"}


@pytest.mark.parametrize("left", [".out.replaced", ".out.partial"])
def test_who_finds_it_finished_tidies_up(tmp_path: Path, left: str) -> None:
    build(tmp_path / "out", "new")
    build(tmp_path / "old", "old")
    (tmp_path / "old").rename(tmp_path / left)
    recover_interrupted(tmp_path / "out")
    assert tree(tmp_path) == built("new")


# --- The disk refuses

WRITE_TOO_MUCH = """
import resource, signal, sys
from pathlib import Path
from niels_gpt.store.files import HashedWriter, write_atomic
from niels_gpt.store.staging import StagedDirectory
folder, how, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
def write(path, size):
    if how == "atomic":
        write_atomic(path, bytes(size))
    else:
        writer = HashedWriter(path)
        writer.write(bytes(size))
        writer.close()
try:
    if how == "atomic":
        (folder / "file").write_text("old")
        write(folder / "file", 1_000_000)
    else:
        (folder / "out").mkdir()
        (folder / "out" / "meta.json").write_text("old")
        with StagedDirectory(folder / "out", manifest="meta.json", overwrite=True) as staged:
            write(staged.path / "small", 10)
            # Up to a mebibyte stays in the buffer until close; more fails at write.
            write(staged.path / "big", 1_000_000 if how == "buffered" else 5_000_000)
            staged.commit()
except Exception as error:
    print(type(error).__name__, error)
for path in sorted(folder.rglob("*")):
    print(path.relative_to(folder), path.read_text() if path.is_file() else "")
"""
# What is still there afterwards, beside the error.
LEFT = {"atomic": ["file old"], "buffered": ["out ", "out/meta.json old"], "direct": ["out ", "out/meta.json old"]}


def in_small_disk(folder: Path, command: list[str]) -> list[str]:
    """`command` with a file system of 600 KiB at `folder`, mounted where only that process sees it."""
    mount = 'mount -t tmpfs -o size=600k tmpfs "$0" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder), *command]


@pytest.mark.parametrize("how", LEFT)
@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        (0, "No space left on device; free some space or choose another place, then run the same command again"),
        (300_000, "File too large; the file-size limit is reached: raise it (ulimit -f) or use smaller shards"),
    ],
    ids=["full disk", "ulimit -f"],
)
def test_a_disk_that_refuses(tmp_path: Path, limit: int, sentence: str, how: str) -> None:
    """A real ENOSPC on a small file system, and a real EFBIG, in a process of its own."""
    command = python(WRITE_TOO_MUCH, tmp_path, how, limit)
    if not limit:
        if not shutil.which("unshare") or subprocess.run(in_small_disk(tmp_path, ["true"]), check=False).returncode:
            pytest.skip("mounting a tmpfs is not allowed here")
        command = in_small_disk(tmp_path, command)
    refusal, *left = run(command).stdout.splitlines()
    assert refusal.startswith(f"StorageError {tmp_path}/")
    assert refusal.endswith(f": writing failed: {sentence}")
    assert left == LEFT[how]
