"""A path at which nothing is: one clear line before libraries and tokenizers are loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Loading any of these takes longer than the whole answer may.
HEAVY = (
    "tokenizers",
    "gigatoken",
    "transformers",
    "datasets",
    "pyarrow",
    "torch",
    "jinja2",
    "starlette",
)
COMMANDS = (
    ("doctor", "NOTHING", "--tokenizer", "."),
    ("render", "NOTHING", "--tokenizer", "."),
    ("explore", "NOTHING"),
    ("export", "NOTHING", "--to", "hf", "--out", "o"),
    ("import", "NOTHING", "--from", "hf", "--out", "o"),
    ("publish", "NOTHING", "s3://bucket/x"),
    ("episodes", "build", "NOTHING", "--tokenizer", ".", "--out", "o"),
    ("episodes", "pack", "NOTHING", "--out", "o", "--sequence-length", "64"),
    ("preferences", "build", "NOTHING", "--tokenizer", ".", "--out", "o"),
    ("rollouts", "import", "NOTHING", "--out", "o"),
    ("cache", "build-sft", "NOTHING", "--tokenizer", ".", "--out", "o"),
    ("cache", "build-pretrain", "NOTHING", "--tokenizer", ".", "--out", "o"),
    ("tokenizer", "train", "NOTHING", "--out", "o"),
)
RUN = """
import json, sys
from niels_gpt.cli.main import main
try:
    main()
except SystemExit as end:
    loaded = [name for name in {heavy!r} if name in sys.modules]
    print(json.dumps([end.code, loaded]))
"""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_missing_path_is_refused_before_anything_heavy_is_loaded(command: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(heavy=HEAVY), *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    code, loaded = json.loads(done.stdout.splitlines()[-1])
    assert (code, loaded) == (3, [])
    assert done.stderr.startswith("error: NOTHING")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
