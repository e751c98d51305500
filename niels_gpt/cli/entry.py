"""The entry points of the command line.

Everything that takes long to import is imported below `interruptible`, so that Ctrl-C ends the command quietly as soon
as `main` runs. Before that, in the few hundredths of a second in which Python starts, Python prints its own traceback.
"""

from __future__ import annotations

from niels_gpt.interrupts import interruptible


def main() -> None:
    """The console script `niels-gpt`."""
    run_app("niels_gpt.cli.main")


def run_app(module: str) -> None:
    """Import a module and run its `app`; does not return."""

    def command() -> None:
        from importlib import import_module

        from niels_gpt.cli.terminal import run

        run(import_module(module).app)

    interruptible(command, last=True)
