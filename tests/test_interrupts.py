"""Ctrl-C and SIGTERM while a command imports or its workers run: one line, exit code 130 or 143, nothing half-written.

Interrupts at chosen steps of all commands are in `test_killed_commands.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from niels_gpt.interrupts import interruptible, sigint_blocked
from niels_gpt.store.verify import verify_dataset
from tests.conftest import REPOSITORY
from tests.scale.builds import write_chats

LINE = "interrupted; nothing half-written remains\n"
TERMINATED = "terminated; nothing half-written remains\n"
ENDS = {signal.SIGINT: (130, LINE), signal.SIGTERM: (143, TERMINATED), signal.SIGHUP: (129, TERMINATED)}


AT_A_TIME = """
import os, sys
from niels_gpt.cli.entry import main

if __name__ == "__main__":
    if sys.argv[1] == "doctor":  # whose workers begin after ten seconds
        import niels_gpt.doctor.examine
        niels_gpt.doctor.examine.SECONDS_BEFORE_WORKERS = 0
    os.write(1, b"begun")
    main()
"""

AFTER_THE_WORK = """
import os, signal
from niels_gpt.interrupts import interruptible

class Last:
    \"\"\"Is freed with its module, after Python has restored the default action of handled signals.\"\"\"
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

last = Last()
interruptible(lambda: None, last=True)
"""


def test_an_interrupt_after_the_work_does_not_change_the_exit_code() -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", AFTER_THE_WORK], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def processes_of(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            found.append(stat.parent.name)
    return found


WITH_WORKERS = {
    "build": "build many.jsonl --tokenizer tokenizer --out out/e --workers 2 --unit-bytes 20000",
    "doctor": "doctor many.jsonl --workers 2",
}


@pytest.fixture(scope="module")
def many(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with inputs for commands."""
    folder = tmp_path_factory.mktemp("given")
    shutil.copytree(tokenizer_dir, folder / "tokenizer")
    write_chats(folder / "many.jsonl", 20_000, bad=False)
    return folder


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("seconds", [0.0, 1.2])
@pytest.mark.parametrize(("command", "number"), [*product(WITH_WORKERS, [signal.SIGINT]), ("build", 15)])
def test_interrupted_with_worker_processes(
    many: Path, tmp_path: Path, command: str, number: int, seconds: float
) -> None:
    """As a terminal does it: the signal goes to the whole group, workers too, also while these import.

    SIGTERM is sent to the parent alone, as by `kill` and by containers.
    """
    script = tmp_path / "script.py"
    script.write_text(AT_A_TIME)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, str(script), *WITH_WORKERS[command].split()],
        cwd=many, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(5) == "begun"
    time.sleep(0.05 + seconds)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    out = many / "out" / "e"
    if process.returncode == 0:  # it was quicker
        assert command == "doctor" or list(verify_dataset(out)) == []
    else:
        code, line = ENDS[signal.Signals(number)]
        assert process.returncode == code, err
        assert err.endswith(line)
        assert not out.exists()
    shutil.rmtree(many / "out", ignore_errors=True)
    ends = time.monotonic() + 20  # multiprocessing's resource tracker ends by itself, a moment after its parent
    while processes_of(process.pid) and time.monotonic() < ends:
        time.sleep(0.05)
    assert processes_of(process.pid) == []


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("handler")
def test_what_an_interrupt_became_is_an_interrupt(capfd: pytest.CaptureFixture[str]) -> None:
    def an_import_that_fails() -> None:
        try:
            press()
        except KeyboardInterrupt:
            raise ImportError("numpy.core.multiarray failed to import") from None

    def pressed_twice() -> None:
        try:
            press()
        finally:
            press()  # clearing away goes on
            (done := []).append(1)
            assert done

    for command in (an_import_that_fails, pressed_twice, press):
        with pytest.raises(SystemExit) as left:
            interruptible(command)
        assert left.value.code == 130, command
        assert capfd.readouterr().err == LINE


@pytest.mark.parametrize("number", ENDS)
def test_each_signal_has_its_line_and_its_code(capfd: pytest.CaptureFixture[str], number: signal.Signals) -> None:
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        pytest.skip("ignored when these tests were started, as nohup does, so it stays ignored")
    with pytest.raises(SystemExit) as left:
        interruptible(lambda: os.kill(os.getpid(), number))
    assert (left.value.code, capfd.readouterr().err) == ENDS[number]
    assert signal.getsignal(number) is before


def test_a_forked_worker_dies_of_sigterm() -> None:
    """As `multiprocessing` ends its workers: the handler is the parent's, which clears away."""

    def fork() -> None:
        child = os.fork()
        if child == 0:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM

    interruptible(fork)


@pytest.mark.usefixtures("handler")
def test_errors_and_ends_of_their_own_stay_what_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    def the_explorer() -> None:
        try:
            press()
        except KeyboardInterrupt:
            sys.exit(0)

    with pytest.raises(SystemExit) as left:
        interruptible(the_explorer)
    assert left.value.code == 0
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 / 0)
    with pytest.raises(SystemExit) as left:
        interruptible(lambda: sys.exit(3))
    assert left.value.code == 3
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("handler")
def test_in_the_background_of_a_shell_the_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interruptible(press)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_end_of_a_start() -> None:
    """Another thread receives the signal, as a tokenizer's may; the handler runs when the block has ended."""
    seen: list[str] = []
    ready, begin = threading.Event(), threading.Event()

    def interrupt() -> None:
        ready.set()
        begin.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()  # before the block, so that this thread does not block the signal
    ready.wait()
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append("handled"))
    try:
        with sigint_blocked():
            begin.set()
            thread.join()
            for _ in range(100_000):  # Python runs handlers between instructions of the main thread
                pass
            assert seen == []
        assert seen == ["handled"]
    finally:
        signal.signal(signal.SIGINT, before)
