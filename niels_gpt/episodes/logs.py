"""The loaders' log lines, seen also where the program has not set up logging.

Python drops lines below WARNING unless somebody sets up logging, and few training scripts do. Document 002 wants the
lines seen, so the first loader sends them to stderr in that case. A program that has set up logging (a handler, or a
level of the logger "niels_gpt") decides itself, also when it does so later.
"""

from __future__ import annotations

import logging
import sys

_logger = logging.getLogger("niels_gpt")


class _Stderr(logging.Handler):
    """Prints messages to what `sys.stderr` is at that moment, unless the root logger has got a handler meanwhile."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr)


def show_lines() -> None:
    """Send the package's lines to stderr if nobody has set up logging; harmless when repeated."""
    if not _logger.hasHandlers() and _logger.level == logging.NOTSET:
        _logger.addHandler(_Stderr())
        _logger.setLevel(logging.INFO)
