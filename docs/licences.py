"""Writes docs/licences.md from the metadata of the libraries that are installed: python -m docs.licences

A test compares the page with what this writes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

HERE = Path(__file__).parent
REPOSITORY = HERE.parent
NOT_LISTED: Final = {"dev", "docs"}  # extras for working on this package, not for using it
# What PyPI's torch for Linux brings besides, and its wheels for the CPU alone do not.
CUDA: Final = ("cuda-", "nvidia-", "triton")
# How libraries without an SPDX expression in their metadata name their licence.
SPDX: Final = {
    "Apache": "Apache-2.0",
    "BSD": "BSD",
    "ISC": "ISC",
    "MIT": "MIT",
    "Mozilla Public License 2.0": "MPL-2.0",
    "MPL": "MPL-2.0",
    "PSF": "PSF-2.0",
    "Python Software Foundation": "PSF-2.0",
}
HEAD = """# Licences of dependencies

niels_gpt is under [Apache-2.0](../LICENSE). This page lists what its base install and each of its extras bring, with
the licence that each library's own metadata names (`BSD` where that does not say which). It is written by
`python -m docs.licences` from the versions in `constraints.txt`, on Linux with Python 3.11; other platforms and
versions may bring others. Licences that ask for more than a notice (the MPL of single files, for example) are in bold.
`make sbom` writes the same of one installation as an SBOM ([releasing](releasing.md#the-sbom)).
"""
TORCH_NOTE = (
    "PyPI's wheels of torch for Linux also bring NVIDIA's CUDA libraries, under NVIDIA's own terms, and triton (MIT)."
)


def page() -> str:
    """The page as markdown."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = brought(project["dependencies"])
    parts = [HEAD, "## The base install\n", _table(_names(project["dependencies"]), base)]
    for extra, needed in project["optional-dependencies"].items():
        if extra not in NOT_LISTED:
            found = {name: library for name, library in brought(needed).items() if name not in base}
            parts += [f"## `{extra}`\n", _table(_names(needed), found)]
            parts += [f"{TORCH_NOTE}\n"] if "torch" in found else []
    return "\n".join(parts)


def brought(needed: Iterable[str]) -> dict[str, Distribution]:
    """What a list of requirements installs, with all that these need in turn: name -> library.

    Raises:
        PackageNotFoundError: one of the list itself is not installed.
    """
    found: dict[str, Distribution] = {}
    waiting = [(Requirement(each), True) for each in needed]
    seen = set()
    while waiting:
        wanted, direct = waiting.pop()
        key = (_plain(wanted.name), frozenset(wanted.extras))
        if key in seen or key[0].startswith(CUDA):
            continue
        seen.add(key)
        try:
            library = distribution(wanted.name)
        except PackageNotFoundError:
            if direct:
                raise
            continue  # a marker that only an installer can judge, such as one of another platform
        found[key[0]] = library
        for text in library.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                waiting.append((requirement, False))
    return found


def licence_of(library: Distribution) -> str:
    """The licence that a library's metadata names, as SPDX writes it where that is clear."""
    told: Any = library.metadata
    if told.get("License-Expression"):
        return str(told["License-Expression"])
    classifiers = [
        each.rpartition(" :: ")[2] for each in told.get_all("Classifier") or () if each.startswith("License ::")
    ]
    field = (told.get("License") or "").strip().splitlines()
    for text in [*field[:1], *classifiers]:
        for word, name in SPDX.items():
            if re.search(rf"\b{word}", text):
                return name if not re.fullmatch(r"[\w.+-]+( (AND|OR) [\w.+-]+)+|BSD-\d-Clause", text) else text
    return "; ".join(classifiers) or (field[0] if field else "not named in its metadata")


def _names(needed: Iterable[str]) -> list[str]:
    return [_plain(Requirement(each).name) for each in needed]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _table(direct: list[str], found: dict[str, Distribution]) -> str:
    """The libraries that are asked for, then those that they bring."""
    rows = [_row(name, found[name], "") for name in direct if name in found]
    rows += [_row(name, library, "brought by others") for name, library in sorted(found.items()) if name not in direct]
    elsewhere = [name for name in direct if name not in found]
    rows += [f"| {name} | in the base install | |" for name in elsewhere]
    return "\n".join(["| library | licence | |", "|---|---|---|", *rows, ""])


def _row(name: str, library: Distribution, how: str) -> str:
    licence = licence_of(library)
    marked = f"**{licence}**" if re.search(r"GPL|MPL|EPL|CDDL|not named", licence) else licence
    return f"| {name} | {marked} | {how} |"


if __name__ == "__main__":
    (HERE / "licences.md").write_text(page(), encoding="utf-8")
    print(f"wrote {HERE / 'licences.md'}")
