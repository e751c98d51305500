"""Whatever is wrong with what the user gives: one line that says what and where, the right exit code, no traces.

The commands run through `main`, the function behind the console script, in this process: importing torch anew for each
of these cases would take minutes. What needs a process of its own (limits, a full disk) and a sample of the others go
through the installed script. What happens to caches after they were built is in `test_broken_caches.py`.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from niels_gpt.builds.rows import MAX_MESSAGE_BYTES
from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.cache.meta import sha256_file
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.errors import DataError, UsageError
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT, serialize_chat_to_ids
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.store.kinds import open_meta
from niels_gpt.tokenizer import train_tokenizer
from tests.conftest import EOT, FakeTokenizer, cli_here, run_cli

USAGE, DATA = 2, 3
SCRIPT = Path(sys.executable).parent / "niels-gpt"


class Result(NamedTuple):
    """What a command printed and its exit code."""

    code: int
    out: str
    err: str


Niels = Callable[..., Result]


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tokenizer_dir: Path) -> Niels:
    """Runs command lines in the current directory, where `tokenizer` becomes the tokenizer."""
    Path("tokenizer").symlink_to(tokenizer_dir)
    run = cli_here(capsys, monkeypatch)

    def niels(*arguments: object) -> Result:
        done = run(*arguments)
        return Result(done.returncode, done.stdout, done.stderr)

    return niels


@pytest.fixture
def niels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer_dir: Path
) -> Niels:
    """Runs a command line in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    return runner(capsys, monkeypatch, tokenizer_dir)


def check_refused(result: Result, code: int, *said: str) -> None:
    """One error that holds all of `said`, the exit code, and no traceback."""
    assert result.code == code, result.err
    assert "Traceback" not in result.out + result.err
    errors = [line for line in result.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, result.err
    whole = result.err[result.err.index("error:") :]
    assert [part for part in said if part not in whole] == [], whole


def check_nothing_left(out: Path) -> None:
    """Neither `out` nor anything that carries its name, as `.NAME.partial` does."""
    assert [path.name for path in out.parent.glob(f"*{out.name}*")] == []


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of every file below a directory."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def chat(*turns: tuple[str, Any]) -> str:
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]})


GOOD = chat(("user", "hi"), ("assistant", "hello"))
BUILD = ("build", "--kind", "sft", "chats.jsonl", "--out", "out/chats")

BAD_ROWS: list[tuple[str | bytes, tuple[str, ...]]] = [
    ('{"messages": [}', ("column 15",)),
    (GOOD[:-5], ("not valid JSON at column",)),
    ("[1, 2]", ("the row is a list", "expected an object")),
    ('{"topic": "weather"}', ("'messages'", "columns found: 'topic'")),
    (chat(("user", "hi"), ("bot", "hello")), ("message 1", "'bot'", "system, user or assistant")),
    (chat(("user", 5), ("assistant", "x")), ("message 0", "content is 5", "a string")),
    (chat(("user", "a"), ("assistant", [{"type": "text", "text": "x"}])), ("content is a list of parts", "a string")),
    (chat(("system", "be brief")), ("no assistant message",)),
    (b'{"messages": "\xff"}', ("invalid UTF-8 at byte 14 (0xff)", "iconv")),
    (chat(("user", "hi"), ("assistant", "a\ud800")), ("message 1", "content", "\\ud800")),
    (chat(("user", "x" * 50_000_000), ("assistant", "y")), ("message 0", "50,000,000 bytes", "--max-message-bytes")),
]


def test_bad_rows_are_refused_by_file_and_line(niels: Niels) -> None:
    for row, said in BAD_ROWS:
        row = row if isinstance(row, bytes) else row.encode()
        Path("chats.jsonl").write_bytes(GOOD.encode() + b"\n" + row + b"\n")
        check_refused(niels(*BUILD), DATA, "chats.jsonl:2:", "--max-bad-rows", *said)
        check_nothing_left(Path("out/chats"))


def test_bad_files_are_refused(niels: Niels) -> None:
    def blank(path: Path) -> None:
        path.write_text("\n\n", encoding="utf-8")

    for prepare, said in (
        (Path.mkdir, ("no file there ends in", "nothing to read")),
        (Path.touch, ("chats.jsonl", "is empty", "at least one row")),
        (blank, ("no usable conversation",)),
    ):
        prepare(Path("chats.jsonl"))
        check_refused(niels(*BUILD), DATA, *said)
        assert not [*Path().glob("out/*")]
        Path("chats.jsonl").rmdir() if prepare is Path.mkdir else Path("chats.jsonl").unlink()


def test_a_message_of_just_the_limit_is_built(niels: Niels, fake: FakeTokenizer) -> None:
    """The limit is in bytes: 500 two-byte letters are within 1 000, one letter more is not."""
    Path("chats.jsonl").write_text(chat(("user", "é" * 500), ("assistant", "y")), encoding="utf-8")
    assert niels(*BUILD, "--max-message-bytes", 1000).code == 0
    Path("chats.jsonl").write_text(chat(("user", "é" * 500 + "x"), ("assistant", "y")), encoding="utf-8")
    check_refused(niels(*BUILD, "--max-message-bytes", 1000, "--overwrite"), DATA, "1,001 bytes", "1,000")

    longest = [{"role": "user", "content": "x" * MAX_MESSAGE_BYTES}, {"role": "assistant", "content": "y"}]
    build_sft_cache([longest], "longest", tokenizer=fake, val_frac=0, seed=0)
    longest[0]["content"] += "x"
    with pytest.raises(DataError, match="16,777,217 bytes"):
        build_sft_cache([longest], "too_long", tokenizer=fake, val_frac=0, seed=0)


def test_bad_rows_stop_a_build_unless_allowed_and_are_listed(niels: Niels) -> None:
    rows = [GOOD, '{"messages": [}', GOOD, chat(("bot", "hi")), GOOD]
    Path("chats.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    places = ("chats.jsonl:2:", "invalid_json, 1 row", "chats.jsonl:4:", "unknown_role, 1 row; --roles THEIRS=ROLE")
    for limit in (0, 1, "20%"):
        counts = f"Unusable: 2 of all 5 rows; allowed: {limit}"
        check_refused(niels(*BUILD, "--max-bad-rows", limit), DATA, *places, counts, "--max-bad-rows 2")
    check_nothing_left(Path("out/chats"))
    assert niels(*BUILD, "--max-bad-rows", 2).code == 0
    meta = open_meta(Path("out/chats"))
    assert (meta["dropped"], meta["train_examples"] + meta["val_examples"]) == (
        {"invalid_json": 1, "unknown_role": 1},
        3,
    )
    assert "left out: unknown_role" in niels("info", "out/chats").out
    rejected = [json.loads(line) for line in Path("out/chats/rejected.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["where"], row["reason"]) for row in rejected] == [
        ("chats.jsonl:2", "invalid_json"),
        ("chats.jsonl:4", "unknown_role"),
    ]


# Options


@pytest.mark.parametrize(
    ("option", "value", "code", "said"),
    [
        ("--tokenizer", "nowhere", DATA, ("nowhere", "no tokenizer", "niels-gpt tokenizer train")),
        ("--tokenizer", "chats.jsonl", DATA, ("chats.jsonl", "tokenizer.json")),
        ("--val-frac", 1.5, USAGE, ("--val-frac is 1.5", "expected at most 0.999999")),
        ("--max-bad-rows", -1, USAGE, ("--max-bad-rows is -1", "0 or more")),
    ],
)
def test_bad_options_are_refused(niels: Niels, option: str, value: object, code: int, said: tuple[str, ...]) -> None:
    Path("chats.jsonl").write_text(GOOD, encoding="utf-8")
    check_refused(niels(*BUILD, option, value), code, *said)
    assert not Path("out").exists()


def test_a_vocabulary_above_uint16_needs_uint32(tmp_path: Path) -> None:
    """Ids from 66 000 on would wrap: uint16 is refused, and without a choice uint32 is taken; the ids come back."""
    fake = FakeTokenizer(vocab_size=70_000)
    fake._words = 66_000  # the next new word gets id 66 010
    out, chat_ = str(tmp_path / "chats"), {"messages": [{"role": "assistant", "content": "a b c"}]}
    with pytest.raises(UsageError, match=r'70,000 ids.*token_dtype="uint32"'):
        build_sft_cache([chat_["messages"]], out, tokenizer=fake, val_frac=0, seed=0, token_dtype="uint16")
    check_nothing_left(Path(out))

    build_sft_cache([chat_["messages"]], out, tokenizer=fake, val_frac=0, seed=0)
    ids = serialize_chat_to_ids(chat_, tokenizer=fake, default_system_text=DEFAULT_SYSTEM_TEXT)
    dataset = SFTExampleDataset(f"{out}/train_tokens.bin", f"{out}/train_idx.npy", T=len(ids), device="cpu", eot_id=EOT)
    assert max(ids) > 65_535
    assert dataset.rows(np.array([0]))[0].tolist() == [ids]


# Where the output goes


def test_places_that_are_taken_are_never_touched(niels: Niels) -> None:
    Path("chats.jsonl").write_text(GOOD, encoding="utf-8")
    Path("out/chats").mkdir(parents=True)
    Path("out/chats/thesis.tex").write_text("years of work", encoding="utf-8")
    check_refused(niels(*BUILD), USAGE, "out/chats", "not empty", "--overwrite")
    check_refused(niels(*BUILD, "--overwrite"), USAGE, "out/chats", "not overwritten")
    assert [str(path) for path in Path("out").rglob("*")] == ["out/chats", "out/chats/thesis.tex"]
    Path("file").write_text("a file", encoding="utf-8")
    check_refused(niels(*BUILD[:-1], "file/x"), DATA, "file/x", "a part of the path is a file: choose another place")
    check_refused(niels(*BUILD[:-1], "file"), USAGE, "file: this is a file", "Choose another path")
    assert Path("file").read_text(encoding="utf-8") == "a file"


@pytest.fixture
def built(niels: Niels) -> Path:
    """A cache of the sample conversations at `out/chats`."""
    shutil.copy(chats_file(), "chats.jsonl")
    assert niels(*BUILD).code == 0
    return Path("out/chats")


def test_a_finished_build_is_kept_unless_overwritten(niels: Niels, built: Path) -> None:
    """What differs is named; of input bytes with the same name and size only the sha256 tells."""
    before = contents(built)
    again = niels(*BUILD)
    assert (again.code, "already built" in again.err) == (0, True)
    check_refused(niels(*BUILD, "--seed", 7), USAGE, "out/chats", "seed 42, now 7", "--overwrite")
    old = open_meta(built)["tokenizer_sha256"]
    new = train_tokenizer([notes_dir()], "other", vocab_size=900).sha256
    check_refused(niels(*BUILD, "--tokenizer", "other"), USAGE, "tokenizer_sha256", old[:12], new[:12])
    old = open_meta(built)["dataset_config"]["inputs"][0]["sha256"]
    data = Path("chats.jsonl").read_bytes()
    Path("chats.jsonl").write_bytes(data.replace(b"rainbow", b"Rainbow", 1))
    check_refused(niels(*BUILD), USAGE, "sha256", old[:12], sha256_file("chats.jsonl")[:12])
    assert contents(built) == before
    assert niels(*BUILD, "--seed", 7, "--overwrite").code == 0
    assert contents(built)["train_tokens.bin"] != before["train_tokens.bin"]
    assert [path.name for path in Path("out").iterdir()] == ["chats"]


# A disk that is full. These need a process of their own.


def test_a_file_size_limit_is_met_cleanly(niels: Niels) -> None:
    """3.2 MB of ids in a unit, into files of at most 1 MB: the limit strikes while they are written."""
    Path("chats.jsonl").write_bytes(chats_file().read_bytes() * 30)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = subprocess.run([SCRIPT, *BUILD], capture_output=True, text=True, timeout=120, check=False, preexec_fn=limit)
    limited = Result(done.returncode, done.stdout, done.stderr)
    check_refused(limited, DATA, "unit_0000000", os.strerror(errno.EFBIG), "ulimit -f")
    check_nothing_left(Path("out/chats"))
    assert niels(*BUILD).code == 0


def test_a_full_disk_is_met_cleanly(niels: Niels) -> None:
    """On a file system of 32 KB, mounted where only this process and its children see it."""
    shutil.copy(chats_file(), "chats.jsonl")
    Path("out").mkdir()
    script = 'mount -t tmpfs -o size=32k tmpfs out || exit 99; "$@"; code=$?; ls -A out; exit $code'
    mount = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    done = subprocess.run([*mount, SCRIPT, *BUILD], capture_output=True, text=True, timeout=120, check=False)
    full = Result(done.returncode, done.stdout, done.stderr)
    check_refused(full, DATA, "out/", os.strerror(errno.ENOSPC), "free some space")
    assert full.out == ""  # `ls -A` found nothing


def test_an_empty_note_is_left_out_and_counted_in_both_commands(tmp_path: Path, tokenizer_dir: Path) -> None:
    """`build` and the roam notes of `build-all`."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("Tea needs four minutes.\n" * 20, encoding="utf-8")
    (notes / "b.md").touch()
    (notes / "c.md").write_text("---\ntitle: only front matter\n---\n", encoding="utf-8")
    (notes / "d.md").write_text(" \n\t\u00a0\n", encoding="utf-8")
    shared: tuple[Any, ...] = ("--tokenizer", tokenizer_dir, "--val-frac", 0.1)
    alone = run_cli("build", "--kind", "pretrain", notes, "--out", tmp_path / "one", *shared, cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    given = ("--roam-dir", notes, "--only", "roam", "--cache-dir", tmp_path / "all")
    everything = run_cli("build-all", *given, *shared, cwd=tmp_path, module="niels_gpt.cache.cli")
    assert everything.returncode == 0, everything.stderr
    metas = [json.loads((tmp_path / place / "meta.json").read_text()) for place in ("one", "all/pretrain/roam")]
    assert [meta["dropped"] for meta in metas] == [{"empty": 1}, {"empty": 2}]  # roam notes lose their front matter
    assert [meta["dataset_config"]["passed_over"] for meta in metas] == [{"empty": 1}] * 2
    lines = (tmp_path / "one/rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["expected"] for line in lines] == [True]
    assert all("bad_rows" not in meta for meta in metas)
