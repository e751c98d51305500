"""All exceptions of this package, and the helpers that make their messages.

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
        ├── OverlongPromptError     a prompt is longer than its model's context (renderers.client)
        ├── ServerError             an inference server returns no completion (renderers.client)
        ├── EngineError             workers of a build died or hung repeatedly
        ├── CacheError              a dataset on disk is missing, incomplete, of another format, or damaged
        └── StorageError (OSError)  the file system refused

A message states what was found, what was expected and what to do, in that order and on one line. It may quote data from
anywhere, so every message is made printable, hides passwords and has at most `LONGEST_MESSAGE` characters.
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
LONGEST_VALUE: Final = 80  # characters of a quoted value
_LEFT_OUT: Final = " [... {:,} characters ...] "
_LONGEST_NAME = 200  # longer names get no suggestion: comparing two names takes quadratic time
# Control characters, line separators and lone surrogates: they could clear a terminal or break a log into lines.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# The repetitions below are bounded, because unbounded ones take quadratic time on hostile text.
# One slash as well: `Path` makes one of two.
_PASSWORD = re.compile(r"(:/{1,2}[^\s/@:]{0,200}):[^\s/]{0,1000}@")
_SECRET = re.compile(
    r"([?&][^\s=&]{0,40}(?:signature|sig|token|secret|password|credential)[^\s=&]{0,40}=)[^\s&#]{1,4000}", re.IGNORECASE
)


def without_passwords(text: str) -> str:
    """The text with the secrets in URLs hidden: `ftp://me:word@host/x?token=ab` -> `ftp://me:***@host/x?token=***`."""
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text)) if ":/" in text else text


def shortened(text: str, most: int = LONGEST_MESSAGE) -> str:
    """The text on one line, printable, with at most `most` characters.

    A longer text loses its middle: a message begins with what was found and ends with what to do, so both ends matter.
    """
    if len(text) > most:
        room = max(0, most - len(_LEFT_OUT.format(len(text))))  # the final note is never longer than this one
        head = room * 2 // 3
        tail = room - head
        note = _LEFT_OUT.format(len(text) - head - tail)
        text = f"{text[:head]}{note}{text[len(text) - tail :]}"[:most]
    return _CONTROLS.sub(_escaped, text)


def shown(value: object, most: int = LONGEST_VALUE) -> str:
    """A value as messages quote it: the beginning of its `repr`, on one line and printable."""
    try:
        # Of a long string only the beginning is formatted, since it may have gigabytes.
        text = repr(value[: most + 1] if isinstance(value, str | bytes) else value)
    except ValueError:  # an integer with more digits than sys.get_int_max_str_digits() allows
        return "an integer too long to show"
    text = _CONTROLS.sub(_escaped, " ".join(text.split()))
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is most similar to an unknown name; `None` if none is similar."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:  # a caller's value may be of any type
        return None
    # As it is written first: options are in small letters, but names of models are not.
    choices = list(names)
    near = difflib.get_close_matches(name, choices, n=1) or difflib.get_close_matches(name.lower(), choices, n=1)
    return near[0] if near and near[0] != name else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: "; did you mean 'cuda'?", or an empty string."""
    near = nearest(name, names)
    return "" if near is None else f"; did you mean {near!r}?"


class NielsError(Exception):
    """Base of all errors of this package; a command that fails with one exits with its `exit_code`."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """The message, made safe to print: see `shortened` and `without_passwords`."""
        return shortened(without_passwords(super().__str__()))


class UsageError(NielsError, ValueError):
    """An argument, option or path cannot be used."""

    exit_code = 2


class OutputExists(UsageError):
    """The output directory already holds something, or another process is writing it."""


class Mismatch(UsageError):
    """Two things do not belong together, for example a cache and the tokenizer it is opened with."""


class MissingExtra(UsageError, ImportError):
    """A feature needs an optional library, which one of the package's extras installs."""

    def __init__(self, library: str) -> None:
        super().__init__(
            f"this needs {library}, which is not installed: pip install 'niels-gpt[{EXTRA_OF_LIBRARY[library]}]'"
        )
        self.library = library

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str]]:
        """For errors from worker processes: by default, unpickling would call the constructor with the message."""
        return type(self), (self.library,)


class DataError(NielsError, ValueError):
    """The data, not the call, is wrong."""

    exit_code = 3


class MessageError(DataError):
    """A conversation cannot be used.

    Attributes:
        reason: a short code that does not change between versions (`unknown_role`, `no_assistant`, ...); rejected rows
            are counted by it.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type[MessageError], tuple[str, str]]:
        """As for `MissingExtra`."""
        return type(self), (self.reason, str(self))


class InputError(DataError):
    """An input file is missing, empty or not in the expected format."""


class SourceError(DataError):
    """A remote dataset cannot be reached, the connection broke, or it lacks expected columns."""


class TokenizerError(DataError):
    """A tokenizer cannot be trained, loaded or trusted."""


class TemplateError(DataError):
    """A chat template is missing, cannot be read, or misbehaves."""


class EngineError(DataError):
    """Workers of a build died or hung several times on the same unit, or the cluster cannot be reached."""


class CacheError(DataError):
    """A dataset on disk is missing, incomplete, of another format, or damaged."""


class StorageError(DataError, OSError):
    """The file system refused: disk full, file too large, read-only, no permission, I/O error."""


EXTRA_OF_LIBRARY = {"torch": "torch", "datasets": "hub", "huggingface_hub": "hub", "pyarrow": "hub"} | {
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
    "yaml": "yaml",
    "rensa": "dedup",
    "py3langid": "language",
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
    """Turn any `OSError` inside the block into a `StorageError` that names `path` and a remedy.

    Args:
        doing: the operation, such as "reading", for the message.
    """
    try:
        yield
    except StorageError:  # an inner block has named its own path
        raise
    except OSError as error:
        # Errors that libraries raise may have neither number nor `strerror`.
        remedy = STORAGE_REMEDIES.get(error.errno or 0, "see the system's message")
        raise StorageError(f"{path}: {doing} failed: {error.strerror or error}; {remedy}") from error
