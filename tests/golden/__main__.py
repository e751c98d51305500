"""`python -m tests.golden update FAMILY...`: writes the golden texts of families; without a name, of all."""

from __future__ import annotations

import argparse

from niels_gpt.renderers.registry import FAMILIES
from tests.golden import update


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("command", choices=["update"])
    parser.add_argument("families", metavar="FAMILY", nargs="*", help=f"of {', '.join(FAMILIES)}")
    for family in parser.parse_args().families or FAMILIES:
        update(family)


if __name__ == "__main__":
    main()
