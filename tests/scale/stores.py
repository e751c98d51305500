"""Remote places for the tests: an S3 server of our own, and a store in memory that fails on request."""

from __future__ import annotations

import errno
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[str]:
    """A moto server on loopback with one bucket; the environment names it to every client. Yields its URL."""
    server_module = pytest.importorskip("moto.server", reason="needs moto: pip install -c constraints.txt -e '.[dev]'")
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs: pip install -c constraints.txt -e '.[dev]'")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # Moto's buckets are the process's: those of another module's server would still be here.
    urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # clients of an earlier server
        fsspec.filesystem("s3").makedirs(BUCKET)
        yield f"s3://{BUCKET}"
    server.stop()


class FaultyStore(MemoryFileSystem):  # type: ignore[misc]
    """A store in memory, `faulty://`, whose listings cannot be used and whose writes go through `fault`.

    What it answers for a file that does not exist is `missing`: a bucket that may not be listed answers 403.
    """

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fault: ClassVar[Callable[[str, bytes], bytes] | None] = None
    missing: ClassVar[type[OSError]] = FileNotFoundError

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace("faulty://", "memory://")))

    def _open(self, path: str, mode: str = "rb", **given: Any) -> Any:
        if mode == "rb":
            self.info(path)  # raises `missing`
        return super()._open(path, mode, **given)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **given: Any) -> None:
        sent = bytearray()
        with Path(lpath).open("rb") as file:
            while chunk := file.read(1 << 12):
                sent += chunk if FaultyStore.fault is None else FaultyStore.fault(self._strip_protocol(rpath), chunk)
        self.pipe_file(rpath, bytes(sent))

    def _never(self, *given: Any, **more: Any) -> Any:
        raise AssertionError("this store's listings lag behind; ask for names")

    ls = find = glob = walk = du = _never

    def info(self, path: str, **given: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path not in self.store:
            raise self.missing(path)
        return {"name": path, "size": self.store[path].size, "type": "file"}


@contextmanager
def faulty_store() -> Iterator[type[FaultyStore]]:
    """The store, empty and without faults."""
    fsspec.register_implementation("faulty", FaultyStore, clobber=True)
    FaultyStore.store.clear()
    FaultyStore.fault, FaultyStore.missing = None, FileNotFoundError
    yield FaultyStore
    FaultyStore.fault, FaultyStore.missing = None, FileNotFoundError


def refuses(error: int, after: int) -> Callable[[str, bytes], bytes]:
    """A fault: `OSError` once so many bytes have been written in all."""
    written = 0

    def write(path: str, data: bytes) -> bytes:
        nonlocal written
        written += len(data)
        if written > after:
            raise OSError(error, errno.errorcode[error])
        return data

    return write
