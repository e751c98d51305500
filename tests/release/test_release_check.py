"""What stops a release: another tag, no changelog, fragments that are left; and the workflow that would make it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from niels_gpt.version import __version__
from tests.conftest import REPOSITORY
from tools import bounds, release_check


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A repository that can be released as 1.2.3."""
    (tmp_path / "niels_gpt").mkdir()
    (tmp_path / "changes").mkdir()
    (tmp_path / "niels_gpt" / "version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "changes" / "README.md").write_text("# Changes\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3\n\nIt works.\n\n## 1.2.2\n\nIt did not.\n")
    return tmp_path


def test_a_repository_that_is_ready(ready: Path) -> None:
    assert release_check.problems("v1.2.3", ready) == []
    assert release_check.notes(ready) == "It works."


def test_what_is_wrong_is_said(ready: Path) -> None:
    (tag,) = release_check.problems("v1.2.4", ready)
    assert tag == "the tag is v1.2.4, and niels_gpt/version.py says 1.2.3: expected the tag v1.2.3"
    (ready / "changes" / "7.fixed.md").write_text("Something.\n")
    (left,) = release_check.problems("v1.2.3", ready)
    assert left == "changes/ holds 1 fragments (7.fixed.md first); move them into CHANGELOG.md"
    (ready / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.30\n\nAnother.\n")
    assert len(release_check.problems("v1.2.3", ready)) == 2


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    assert release_check._version(REPOSITORY) == __version__


def test_the_workflow_runs_what_there_is() -> None:
    yaml = pytest.importorskip("yaml")
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
    for name in ("ci", "release"):
        workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
        runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
        made = {
            word for run in runs for word in re.findall(r"^(?:- )?make (?:-C \S+ )?([a-z]+)", run, flags=re.MULTILINE)
        }
        assert made <= targets, made - targets
        for module in re.findall(r"python3? -m (tools\.\w+)", "\n".join(runs)):
            assert (REPOSITORY / f"{module.replace('.', '/')}.py").is_file()


def test_torch_is_pinned_as_it_is_and_test_tools_as_constraints_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range would let a resolver take another build of torch, with gigabytes of CUDA."""
    pins = (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert set(bounds.test_tools()) <= set(pins)
    monkeypatch.setattr(bounds, "version", lambda name: "2.13.0+cpu")
    assert bounds.torch_pin() == ["torch==2.13.0+cpu"]


def test_the_lowest_versions_are_those_of_pyproject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of uv: the lowest of what is named directly, for all these extras."""
    asked: list[str] = []
    monkeypatch.setattr(bounds, "uv", lambda *words: asked.extend(map(str, words)))
    monkeypatch.setattr(bounds, "PLACE", tmp_path)
    bounds.resolve("lowest", ["hf", "hub"], sys.executable, torch=False)
    assert asked[asked.index("--resolution") + 1] == "lowest-direct"
    assert [asked[at + 1] for at, word in enumerate(asked) if word == "--extra"] == ["hf", "hub"]
    assert "torch" not in (tmp_path / "lowest.in").read_text()
