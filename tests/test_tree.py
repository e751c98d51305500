"""What holds for all files of the repository."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.conftest import REPOSITORY


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    """Code, tests and pages run wherever they are cloned to."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    files = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    if not files:
        pytest.skip("not a git checkout")
    place = re.compile(rb"[^\w.](/(?:work|root|mnt|home/\w+|Users/\w+)/[\w.-]+)")
    found = [
        f"{file.relative_to(REPOSITORY)}: {match[1].decode()}"
        for file in files
        if file.suffix not in (".png", ".model") and file.is_file()
        for match in place.finditer(file.read_bytes())
    ]
    assert not found, "\n".join(found)


# The package's own rooms and modules are on the architecture page; a family is named by its file.
