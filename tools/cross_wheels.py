"""Builds the wheels of all platforms on one Linux machine: python -m tools.cross_wheels dist/niels_gpt-VERSION.tar.gz

The release workflow builds each wheel on its own platform and tests it there. This builds the same wheels where no such
machines are at hand. The C compiler is Zig's, which has the C libraries' symbols of all of them; uv installs it into an
environment that is deleted afterwards. The wheels' tags are those that package indexes accept.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ZIG = "ziglang==0.15.2"
# The tag of a wheel, and what Zig calls the platform. The kernel then runs with glibc 2.17 and later versions.
PLATFORMS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_10_15_x86_64": "x86_64-macos.10.15",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}


def build(source: Path, out: Path, interpreter: Path, tag: str) -> None:
    """One wheel from the unpacked source distribution, by the Python that has hatchling, setuptools and Zig."""
    compiler = f"{shlex.quote(str(interpreter))} -m ziglang cc -target {PLATFORMS[tag]}"
    # The interpreter that loads the module has Python's functions. Linkers for macOS accept that only with these flags.
    flags = "-undefined dynamic_lookup" if tag.startswith("macosx") else ""
    environment = {
        **os.environ,
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared {flags} -s",
        "_PYTHON_HOST_PLATFORM": tag,  # read by sysconfig.get_platform(), from which the build hook makes the tag
        "NIELS_GPT_KERNEL": "require",
    }
    command = [interpreter, "-m", "hatchling", "build", "--target", "wheel", "--directory", out]
    subprocess.run(list(map(str, command)), cwd=source, env=environment, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Build the wheels beside the source distribution, and print their names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path, help="the source distribution, which `make dist` writes")
    parser.add_argument("--only", choices=PLATFORMS, action="append", help="build for this platform; may be repeated")
    asked = parser.parse_args()
    sdist = asked.sdist.resolve()
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        uv("venv", "--python", sys.executable, environment)
        uv("pip", "install", "--python", environment, ZIG, "hatchling", "setuptools>=70")
        for tag in asked.only or PLATFORMS:
            # Each from a new copy, because the build writes the compiled kernel beside its source.
            with tarfile.open(sdist) as archive:
                archive.extractall(Path(folder) / tag, filter="data")
            (source,) = (Path(folder) / tag).iterdir()
            build(source, sdist.parent, environment / "bin" / "python", tag)
            print(*sdist.parent.glob(f"*-cp311-abi3-{tag}.whl"), flush=True)


def uv(*arguments: str | Path) -> None:
    """Run uv, which `make` installs."""
    subprocess.run([sys.executable, "-m", "uv", *map(str, arguments), "--quiet"], check=True)


if __name__ == "__main__":
    main()
