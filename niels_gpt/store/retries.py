"""Repeats failed requests to a store: which errors, how often, and after how long a wait.

How long one request may take is a matter of the store's library, each of which has a limit of its own.
"""

from __future__ import annotations

import errno
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, Final, TypeVar

from niels_gpt.errors import NielsError, shortened, without_passwords

ATTEMPTS: Final = 6  # of one request, each with the retries of the store's own library
FIRST_WAIT: Final = 1.0  # seconds, doubled after each failure; the actual wait is a random share of it
LONGEST_WAIT: Final = 60.0
LONGEST_RETRY_AFTER: Final = 600.0  # seconds; if a store's Retry-After is longer, the error is raised at once

T = TypeVar("T")

_PASSING_STATUS: Final = (408, 429, 500, 502, 503, 504)  # of a busy or restarting server; other refusals are answers
_REFUSING_STATUS: Final = (401, 403)
# Of this machine's file system: a path that leads in circles, to a socket, or is too long.
_FINAL: Final = (errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)
_log = logging.getLogger("niels_gpt.store")


def repeated(call: Callable[[], T], after_failure: Callable[[], None] = lambda: None, *, name: str = "") -> T:
    """The result of a request to a store; a failed one is repeated after a random, growing wait.

    The stores' own libraries repeat some requests for a few seconds; this is for longer disturbances. The waits are
    random so that workers that failed together do not all return at the same moment. A `Retry-After` is respected.

    Args:
        call: makes the request.
        after_failure: called after each failure, before the next attempt.
        name: of the file, for a line in the log about each failure; with an empty name nothing is logged.

    Raises:
        Exception: the error of the store's library, at the last attempt or at once if the same request cannot succeed
            later.
    """
    wait = FIRST_WAIT
    for attempt in count(1):
        try:
            return call()
        except Exception as error:  # each file system raises errors of its own library
            after_failure()  # before the wait, so that a connection that failed is not held open meanwhile
            after = _retry_after(error)
            if attempt >= ATTEMPTS or not may_pass(error) or after > LONGEST_RETRY_AFTER:
                raise
            if name:
                _log.warning("[Store] %s: %s; trying again", without_passwords(name), in_short(error))
        time.sleep(after + wait * random.random())
        wait = min(2 * wait, LONGEST_WAIT)
    raise AssertionError("unreachable")


def is_missing(error: BaseException | None) -> bool:
    """Whether the store answered that it has no such file.

    fsspec also raises FileNotFoundError if a web server does not answer or answers with another error; the status, or
    the error's cause, distinguishes these.
    """
    if not isinstance(error, FileNotFoundError):
        return False
    status = _status(error)
    return status in (404, 410) if status is not None else isinstance(error.__cause__, FileNotFoundError | None)


def is_refusal(error: BaseException) -> bool:
    """Whether the store answered that the file may not be read, or one of those errors that caused this one says so."""
    one: BaseException | None = error  # s3fs turns a 403 into a PermissionError, which we then wrap
    while one is not None:
        if isinstance(one, PermissionError):
            return True
        one = one.__cause__
    return _status(error) in _REFUSING_STATUS


def in_short(error: BaseException) -> str:
    """The message of an error, on one line of at most 300 characters, without passwords, and the store's status."""
    text = shortened(without_passwords(" ".join(str(error).split())) or type(error).__name__, 300)
    status = _status(error)
    # fsspec's error of a web server is the address alone, which may have the same digits in its path or port.
    is_shown = status is None or re.search(rf"(?<![\w/:.-]){status}(?!\w)", text)
    return text if is_shown else f"{text} (status {status})"


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    status = _status(error)
    if status is not None:
        return status in _PASSING_STATUS
    if isinstance(error, FileNotFoundError):
        return not is_missing(error)
    if isinstance(error, OSError) and error.errno in _FINAL:
        return False
    # Permissions and wrong kinds of paths do not change by waiting. The others are mistakes in a program, not of a
    # network.
    final = NielsError | PermissionError | IsADirectoryError | NotADirectoryError | ValueError | TypeError
    return not isinstance(error, final | AttributeError | NotImplementedError)


def _status(error: BaseException) -> int | None:
    """The HTTP status of the store's answer; `None` if there was no answer."""
    return next((status for status, _ in _answers(error) if status is not None), None)


def _retry_after(error: BaseException) -> float:
    """The seconds that a store names in `Retry-After`; 0 if it names none."""
    for _, headers in _answers(error):
        for name, value in headers.items():
            if str(name).lower() == "retry-after":
                try:
                    return max(0.0, float(value))
                except (TypeError, ValueError):  # a date, which would be compared with the clock of another machine
                    return 0.0
    return 0.0


def _answers(error: BaseException) -> Iterator[tuple[int | None, Mapping[Any, Any]]]:
    """`(status, headers)` of an error and of those that caused it, as the different libraries store them."""
    one: BaseException | None = error
    while one is not None:
        response = getattr(one, "response", None)
        if isinstance(response, Mapping):  # botocore's
            about = response.get("ResponseMetadata") or {}
            yield _number(about.get("HTTPStatusCode")), about.get("HTTPHeaders") or {}
        elif response is not None:  # that of requests and httpx
            yield _number(getattr(response, "status_code", None)), getattr(response, "headers", None) or {}
        else:  # aiohttp's
            yield _number(getattr(one, "status", None)), getattr(one, "headers", None) or {}
        one = one.__cause__


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
