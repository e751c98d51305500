"""Progress reporting: the protocol between long work and whatever shows its progress.

Builders take a `Progress`. The command line passes one that draws bars (`cli.terminal.ShownProgress`); library callers
may pass nothing.
"""

from __future__ import annotations


class Progress:
    """Ignores everything; subclasses show it."""

    def begin(self, what: str, *, total: int | None = None, unit: str = "") -> None:
        """A phase begins: its name, and how many steps of which unit it has, if known."""

    def advance(self, steps: int) -> None:
        """`steps` more units of the current phase are done."""

    def reached(self, fraction: float) -> None:
        """This share of the current phase's work is done, 0 to 1, as far as that is known beside its steps.

        May be called from another thread.
        """

    def note(self, text: str) -> None:
        """Show a line of text beside the progress."""


SILENT = Progress()
