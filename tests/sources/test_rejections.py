"""Unusable rows: limits by number and share, one pass that reports every reason, and what a build says afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.errors import UsageError
from niels_gpt.sources import rejections
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import BadRowLimit, Rejections, TooManyBadRows
from tests.conftest import run_cli


def bad(number: int, reason: str = "empty_message", *, expected: bool = False) -> Rejected:
    where = f"chats.jsonl:{number}"
    return Rejected(where, reason, f"{where}: it is {reason}", expected)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 1000))
def test_a_share_is_compared_exactly(bad_rows: int, usable: int, thousandths: int) -> None:
    limit = BadRowLimit.of(f"{thousandths / 10}%")
    rows = bad_rows + usable
    assert limit.allows(bad_rows, rows) == (bad_rows * 1000 <= thousandths * rows)
    assert BadRowLimit.of("all").allows(bad_rows, rows)
    assert BadRowLimit.of(str(usable)) == BadRowLimit.of(usable)
    assert BadRowLimit.of(usable).allows(bad_rows, rows) == (bad_rows <= usable)


@pytest.mark.parametrize("value", [-1, 1.5, True, None, "", "-1", "5 percent", "%", "101%", "5%%", "1e2", "9" * 50])
def test_what_is_no_limit_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"--max-bad-rows is .*; expected"):
        BadRowLimit.of(value, "--max-bad-rows")


def stream(found: Rejections, *parts: int | Rejected) -> Generator[int]:
    """Chunks of so many usable rows, with rejected rows between them."""
    for part in parts:
        if isinstance(part, Rejected):
            found.record([part])
        else:
            yield part


def test_one_pass_reports_every_reason_with_its_count_and_three_examples(tmp_path: Path) -> None:
    found = Rejections(tmp_path, 1)
    rows = [3, bad(4), bad(5, "unknown_role"), 2, *map(bad, range(8, 12)), bad(12, "deleted", expected=True), 5]
    chunks = found.within_limit(stream(found, *rows), int)
    assert next(chunks) == 3
    with pytest.raises(TooManyBadRows) as raised:
        list(chunks)  # nothing is given out after the second unusable row
    assert str(raised.value).splitlines() == [
        "chats.jsonl:4: it is empty_message. Unusable: 6 of all 16 rows; allowed: 1",
        "  empty_message, 5 rows",
        *(f"    chats.jsonl:{line}: it is empty_message" for line in (4, 8, 9)),
        "  unknown_role, 1 row; --roles THEIRS=ROLE",
        "    chats.jsonl:5: it is unknown_role",
        "  To leave such rows out and list them in rejected.jsonl: --max-bad-rows 6 (max_bad_rows=6), or a share such "
        "as 5%, or all",
    ]
    found.abandon()


def test_reading_on_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejections, "READ_ON_ROWS", 10)
    for more in ([4] * 1000, [bad(n) for n in range(1000)]):
        found = Rejections(tmp_path, 0)
        parts = iter(more)
        with pytest.raises(TooManyBadRows) as raised:
            list(found.within_limit(stream(found, 1, bad(2), *parts), int))
        assert re.search(r"of the first 1[0-4] rows", str(raised.value))


def test_a_share_is_judged_at_the_end(tmp_path: Path) -> None:
    for limit, passes in (("25%", True), ("24.9%", False), ("all", True)):
        folder = tmp_path / limit
        folder.mkdir()
        found = Rejections(folder, limit)
        chunks = found.within_limit(stream(found, bad(1), 2, bad(4, "deleted", expected=True), 1), int)
        if passes:
            assert list(chunks) == [2, 1]
            found.close()
            lines = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
            assert [(line["reason"], line.get("expected", False)) for line in lines] == [
                ("empty_message", False),
                ("deleted", True),
            ]
        else:
            with pytest.raises(TooManyBadRows, match=r"Unusable: 1 of all 4 rows; allowed: 24\.9%"):
                list(chunks)
            found.abandon()


def test_messages_of_hostile_rows_stay_short_and_printable(tmp_path: Path) -> None:
    found = Rejections(tmp_path, 0)
    rows = [Rejected(f"a.jsonl:{n}", f"reason_{n}", f"a.jsonl:{n}: \x1b[2J\n{'x' * 100_000}") for n in range(40)]
    with pytest.raises(TooManyBadRows) as raised:
        list(found.within_limit(stream(found, *rows), int))
    lines = str(raised.value).splitlines()
    assert max(map(len, lines)) < 500
    assert "\x1b" not in str(raised.value)
    assert "  and 28 other reasons" in lines


@pytest.mark.parametrize("workers", [None, 2])
def test_a_build_that_left_out_more_than_five_percent_says_so_last(
    tmp_path: Path, tokenizer_dir: Path, workers: int | None
) -> None:
    good = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    for bad_rows in (1, 2):
        rows = [good] * (20 - bad_rows) + [{"messages": []}] * bad_rows
        (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = ("--max-bad-rows", "10%", "--overwrite", *(("--workers", workers) if workers else ()))
        line = ("build", "chats.jsonl", "--tokenizer", tokenizer_dir, "--out", "out", *options)
        done = run_cli(*line, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        last = done.stdout.splitlines()[-1]
        said = "out: 2 of 20 rows (10.0%) were unusable and are not in it; rejected.jsonl lists them"
        assert (last == said) == (bad_rows == 2)
        as_json = json.loads(run_cli(*line, "--json", cwd=tmp_path).stdout)
        assert as_json["bad_rows"] == {"left_out": bad_rows, "of": 20}
    refused = run_cli(*line, "--max-bad-rows", "9%", cwd=tmp_path)
    assert refused.returncode == 3
    assert "no_messages, 2 rows" in refused.stderr
