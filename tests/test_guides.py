"""Every block of the guides runs, in the order of its page, in a new directory; what pages show is what comes out.

`<!-- exit code 1 -->` before a block says how its last command ends, `<!-- file: NAME -->` that it is a file, and
`<!-- not run: REASON -->` that it is not run. Options are compared with `--help` in every page.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import typer

from niels_gpt.cli.main import app, main
from tests.conftest import REPOSITORY
from tests.test_documentation import PAGES
from tests.test_ranges import commands as every_command

FOLDERS = ("guides", "coming_from", "concepts")
GUIDES = [page for folder in FOLDERS for page in (REPOSITORY / "docs" / folder).glob("*.md")]
_BLOCK = re.compile(r"(?:^<!-- ([^>]*?) -->\n)?^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PRACTICE = "python examples/practice_model.py"  # with which every page begins
_SHELL = re.compile(r"[|<>;&$]")  # what only a shell can do


class Block(NamedTuple):
    """A block of code, the note before it, and the output that the page shows after it."""

    language: str
    code: str
    note: str
    shown: str | None


def blocks_of(page: Path) -> Iterator[Block]:
    found = [(match[1] or "", match[2], match[3]) for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))]
    for number, (note, language, code) in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) else ("", "", "")
        yield Block(language, code, note, after[2] if after[1] == "text" else None)


def commands(code: str) -> Iterator[str]:
    """The commands of a block, those over several lines as one."""
    for line in code.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def run(command: str) -> int:
    """One line as a shell runs it; programs in Python run in this process, which saves most of the time."""
    words = shlex.split(command, comments=True)
    if _SHELL.search(command) or words[0] not in ("niels-gpt", "python"):
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # `niels-gpt` among them
        return subprocess.run(command, shell=True, env={**os.environ, "PATH": programs}, check=False).returncode
    before, sys.argv = sys.argv, words if words[0] == "niels-gpt" else words[1:]
    try:
        if words[0] == "niels-gpt":
            main()
        elif words[1] == "-m":
            sys.argv = words[2:]
            runpy.run_module(words[2], run_name="__main__")
        else:
            runpy.run_path(words[1], run_name="__main__")
    except SystemExit as left:
        return int(left.code or 0)
    finally:
        sys.argv = before
    return 0


@pytest.fixture(scope="module")
def practice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program of `PRACTICE` writes into its directory and, in `printed`, prints: for all pages at once."""
    folder = tmp_path_factory.mktemp("practice")
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    command = [sys.executable, *PRACTICE.split()[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    (folder / "printed").write_text(done.stdout, encoding="utf-8")
    return folder


def same(shown: str, printed: str) -> bool:
    """White space is equal to white space, and `...` in a page to anything."""
    parts = [re.escape(" ".join(part.split())) for part in shown.split("...")]
    return re.search(r"\s*.*".join(parts), " ".join(printed.split()), re.DOTALL) is not None


@pytest.mark.filterwarnings("ignore")  # of trainers, about what a CPU lacks
@pytest.mark.parametrize("page", sorted(GUIDES), ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_blocks_run_and_print_what_the_page_shows(
    page: Path, practice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    for folder in ("examples", "docs"):
        (tmp_path / folder).symlink_to(REPOSITORY / folder)
    names: dict[str, Any] = {"__name__": "page"}
    found = list(blocks_of(page))
    assert found or page.stem == "index"
    for number, block in enumerate(found):
        where = f"{page.name}, block {number}"
        capfd.readouterr()
        if block.note.startswith("file: "):
            Path(block.note.removeprefix("file: ")).write_text(block.code, encoding="utf-8")
        elif block.note.startswith("not run: "):
            continue
        elif block.language == "python":
            exec(compile(block.code, where, "exec", dont_inherit=True), names)  # our own page, run on purpose
        elif block.language == "sh":
            lines = list(commands(block.code))
            if lines[0] == PRACTICE:
                shutil.copytree(practice / "practice", "practice")
                print((practice / "printed").read_text(encoding="utf-8"))
                lines = lines[1:] or ["true"]
            codes = [run(line) for line in lines]
            expected = int(block.note.removeprefix("exit code ") or 0)
            assert codes == [0] * (len(codes) - 1) + [expected], f"{where}: {''.join(capfd.readouterr())}"
        else:
            assert block.language in ("text", "toml", "yaml", "json", "jinja"), f"{where}: of which language?"
            continue
        printed = "".join(capfd.readouterr())
        if block.shown is not None:
            assert same(block.shown, printed), f"{where} shows\n{block.shown}\nand prints\n{printed}"


def test_the_page_on_recipes(practice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first commands and its loader, with the practice model, and shorter rows, because the samples are few."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(practice / "practice", tmp_path, dirs_exist_ok=True)
    recipe, shell, loader = (block.code for block in list(blocks_of(REPOSITORY / "docs" / "recipes.md"))[:3])
    recipe = recipe.replace("Qwen/Qwen3-8B", "model").replace("length = 4096", "length = 512")
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    for line in commands(shell):
        assert run(line.replace("--workers 8", "--workers 2")) == 0, line
    names: dict[str, Any] = {}
    exec(compile(loader, "docs/recipes.md", "exec"), names)  # our own page, run on purpose
    assert names["batch"].x.shape == (8, 512)


def test_every_page_with_python_is_run_by_a_test() -> None:
    """A page whose blocks no test reads goes out of date; this finds the page, its own test finds the block."""
    tests = [file.read_text(encoding="utf-8") for file in (REPOSITORY / "tests").rglob("*.py")]
    for page in PAGES:
        if page in GUIDES or "```python\n" not in page.read_text(encoding="utf-8"):
            continue
        assert any(f'{page.name}"' in source or f"{page.name} against" in source for source in tests), page.name


def command_of(words: list[str]) -> tuple[Any, str]:
    """The command that words name, and its name."""
    command: Any = typer.main.get_command(app)
    path = "niels-gpt"
    context = click.Context(command)
    while hasattr(command, "resolve_command") and words:
        name, command, words = command.resolve_command(context, words)
        path = f"{path} {name}"
    return command, path


def options_of(words: list[str]) -> tuple[str, set[str]]:
    """The command that words name, and its options."""
    command, path = command_of(words)
    names = {name for item in command.params for name in (*item.opts, *item.secondary_opts)}
    return path, {name for name in names if name.startswith("-")} | {"--help"}


def test_commands_that_the_package_advises_exist() -> None:
    """In messages, help and docstrings: `niels-gpt WORD --option`, to the end of the quotation."""
    files = [file for end in ("py", "toml") for file in (REPOSITORY / "niels_gpt").rglob(f"*.{end}")]
    found = 0
    for file in files:
        # Adjacent literals are one text: a command may go on in the next line.
        text = re.sub(r'"\s*\n\s*f?"', "", file.read_text(encoding="utf-8"))
        for advice in re.findall(r"niels-gpt ([a-z][^`\"\n;)(,]*)", text):
            words = advice.rstrip(" .:").split()
            found += 1
            path, known = options_of(words)
            for word in words:
                if re.fullmatch(r"--[a-z-]+", word):
                    assert word in known, f"{file.name}: {path} has no {word}"
    assert found > 80


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_options_of_commands_exist(page: Path) -> None:
    """Of the commands in all pages, also of those that need a model or the network and so are not run."""
    for _, language, code in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language not in ("sh", "text", ""):
            continue
        whole = list(commands(code))
        inner = [found for command in whole for found in re.findall(r"\$\((.*?)\)", command)]
        for command in [re.sub(r"\$\(.*?\)", "PRINTED", command) for command in whole] + inner:
            if not command.startswith("niels-gpt "):
                continue
            words = shlex.split(command, comments=True)[1:]
            path, known = options_of(words)
            for word in words:
                if word.startswith("--"):
                    assert word.partition("=")[0] in known, f"{page.name}: {path} has no {word}"


def test_every_help_page_has_an_example_of_its_own_command() -> None:
    for path, _ in every_command():
        command, _ = command_of(list(path))
        assert f"niels-gpt {' '.join(path)} " in f"{command.help} ", path
