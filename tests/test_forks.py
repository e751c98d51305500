"""Forks after rendering: the child hangs at nothing, and comes to the same ids."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import niels_gpt

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
PACKAGE = Path(niels_gpt.__file__).parent

# What the scripts below begin with: `in_child` forks, and prints what the child finds. faulthandler gets the number of
# stderr and not the object, whose buffer it would flush: another thread may have been writing into it at the fork (from
# Python 3.12 on each fork of a process with threads is a DeprecationWarning), and in the child its lock stays held.
BEGIN = """
import faulthandler, os, sys, threading, time

def in_child(work):
    process = os.fork()
    if process == 0:
        faulthandler.dump_traceback_later(30, exit=True, file=2)
        try:
            os.write(1, f"{work()}\\n".encode())
        finally:
            os._exit(0)
    assert os.waitpid(process, 0)[1] == 0, "the child hung"

def in_thread(work):
    inside = threading.Event()
    threading.Thread(target=work, args=(inside.set,), daemon=True).start()
    inside.wait()
"""


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE.parent), **environment},
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() or done.stderr


def script(text: str) -> str:
    return run("-c", BEGIN + textwrap.dedent(text))


@pytest.mark.parametrize("name", ["qwen3", "template", "tokenizers", "ngpt"])
def test_what_a_fork_renders_is_what_its_parent_renders(name: str) -> None:
    """Gigatoken, a template, `tokenizers` told to use threads whatever happens, and our own tokenizer.

    By `datasets.map` with two processes, and by two workers of torch's `DataLoader`.
    """
    for library in ("tokenizers", "datasets", "torch"):
        pytest.importorskip(library)
    code = f"import sys; sys.path.insert(0, '.'); from tests.forking import check; print(check({name!r}))"
    assert run("-c", code, TOKENIZERS_PARALLELISM="true") == "equal"


def test_a_fork_waits_for_gigatoken() -> None:
    """The child finds the lock free, and what it guards whole."""
    found = script(
        """
        from niels_gpt.forks import GIGATOKEN, is_forked
        lock, pair = GIGATOKEN, [0, 0]
        def work(began):
            with lock:
                pair[0] += 1
                began()
                time.sleep(0.3)
                pair[1] += 1
        in_thread(work)
        in_child(lambda: (lock.acquire(timeout=20), pair, is_forked()))
        print(lock.acquire(timeout=20), pair, is_forked())
        """
    )
    assert found.splitlines() == ["(True, [1, 1], True)", "True [1, 1] False"]
