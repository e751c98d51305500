"""Writes docs/museum.md from its words (museum.toml) and the exhibits in tests/museum: python -m docs.museum"""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Final

from niels_gpt.doctor.rules import RULES, thread_url

HERE = Path(__file__).parent
WIDTH: Final = 120
INTRODUCTION = (
    "The bugs that people who post-train language models met most often and noticed least, most painful first. For "
    "each: what happened, why the loss curve did not show it, the bug in a few lines of code, and what catches it "
    "here. The code is ours, as short as possible; the threads are where people met the bug.",
    "Each is a test in `tests/museum`, offline and without a model: `naive` runs and shows the bug, the doctor names "
    "it, and the same data goes through this package. `niels-gpt rules RULE` says more about a rule. This "
    "page is written by `python -m docs.museum`.",
)
# Parts of these problems that this package cannot solve: the number of the exhibit, what, and why.
ELSEWHERE: Final = (
    (
        8,
        "Kernels that confuse the position ids of images with those of packed texts",
        "The trainer chooses the kernel. Batches contain `cu_seqlens`, so that it need not guess.",
    ),
    (
        14,
        "Servers with their own template language",
        "Only Jinja templates can be compared. Where a server can print its prompts as ids, compare "
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
        "Nothing is stored in shared memory, and datasets are read where they are stored.",
    ),
    (
        24,
        "Trainers that stop at different steps for other reasons",
        "A loader gives all ranks the same number of batches. Whether all are used is decided by the trainer's loop.",
    ),
)


@dataclass(frozen=True)
class Exhibit:
    """The words of an exhibit, and the module with its `naive`; see museum.toml."""

    number: int
    module: ModuleType
    title: str
    happened: str
    hidden: str
    caught: str
    rules: list[str]
    threads: list[str]

    @property
    def heading(self) -> str:
        """Number and title."""
        return f"{self.number}. {self.title}"

    @property
    def anchor(self) -> str:
        """As GitHub makes them: small letters, dashes for spaces, nothing but letters, digits and dashes."""
        small = self.heading.lower().replace(" ", "-")
        return "".join(letter for letter in small if letter.isalnum() or letter == "-")


def exhibits() -> list[Exhibit]:
    """All exhibits, most painful first."""
    words = tomllib.loads((HERE / "museum.toml").read_text(encoding="utf-8"))
    return [
        Exhibit(number, import_module(f"tests.museum.{name}"), **label)
        for number, (name, label) in enumerate(words.items(), 1)
    ]


def page() -> str:
    """The whole page."""
    shown = exhibits()
    rows = "\n".join(_row(exhibit) for exhibit in shown)
    parts = [
        "# The museum",
        *(fill(text, WIDTH) for text in INTRODUCTION),
        f"| | | the doctor's rule |\n|--:|---|---|\n{rows}",
        *map(_section, shown),
        "## Not here",
        fill(
            f"These parts of the {len(shown)} problems are outside this package, so there is no exhibit for them:",
            WIDTH,
        ),
        "\n".join(
            fill(f"* {what} ({number}). {why}", WIDTH, subsequent_indent="  ") for number, what, why in ELSEWHERE
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _row(exhibit: Exhibit) -> str:
    rules = ", ".join(f"`{rule}`" for rule in exhibit.rules) or "none"
    return f"| {exhibit.number} | [{exhibit.title}](#{exhibit.anchor}) | {rules} |"


def _section(exhibit: Exhibit) -> str:
    name = exhibit.module.__name__.replace(".", "/")
    links = ", ".join(f"[{thread}]({thread_url(thread)})" for thread in exhibit.threads)
    rules = [
        fill(f"* `{rule.id}` ({rule.severity}): {rule.title}. {rule.fix}", WIDTH, subsequent_indent="  ")
        for rule in map(RULES.__getitem__, exhibit.rules)
    ]
    parts = [
        f"## {exhibit.heading}",
        fill(f"**What happened.** {exhibit.happened}", WIDTH),
        fill(f"**Why no curve showed it.** {exhibit.hidden}", WIDTH),
        f"```python\n{inspect.getsource(exhibit.module.naive).rstrip()}\n```",
        fill(f"**How it is caught.** {exhibit.caught}", WIDTH),
        *(["\n".join(rules)] if rules else []),
        f"Threads: {links}. The test: [{name}.py](../{name}.py).",
    ]
    return "\n\n".join(parts)


def main() -> None:
    """Write the page."""
    (HERE / "museum.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
