"""Peak memory does not grow with the input, whatever it is: several times the rows, the same peak."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("pyarrow")

from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.episodes import build_episodes
from niels_gpt.messages import Conversation
from tests.conftest import REPOSITORY
from tests.doctor.made import as_rows, chats, rows, samples
from tests.renderers.tiny_families import folder_of, renderer_of

DIAGNOSE = """
import sys
from niels_gpt.doctor import diagnose
from tests.memory import peak
file, tokenizer, rows = sys.argv[1:]
report = diagnose(file, tokenizer=tokenizer, renderer="chatml")
assert report.rows == int(rows), report.rows
assert set(report.rules("warning")) <= {"duplicate-row", "validation-leak"}, report.rules()
print(peak() / 2**20)
"""
BLOCK = 256  # rows that are written again and again
ROOM = 10.0  # MiB: allocators' ways
A_ROW = 48  # bytes: two numbers by which rows are compared, and their sort


def as_chats(copies: int, folder: Path) -> tuple[Path, int]:
    path = folder / f"chats-{copies}.jsonl"
    block = "".join(json.dumps(row) + "\n" for row in as_rows(chats(BLOCK)))
    with path.open("w") as file:
        for _ in range(copies):
            file.write(block)
    return path, copies * BLOCK


def as_ids(copies: int, folder: Path) -> tuple[Path, int]:
    import pyarrow as pa
    import pyarrow.parquet

    path = folder / f"ids-{copies}.parquet"
    block = pa.Table.from_pylist(rows(samples("chatml", chats(BLOCK))))
    with pyarrow.parquet.ParquetWriter(path, block.schema) as writer:
        for _ in range(copies):
            writer.write_table(block)
    return path, copies * BLOCK


def as_episodes(copies: int, folder: Path) -> tuple[Path, int]:
    given = [Conversation(messages) for messages in chats(BLOCK)] * copies  # type: ignore[arg-type]
    build_episodes(given, folder / str(copies), encoder=as_encoder(renderer_of("chatml")))
    return folder / str(copies), len(given)


def peak_mib(file: Path, rows: int, tokenizer: str) -> float:
    """The peak resident memory of a process that diagnoses a file, in MiB."""
    command = [sys.executable, "-c", DIAGNOSE, str(file), tokenizer, str(rows)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.parametrize("make", [as_chats, as_ids, as_episodes])
def test_many_times_the_rows_need_no_more_memory(make: Callable[[int, Path], tuple[Path, int]], tmp_path: Path) -> None:
    """A slice of 256 rows, its ids and what rules make of it are held, however many slices there are.

    Pages of mapped files of episodes count as resident memory; the system takes them back when it needs them.
    """
    tokenizer = str(folder_of("chatml"))
    (few, few_rows), (many, many_rows) = (make(copies, tmp_path) for copies in (2, 16))
    small, large = peak_mib(few, few_rows, tokenizer), peak_mib(many, many_rows, tokenizer)
    mapped = sum(file.stat().st_size for file in many.glob("**/*.bin")) if make is as_episodes else 0
    room = ROOM + (A_ROW * many_rows + mapped) / 2**20
    assert large - small < room, f"peaks {small:.0f} and {large:.0f} MiB; {room:.0f} MiB are expected between them"
