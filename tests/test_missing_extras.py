"""Commands without an optional library: refused at once, before any work, with the pip command that installs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from niels_gpt.cli.main import app
from niels_gpt.cli.terminal import run
from niels_gpt.samples import chats_file
from tests.conftest import run_python

RECIPE = """
out = "built"
[tokenizer]
path = "{tokenizer}"
[renderer]
name = "ngpt"
[[sources]]
name = "chats"
files = ["{chats}"]
"""


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The error of a command line, which must end with 2."""
    with pytest.raises(SystemExit) as ended:
        run(lambda: app([str(argument) for argument in arguments]))
    said = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2, said
    return said


@pytest.mark.parametrize(
    ("library", "extra", "line"),
    [
        ("pyarrow", "hub", "build chats.parquet --out out --tokenizer TOKENIZER"),
        ("s3fs", "s3", "build s3://bucket/chats.jsonl --out out --tokenizer TOKENIZER"),
        ("fsspec", "remote", "build memory://chats.jsonl --out out --tokenizer TOKENIZER"),
        ("huggingface_hub", "hub", "build hf://datasets/a/b --out out --tokenizer TOKENIZER"),
        ("pyarrow", "hub", "build exports.toml"),
        ("rensa", "dedup", "build near.toml"),
        ("pyarrow", "hub", "export missing --to trl --out out"),
    ],
)
def test_refused_before_any_work(
    library: str,
    extra: str,
    line: str,
    tokenizer_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if library == "huggingface_hub":
        pytest.importorskip("fsspec")
    recipe = RECIPE.format(tokenizer=tokenizer_dir, chats=chats_file())
    Path(tmp_path / "exports.toml").write_text(recipe + '[[exports]]\nto = "trl"\n')
    Path(tmp_path / "near.toml").write_text(recipe + "[duplicates]\nnear = 0.8\n")
    for name, head in (("chats.parquet", b"PAR1" * 3), ("chats.jsonl.zst", b"\x28\xb5\x2f\xfd" * 3)):
        Path(tmp_path / name).write_bytes(head)
    (tmp_path / "missing").mkdir()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    said = refused(capsys, *line.replace("TOKENIZER", str(tokenizer_dir)).split())
    assert said.endswith(f"this needs {library}, which is not installed: pip install 'niels-gpt[{extra}]'")
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left behind"


# In a new process, where nothing that needs the libraries is imported yet.
FUNCTIONS = """
import json, sys
import niels_gpt as ng
for name in ("torch", "pyarrow", "uvicorn", "tokenizers", "transformers"):
    sys.modules[name] = None
calls = {
    "loader": lambda: ng.loader("nothing", batch_size=1, sequence_length=8),
    "diagnose": lambda: ng.diagnose("chats.parquet"),
    "convert": lambda: ng.convert("nothing", "out", to="trl"),
    "explore": lambda: ng.explore(),
    "tokenize": lambda: ng.tokenize("owner/model"),
    "renderer": lambda: ng.renderer("owner/model"),
    "build": lambda: ng.build("chats.parquet", "out", TOKENIZER),
}
for name, call in calls.items():
    try:
        call()
    except ImportError as error:
        print(json.dumps([name, type(error).__name__, str(error)]))
"""


def test_functions_name_the_extra(tokenizer_dir: Path, tmp_path: Path) -> None:
    """As an ImportError, which programs in Python expect."""
    (tmp_path / "chats.parquet").write_bytes(b"PAR1")
    done = run_python("-c", FUNCTIONS.replace("TOKENIZER", repr(str(tokenizer_dir))), cwd=tmp_path, fresh=True)
    found = {name: (kind, said) for name, kind, said in map(json.loads, done.stdout.splitlines())}
    expected = {
        "loader": ("torch", "torch"),
        "diagnose": ("pyarrow", "hub"),
        "convert": ("pyarrow", "hub"),
        "explore": ("uvicorn", "explorer"),
        "tokenize": ("transformers", "hf"),
        "renderer": ("transformers", "hf"),
        "build": ("pyarrow", "hub"),
    }
    assert found == {
        name: ("MissingExtra", f"this needs {library}, which is not installed: pip install 'niels-gpt[{extra}]'")
        for name, (library, extra) in expected.items()
    }, done.stderr
