"""A fork while other threads render: the child hangs at nothing, and comes to the same ids."""

from __future__ import annotations

import os
import re
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


@pytest.mark.parametrize(("name", "forks"), [("qwen3", 40), ("template", 15), ("tokenizers", 6), ("ngpt", 10)])
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_forks_under_load(name: str, forks: int, times: int) -> None:
    """Gigatoken, templates, `tokenizers` told to use threads whatever happens, and our own tokenizer."""
    pytest.importorskip("tokenizers")
    found = run("-m", "tests.forking", name, str(forks * times), TOKENIZERS_PARALLELISM="true")
    assert found == "all children were right, 3 threads render, all did rounds: True"


def test_a_fork_waits_for_those_inside() -> None:
    """The child finds the lock free, and what it guards whole."""
    found = script(
        """
        from niels_gpt.forks import is_forked, new_lock
        lock, pair = new_lock(), [0, 0]
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


def test_a_fork_waits_for_imports_of_others(tmp_path: Path) -> None:
    """The first use of a library imports it, and the child needs it as well."""
    (tmp_path / "slowly.py").write_text("import time\ntime.sleep(0.5)\nvalue = 7\n")
    found = script(
        f"""
        sys.path.insert(0, {str(tmp_path)!r})
        from niels_gpt.forks import new_lock
        lock = new_lock()
        def work(began):
            began()
            import slowly
        in_thread(work)
        time.sleep(0.1)
        def in_the_child():
            import slowly
            return slowly.value
        in_child(in_the_child)
        """
    )
    assert found == "7"


def test_an_import_that_waits_for_the_fork_delays_it_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import __main__\n__main__.forked.wait(60)\n")
    found = script(
        f"""
        import logging, niels_gpt.forks
        logging.basicConfig(stream=sys.stdout)
        niels_gpt.forks.PATIENCE = 0.3
        sys.path.insert(0, {str(tmp_path)!r})
        lock, forked = niels_gpt.forks.new_lock(), threading.Event()
        def work(began):
            began()
            import waits
        in_thread(work)
        time.sleep(0.1)
        in_child(lambda: lock.acquire(timeout=20))
        forked.set()
        """
    )
    warned, entered = found.splitlines()
    assert "another thread is still importing after 0.3 s" in warned
    assert entered == "True"


def test_a_fork_in_the_thread_that_holds_the_lock() -> None:
    """A signal handler may fork anywhere."""
    found = script(
        """
        from niels_gpt.forks import new_lock
        lock = new_lock()
        with lock:
            in_child(lambda: lock.acquire(timeout=20))
        """
    )
    assert found == "True"


def test_forks_of_several_threads_at_once() -> None:
    found = script(
        """
        from niels_gpt.forks import new_lock
        locks = [new_lock() for _ in range(50)]
        def work():
            for _ in range(10):
                in_child(lambda: all(lock.acquire(timeout=20) for lock in locks))
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """
    )
    assert found.split() == ["True"] * 40


def test_a_pool_whose_renderers_others_had_taken() -> None:
    found = script(
        """
        from niels_gpt.renderers.pool import RendererPool
        pool = RendererPool(object, 3)
        def work(began):
            with pool.checkout(), pool.checkout():
                began()
                time.sleep(300)
        in_thread(work)
        def count():
            with pool.checkout() as one, pool.checkout() as two:
                return len({id(one), id(two), id(mine)}), pool._free.qsize()
        with pool.checkout() as mine:
            in_child(count)
        in_child(lambda: pool._free.qsize())
        print(pool._free.qsize())
        """
    )
    assert found.splitlines() == ["(3, 0)", "3", "1"]


def test_a_limit_that_another_thread_was_asking_for() -> None:
    pytest.importorskip("httpx")
    found = script(
        """
        import asyncio
        from niels_gpt.renderers.client import Answer, Limits
        limits = Limits()
        def work(began):
            async def ask():
                began()
                await asyncio.sleep(300)
            asyncio.run(limits.of(("server", "model"), ask))
        async def ask(): return Answer(4096)
        in_thread(work)
        in_child(lambda: asyncio.run(limits.of(("server", "model"), ask)))
        """
    )
    assert found == "4096"


def test_batches_that_another_thread_was_making() -> None:
    """The child is told at once, whoever held the queue's lock."""
    found = script(
        """
        import queue
        from niels_gpt.episodes.iterate.prefetch import Prefetch
        made = Prefetch.__new__(Prefetch)
        made._stop, made._queue, made._process = threading.Event(), queue.Queue(), os.getpid()
        def work(began):
            with made._queue.mutex:
                began()
                time.sleep(300)
        in_thread(work)
        def next_batch():
            try:
                return next(made)
            except RuntimeError as error:
                return error
        in_child(next_batch)
        """
    )
    assert found == "the prefetching thread is gone; a process that was forked must make its own"


def test_a_template_that_another_thread_compiles() -> None:
    """Jinja finds a lexer under a lock of its own, which no fork waits for."""
    pytest.importorskip("jinja2")
    found = script(
        """
        import jinja2.lexer
        from niels_gpt.renderers.template.execution.run import compile_template
        class Slow(dict):
            began = None
            def __getitem__(self, key):
                if self.began and threading.current_thread() is not threading.main_thread():
                    self.began()
                    time.sleep(0.3)
                return super().__getitem__(key)
        compile_template("a", str)
        slow = jinja2.lexer._lexer_cache._mapping = Slow(jinja2.lexer._lexer_cache._mapping)
        def work(began):
            slow.began = began
            compile_template("b", str)
        in_thread(work)
        in_child(lambda: compile_template("c", str) is not None)
        """
    )
    assert found == "True"


def test_rendering_takes_no_other_locks() -> None:
    """Whatever renders or reads batches has its locks from `forks.py`: others would bring the hangs back."""
    locks = re.compile(r"threading(\.| import .*)(Lock|RLock|Condition|Semaphore|BoundedSemaphore)\b")
    files = [*PACKAGE.glob("*.py")]
    for folder in ("tokenizer", "renderers", "episodes", "format", "cache", "sources", "trainers"):
        files += (PACKAGE / folder).rglob("*.py")
    found = {str(file.relative_to(PACKAGE)) for file in files if locks.search(file.read_text())}
    # A forked process makes the locks of a stream of shards anew, together with its threads (`after_fork`).
    assert found == {"forks.py", "episodes/shard_stream.py"}
