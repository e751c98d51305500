"""Checks that a tag can be released, and prints its notes: python -m tools.release_check v0.3.0 [--notes]

The tag is `v` and the version of niels_gpt/version.py; CHANGELOG.md has a section of that version; no fragment is left
in changes/. It needs nothing but Python.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


def problems(tag: str, root: Path = REPOSITORY) -> list[str]:
    """What speaks against releasing this tag, in words; empty if nothing does."""
    version = _version(root)
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and niels_gpt/version.py says {version}: expected the tag v{version}")
    if not notes(root):
        found.append(f"CHANGELOG.md has no section {version!r} with text; move the fragments of changes/ there")
    left = sorted(path.name for path in (root / "changes").glob("*.md") if path.name != "README.md")
    if left:
        found.append(f"changes/ holds {len(left)} fragments ({left[0]} first); move them into CHANGELOG.md")
    return found


def notes(root: Path = REPOSITORY) -> str:
    """The section of the version in CHANGELOG.md, without its heading."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(_version(root))}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return section[1].strip() if section else ""


def _version(root: Path) -> str:
    text = (root / "niels_gpt" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found is not None, "niels_gpt/version.py has no __version__"
    return found[1]


def main() -> int:
    """0 where the tag can be released."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag")
    parser.add_argument("--notes", action="store_true", help="print the section of CHANGELOG.md")
    asked = parser.parse_args()
    if asked.notes:
        print(notes())
        return 0
    found = problems(asked.tag)
    print("\n".join(found) or f"{asked.tag} can be released", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
