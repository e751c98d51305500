"""The build hook that compiles the native kernel (`niels_gpt/_kernel*.c`) when the package is installed.

It also puts the manual page into wheels.

The kernel is optional: without a C compiler the installation prints a warning, succeeds, and the package uses numpy.
The kernel uses the limited API of Python 3.11, so one wheel serves 3.11 and all later versions.

`NIELS_GPT_KERNEL` decides here as it does when the package is used (niels_gpt/kernel.py)::

    auto (default)   cp311-abi3-PLATFORM where the kernel compiles, else py3-none-any
    off              py3-none-any: nothing is compiled, the wheel has no kernel and serves every platform
    require          cp311-abi3-PLATFORM, or the build fails
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "niels_gpt/_kernel*.c"
MAN_PAGE = "docs/niels-gpt.1"


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compile the kernel beside its source, and put it into the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before each build; `version` is "editable" or "standard"."""
        if self.target_name != "wheel":
            return
        page = Path(self.root) / MAN_PAGE
        if page.is_file() and version == "standard":  # `make dist` writes it; `man` finds it in an environment, too
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"
        wanted = os.environ.get("NIELS_GPT_KERNEL", "auto")
        if wanted not in ("auto", "off", "require"):
            raise ValueError(f"NIELS_GPT_KERNEL is {wanted!r}; expected auto, off or require")
        if wanted == "off":
            return
        root = Path(self.root)
        built = root / "niels_gpt" / f"_kernel{'.pyd' if sys.platform == 'win32' else '.abi3.so'}"
        try:
            _compile(sorted(root.glob(SOURCES)), built)
        except Exception as error:
            # Any failure: setuptools, distutils and the compiler's driver raise unrelated classes (CompileError,
            # PlatformError, OSError, ...), which differ between platforms and versions. The kernel is optional, so none
            # of them may stop an installation, unless the kernel is required.
            if wanted == "require":
                raise
            built.unlink(missing_ok=True)  # a kernel of an earlier version would be loaded otherwise
            self.app.display_warning(f"the native kernel was not built, numpy will be used: {error}")
            return
        build_data["artifacts"].append(str(built.relative_to(root)))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"


def _compile(sources: list[Path], built: Path) -> None:
    """Compile C files into one extension module; `built` is replaced only after the compiler has succeeded."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    flags = [] if sys.platform == "win32" else ["-O3", "-std=c11", "-fvisibility=hidden"]
    extension = Extension("niels_gpt._kernel", list(map(str, sources)), extra_compile_args=flags, py_limited_api=True)
    command = build_ext(Distribution({"ext_modules": [extension]}))
    with tempfile.TemporaryDirectory(dir=built.parent.parent, prefix=".kernel-") as folder:
        command.build_temp, command.build_lib = f"{folder}/objects", folder  # apart: objects are named _kernel*, too
        command.ensure_finalized()
        command.run()
        next(Path(folder).glob("niels_gpt/_kernel*")).replace(built)
