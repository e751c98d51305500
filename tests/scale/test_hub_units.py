"""Data sets on a hub (ours, on 127.0.0.1) as inputs of commands, also in units."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets", reason="the extra 'hub' is not installed")
import pyarrow as pa
import pyarrow.parquet as pq

from niels_gpt.store.kinds import open_meta
from tests.conftest import run_python
from tests.hub import Hub, Repository
from tests.test_cache_determinism import digests


def parquet(rows: list[dict[str, Any]], group: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=group)
    return file.getvalue()


COMMANDS = """
import contextlib, io, json, sys
from niels_gpt.cli.main import app
from niels_gpt.cli.terminal import run

for name, command in json.load(sys.stdin).items():
    sys.argv[1:], code, printed = command, 0, io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            run(app)
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([name, code, printed.getvalue()]), flush=True)
"""
LINES = [{"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a"}]} for n in range(9)]
CHATS = "".join(json.dumps(row) + "\n" for row in LINES).encode()
TREE = {
    "README.md": b"# a card\n",
    "data/a.jsonl": b'{"text": "one"}\n{"text": "two"}\n',
    "data/b.parquet": parquet([{"text": f"text number {n}"} for n in range(20)], 5),
    "data/notes.md": b"a note\n",
    "chats/x.jsonl": CHATS,
}


def run_commands(hub: Hub, tmp_path: Path, commands: dict[str, list[str]]) -> dict[str, tuple[int, str]]:
    environment = hub.environment(tmp_path / "hf", longest_sleep=0.02) | {"NO_COLOR": "1", "COLUMNS": "300"}
    done = run_python("-c", COMMANDS, environment=environment, cwd=tmp_path, given=json.dumps(commands))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(commands), done.stderr
    return {name: (code, " ".join(printed.split())) for name, code, printed in found}


def test_commands_take_a_data_set_of_the_hub(tmp_path: Path, tokenizer_dir: Path) -> None:
    """All its files, a pattern, a commit or a branch; recorded as the same files on the disk are."""
    for name, data in TREE.items():
        (tmp_path / "disk" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "disk" / name).write_bytes(data)
    (tmp_path / "disk/README.md").unlink()  # a card is none of the texts
    repository = Repository({"README.md": b"# another\n", "data/new.md": b"new\n"}, history=[TREE], refs={"v1": 0})
    commit, tok = repository.shas[0], ["--tokenizer", str(tokenizer_dir)]
    url = "hf://datasets/own/er"
    pretrain = ["build", "--kind", "pretrain", *tok, "--val-frac", "0.2", "--out"]
    with Hub({"own/er": repository}) as hub:
        found = run_commands(
            hub,
            tmp_path,
            {
                "data": [*pretrain, "data", f"{url}@v1/data/", "--workers", "2", "--unit-bytes", "1"],
                "disk": [*pretrain, "on-disk", "disk/data"],
                "all": [*pretrain, "all", f"{url}@{commit}", "--max-bad-rows", "9"],
                "pattern": [*pretrain, "pattern", f"{url}@v1/*/*.parquet"],
                "now": [*pretrain, "now", url],
                "sft": ["build", "--kind", "sft", f"{url}@v1/chats/*.jsonl", *tok, "--val-frac", "0.2", "--out", "sft"],
                "episodes": ["build", f"{url}@v1/chats/x.jsonl", *tok, "--out", "episodes"],
                "tokenizer": ["tokenizer", "train", f"{url}@v1/data/*.md", "--out", "t", "--vocab-size", "300"],
                "show": ["show", f"{url}@v1/chats/x.jsonl", "7"],
                "doctor": ["doctor", f"{url}@v1/chats/"],
                "nothing": [*pretrain, "no", f"{url}@v1/*.txt"],
                "malformed": [*pretrain, "no", "hf://datasets/own"],
                "no revision": [*pretrain, "no", f"{url}@v2"],
                "no file": [*pretrain, "no", f"{url}@v1/data/none.jsonl"],
            },
        )
        read = {request.path for request in hub.requests if "/resolve/" in request.path}
    says = {
        "tokenizer": (3, "the text is too small for 300 pieces"),
        "nothing": (3, "hf://datasets/own/er@v1/*.txt: no file fits this pattern; check the URL"),
        "malformed": (2, "hf://datasets/own: expected hf://datasets/OWNER/NAME[@REVISION][/PATTERN]"),
        "no revision": (3, "RevisionNotFoundError"),
        "no file": (3, f"hf://datasets/own/er@{commit}/data/none.jsonl: no such file; check the URL"),
        "show": (0, "q7"),
        "doctor": (0, "hf://datasets/own/er@v1/chats/: 9 rows,"),
    }
    for name, (code, printed) in found.items():
        expected, part = says.get(name, (0, ""))
        assert (code, part if part in printed else printed) == (expected, part), name
    meta = {name: open_meta(tmp_path / name) for name in ("data", "on-disk", "all", "pattern", "now")}
    assert meta["data"]["dataset_config"] == meta["on-disk"]["dataset_config"]
    assert digests(tmp_path / "data") == digests(tmp_path / "on-disk")
    names = {name: [one["name"] for one in found["dataset_config"]["inputs"]] for name, found in meta.items()}
    assert names["all"] == ["x.jsonl", "a.jsonl", "b.parquet", "notes.md"]
    assert names["pattern"] == ["b.parquet"]
    assert names["now"] == ["new.md"]
    assert meta["now"]["dataset_name"] == "own/er"
    assert {path.split("/resolve/")[1].split("/")[0] for path in read} == set(repository.shas), "commits, no branch"
