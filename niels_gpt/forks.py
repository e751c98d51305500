"""One lock around gigatoken, for which a fork waits, and whether this process is a fork.

Only the thread that calls fork exists in the child. A lock that another thread holds at that moment would never be
released there, and what it guards (Rust data in gigatoken) might be half changed.

Nothing else waits: a child may need a module that another thread was importing, or something that it was computing.
Where a thread may render while another one forks, start processes with "spawn".
"""

from __future__ import annotations

import os
import threading
from typing import Final

# gigatoken refuses a second thread ("Already borrowed"). Its `encode` holds the GIL, so one lock for all tokenizers
# costs next to nothing. Reentrant: a signal handler may fork in the thread that holds it.
GIGATOKEN: Final = threading.RLock()
_PROCESS: Final = os.getpid()

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=GIGATOKEN.acquire, after_in_parent=GIGATOKEN.release, after_in_child=GIGATOKEN.release)


def is_forked() -> bool:
    """Whether this process was forked after this module was imported: threads that libraries started are missing."""
    return os.getpid() != _PROCESS
