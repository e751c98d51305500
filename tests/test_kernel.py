"""Which of the two is used is said, can be chosen, and is never chosen silently against the user's word."""

from __future__ import annotations

import subprocess
import sys

import pytest

from niels_gpt import kernel
from niels_gpt.errors import UsageError


@pytest.mark.parametrize("wanted", ["auto", "off", "require"])
def test_the_environment_decides(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernel.VARIABLE, raising=False)
    built = kernel.native() is not None
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


def test_the_kernel_that_this_machine_can_build_is_built() -> None:
    """The installation succeeds without a compiler; where there is one, the kernel must not be missing."""
    compiler = subprocess.run(["cc", "--version"], capture_output=True, check=False).returncode if _has("cc") else 1
    if compiler == 0 and sys.platform == "linux":
        assert kernel.native() is not None, "install the package again: pip install -e ."


def _has(program: str) -> bool:
    import shutil

    return shutil.which(program) is not None
