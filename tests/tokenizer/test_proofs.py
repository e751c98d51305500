"""The proof that gigatoken gives the ids of `tokenizers` is run once for each tokenizer, and remembered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("gigatoken")
from niels_gpt.tokenizer import encoder as encoder_module
from niels_gpt.tokenizer import engines as proofs
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from tests.conftest import REPOSITORY
from tests.tokenizer import tiny

PIECES = [tiny.START, "user\nGröße 中文 12345", tiny.END, "e\u0301 x", tiny.THINK], [True, False, True, False, False]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.save(tiny.cached(tiny.byte_level), tmp_path / "model", eos_token=tiny.END)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIELS_GPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which tokenizers were proven, by the name that errors call them."""
    run: list[str] = []
    prove = encoder_module.proven_gigatoken

    def counted(data: bytes, reference: Any, added: Any, name: str) -> Any:
        run.append(name)
        return prove(data, reference, added, name)

    monkeypatch.setattr(encoder_module, "proven_gigatoken", counted)
    monkeypatch.setattr("niels_gpt.tokenizer.engines.proven_gigatoken", counted)
    return run


def opened(folder: Path) -> TokenizerAdapter:
    made = TokenizerAdapter.load(folder)
    assert (made.engine, made.engine_reason) == (
        "gigatoken",
        "its ids equal those of tokenizers on the probe text",
    )
    assert made.fast is not None
    return made


def files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.json"))


def test_the_second_opening_proves_nothing_and_gives_the_same(folder: Path, cache: Path, proven: list[str]) -> None:
    first = opened(folder)
    assert proven == [str(folder)]
    (file,) = files(cache)
    told = json.loads(file.read_bytes())
    assert told["tokenizer_sha256"] == first.fingerprints["tokenizer"]
    assert told["tokenizers"] == metadata.version("tokenizers")
    second = opened(folder)
    assert proven == [str(folder)]
    third = TokenizerAdapter.load(folder, engine="tokenizers")
    for way in (second, third):
        assert [one.tolist() for one in way.encode_pieces(*PIECES)] == [
            o.tolist() for o in first.encode_pieces(*PIECES)
        ]
    ids = list(range(first.vocab_size))
    assert first.token_bytes(ids) == second.token_bytes(ids) == third.token_bytes(ids)


def test_the_second_process_does_not_import_tokenizers(folder: Path, cache: Path) -> None:
    """Not to encode, to decode or to give bytes; only a string that the fast way cannot prove needs it."""
    code = (
        "import sys; from niels_gpt.tokenizer.encoder import TokenizerAdapter;"
        "made = TokenizerAdapter.load(sys.argv[1]);"
        "ids, _ = made.encode_pieces(['<|im_start|>', 'user 12'], [True, False]); text = made.decode(ids);"
        "assert text == b''.join(made.token_bytes(ids)).decode() == '<|im_start|>user 12';"
        "print('tokenizers' in sys.modules, 'gigatoken' in sys.modules)"
    )

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert run() == "True True\n"
    assert run() == "False True\n"


def other_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "tokenizer.json"
    file.write_bytes(file.read_bytes() + b"\n")


def another_version(library: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        true = metadata.version
        monkeypatch.setattr(proofs, "version", lambda name: "0.0.1" if name == library else true(name))
        proofs._environment.cache_clear()

    return change


def other_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "_CODE", ("description.py", "engines.py"))
    proofs._environment.cache_clear()


@pytest.mark.parametrize(
    "change", [other_bytes, another_version("gigatoken"), another_version("tokenizers"), other_code]
)
def test_it_is_proven_again_when_anything_has_changed(
    change: Callable[[Path, pytest.MonkeyPatch], None],
    folder: Path,
    cache: Path,
    proven: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened(folder)
    try:
        change(folder, monkeypatch)
        opened(folder)
        assert len(proven) == 2
        assert len(files(cache)) == 2
        opened(folder)
        assert len(proven) == 2
    finally:
        proofs._environment.cache_clear()


def test_more_control_tokens_are_another_proof(folder: Path, cache: Path, proven: list[str]) -> None:
    made = opened(folder).with_controls([tiny.THINK])
    assert (len(proven), len(files(cache))) == (2, 2)
    assert tiny.THINK in made.control_ids
    opened(folder).with_controls([tiny.THINK])
    assert len(proven) == 2


@pytest.mark.parametrize("held", ["", "{}", "null", "[" * 100_000, '{"proven": true}', "\xff\xfe"])
def test_a_damaged_file_is_no_proof_and_is_written_again(
    held: str, folder: Path, cache: Path, proven: list[str]
) -> None:
    opened(folder)
    (file,) = files(cache)
    good = file.read_bytes()
    file.write_bytes(held.encode("latin-1"))
    opened(folder)
    assert len(proven) == 2
    assert file.read_bytes() == good


def test_a_file_about_another_tokenizer_is_no_proof(folder: Path, cache: Path, proven: list[str]) -> None:
    """Renamed or edited by hand: the file must say the very bytes and versions."""
    opened(folder)
    (file,) = files(cache)
    for key, value in (("tokenizer_sha256", "0" * 64), ("gigatoken", "9"), ("controls", ["<x>"])):
        before = len(proven)
        file.write_text(json.dumps({**json.loads(file.read_bytes()), key: value}))
        opened(folder)
        assert len(proven) == before + 1


@pytest.mark.parametrize("place", ["a file", "a link to nothing", "read-only", "off", "/dev/null/x"])
def test_where_nothing_can_be_written_it_is_proven_every_time(
    place: str, folder: Path, tmp_path: Path, proven: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "place"
    if place == "a file":
        there.write_text("here")
    elif place == "a link to nothing":
        there.symlink_to(tmp_path / "nowhere" / "at all")
        (tmp_path / "nowhere").write_text("")
    elif place == "read-only":
        there.mkdir(mode=0o500)
        if os.access(there, os.W_OK):
            pytest.skip("this user may write everywhere")
    monkeypatch.setenv("NIELS_GPT_CACHE", place if place.startswith(("off", "/")) else str(there))
    for number in (1, 2):
        opened(folder)
        assert len(proven) == number


def test_a_tokenizer_that_is_refused_leaves_no_proof(folder: Path, cache: Path) -> None:
    from niels_gpt.errors import TokenizerError

    opened(folder)
    file = folder / "tokenizer.json"
    data = json.loads(file.read_bytes())
    data["normalizer"] = {"type": "Replace", "pattern": {"Regex": "("}, "content": "y"}
    file.write_text(json.dumps(data))
    for _ in range(2):
        with pytest.raises(TokenizerError, match="tokenizers cannot load it"):
            TokenizerAdapter.load(folder)
    assert len(files(cache)) == 1


def test_threads_and_a_fork_need_what_is_not_loaded_yet(folder: Path, cache: Path) -> None:
    """All at once ask for gigatoken and for `tokenizers`."""
    opened(folder)
    expected = [one.tolist() for one in opened(folder).encode_pieces(*PIECES)]
    for _ in range(3):
        made, ready = opened(folder), threading.Barrier(6)

        def encoded(number: int, made: TokenizerAdapter = made, ready: threading.Barrier = ready) -> list[list[int]]:
            ready.wait(60)
            if number == 5:
                run_in_a_fork(lambda: made.encode_pieces(*PIECES))
            return [one.tolist() for one in made.encode_pieces(*PIECES)]

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(encoded, range(6))) == [expected] * 6


def run_in_a_fork(call: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads
        child = os.fork()
    if not child:
        try:
            call()
            os._exit(0)
        finally:
            os._exit(1)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the forked process hangs")


def test_two_processes_at_once(folder: Path, cache: Path, proven: list[str]) -> None:
    code = "from niels_gpt.tokenizer.encoder import TokenizerAdapter as A; import sys; assert A.load(sys.argv[1]).fast"
    line = [sys.executable, "-c", code, str(folder)]
    running = [subprocess.Popen(line, cwd=REPOSITORY, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(each.communicate(timeout=100)[1], each.returncode) for each in running] == [(b"", 0)] * 2
    assert [path.suffix for path in (cache / "proofs").iterdir()] == [".json"]
    opened(folder)
    assert proven == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"NIELS_GPT_CACHE": "/a/b"}, "/a/b"),
        ({"NIELS_GPT_CACHE": "off"}, None),
        ({"XDG_CACHE_HOME": "/x", "NIELS_GPT_CACHE": ""}, "/x/niels_gpt"),
        ({"XDG_CACHE_HOME": "x", "HOME": "/h"}, "/h/.cache/niels_gpt"),
        ({"HOME": "/h"}, "/h/.cache/niels_gpt"),
    ],
)
def test_the_directory(environment: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NIELS_GPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(proofs.sys, "platform", "linux")
    assert proofs.cache_directory() == (None if expected is None else Path(expected))


@pytest.mark.parametrize("key", ["truncation", "padding"])
def test_a_tokenizer_that_truncates_or_pads(key: str, folder: Path, cache: Path, proven: list[str]) -> None:
    """As transformers leaves it in an object: text is neither cut nor filled up, also at the second opening."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    official = Tokenizer.from_file(str(file))
    expected = official.encode(PIECES[0][1] * 9, add_special_tokens=False).ids
    if key == "truncation":
        official.enable_truncation(3)
    else:
        official.enable_padding(length=4000)
    official.save(str(file))
    for _ in range(2):
        ids, _ = opened(folder).encode_pieces([PIECES[0][1] * 9], [False])
        assert ids.tolist() == expected
    assert len(proven) == 1
