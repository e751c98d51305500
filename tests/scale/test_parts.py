"""An upload to S3 that was cut off in the middle of a file goes on with the parts that are missing, and no others."""

from __future__ import annotations

import subprocess
import sys
import uuid
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import DataError, StorageError
from niels_gpt.scale import uploads as parts
from niels_gpt.scale.fetch import fetch
from niels_gpt.scale.publish import publish
from niels_gpt.scale.uploads import MAX_PARTS, agrees, part_size
from niels_gpt.storage.remote import file_system
from tests.conftest import REPOSITORY
from tests.scale.stores import BUCKET
from tests.scale.test_engine import Notes
from tests.scale.test_publish import DYING
from tests.test_cache_determinism import digests

CUT_OFF = ConnectionResetError(104, "Connection reset by peer")
PART = 5 << 20  # the least that S3 takes; train/tokens.bin, of 16 000 000 bytes, has four


@pytest.fixture
def place(s3: str) -> str:
    """A new directory at the server."""
    return f"{s3}/{uuid.uuid4().hex}"


class Calls:
    """What was asked of S3; the `nth` call named `fails` raises `error` instead."""

    def __init__(self, ask: Callable[..., Any], fails: str, nth: int, error: Exception) -> None:
        self._ask, self._fails, self._nth, self._error = ask, fails, nth, error
        self.count: Counter[str] = Counter()
        self.parts: list[int] = []  # the numbers of those that were sent

    def answer(self, fs: Any, method: str, *more: Any, **given: Any) -> Any:
        self.count[method] += 1
        if method == self._fails and self.count[method] == self._nth:
            raise self._error
        if method == "upload_part":
            self.parts.append(given["PartNumber"])
        return self._ask(fs, method, *more, **given)


Listen = Callable[..., Calls]


@pytest.fixture
def listen(s3: str, monkeypatch: pytest.MonkeyPatch) -> Listen:
    """Records what is asked of S3 from the moment at which it is called."""
    import s3fs

    del s3
    ask = s3fs.S3FileSystem.call_s3

    def begin(fails: str = "", nth: int = 1, error: Exception = CUT_OFF) -> Calls:
        calls = Calls(ask, fails, nth, error)
        monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", lambda fs, *given, **more: calls.answer(fs, *given, **more))
        return calls

    return begin


def open_uploads(place: str) -> list[Any]:
    """All unfinished uploads below a directory."""
    fs, root = file_system(place)
    found = fs.call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads", [])
    return [each for each in found if f"{BUCKET}/{each['Key']}".startswith(root)]


def begin(place: str, data: list[bytes], name: str = "train/tokens.bin") -> str:
    """An upload of somebody else that was cut off after these parts."""
    fs, root = file_system(place)
    where = {"Bucket": BUCKET, "Key": f"{root.partition('/')[2]}/{name}"}
    upload = str(fs.call_s3("create_multipart_upload", **where)["UploadId"])
    for number, part in enumerate(data, start=1):
        fs.call_s3("upload_part", **where, UploadId=upload, PartNumber=number, Body=part)
    return upload


def check(place: str, folder: Path, tmp_path: Path) -> None:
    """All is there, as it was, and nothing that costs money stays."""
    assert digests(fetch(place, tmp_path / "fetched")) == digests(folder)
    assert open_uploads(place) == []


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_killed_upload_sends_only_the_rest(
    place: str, tmp_path: Path, large: Path, listen: Listen, after: int
) -> None:
    """SIGKILL when so many parts have arrived."""
    arguments = [sys.executable, "-c", DYING, str(large), place, str(after * PART - 1)]
    died = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert died.returncode == -9, died.stderr
    assert len(open_uploads(place)) == 1
    calls, progress = listen(), Notes()
    done = publish(large, place, part_bytes=PART, progress=progress)
    assert calls.parts == list(range(after + 1, 5))
    assert done.resumed_bytes == after * PART
    assert done.uploaded_bytes + done.resumed_bytes == sum(path.stat().st_size for path in large.rglob("*.*"))
    assert any(f"continues; {after * PART:,} bytes in {after} parts arrived before" in note for note in progress.notes)
    check(place, large, tmp_path)


@pytest.mark.parametrize(("fails", "nth"), [("upload_part", 2), ("complete_multipart_upload", 1), ("list_parts", 1)])
def test_a_network_that_breaks_off(
    place: str, tmp_path: Path, large: Path, listen: Listen, fails: str, nth: int
) -> None:
    """Twice: what had arrived by then is still there the second time."""
    begin(place, [(large / "train" / "tokens.bin").read_bytes()[:PART]])
    for _ in range(2):
        listen(fails, nth)
        with pytest.raises(StorageError, match=r"writing failed: .*Connection reset.*continues with what is missing"):
            publish(large, place, part_bytes=PART)
        assert len(open_uploads(place)) == 1
    made = listen()
    done = publish(large, place, part_bytes=PART)
    there = {"upload_part": 3, "complete_multipart_upload": 4, "list_parts": 1}[fails]
    assert made.parts == list(range(there + 1, 5))
    assert done.resumed_bytes == min(there * PART, 16_000_000)
    check(place, large, tmp_path)


def test_parts_that_are_not_ours_are_sent_again(place: str, tmp_path: Path, large: Path, listen: Listen) -> None:
    """Damaged, of another length, and one too many; another upload to the same name goes, one to another name stays."""
    data = (large / "train" / "tokens.bin").read_bytes()
    flipped = bytes([data[PART] ^ 1]) + data[PART + 1 : 2 * PART]
    begin(place, [data[:PART], flipped, data[2 * PART : 3 * PART], data[3 * PART :], b"x" * PART])
    begin(place, [data[: PART + 1]])
    begin(place, [data[:PART]], name="train/mask.bin")
    neighbour = begin(place, [data[:PART]], name="train/tokens.bin.of.another")
    calls = listen()
    done = publish(large, place, part_bytes=PART)
    assert calls.parts == [2]
    assert done.resumed_bytes == 16_000_000 - PART
    assert [each["UploadId"] for each in open_uploads(place)] == [neighbour]
    assert digests(fetch(place, tmp_path / "fetched")) == digests(large)


def test_another_size_of_parts_begins_anew(place: str, tmp_path: Path, large: Path, listen: Listen) -> None:
    begin(place, [(large / "train" / "tokens.bin").read_bytes()[:PART]])
    calls = listen()
    assert publish(large, place, part_bytes=6 << 20).resumed_bytes == 0
    assert calls.parts == [1, 2, 3]
    check(place, large, tmp_path)


def test_many_parts_are_listed_in_several_answers(
    place: str, tmp_path: Path, large: Path, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LISTED", 2)
    data = (large / "train" / "tokens.bin").read_bytes()
    begin(place, [data[at : at + PART] for at in range(0, 3 * PART, PART)])
    calls = listen()
    publish(large, place, part_bytes=PART)
    assert calls.count["list_parts"] == 2
    assert calls.parts == [4]
    check(place, large, tmp_path)


@pytest.mark.parametrize("error", [PermissionError("Access Denied"), OSError(38, "NotImplemented")])
def test_a_store_that_does_not_list_uploads(
    place: str, tmp_path: Path, large: Path, listen: Listen, error: OSError
) -> None:
    """Said once; the file is sent as a whole."""
    made = listen("list_multipart_uploads", 1, error)
    progress = Notes()
    publish(large, place, part_bytes=PART, progress=progress)
    assert sum("does not list unfinished uploads" in note for note in progress.notes) == 1
    assert made.count["list_multipart_uploads"] == 1
    assert made.parts == [1, 2, 3, 4]
    check(place, large, tmp_path)


@pytest.mark.parametrize("stale", [1, 2])
def test_a_listing_that_lags_behind(
    place: str, tmp_path: Path, large: Path, monkeypatch: pytest.MonkeyPatch, stale: int
) -> None:
    """It names uploads that were thrown away meanwhile, one before their parts are asked for, one after."""
    import s3fs

    data, ask = (large / "train" / "tokens.bin").read_bytes(), s3fs.S3FileSystem.call_s3
    gone = [begin(place, [data[:PART]]) for _ in range(2)][:stale]
    begin(place, [data[:PART], data[PART : 2 * PART]])  # the one to go on with
    fs, root = file_system(place)
    listed = fs.call_s3("list_multipart_uploads", Bucket=BUCKET)
    aborted = []

    def abort(upload: str) -> None:
        key = f"{root.partition('/')[2]}/train/tokens.bin"
        ask(fs, "abort_multipart_upload", Bucket=BUCKET, Key=key, UploadId=upload)
        aborted.append(upload)

    def lagging(fs: Any, method: str, *more: Any, **given: Any) -> Any:
        if method == "list_multipart_uploads":
            return listed
        if method == "upload_part" and len(gone) > len(aborted):
            abort(gone[-1])
        return ask(fs, method, *more, **given)

    abort(gone[0])
    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", lagging)
    done = publish(large, place, part_bytes=PART)
    monkeypatch.undo()
    assert aborted == gone
    assert done.resumed_bytes == 2 * PART
    check(place, large, tmp_path)


def test_a_damaged_file_throws_its_upload_away(place: str, tmp_path: Path, large: Path) -> None:
    import shutil

    copy = shutil.copytree(large, tmp_path / "copy")
    data = bytearray((copy / "train" / "tokens.bin").read_bytes())
    data[-1] ^= 1
    (copy / "train" / "tokens.bin").write_bytes(data)
    with pytest.raises(DataError, match=r"tokens.bin: differs from what was written"):
        publish(copy, place, part_bytes=PART)
    assert open_uploads(place) == []
    fs, root = file_system(place)
    assert not fs.exists(f"{root}/train/tokens.bin")


def test_what_the_store_lists_is_compared_by_the_checksum_it_has() -> None:
    """CRC32 where it is listed (the ETag is then perhaps no MD5), else the MD5 in the ETag."""
    data = b"123456789"
    crc = b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    assert crc == "y/Q5Jg=="  # of these nine digits: a known value
    assert agrees({"Size": 9, "ETag": '"of a key service"', "ChecksumCRC32": crc}, data)
    assert agrees({"Size": 9, "ETag": f'"{md5(data).hexdigest()}"'}, data)
    assert not agrees({"Size": 9, "ETag": '"of a key service"'}, data)
    assert not agrees({"Size": 9, "ETag": f'"{md5(data).hexdigest()}"', "ChecksumCRC32": crc}, b"123456780")
    assert not agrees({"Size": 8, "ETag": f'"{md5(data).hexdigest()}"'}, data)


def test_a_very_large_file_has_larger_parts() -> None:
    assert part_size(10, 64) == 64
    assert part_size(64 * MAX_PARTS, 64) == 64
    assert part_size(64 * MAX_PARTS + 1, 64) == 65
    assert -(-(5 << 40) // part_size(5 << 40, 64 << 20)) <= MAX_PARTS  # the largest object of S3
