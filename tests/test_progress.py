"""Long work tells how much there is and how much of it is done."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from niels_gpt.episodes.build import build_episodes
from niels_gpt.progress import Progress
from niels_gpt.scale.fetch import fetch
from niels_gpt.scale.publish import publish as publish_dataset
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.sources.curation.filters import RowFilters
from niels_gpt.sources.files.hashed_files import HashedFiles
from niels_gpt.sources.preference_files import preference_files
from niels_gpt.sources.text_files import text_files
from niels_gpt.store.verify import verify_dataset
from tests.conftest import FakeTokenizer

ROWS = 3000


class Heard(Progress):
    """Every phase as (name, unit, total, steps), and all shares."""

    def __init__(self) -> None:
        self.phases: list[list[Any]] = []
        self.shares: list[float] = []

    def begin(self, what: str, *, total: int | None = None, unit: str = "") -> None:
        self.phases.append([what, unit, total, 0])

    def advance(self, steps: int) -> None:
        self.phases[-1][3] += steps

    def reached(self, fraction: float) -> None:
        self.shares.append(fraction)

    def phase(self, beginning: str) -> list[Any]:
        return next(phase for phase in self.phases if phase[0].startswith(beginning))


def chat(number: int) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": f"What is {number} and {number}?"},
            {"role": "assistant", "content": f"It is {2 * number}, as everybody knows."},
        ]
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in every form."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("rows")
    rows = [chat(number) for number in range(ROWS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "a.jsonl").write_bytes(lines)
    # Not made smaller: from Python 3.12 on gzip reads 128 KiB at once, which would be the whole file.
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines, compresslevel=0))
    (folder / "c.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "d.parquet", row_group_size=1000)
    pairs = [{"prompt": "a", "chosen": f"b {number}", "rejected": "c"} for number in range(ROWS)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    (folder / "text.jsonl").write_text(
        "".join(json.dumps({"text": f"text {n * 7919:x} of {chr(97 + n % 26) * 9}"}) + "\n" for n in range(ROWS))
    )
    (folder / "large.txt").write_text("a line of a large text\n" * 400_000)
    return folder


SOURCES: dict[str, Callable[[Path], Any]] = {
    "lines": lambda folder: chat_files([folder / "a.jsonl"]),
    "compressed": lambda folder: chat_files([folder / "b.jsonl.gz"]),
    "array": lambda folder: chat_files([folder / "c.json"]),
    "parquet": lambda folder: chat_files([folder / "d.parquet"]),
    "several": lambda folder: chat_files([folder / "a.jsonl", folder / "d.parquet"]),
    "filtered": lambda folder: replace(chat_files([folder / "a.jsonl"]), checks=(RowFilters(min_messages=1),)),
    "preferences": lambda folder: preference_files([folder / "pairs.jsonl"]),
    "texts": lambda folder: text_files([folder / "text.jsonl", folder / "large.txt"]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources_tell_how_much_of_their_files_they_have_read(folder: Path, name: str) -> None:
    source = SOURCES[name](folder)
    assert source.fraction_read() is None
    shares = [source.fraction_read() or 0.0 for _ in source.iterate()]
    assert shares == sorted(shares)
    if name != "array":  # it is smaller than the chunks that it is read in
        assert len(set(shares)) > 2, "it advances within a file"
        assert shares[0] < 0.9
        again = source.iterate()
        next(again)
        assert (source.fraction_read() or 0.0) < 0.9, "read again, counted again"
        assert sum(1 for _ in again) == len(shares) - 1
    assert source.fraction_read() == 1.0


def test_hashing_verifying_publishing_and_fetching_count_bytes(
    folder: Path, tmp_path: Path, fake: FakeTokenizer
) -> None:
    heard = Heard()
    files = [folder / "a.jsonl", folder / "c.json"]
    size = sum(file.stat().st_size for file in files)
    HashedFiles().fingerprint(files, heard)
    assert heard.phases == [["hashing the input", "bytes", size, size]]
    source = chat_files(files)
    assert isinstance(source, ChatFiles)
    assert source.config(heard) == source.config()
    assert heard.phases[1:] == [["hashing the input", "bytes", size, size]]
    fake.vocab_size = 60_000
    build_episodes(source, tmp_path / "o", encoder=fake, source_name="o")
    heard = Heard()
    assert list(verify_dataset(tmp_path / "o", progress=heard)) == []
    what, unit, total, done = heard.phases[0]
    assert (what, unit, total) == ("reading o", "bytes", done)
    for _ in range(2):  # the second time the files are there, and are read back all the same
        publish_dataset(tmp_path / "o", f"file://{tmp_path}/published", progress=heard)
        (tmp_path / "published" / "episodes.json").unlink()
    assert [phase[2:] for phase in heard.phases if phase[0] == "publishing o"] == [[2 * total, 2 * total]] * 2
    publish_dataset(tmp_path / "o", f"file://{tmp_path}/published", progress=heard)
    fetch(f"file://{tmp_path}/published", tmp_path / "fetched", progress=heard)
    assert heard.phase("fetching")[1:] == ["bytes", total, total]


def frames(command: list[str], folder: Path) -> str:
    """What a command writes in a terminal of 150 columns, without the codes that move the cursor."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ |= {"COLUMNS": "150", "TERM": "xterm-256color"}
        os.execv(sys.executable, [sys.executable, "-m", "niels_gpt", *command])
    written = b""
    try:
        while part := os.read(terminal, 1 << 16):
            written += part
    except OSError:  # how Linux says that the command has ended
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, written.decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())


def test_a_terminal_shows_the_total_and_the_time_left(folder: Path, tmp_path: Path, tokenizer_dir: Path) -> None:
    command = ["build", str(folder / "a.jsonl"), "--tokenizer", str(tokenizer_dir), "--out", "o"]
    shown = frames(command, tmp_path)
    assert re.search(r"hashing the input .* of 0\.\d MB", shown)
    assert re.search(r"\bo ━.*tokens.* 0:00:0\d", shown)
    assert "o is complete" in shown
