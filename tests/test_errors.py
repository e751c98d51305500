"""Messages stay printable, short and free of passwords, whatever the data that they quote."""

from __future__ import annotations

import pickle
import re

import pytest

from niels_gpt.errors import (
    LONGEST_MESSAGE,
    CacheError,
    MessageError,
    NielsError,
    StorageError,
    UsageError,
    did_you_mean,
    shortened,
    shown,
    without_passwords,
)

HUGE = 500_000


@pytest.mark.parametrize("kind", [UsageError, StorageError])
def test_a_huge_value_loses_its_middle(kind: type[NielsError]) -> None:
    """The beginning says what was found and the end what to do; both stay."""
    text = str(kind(f"file.json: name is {'x' * HUGE}; expected a short one. Restore the file"))
    assert len(text) == LONGEST_MESSAGE
    assert text.startswith("file.json: name is xxx")
    assert text.endswith("expected a short one. Restore the file")
    assert "498," in text  # how many characters are left out


@pytest.mark.parametrize("extra", [1, 4, 30, 1000, 10**6])
def test_a_shortened_text_counts_the_characters_that_it_leaves_out(extra: int) -> None:
    text = "".join(chr(0x4E00 + place % 20_000) for place in range(300 + extra))
    short = shortened(text, 300)
    head, said, tail = re.fullmatch(r"(.*) \[\.\.\. ([\d,]+) characters \.\.\.\] (.*)", short).groups()  # type: ignore[union-attr]
    assert len(short) <= 300
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(said.replace(",", "")) == len(text) - len(head) - len(tail)


def test_control_characters_are_spelled_out() -> None:
    """A terminal acts on escape sequences, and a message is one line."""
    assert str(CacheError("a\nb\x1b[2Jc\x9bd\ud800 é")) == "a\\nb\\x1b[2Jc\\x9bd\\ud800 é"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("ftp://me:secret@host/x: refused", "ftp://me:***@host/x: refused"),
        ("ftp://me:se@cret@host/x", "ftp://me:***@host/x"),
        ("s3://:secret@host/x", "s3://:***@host/x"),
        ("https://host/x?v=1&X-Amz-Signature=abc&y=2", "https://host/x?v=1&X-Amz-Signature=***&y=2"),
        ("https://host/x?sig=abc%3D failed", "https://host/x?sig=*** failed"),
        ("s3://bucket/a@b: not there", "s3://bucket/a@b: not there"),
        ("https://host:8080/x", "https://host:8080/x"),
        ("data/ftp:/me:secret@host/x: no such file", "data/ftp:/me:***@host/x: no such file"),
        ("a: b@c", "a: b@c"),
    ],
)
def test_passwords(given: str, told: str) -> None:
    assert without_passwords(given) == told
    assert str(StorageError(given)) == told


def test_errors_travel_between_processes() -> None:
    for error in (MessageError("code", "detail"), StorageError("disk"), UsageError("call")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_values() -> None:
    assert shown("x" * HUGE) == "'" + "x" * 76 + "..."
    assert shown(10**5000) == "an integer too long to show"
    assert shown({"a": "\x1b"}) == "{'a': '\\x1b'}"
    assert did_you_mean("x" * HUGE, ["xx"]) == ""
