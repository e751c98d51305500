"""What is published: the files of the source distribution and of the wheel."""

from __future__ import annotations

import os
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from niels_gpt.version import __version__
from tests.conftest import REPOSITORY

pytest.importorskip("hatchling")

NAME = f"niels_gpt-{__version__}"


def tracked(*options: str) -> set[str]:
    """The files that git knows, or a skip where this is no checkout."""
    command = ["git", "ls-files", "-z", *options]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    files = {name for name in listed.stdout.split("\0") if name and (REPOSITORY / name).is_file()}
    if listed.returncode or not (files or options):
        pytest.skip("not a git checkout")
    return files


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hatchling.builders.sdist import SdistBuilder

    (built,) = SdistBuilder(str(REPOSITORY)).build(directory=str(tmp_path_factory.mktemp("sdist")))
    return Path(built)


@pytest.fixture(scope="module")
def wheel_file(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hatchling.builders.wheel import WheelBuilder

    (unpacked / "docs" / "niels-gpt.1").write_text(".TH NIELS-GPT 1\n")  # as `make dist` does
    (built,) = WheelBuilder(str(unpacked)).build(directory=str(tmp_path_factory.mktemp("wheel")))
    return Path(built)


def test_the_sdist_holds_every_file_of_the_repository_and_no_other(sdist: Path) -> None:
    """Its tests read the pages, the Makefile, the pins and the workflows; nothing that lies around gets into it."""
    files = tracked()
    new = tracked("--others", "--exclude-standard")  # files that a developer has not added yet
    assert sdist.name == f"{NAME}.tar.gz"
    with tarfile.open(sdist) as archive:
        held = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    assert held - files - new - {"docs/niels-gpt.1"} == {"PKG-INFO"}
    assert files - held == set()


def test_the_wheel_holds_the_package(wheel_file: Path) -> None:
    package = {name for name in tracked() | tracked("--others", "--exclude-standard") if name.startswith("niels_gpt/")}
    assert wheel_file.name == f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(wheel_file) as wheel:
        held = set(wheel.namelist())
        told = wheel.read(f"{NAME}.dist-info/WHEEL").decode()
    data = {f"{NAME}.data/data/share/man/man1/niels-gpt.1"}
    assert {name for name in held if not name.startswith(f"{NAME}.dist-info/")} - data == package
    assert "Root-Is-Purelib: true" in told
    assert held >= data | {f"{NAME}.dist-info/licenses/LICENSE"}


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / NAME


@pytest.mark.slow
def test_the_wheel_installs_and_runs_the_demo_without_torch(wheel_file: Path, tmp_path: Path) -> None:
    """Needs the package index, where it does what a new user does."""
    venv.create(tmp_path / "fresh", with_pip=True)
    command = [tmp_path / "fresh/bin/pip", "install", "--quiet", "--constraint", REPOSITORY / "constraints.txt"]
    command.append(wheel_file)
    installed = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"cannot install from the package index: {installed.stderr.strip().splitlines()[-1]}")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = str(tmp_path / "fresh/bin/niels-gpt")

    def printed(*arguments: str) -> str:
        run = subprocess.run(
            [program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    assert printed("--version") == f"niels-gpt {__version__}\n"
    assert "torch, which is not installed: pip install 'niels-gpt[torch]'" in printed("demo")
    assert "double-bos" in printed("rules")
    assert "qwen3" in printed("renderers")
