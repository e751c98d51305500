"""Writes the golden texts of families; or compares a family with a chat template on the same conversations.

::

    python -m tests.golden update [FAMILY ... | templates | completions]
    python -m tests.golden compare FAMILY TEMPLATE.jinja [bos_token='<s>' enable_thinking=false ...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.values import name_and_value, option_value
from tests.golden import beside_template, by_template, completions, update


def main() -> int:
    """Run a command; the exit code is 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("update").add_argument("families", metavar="FAMILY", nargs="*")
    comparing = commands.add_parser("compare")
    comparing.add_argument("family", metavar="FAMILY")
    comparing.add_argument("template", type=Path)
    comparing.add_argument("variables", metavar="NAME=VALUE", nargs="*", help="for the template")
    given = parser.parse_args()
    if given.command == "update":
        others: dict[str, Callable[[], None]] = {"templates": by_template.update, "completions": completions.update}
        for name in given.families or [*FAMILIES, *others]:
            others[name]() if name in others else update(name)
        return 0
    pairs = (name_and_value("NAME=VALUE", text) for text in given.variables)
    found = beside_template(given.family, given.template, {name: option_value(value) for name, value in pairs})
    print(found or "no difference")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
