"""Proofs that are remembered: gigatoken gave the same ids as `tokenizers` for these bytes, in these versions.

The proof takes seconds and needs `tokenizers`, so its success is written to a small file in the user's cache directory.
The file's name is a hash of everything that the proof depends on, and the file says the same in words. It holds no ids
and nothing that encoding reads: all that it can change is whether the proof runs again. A file that is missing,
damaged or about anything else counts as no proof; where none can be written, the proof runs every time.

The environment variable `NIELS_GPT_CACHE` names another cache directory; `off` remembers nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from niels_gpt.errors import NielsError
from niels_gpt.files import json_bytes, write_atomic

VARIABLE = "NIELS_GPT_CACHE"
_LIBRARIES = ("gigatoken", "tokenizers")
_CODE = ("description.py", "engines.py", "encoder.py")  # what is proven, and how


class Proof:
    """What is known about one tokenizer.

    Args:
        data: the bytes of its tokenizer.json.
        controls: added tokens that count as control tokens although their tokenizer does not mark them so.
    """

    def __init__(self, data: bytes, controls: Collection[str]) -> None:
        self._path: Path | None = None
        folder, facts = cache_directory(), _environment()
        if folder is not None and facts is not None:
            self._facts = {"tokenizer_sha256": hashlib.sha256(data).hexdigest(), "controls": sorted(controls), **facts}
            self._path = folder / "proofs" / f"{hashlib.sha256(json_bytes(self._facts)).hexdigest()}.json"

    def is_known(self) -> bool:
        """Whether it succeeded before."""
        try:
            return self._path is not None and json.loads(self._path.read_bytes()) == self._facts
        except (OSError, ValueError, RecursionError):
            return False

    def remember(self) -> None:
        """It succeeded. Where this cannot be written, it is proven again next time."""
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(self._path, json_bytes(self._facts))
            except (OSError, NielsError):
                return


def cache_directory() -> Path | None:
    """Where niels_gpt may keep what it can find out again; `None` where nothing is to be kept, or there is no place."""
    named = os.environ.get(VARIABLE)
    if named:
        return None if named == "off" else Path(named)
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "niels_gpt" / "Cache"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "niels_gpt"
        told = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (told if told.is_absolute() else Path.home() / ".cache") / "niels_gpt"
    except RuntimeError:  # no home directory
        return None


@cache
def _environment() -> dict[str, object] | None:
    """What a proof depends on beside the tokenizer; `None` where it cannot be told."""
    try:
        code = b"".join(Path(__file__).with_name(name).read_bytes() for name in _CODE)
        versions = {name: version(name) for name in _LIBRARIES}
    except (OSError, PackageNotFoundError):  # no source at hand, or a library is not installed
        return None
    machine = os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "")
    return {**versions, "machine": f"{sys.platform} {machine}", "code_sha256": hashlib.sha256(code).hexdigest()}
