"""Which of the two is used is said, can be chosen, and is never chosen silently against the user's word."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from niels_gpt import kernel
from niels_gpt.errors import UsageError
from tests import fuzz_kernel

SEED = 41  # every run has the same inputs; `python -m tests.fuzz_kernel` takes others


@pytest.fixture(autouse=True)
def undecided() -> Iterator[None]:
    """The choice is made once a process; each test makes it anew."""
    kernel.native.cache_clear()
    yield
    kernel.native.cache_clear()


@pytest.mark.parametrize("wanted", ["auto", "off", "require"])
def test_the_environment_decides(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernel.VARIABLE, raising=False)
    built = kernel.native() is not None
    kernel.native.cache_clear()
    monkeypatch.setenv(kernel.VARIABLE, wanted)
    if wanted == "require" and not built:
        with pytest.raises(UsageError, match="NIELS_GPT_KERNEL is 'require' and the kernel cannot be imported"):
            kernel.native()
        return
    assert (kernel.native() is not None) == (built and wanted != "off")
    assert kernel.description() == (
        "native kernel"
        if built and wanted != "off"
        else "numpy (NIELS_GPT_KERNEL=off)"
        if wanted == "off"
        else "numpy (the native kernel was not built)"
    )


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel.VARIABLE, "fast")
    with pytest.raises(UsageError, match="NIELS_GPT_KERNEL is 'fast'; expected auto, off or require"):
        kernel.native()


def test_a_kernel_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("niels_gpt._kernel", exc_type=ImportError)
    monkeypatch.setenv(kernel.VARIABLE, "auto")
    monkeypatch.setattr(kernel, "VERSION", kernel.VERSION + 1)
    with pytest.raises(UsageError, match="was built from another version of niels_gpt; install the package again"):
        kernel.native()


def test_the_kernel_that_this_machine_can_build_is_built() -> None:
    """The installation succeeds without a compiler; where there is one, the kernel must not be missing."""
    compiles = shutil.which("cc") and subprocess.run(["cc", "--version"], check=False, capture_output=True)
    if sys.platform == "linux" and compiles and compiles.returncode == 0:
        assert kernel.native() is not None, "install the package again: pip install -e ."


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_hostile_input_under_the_sanitizers(seconds: int) -> None:
    """No read or write outside of a buffer, no undefined behaviour, and results equal to numpy's."""
    reason = fuzz_kernel.why_not()
    if reason is not None:
        pytest.skip(reason)
    done = fuzz_kernel.run(seconds, SEED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 20, done.stdout
