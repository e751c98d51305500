"""Runs the quick tests with the lowest or the newest versions that pyproject.toml allows: python -m tools.bounds lowest

The versions are resolved by uv from pyproject.toml itself, into `.bounds/NAME.txt` and an environment beside it:

* lowest: the least version of every library that pyproject.toml names (`--resolution lowest-direct`); what these need
  in turn is as new as they allow.
* newest: the newest of everything.

torch stays as it is in the environment that runs this, because package indexes do not have wheels for the CPU alone of
every version: `torch>=2.2` is the one bound that is not tested at its lower end. What runs the tests (pytest and
others) is pinned by constraints.txt. `--extras ""` is the base install alone: tests that need more are skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PLACE = REPOSITORY / ".bounds"
EXTRAS = "hf,hub,explorer,client,yaml,s3"
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
TEST_TOOLS = ("hatchling", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
# Old releases of one library beside new ones of another warn of each other's names; anyio's plugin for pytest, too.
PYTEST = ("-m", "quick", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:anyio", "-p", "no:cacheprovider")
WARNINGS = ("-W", "default::DeprecationWarning", "-W", "default::FutureWarning")


def test_tools() -> list[str]:
    """The pins of what runs the tests, as constraints.txt has them."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), flags=re.MULTILINE))
    return [f"{name}=={pins[name]}" for name in TEST_TOOLS]


def torch_pin() -> list[str]:
    """torch exactly as it is here, `2.13.0+cpu` for example, so that it is never replaced by another build."""
    try:
        return [f"torch=={version('torch')}"]
    except PackageNotFoundError:
        return []


def uv(*arguments: str | Path) -> None:
    """Run uv where pip would look for packages, too."""
    found = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if os.environ.get("PIP_FIND_LINKS") else {}
    subprocess.run([sys.executable, "-m", "uv", *map(str, arguments)], env={**os.environ, **found}, check=True)


def resolve(end: str, extras: list[str], python: str, *, torch: bool) -> Path:
    """Write the versions of everything that is installed, and return the file."""
    PLACE.mkdir(exist_ok=True)
    wanted, pins = PLACE / f"{end}.in", PLACE / f"{end}.txt"
    wanted.write_text("\n".join([*test_tools(), *(torch_pin() if torch else [])]) + "\n")
    flags = [part for extra in extras for part in ("--extra", extra)]
    options = ["--resolution", RESOLUTIONS[end], "--python", python, "--no-header", "--no-annotate", "--quiet"]
    uv("pip", "compile", REPOSITORY / "pyproject.toml", wanted, *flags, *options, "--upgrade", "--output-file", pins)
    return pins


def install(pins: Path, python: str) -> Path:
    """An environment with these versions and this package; returns its Python."""
    folder = pins.with_suffix("")
    uv("venv", "--quiet", "--clear", "--python", python, folder)
    interpreter = folder / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", interpreter, "--requirements", pins)
    uv("pip", "install", "--quiet", "--python", interpreter, "--no-deps", REPOSITORY)
    return interpreter


def main() -> int:
    """The exit code of the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("end", choices=RESOLUTIONS)
    parser.add_argument("--extras", default=EXTRAS, help=f"default: {EXTRAS}")
    parser.add_argument("--no-torch", action="store_true", help="leave torch out")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environment")
    parser.add_argument("--resolve-only", action="store_true", help="write the versions, install and test nothing")
    parser.add_argument("tests", nargs="*", help="arguments of pytest")
    asked = parser.parse_args()
    extras = [name for name in asked.extras.split(",") if name]
    pins = resolve(asked.end, extras, asked.python, torch=not asked.no_torch)
    print(f"{pins.relative_to(REPOSITORY)}: {', '.join(pins.read_text().split())}")
    if asked.resolve_only:
        return 0
    python = install(pins, asked.python)
    # The repository is the current directory, so its files are what is tested; PYTHONPATH could name others.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-m", "pytest", *PYTEST, *WARNINGS, *asked.tests]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
