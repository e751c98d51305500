"""Functions of a user that make rows: only where they are allowed, in every process, and recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.errors import DataError, Mismatch, UsageError
from niels_gpt.recipes import build_recipe, open_recipe, read_lock, read_recipe
from tests.conftest import run_cli

RECIPE = """\
out = "made"
[tokenizer]
path = "tokenizer"
[sequence]
length = 64
[[sources]]
name = "rated"
files = ["rated.jsonl"]
function = "clean.chat"
"""
CLEAN = """\
from helper import title

def chat(row):
    if row["rating"] < 2:
        return None
    turns = [{"role": "user", "content": title(row["q"])}, {"role": "assistant", "content": row["a"]}]
    return {"messages": turns}
"""


@pytest.fixture
def folder(tmp_path: Path, tokenizer_dir: Path) -> Path:
    shutil.copytree(tokenizer_dir, tmp_path / "tokenizer")
    rows = [{"q": f"question {n}", "a": f"answer {n}", "rating": n % 5} for n in range(100)]
    (tmp_path / "rated.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "helper.py").write_text("def title(text):\n    return text.title()\n")
    (tmp_path / "clean.py").write_text(CLEAN)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def test_code_runs_only_where_it_is_allowed(folder: Path) -> None:
    (folder / "clean.py").write_text(CLEAN + f"\nopen({str(folder / 'ran')!r}, 'w').close()\n")
    with pytest.raises(UsageError, match=r"source rated: function clean\.chat is Python code.*--allow-code"):
        open_recipe(read_recipe(folder / "recipe.toml"))
    refused = run_cli("build", folder / "recipe.toml", "--dry-run")
    assert refused.returncode == 2
    assert "--allow-code" in refused.stderr
    assert not (folder / "ran").exists()
    assert run_cli("build", folder / "recipe.toml", "--dry-run", "--allow-code").returncode == 0
    assert (folder / "ran").exists()


def test_rows_are_what_the_function_makes_with_any_number_of_workers(folder: Path) -> None:
    built = build_recipe(read_recipe(folder / "recipe.toml"), allow_code=True)
    assert built.manifests["rated"]["dropped"] == {"function_left_out": 40}
    assert "bad_rows" not in built.manifests["rated"]
    files = sorted((folder / "made/sources/rated").rglob("*"))
    wanted = {file.relative_to(folder): file.read_bytes() for file in files if file.is_file()}
    assert sum(split["episodes"] for split in built.manifests["rated"]["splits"].values()) == 60
    shutil.rmtree(folder / "made")
    loaded, lock = read_lock(folder / "recipe.lock.json")
    with pytest.raises(UsageError, match="--allow-code"):
        build_recipe(loaded, locked=lock)
    executor = UnitExecutor(LocalRunner(2), slice_bytes=1000)
    build_recipe(loaded, locked=lock, allow_code=True, executor=executor)
    assert {file: (folder / file).read_bytes() for file in wanted} == wanted
    (folder / "clean.py").write_text(CLEAN.replace("< 2", "< 3"))
    with pytest.raises(Mismatch, match=r"sources\.rated\.mapping\.function\.sha256"):
        build_recipe(loaded, locked=lock, allow_code=True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [row]", "function_returned, 100 rows"),
        ("return row['nothing']", r"clean\.chat raised KeyError: \"'nothing'\""),
        ("raise RuntimeError('x' * 10**6)", "function_raised, 100 rows"),
    ],
)
def test_what_a_function_does_wrong_makes_a_row_unusable(folder: Path, body: str, said: str) -> None:
    (folder / "clean.py").write_text(f"def chat(row):\n    {body}\n")
    with pytest.raises(DataError, match=said):
        build_recipe(read_recipe(folder / "recipe.toml"), allow_code=True)
    assert not list(folder.glob("made/sources/*"))


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("chat", CLEAN, "expected a dotted name"),
        ("clean.nothing", CLEAN, "has no function of this name"),
        ("absent.chat", CLEAN, "no module absent"),
        ("clean.chat", "def chat(row:\n", "raised SyntaxError"),
        ("clean.chat", "chat = 3\n", "has no function of this name"),
    ],
)
def test_functions_that_cannot_be_loaded(folder: Path, name: str, code: str, said: str) -> None:
    (folder / "clean.py").write_text(code)
    (folder / "recipe.toml").write_text(RECIPE.replace("clean.chat", name))
    with pytest.raises(Exception, match=said) as raised:
        open_recipe(read_recipe(folder / "recipe.toml"), allow_code=True)
    assert getattr(raised.value, "exit_code", None) in (2, 3)
