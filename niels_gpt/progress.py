"""How long work tells what it is doing, without knowing who listens.

Builders take a `Progress`; the command line passes one that draws (`terminal.RichProgress`), a library caller
may pass nothing.
"""

from __future__ import annotations


class Progress:
    """A listener that ignores everything; subclasses show it."""

    def begin(self, what: str, *, total: int | None = None, unit: str = "") -> None:
        """A phase starts: `what` it is, `total` steps of `unit` if known."""

    def advance(self, steps: int) -> None:
        """`steps` more units of the running phase are done."""

    def expect(self, total: int) -> None:
        """The running phase is now thought to take `total` steps in all."""

    def note(self, text: str) -> None:
        """Something worth a line of its own happened."""


SILENT = Progress()
