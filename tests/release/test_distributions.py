"""What is published: the files of the source distribution and of the wheels, and the wheels' tags."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
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
def pure_wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hatchling.builders.wheel import WheelBuilder

    (unpacked / "docs" / "niels-gpt.1").write_text(".TH NIELS-GPT 1\n")  # as `make dist` does
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIELS_GPT_KERNEL", "off")
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


def test_the_pure_wheel_holds_the_package_without_the_kernel(pure_wheel: Path) -> None:
    package = {name for name in tracked() | tracked("--others", "--exclude-standard") if name.startswith("niels_gpt/")}
    assert pure_wheel.name == f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(pure_wheel) as wheel:
        held = set(wheel.namelist())
        told = wheel.read(f"{NAME}.dist-info/WHEEL").decode()
    data = {f"{NAME}.data/data/share/man/man1/niels-gpt.1"}
    assert {name for name in held if not name.startswith(f"{NAME}.dist-info/")} - data == {
        name for name in package if not name.endswith((".c", ".h"))
    }
    assert "Root-Is-Purelib: true" in told
    assert held >= data | {f"{NAME}.dist-info/licenses/LICENSE"}


@pytest.mark.parametrize("wanted", ["yes", ""])
def test_a_build_refuses_another_word_for_the_kernel(
    wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatchling.builders.wheel import WheelBuilder

    monkeypatch.setenv("NIELS_GPT_KERNEL", wanted)
    with pytest.raises(ValueError, match="expected auto, off or require"):
        list(WheelBuilder(str(REPOSITORY)).build(directory=str(tmp_path)))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / NAME


def build_from(source: Path, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A wheel from an unpacked sdist, in a process of its own: the kernel is compiled there, not in the checkout."""
    code = (
        "import sys; from hatchling.builders.wheel import WheelBuilder\n"
        "print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[2]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(source), str(out)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def native_wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("builds with the C compiler of Linux")
    done = build_from(unpacked, tmp_path_factory.mktemp("native"), NIELS_GPT_KERNEL="require")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.split()[-1])


@pytest.mark.slow
def test_the_native_wheel_serves_all_versions_of_one_platform(native_wheel: Path, pure_wheel: Path) -> None:
    assert native_wheel.name == f"{NAME}-cp311-abi3-linux_{platform.machine()}.whl"
    with zipfile.ZipFile(native_wheel) as native, zipfile.ZipFile(pure_wheel) as pure:
        assert set(native.namelist()) - set(pure.namelist()) == {"niels_gpt/_kernel.abi3.so"}
        told = native.read(f"{NAME}.dist-info/WHEEL").decode()
    assert "Root-Is-Purelib: false" in told
    assert f"Tag: cp311-abi3-linux_{platform.machine()}" in told


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_pure_or_the_build_fails(unpacked: Path, tmp_path: Path) -> None:
    done = build_from(unpacked, tmp_path, CC="no-such-compiler", NIELS_GPT_KERNEL="auto")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1].endswith(f"{NAME}-py3-none-any.whl")
    assert "the native kernel was not built, numpy will be used" in done.stdout + done.stderr
    assert build_from(unpacked, tmp_path, CC="no-such-compiler", NIELS_GPT_KERNEL="require").returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["native", "pure"])
def test_a_wheel_installs_and_runs_the_demo_without_torch(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Needs the package index, where it does what a new user does."""
    wheel: Path = request.getfixturevalue(f"{kind}_wheel")
    venv.create(tmp_path / "fresh", with_pip=True)
    command = [tmp_path / "fresh/bin/pip", "install", "--quiet", "--constraint", REPOSITORY / "constraints.txt", wheel]
    installed = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"cannot install from the package index: {installed.stderr.strip().splitlines()[-1]}")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NIELS_GPT_KERNEL")}
    program = str(tmp_path / "fresh/bin/niels-gpt")

    def printed(*arguments: str) -> str:
        run = subprocess.run(
            [program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    which = "native kernel" if kind == "native" else "numpy (the native kernel was not built)"
    assert printed("--version") == f"niels-gpt {__version__}, {which}\n"
    assert "torch, which is not installed: pip install 'niels-gpt[torch]'" in printed("demo")
    assert "double-bos" in printed("rules")
    assert "qwen3" in printed("renderers")


@pytest.mark.slow
def test_wheels_of_other_platforms_are_built_on_this_one(sdist: Path, tmp_path: Path) -> None:
    """Their libraries are for these processors and systems, and each wheel is otherwise that of this platform."""
    beginnings = {
        "manylinux_2_17_x86_64": ("<4s14xH", (b"\x7fELF", 62)),
        "manylinux_2_17_aarch64": ("<4s14xH", (b"\x7fELF", 183)),
        "macosx_10_15_x86_64": ("<II", (0xFEEDFACF, 0x01000007)),  # a Mach-O file of 64 bits, and the processor
        "macosx_11_0_arm64": ("<II", (0xFEEDFACF, 0x0100000C)),
    }
    copied = shutil.copy(sdist, tmp_path)
    command = [sys.executable, "-m", "tools.cross_wheels", copied]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if "Failed to fetch" in done.stderr or "No solution found" in done.stderr:
        pytest.skip("cannot install the compiler from the package index")
    assert done.returncode == 0, done.stderr
    for tag, (layout, expected) in beginnings.items():
        with zipfile.ZipFile(tmp_path / f"{NAME}-cp311-abi3-{tag}.whl") as wheel:
            library = wheel.read("niels_gpt/_kernel.abi3.so")
            assert f"Tag: cp311-abi3-{tag}" in wheel.read(f"{NAME}.dist-info/WHEEL").decode()
        assert struct.unpack_from(layout, library) == expected, tag
