"""A run of tests leaves nothing in the system's temporary directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.folders import RUN_FOLDER

FORKS = """
import os, sys
from tests.folders import shared_folder
folder = shared_folder("tiny-")
child = os.fork()
if child == 0:
    sys.exit()  # runs what was registered to run at exit
os.waitpid(child, 0)
print(folder.is_dir())
"""
# Folders of helpers in a test, and in processes that remove nothing: killed, or ended without cleaning up.
TEST = """
import os
from tests.folders import shared_folder
def test_folders():
    shared_folder("tiny-")
    if (child := os.fork()) == 0:
        shared_folder("tiny-")
        os._exit(0)
    os.waitpid(child, 0)
"""


def python(folder: Path, *line: object) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in (RUN_FOLDER, "NIELS_GPT_CACHE")}
    environment["TMPDIR"] = str(folder)
    done = subprocess.run(
        [sys.executable, *map(str, line)], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_removes_its_folders_and_not_its_parents(tmp_path: Path) -> None:
    assert python(tmp_path, "-c", FORKS) == "True\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_run_of_tests_leaves_no_folder(tmp_path: Path) -> None:
    temporary, file = tmp_path / "temporary", tmp_path / "test_folders_of_a_run.py"
    temporary.mkdir()
    file.write_text(TEST)
    passed = python(temporary, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", file)
    assert "1 passed" in passed or passed.startswith("."), passed
    assert list(temporary.iterdir()) == []
