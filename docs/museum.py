"""Writes docs/museum.md from the exhibits in tests/museum: python -m docs.museum"""

from __future__ import annotations

import inspect
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Final

from niels_gpt.doctor import RULES
from niels_gpt.doctor.rules.rule import thread_url
from tests.museum.exhibit import Exhibit
from tests.museum.hall import HALL

HERE = Path(__file__).parent
WIDTH: Final = 120
INTRODUCTION = (
    "The bugs that people who post-train language models met most often and saw least, most painful first. For each: "
    "what happened, why no loss curve showed it, the bug in a few lines of code, and what catches it here. The code "
    "is ours, as short as it can be while the bug is still there; the threads are where people met it.",
    "Each is a test in `tests/museum`, offline and without a model: `naive` is run and shows the bug, the doctor names "
    "it, and the same data goes through this package. `niels-gpt doctor --explain RULE` says more on a rule. This "
    "page is written by `python -m docs.museum`.",
)
# Parts of the pains that are no business of this package: the number, what, and why.
ELSEWHERE: Final = (
    (
        8,
        "Kernels that take the position ids of images for those of packed texts",
        "The choice of a kernel is the trainer's. Batches give it `cu_seqlens`, so that it need not guess.",
    ),
    (
        14,
        "Servers with a template language of their own",
        "Only what a template in Jinja writes can be compared. Where a server can dump its prompts as ids, compare "
        "them with `render_ids`.",
    ),
    (
        17,
        "The timeout of a communication library",
        "Nothing here communicates while data is prepared, so there is nothing to time out.",
    ),
    (
        21,
        "Leftovers in shared memory, and caches of remote files",
        "There is no registry in shared memory, and datasets are read where they lie.",
    ),
    (
        24,
        "Trainers that stop at different steps for reasons of their own",
        "A loader gives all ranks the same number of batches. Whether they use them is the trainer's loop.",
    ),
)


def page() -> str:
    """The whole page."""
    rows = "\n".join(_row(module.EXHIBIT) for module in HALL)
    parts = [
        "# The museum",
        *(fill(text, WIDTH) for text in INTRODUCTION),
        f"| | | the doctor's rule |\n|--:|---|---|\n{rows}",
        *map(exhibit, HALL),
        "## Not here",
        fill(
            f"All {len(HALL)} concern this package. These parts of them do not, so there is no exhibit for them:", WIDTH
        ),
        "\n".join(
            fill(f"* {what} ({number}). {why}", WIDTH, subsequent_indent="  ") for number, what, why in ELSEWHERE
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _row(label: Exhibit) -> str:
    rules = ", ".join(f"`{rule}`" for rule in label.rules) or "none"
    return f"| {label.number} | [{label.title}](#{_anchor(label)}) | {rules} |"


def _heading(label: Exhibit) -> str:
    return f"{label.number}. {label.title}"


def _anchor(label: Exhibit) -> str:
    """As GitHub makes them: small letters, dashes for spaces, nothing but letters, digits and dashes."""
    small = _heading(label).lower().replace(" ", "-")
    return "".join(letter for letter in small if letter.isalnum() or letter == "-")


def exhibit(module: ModuleType) -> str:
    """One exhibit."""
    label: Exhibit = module.EXHIBIT
    name = module.__name__.replace(".", "/")
    links = ", ".join(f"[{thread}]({thread_url(thread)})" for thread in label.threads)
    parts = [
        f"## {_heading(label)}",
        fill(f"**What happened.** {label.happened}", WIDTH),
        fill(f"**Why no curve showed it.** {label.hidden}", WIDTH),
        f"```python\n{inspect.getsource(module.naive).rstrip()}\n```",
        fill(f"**How it is caught.** {label.caught}", WIDTH),
        *(["\n".join(map(_rule, label.rules))] if label.rules else []),
        f"Threads: {links}. The test: [{name}.py](../{name}.py).",
    ]
    return "\n\n".join(parts)


def _rule(name: str) -> str:
    rule = RULES[name]
    return fill(f"* `{name}` ({rule.severity}): {rule.title}. {rule.fix}", WIDTH, subsequent_indent="  ")


def main() -> None:
    """Write the page."""
    (HERE / "museum.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
