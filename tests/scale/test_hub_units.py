"""Data sets on a hub (ours, on 127.0.0.1) in units: parquet files of known sources, and any file by its URL."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets", reason="the extra 'hub' is not installed")
import pyarrow as pa
import pyarrow.parquet as pq

from niels_gpt.cache.meta import open_meta
from niels_gpt.samples import notes_dir
from tests import hub as local
from tests.conftest import REPOSITORY
from tests.hub import Hub, Repository
from tests.test_cache_determinism import digests

GUTENBERG, DOLLY, OTHER = "sedthh/gutenberg_english", "databricks/databricks-dolly-15k", "org/files"


def parquet(rows: list[dict[str, Any]], group: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=group)
    return file.getvalue()


def books(first: int, number: int, bad: int) -> bytes:
    notes = [path.read_text(encoding="utf-8") for path in sorted(notes_dir().rglob("*.md"))]
    texts = [None if n == bad else notes[n % len(notes)][:1500] for n in range(first, first + number)]
    rows = [{"TEXT": text, "SOURCE": None if text is None else "made", "METADATA": None} for text in texts]
    schema = pa.schema([(name, pa.string()) for name in ("TEXT", "SOURCE", "METADATA")])
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, row_group_size=4)
    return file.getvalue()


def chats(first: int, number: int) -> bytes:
    rows = [{"prompt": f"p{n}", "completion": None if n == 13 else "c"} for n in range(first, first + number)]
    return parquet(rows, 3)


FILES = {
    GUTENBERG: {f"data/train-0000{n}-of-00003.parquet": books(20 * n, 20, bad=27) for n in range(3)},
    DOLLY: local.dolly(),
    OTHER: {
        "chats/a.parquet": chats(0, 10),
        "chats/b.parquet": chats(10, 10),
        "text.parquet": parquet([{"text": f"text number {n}"} for n in range(20)], 5),
        "b.txt": b"a text of its own\n",
    },
}

BUILD = """
import sys
from pathlib import Path
from niels_gpt.builds.tasks import SERIAL
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.hub_corpora import Dolly
from niels_gpt.sources.hub_corpora import Gutenberg
from niels_gpt.sources.text_files import TextFiles
from niels_gpt.tokenizer import load_tokenizer
from tests.scale.builds import build, units

URLS = [f"hf://datasets/org/files/{name}" for name in ("chats/a.parquet", "chats/b.parquet", "text.parquet", "b.txt")]
SOURCES = {
    "gutenberg": ("pretrain", Gutenberg()),
    "dolly": ("sft", Dolly()),
    "chats": ("episodes", chat_files(URLS[:2])),
    "texts": ("pretrain", TextFiles(URLS[2:])),
}

if __name__ == "__main__":
    tokenizer = load_tokenizer(sys.argv[1])
    for name, (kind, source) in SOURCES.items():
        parts = [(part.kind, part.before) for part in source.slices(500)]
        print(name, len(parts), parts[-1], flush=True)
        for engine, chosen in (("one", SERIAL), ("units", units(500, 2 if name == "gutenberg" else 1))):
            build(kind, source, Path(f"{name}-{engine}"), tokenizer, chosen)
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({name: Repository(files) for name, files in FILES.items()}) as running:
        yield running


def test_the_bytes_of_one_process(hub: Hub, tmp_path: Path, tokenizer_dir: Path) -> None:
    """Of known sources those of the library's own stream, whose row numbers stand in `rejected.jsonl` too."""
    (tmp_path / "run.py").write_text(BUILD)
    environment = hub.environment(tmp_path / "hf", longest_sleep=0.02)
    environment["PYTHONPATH"] += f":{REPOSITORY}"
    command = [sys.executable, "run.py", str(tokenizer_dir)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bad = {}
    for name in ("gutenberg", "dolly", "chats", "texts"):
        whole = digests(tmp_path / f"{name}-one")
        assert digests(tmp_path / f"{name}-units") == whole
        if "rejected.jsonl" in whole:
            (line,) = (tmp_path / f"{name}-one" / "rejected.jsonl").read_text().splitlines()
            bad[name] = json.loads(line)["where"]
    assert bad == {"gutenberg": f"{GUTENBERG} row 27", "chats": f"hf://datasets/{OTHER}/chats/b.parquet row 3"}
    assert [line.split(maxsplit=2) for line in done.stdout.splitlines()] == [
        ["gutenberg", "15", "('row_groups', 56)"],
        ["dolly", "1", "('whole', 0)"],
        ["chats", "2", "('row_groups', 0)"],
        ["texts", "2", "('files', 0)"],
    ]
    meta = open_meta(tmp_path / "texts-one")
    assert sum(split["documents"] for split in meta["splits"].values()) == 21
    assert [one["name"] for one in meta["dataset_config"]["inputs"]] == ["text.parquet", "b.txt"]
    known = [request.path for request in hub.requests if "/resolve/" in request.path and GUTENBERG in request.path]
    assert known
    assert all(Repository(FILES[GUTENBERG]).shas[-1] in path for path in known), "one commit, and no other"
