"""Where every command line begins: what takes long to import is imported where an interrupt is already handled."""

from __future__ import annotations

from niels_gpt.interrupts import interruptible


def main() -> None:
    """The console script `niels-gpt`."""
    run_app("niels_gpt.cli")


def run_app(module: str) -> None:
    """Import a module and run its `app`; does not return."""

    def command() -> None:
        from importlib import import_module

        from niels_gpt.terminal import run

        run(import_module(module).app)

    interruptible(command, last=True)
