"""Datasets on the hub, examined where they are: a real hub on loopback, the library's own way of reading."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

if any(find_spec(name) is None for name in ("datasets", "huggingface_hub", "tokenizers")):
    pytest.skip("needs datasets, huggingface_hub and tokenizers", allow_module_level=True)

from tests.conftest import run_python
from tests.hub import Hub, Repository, card, parquet
from tests.renderers.tiny_families import folder_of

CHATS = [
    {"messages": [{"role": "user", "content": f"hello {number}"}, {"role": "assistant", "content": f"world {number}"}]}
    for number in range(40)
] + [{"messages": [{"role": "user", "content": "anyone?"}]}]
TOKENISED = [{"input_ids": [5, 6, 7, number], "labels": [-100] * 4} for number in range(40)]


def examined(hub: Hub, home: Path, name: str, *options: str) -> dict[str, Any]:
    """What `niels-gpt doctor NAME --json` says."""
    program = ["-m", "niels_gpt", "doctor", name, "--tokenizer", folder_of("chatml"), "--json", *options]
    environment = hub.environment(home, longest_sleep=0.05, USE_TORCH="0", NO_COLOR="1")
    done = run_python(*program, environment=environment)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(
    ("rows", "options", "rule", "evidence"),
    [(CHATS, ("--renderer", "chatml"), "role-order", 40), (TOKENISED, (), "mask-all-zero", 0)],
)
def test_a_dataset_on_the_hub(
    tmp_path: Path, rows: list[dict[str, Any]], options: tuple[str, ...], rule: str, evidence: int
) -> None:
    files = {
        "data/train-00000-of-00001.parquet": parquet(pa.Table.from_pylist(rows)),
        "README.md": card({"default": {"train": "data/train-*"}}),
    }
    with Hub({"someone/rows": Repository(files)}) as hub:
        report = examined(hub, tmp_path, "someone/rows", *options)
    assert report["rows"] == len(rows)
    found = {finding["rule"]: finding for finding in report["findings"]}
    assert found[rule]["evidence"][0]["row"] == evidence
    assert found[rule]["count"] == (1 if rows is CHATS else len(rows))
