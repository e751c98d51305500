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
from niels_gpt.errors import TokenizerError
from niels_gpt.tokenizer import encoder as encoder_module
from niels_gpt.tokenizer import engines
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
    return run


def opened(folder: Path) -> TokenizerAdapter:
    made = TokenizerAdapter.load(folder)
    assert (made.engine, made.engine_reason) == ("gigatoken", "its ids equal those of tokenizers on the probe text")
    return made


def files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.json"))


def test_the_second_opening_proves_nothing_and_gives_the_same(folder: Path, cache: Path, proven: list[str]) -> None:
    first = opened(folder)
    assert proven == [str(folder)]
    (file,) = files(cache)
    held = json.loads(file.read_bytes())
    assert held["tokenizer_sha256"] == first.fingerprints["tokenizer"]
    assert held["tokenizers"] == metadata.version("tokenizers")
    second, third = opened(folder), TokenizerAdapter.load(folder, engine="tokenizers")
    assert proven == [str(folder)]
    ids = list(range(first.vocab_size))
    for way in (second, third):
        assert [a.tolist() for a in way.encode_pieces(*PIECES)] == [a.tolist() for a in first.encode_pieces(*PIECES)]
        assert way.token_bytes(ids) == first.token_bytes(ids)


def test_the_second_process_does_not_import_tokenizers(folder: Path, cache: Path) -> None:
    """Not to encode, to decode or to give bytes; only a string that the fast way cannot prove needs it."""
    code = (
        "import sys; from niels_gpt.tokenizer.encoder import TokenizerAdapter;"
        "made = TokenizerAdapter.load(sys.argv[1]);"
        "ids, _ = made.encode_pieces(['<|im_start|>', 'user 12'], [True, False]); text = made.decode(ids);"
        "assert text == b''.join(made.token_bytes(ids)).decode() == '<|im_start|>user 12';"
        "print('tokenizers' in sys.modules, 'gigatoken' in sys.modules)"
    )
    line = [sys.executable, "-c", code, str(folder)]
    for expected in ("True True\n", "False True\n"):
        done = subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert done.stdout == expected


def other_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "tokenizer.json"
    file.write_bytes(file.read_bytes() + b"\n")


def other_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = metadata.version
    monkeypatch.setattr(engines, "version", lambda name: "0.0.1" if name == "gigatoken" else true(name))


def other_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_CODE", ("description.py", "engines.py"))


@pytest.mark.parametrize("change", [other_bytes, other_version, other_code])
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
        engines._environment.cache_clear()
        for _ in range(2):
            opened(folder)
            assert (len(proven), len(files(cache))) == (2, 2)
    finally:
        engines._environment.cache_clear()


def test_more_control_tokens_are_another_proof(folder: Path, cache: Path, proven: list[str]) -> None:
    for _ in range(2):
        assert tiny.THINK in opened(folder).with_controls([tiny.THINK]).control_ids
        assert (len(proven), len(files(cache))) == (2, 2)


def test_a_damaged_or_edited_file_is_no_proof(folder: Path, cache: Path, proven: list[str]) -> None:
    opened(folder)
    (file,) = files(cache)
    good = file.read_bytes()
    edited = [json.dumps({**json.loads(good), key: "0"}) for key in ("tokenizer_sha256", "gigatoken", "controls")]
    for number, held in enumerate(["", "{}", "null", "[" * 100_000, "\xff\xfe", *edited], 2):
        file.write_bytes(held.encode("latin-1"))
        opened(folder)
        assert (len(proven), file.read_bytes()) == (number, good)


@pytest.mark.parametrize("place", ["a file", "read-only", "off", "/dev/null/x"])
def test_where_nothing_can_be_written_it_is_proven_every_time(
    place: str, folder: Path, tmp_path: Path, proven: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "place"
    if place == "a file":
        there.write_text("here")
    elif place == "read-only":
        there.mkdir(mode=0o500)
        if os.access(there, os.W_OK):
            pytest.skip("this user may write everywhere")
    monkeypatch.setenv("NIELS_GPT_CACHE", place if place.startswith(("off", "/")) else str(there))
    for number in (1, 2):
        opened(folder)
        assert len(proven) == number


def test_a_tokenizer_that_is_refused_leaves_no_proof(folder: Path, cache: Path) -> None:
    file = folder / "tokenizer.json"
    data = json.loads(file.read_bytes())
    data["normalizer"] = {"type": "Replace", "pattern": {"Regex": "("}, "content": "y"}
    file.write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match="tokenizers cannot load it"):
        TokenizerAdapter.load(folder)
    assert files(cache) == []


def test_threads_and_a_fork_need_what_is_not_loaded_yet(folder: Path, cache: Path) -> None:
    """All at once ask for gigatoken and for `tokenizers`."""
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


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"NIELS_GPT_CACHE": "/a/b"}, Path("/a/b")),
        ({"NIELS_GPT_CACHE": "off"}, None),
        ({"XDG_CACHE_HOME": "/x", "NIELS_GPT_CACHE": ""}, Path("/x/niels_gpt")),
        ({"XDG_CACHE_HOME": "x", "HOME": "/h"}, Path("/h/.cache/niels_gpt")),
    ],
)
def test_the_directory(environment: dict[str, str], expected: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NIELS_GPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(engines.sys, "platform", "linux")
    assert engines.cache_directory() == expected


@pytest.mark.parametrize("key", ["truncation", "padding"])
def test_a_tokenizer_that_truncates_or_pads(key: str, folder: Path, cache: Path, proven: list[str]) -> None:
    """As transformers leaves it in an object: text is neither cut nor filled up, also at the second opening."""
    from tokenizers import Tokenizer

    file, text = folder / "tokenizer.json", PIECES[0][1] * 9
    official = Tokenizer.from_file(str(file))
    expected = official.encode(text, add_special_tokens=False).ids
    if key == "truncation":
        official.enable_truncation(3)
    else:
        official.enable_padding(length=4000)
    official.save(str(file))
    for _ in range(2):
        assert opened(folder).encode_pieces([text], [False])[0].tolist() == expected
    assert len(proven) == 1
