"""The manual page: it names all commands and options, and groff finds nothing wrong in it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from niels_gpt.cli.main import COMMANDS
from tests.test_ranges import commands


@pytest.fixture(scope="module")
def shown() -> str:
    """The page as a terminal shows it, each of its lines on one line."""
    man_page = pytest.importorskip("docs.man_page", reason="needs mkdocs, which is not installed", exc_type=ImportError)
    if shutil.which("groff") is None:
        pytest.skip("no groff")
    command = ["groff", "-man", "-Tutf8", "-ww", "-Kutf8", "-rLL=400n", "-P-cbou"]
    done = subprocess.run(command, input=man_page.man_page(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.replace("‐", "-")


def test_every_command_and_every_option_is_on_it(shown: str) -> None:
    headings = re.findall(r"^   (niels-gpt .*)$", shown, flags=re.MULTILINE)
    assert headings == [f"niels-gpt {' '.join(path)}" for path, _ in commands()]
    for name in ("--renderer-option NAME=VALUE", "--seed INTEGER", "--browser / --no-browser"):
        assert f"\n       {name}\n" in shown
    assert [panel for panel in {entry.panel for entry in COMMANDS.values()} if panel.upper() not in shown] == []
