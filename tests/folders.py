"""Temporary folders of helpers that are shared by many tests, such as tiny tokenizers: none is left behind."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

RUN_FOLDER = "NIELS_GPT_TEST_FOLDER"  # set by tests/conftest.py, inherited by workers and by processes that tests start


def shared_folder(prefix: str) -> Path:
    """A new folder that lasts as long as this process, or as the run of pytest that this process belongs to.

    A run has one folder for all its processes, because those that are killed, or end without cleaning up (`os._exit` of
    forked ones), remove nothing.
    """
    run = os.environ.get(RUN_FOLDER)
    if run is not None:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=run))
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked process inherits what is registered, and must not remove its parent's folder
        shutil.rmtree(folder, ignore_errors=True)
