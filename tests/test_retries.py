"""Which errors of a store are repeated, and for how long, whatever library reports them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("s3fs", reason="needs s3fs: pip install -c constraints.txt -e '.[dev]'")
import aiohttp
from botocore.exceptions import ClientError
from s3fs.errors import translate_boto_error

from niels_gpt.store import retries


class Refused(OSError):
    """What a library raises for a status."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers)


def of_aiohttp(status: int, **headers: str) -> Exception:
    request = SimpleNamespace(real_url="https://store/x")
    return aiohttp.ClientResponseError(request, (), status=status, headers=headers)  # type: ignore[arg-type]


def of_s3(status: int, code: str, **headers: str) -> Exception:
    """What s3fs makes of botocore's error."""
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
    return translate_boto_error(ClientError(answer, "GetObject"))  # type: ignore[no-any-return,arg-type]


def missing(cause: Exception | None) -> Exception:
    """What fsspec makes of anything that a web server does to a question for a size."""
    error = FileNotFoundError("https://store/x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "times", "least", "most"),
    [
        (of_aiohttp(429, **{"Retry-After": "20"}), 6, 100, 131),
        (of_aiohttp(404), 1, 0, 0),
        (of_s3(503, "SlowDown", **{"retry-after": "3"}), 6, 15, 46),
        (of_s3(403, "AccessDenied"), 1, 0, 0),
        (missing(of_aiohttp(404)), 1, 0, 0),
        (missing(of_aiohttp(503)), 6, 0, 31),
        (missing(ConnectionRefusedError()), 6, 0, 31),
        (TypeError("a mistake of ours"), 1, 0, 0),
        (Refused(503), 6, 0, 31),
        (Refused(429, **{"Retry-After": "20"}), 6, 100, 131),
        (Refused(429, **{"Retry-After": "601"}), 1, 0, 0),
        (ConnectionResetError("gone"), 6, 0, 31),
        (PermissionError("no"), 1, 0, 0),
    ],
    ids=str,
)
def test_how_long_a_request_is_repeated(
    monkeypatch: pytest.MonkeyPatch, error: Exception, times: int, least: float, most: float
) -> None:
    waits: list[float] = []
    asked: list[int] = []
    monkeypatch.setattr(retries.time, "sleep", waits.append)

    def ask() -> None:
        asked.append(1)
        raise error

    with pytest.raises(type(error)):
        retries.repeated(ask)
    assert len(asked) == times
    assert least <= sum(waits) <= most
    assert len(set(waits)) == len(waits), "workers that failed together do not come back together"
