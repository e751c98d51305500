"""Shared by all tests: a real tokenizer trained on the samples, and a fake one whose ids a person can predict."""

from __future__ import annotations

import gc
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from niels_gpt.errors import EXTRA_OF_LIBRARY, MissingExtra
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer, train_tokenizer
from tests import cli_server, memory
from tests.folders import RUN_FOLDER

REPOSITORY = Path(__file__).parent.parent
SYS, USR, ASST, EOT = 1, 2, 3, 4
_SLOW_SECONDS = 3600  # for a test that is marked as slow, on a machine that does other things, too
_WATCH = pytest.StashKey[memory.Watch]()
_PEAKS = pytest.StashKey[list[int]]()
_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
# A busy machine is slow, not wrong. What fails in one run fails in the next; `make slow SEED=7` draws other examples.
settings.register_profile("seeded", deadline=None)
settings.register_profile("same", settings.get_profile("seeded"), derandomize=True)
settings.load_profile("same")
IDS = {"sys_id": SYS, "usr_id": USR, "asst_id": ASST, "eot_id": EOT}


class FakeTokenizer:
    """Words split at spaces get ids 10, 11, ... in the order in which they are first seen; sentinels 1 to 4.

    Like many real tokenizers it would turn a sentinel's spelling into the sentinel's id.
    """

    def __init__(self, vocab_size: int = 1000) -> None:
        self.vocab_size = vocab_size
        self._ids = dict(zip(SPECIAL_TOKENS, (SYS, USR, ASST, EOT), strict=True))
        self._words = 0

    def special_token_ids(self) -> dict[str, int]:
        return {"sys": SYS, "usr": USR, "asst": ASST, "eot": EOT}

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in text.split(" ") if word]

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = 10 + self._words
            self._words += 1
        return self._ids[word]

    def decode(self, ids: Sequence[int]) -> str:
        words = {token: word for word, token in self._ids.items()}
        return " ".join(words[token] for token in ids)


@pytest.fixture
def fake() -> FakeTokenizer:
    """A new fake tokenizer."""
    return FakeTokenizer()


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a real tokenizer of 2 000 pieces, trained on the bundled samples."""
    folder = tmp_path_factory.mktemp("tokenizer") / "tokenizer"
    train_tokenizer([chats_file(), notes_dir()], folder, vocab_size=2000)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir: Path) -> SentencePieceTokenizer:
    """The real tokenizer of `tokenizer_dir`."""
    return SentencePieceTokenizer(tokenizer_dir / "spm.model")


def run_cli(
    *arguments: object, cwd: Path | None = None, module: str | None = None, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, and return what it printed and its exit code.

    `fresh`: in a new process, as a user would; otherwise in a child of a process that has imported large libraries.
    """
    program = ["-m", module] if module else [Path(sys.executable).parent / "niels-gpt"]
    # Wide and colourless, so that a line of output is a line for the test.
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return run_python(*program, *arguments, cwd=cwd, environment=environment, fresh=fresh)


def run_python(
    *program: object,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    given: str = "",
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What `python PROGRAM` prints, where the program is `-c CODE`, `-m MODULE` or a file, and its arguments.

    `given`: what it can read from its standard input; `fresh`: as for `run_cli`.
    """
    process = start_python(*program, environment=environment, cwd=cwd, given=given, fresh=fresh)
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(process.args, int(process.returncode or 0), out, err)


def start_python(
    *program: object,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    given: str = "",
    fresh: bool = False,
) -> cli_server.Running | subprocess.Popen[str]:
    """As `run_python`, but it does not wait until the program has ended."""
    words, variables = [*map(str, program)], environment or os.environ
    if not fresh and cli_server.serves(variables, words):
        return cli_server.Running(words, variables, cwd, given)
    with tempfile.TemporaryFile() as stdin:
        stdin.write(given.encode())
        stdin.seek(0)
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=cwd,
            env=variables,
            text=True,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def cli_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, columns: int = 200
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `run_cli`, in this process, which spares seconds of imports."""
    for name, value in {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        from niels_gpt.cli.main import main

        monkeypatch.setattr(sys, "argv", ["niels-gpt", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        return subprocess.CompletedProcess([], int(left.value.code or 0), *capsys.readouterr())

    return run


# ---- memory: see `tests/memory.py`


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts the workers, or runs the tests itself, measures all of them together.

    No test reads or writes the user's own cache directory: all of a run share a new one, and all runs of `make test`
    the one that it names in `NIELS_GPT_TEST_CACHE`, so that a real tokenizer is proven once. Folders of helpers lie
    beside it, see `tests/folders.py`; they are removed with the run's folder.
    """
    # A shell without job control starts background jobs with Ctrl-C ignored, and every child would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.stash[_FOLDER] = tempfile.TemporaryDirectory(prefix="niels_gpt_tests_", ignore_cleanup_errors=True)
        folder = Path(config.stash[_FOLDER].name)
        (folder / "cache").mkdir()
        # The workers inherit both.
        os.environ["NIELS_GPT_CACHE"] = os.environ.get("NIELS_GPT_TEST_CACHE") or str(folder / "cache")
        os.environ[RUN_FOLDER] = str(folder)
        config.stash[_WATCH], config.stash[_PEAKS] = memory.Watch(), []


# ---- libraries that are not installed


class _Module(pytest.Module):
    """A module of tests; it is skipped where it imports an optional library that is not installed."""

    def _getobj(self) -> Any:
        try:
            return super()._getobj()
        except self.CollectError as error:
            _skip_without_library(error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """A fixture that needs an optional library skips its tests where the library is not installed."""
    cli_server.begin_test(os.environ)
    try:
        return (yield)
    except ImportError as error:
        _skip_without_library(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that needs an optional library is skipped where the library is not installed."""
    try:
        return (yield)
    except ImportError as error:
        _skip_without_library(error)
        raise


def _skip_without_library(error: BaseException | None) -> None:
    """Skip if an optional library is missing: really missing, not hidden by a test (`sys.modules[name] = None`)."""
    name = error.library if isinstance(error, MissingExtra) else getattr(error, "name", None) or ""
    library = _IMPORTED_AS.get(name, name).partition(".")[0]
    if library in _OPTIONAL and PathFinder.find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)


def _left_out() -> dict[str, str]:
    """Rooms whose conftest.py imports a library that is not installed: room -> library."""
    return {room: library for room, library in _NEEDED_BY_ROOMS.items() if PathFinder.find_spec(library) is None}


def pytest_report_header() -> list[str]:
    return [f"left out: tests/{room}, because {library} is not installed" for room, library in _left_out().items()]


_NEEDED_BY_ROOMS = {"explorer": "httpx", "scale": "fsspec"}
_IMPORTED_AS = {"Pillow": "PIL"}
_OPTIONAL = {_IMPORTED_AS.get(name, name) for name in EXTRA_OF_LIBRARY}


# ---- markers: see CONTRIBUTING.md


# What starts processes or servers, as the source of a test module names it.
_STARTS_PROCESSES = re.compile(
    r"\b(subprocess|multiprocessing|Popen|run_cli|os\.fork|tests\.(hub|ports|ranks|forking|killing)|ProcessPool"
    r"|num_workers|workers=[1-9]|Isolation|stores|ray)\b"
)
_LARGE = re.compile(  # libraries that take longer to import than the tests of a module
    r"""^(?: *(?:import|from) |.*importorskip\(")"""
    r"(?:transformers|trl|lightning|datasets|playwright|ray|openai_harmony)\b",
    re.MULTILINE,
)
# Modules whose tests train, count memory or compare long orders: seconds each, for `make test`.
_LONG = re.compile(
    r"(episodes/test_(elastic|reference|packed)|doctor/test_(comparing|robust|documents|planted)|"
    r"export/test_libraries|museum/\w+|test_learns_to_stop|test_documentation|"
    r"test_notebooks|test_attention|\w*memory)\.py$"
)
# Modules that start no processes and still take longest: half a minute each, or more.
_LONGEST = re.compile(
    r"renderers/test_(parity|template|template_judge|parity_templates|properties|stream|template_bridges)\.py$"
)
# Modules with tests of each official tokenizer, which one worker runs together.
_BY_FOLDER = "test_(?:parity|template|template_bridges)"
_QUICK_CASES = 2  # a test with more cases runs its first


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m quick` does not import what it would not run: large libraries take longer than its tests."""
    if collection_path.parent == REPOSITORY / "tests" and collection_path.name in _left_out():
        return True
    if config.option.markexpr != "quick" or not collection_path.name.startswith("test_"):
        return None
    source = _source(collection_path)
    left_out = _starts_processes(collection_path) or _LARGE.search(source) or _LONG.search(collection_path.as_posix())
    return True if left_out else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what tests need; the tests of one model in a file run one after another, in workers long files first."""
    quick: dict[str, list[pytest.Item]] = {}
    for item in items:
        for name in _needs(item):
            item.add_marker(name)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_SECONDS))
        needs = any(item.get_closest_marker(name) for name in ("assets", "process", "browser", "slow"))
        if not needs and not _LONG.search(item.path.as_posix()):
            quick.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in quick.values():
        for item in cases if len(cases) <= _QUICK_CASES else cases[:1]:
            item.add_marker("quick")
    items[:] = memory.grouped(_long_files_first(items) if hasattr(config, "workerinput") else items)


def _long_files_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """So that no worker begins with a long file when the others have nothing left to do."""
    tests = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        path = item.path
        return not _LONGEST.search(path.as_posix()), not _starts_processes(path), -tests[path]

    return sorted(items, key=place)


def _needs(item: pytest.Item) -> Iterator[str]:
    """The markers `assets`, `process` and `browser`, as far as they apply."""
    if "tests.assets" in _source(item.path) and (
        (isinstance(item, pytest.Function) and _names_assets(item.function))
        or any(name in ("folder", "template") for name in getattr(getattr(item, "callspec", None), "params", ()))
    ):
        yield "assets"
    if item.path.name == "test_browser.py":
        yield "browser"
    if _starts_processes(item.path) or {"server", "page", "store"} & set(getattr(item, "fixturenames", ())):
        yield "process"


# Cached, because ten thousand cases come from some hundred modules and two thousand functions: without it, marking the
# cases took longer than importing the modules.
@cache
def _names_assets(function: Any) -> bool:
    own = inspect.getsource(function)
    return bool(re.search(r"\b(ASSETS|FOLDERS|TEMPLATES|DISTINCT|needs_assets|encoder_at|family_encoder)\b", own))


@cache
def _starts_processes(path: Path) -> bool:
    return bool(_STARTS_PROCESSES.search(_source(path)))


@cache
def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, the tests of one official tokenizer stay together, too, across the files that have some.

    Loading a vocabulary, ours and the official way, takes seconds: more than most of the tests that use it.
    """
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    from tests.assets import FOLDERS, LONE_TEMPLATES

    names = sorted({folder.name for folder in FOLDERS} | set(LONE_TEMPLATES), key=len, reverse=True)
    of_folder = re.compile(rf"tests/renderers/{_BY_FOLDER}\.py::\w+\[({'|'.join(map(re.escape, names))})[-\]]")

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            found = of_folder.match(nodeid)
            return f"folder {found[1]}" if found else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """Take what collecting has made out of the garbage collector's sight.

    Ten thousand tests and their modules are 700,000 objects, which live until the end: every `gc.collect()` of a test
    would walk them for 0.4 seconds.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between two models, or two files, a large worker drops what is shared."""
    model = memory.model_of(item)
    if nextitem is None or memory.model_of(nextitem) != model or (model is None and nextitem.path != item.path):
        memory.drop_if_large()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of pytest-xdist tells its peak when it ends."""
    if "peak" in getattr(node, "workeroutput", {}):
        node.config.stash[_PEAKS].append(node.workeroutput["peak"])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """More memory than a laptop has to spare fails the run."""
    config = session.config
    if hasattr(config, "workerinput"):
        config.workeroutput["peak"] = memory.peak()
        return
    config.stash[_WATCH].stop()
    peaks = config.stash[_PEAKS] or [memory.peak()]
    if session.exitstatus == 0 and (
        max(peaks) > memory.MOST_OF_A_WORKER or config.stash[_WATCH].most > memory.MOST_OF_ALL
    ):
        session.exitstatus = 1


def pytest_unconfigure(config: pytest.Config) -> None:
    """The folder of the run goes away."""
    if _FOLDER in config.stash:
        config.stash[_FOLDER].cleanup()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how much memory the run took."""
    each = ", ".join(f"{bytes_ / 1e9:.2f}" for bytes_ in config.stash[_PEAKS] or [memory.peak()])
    terminalreporter.write_line(
        f"peak memory: {each} GB a worker (limit {memory.MOST_OF_A_WORKER / 1e9:.2f}), "
        f"{config.stash[_WATCH].most / 1e9:.2f} GB in all (limit {memory.MOST_OF_ALL / 1e9:.2f})"
    )
