"""Every error that this package raises on purpose.

::

    NielsError                      exit code 1
    ├── UsageError (ValueError)     exit code 2   the call or the command line is wrong
    │   ├── OutputExists            the place to write to is taken
    │   ├── Mismatch                two things that belong together do not
    │   └── MissingExtra            an optional library is not installed
    └── DataError (ValueError)      exit code 3   the data is wrong
        ├── MessageError            a conversation cannot be used
        ├── InputError              an input file or line cannot be read
        ├── SourceError             a remote data set cannot be reached, or is not what it should be
        ├── TokenizerError          a tokenizer cannot be trained, loaded or trusted
        ├── TemplateError           a chat template cannot be read, or misbehaves
        ├── OverlongPromptError     a prompt is longer than its model takes (renderers.client)
        ├── ServerError             an inference server gives no completion (renderers.client)
        ├── EngineError             workers of a build died or hung, again and again
        ├── CacheError              a cache is absent, foreign, short or damaged
        └── StorageError (OSError)  the disk refused

A message says what was found, what was expected and what to do, in that order and on one line. Data from elsewhere may
hold anything, so every message is printable, shows no password and has at most `LONGEST_MESSAGE` characters.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

LONGEST_MESSAGE: Final = 2000  # characters
LONGEST_VALUE: Final = 80
_LONGEST_NAME = 200  # what is longer is not compared with known names, which takes quadratic time
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PASSWORD = re.compile(r"(?<=://)([^\s/@:]{0,200}):[^\s/]{0,1000}@")
_SECRET = re.compile(
    r"([?&][^\s=&]{0,40}(?:signature|sig|token|secret|password|credential)[^\s=&]{0,40}=)[^\s&#]{1,4000}", re.IGNORECASE
)


def without_passwords(text: str) -> str:
    """The text without the secrets of the URLs in it: `ftp://me:word@host/x?token=ab` -> `ftp://me:***@host/x?token=***`."""
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text)) if "://" in text else text


def shortened(text: str, most: int = LONGEST_MESSAGE) -> str:
    """The text on one line, printable, with at most `most` characters: a longer one loses its middle.

    Both ends stay, because a message begins with what was found and ends with what to do.
    """
    if len(text) > most:
        note = f" [... {len(text) - most:,} characters ...] "
        head = max(0, most - len(note)) * 2 // 3
        tail = max(0, most - len(note)) - head
        text = f"{text[:head]}{note}{text[len(text) - tail :]}"[:most]
    return _CONTROLS.sub(_escaped, text)


def shown(value: object, most: int = LONGEST_VALUE) -> str:
    """A value as a message shows it: the beginning of its `repr`, on one line and printable.

    Of a long string only that beginning is ever formatted.
    """
    try:
        text = repr(value[: most + 1] if isinstance(value, str | bytes) else value)
    except ValueError:  # an integer of more digits than Python converts
        return "an integer too long to show"
    text = _CONTROLS.sub(_escaped, " ".join(text.split()))
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The known name that may have been meant by another, if any is near."""
    if len(given) > _LONGEST_NAME:
        return None
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1) or difflib.get_close_matches(given.lower(), names, n=1)
    return near[0] if near and near[0] != given else None


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of a message: the known name nearest to a wrong one, or nothing."""
    near = nearest(given, known)
    return "" if near is None else f"; did you mean {near!r}?"


class NielsError(Exception):
    """Base of all errors of this package; `exit_code` is what a command that meets it exits with."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """The message, made safe to print: see `shortened` and `without_passwords`."""
        return shortened(without_passwords(super().__str__()))


class UsageError(NielsError, ValueError):
    """An argument, option or path given by the caller cannot work."""

    exit_code = 2


class OutputExists(UsageError):
    """The output directory already holds something, or another process is writing it."""


class Mismatch(UsageError):
    """Two things that belong together differ, for example a cache and the tokenizer it is opened with."""


class MissingExtra(UsageError, ImportError):
    """A feature needs a library that is installed with one of the extras."""

    def __init__(self, library: str) -> None:
        super().__init__(
            f"this needs {library}, which is not installed: pip install 'niels-gpt[{EXTRA_OF_LIBRARY[library]}]'"
        )
        self.library = library

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str]]:
        """Errors travel between processes; the default would call the constructor with the message."""
        return type(self), (self.library,)


class DataError(NielsError, ValueError):
    """The data, not the call, is wrong."""

    exit_code = 3


class MessageError(DataError):
    """A conversation cannot be used.

    `reason` is a short stable code (`unknown_role`, `no_assistant`, ...) by which rejected rows are counted.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type[MessageError], tuple[str, str]]:
        """As for `MissingExtra`."""
        return type(self), (self.reason, str(self))


class InputError(DataError):
    """An input file is missing, empty or cannot be read as what it should be."""


class SourceError(DataError):
    """A remote data set cannot be reached, broke off, or does not have the columns that it should have."""


class TokenizerError(DataError):
    """A tokenizer cannot be trained, loaded or trusted."""


class TemplateError(DataError):
    """A chat template is missing, cannot be read, or misbehaves."""


class EngineError(DataError):
    """The workers of a build died or hung several times over one unit, or their cluster cannot be reached."""


class CacheError(DataError):
    """A cache is absent, incomplete, foreign, short or damaged."""


class StorageError(DataError, OSError):
    """The file system refused: disk full, file too large, read-only, no permission, i/o error."""


EXTRA_OF_LIBRARY = {"torch": "torch", "datasets": "hub", "huggingface_hub": "hub", "pyarrow": "hub"} | {
    "jinja2": "hf",
    "tokenizers": "hf",
    "transformers": "hf",
    "httpx": "client",
    "gigatoken": "hf",
    "lightning": "lightning",
    "starlette": "explorer",
    "uvicorn": "explorer",
    "Pillow": "vision",
    "ray": "ray",
    "fsspec": "remote",
    "s3fs": "s3",
}

STORAGE_REMEDIES = {
    errno.ENOSPC: "free some space or choose another place, then run the same command again",
    errno.EDQUOT: "raise the quota or choose another place, then run the same command again",
    errno.EFBIG: "the file-size limit is reached: raise it (ulimit -f) or use smaller shards",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.EACCES: "check the permissions or choose another place",
    errno.EPERM: "check the permissions or choose another place",
    errno.EEXIST: "a part of the path is a file: choose another place",
    errno.ENOTDIR: "a part of the path is a file: choose another place",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ENOENT: "a part of the path is not there: check it",
}


@contextmanager
def storage_errors(doing: str, path: Path | str) -> Iterator[None]:
    """Turn any `OSError` inside the block into a `StorageError` that names `path` and a way out."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        remedy = STORAGE_REMEDIES.get(error.errno or 0, "see the system's message")
        raise StorageError(f"{path}: {doing} failed: {error.strerror or error}; {remedy}") from error
