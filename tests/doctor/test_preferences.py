"""Rules on preferences: what a leak says, and what is none; planted datasets are in `planted_preferences.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.doctor import diagnose
from tests.doctor.planted_preferences import PLANTS
from tests.preferences.made import labelled, pairs, ranked, write_rows


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        (labelled(200), "unpaired"),
        (ranked(200), "ranked"),
        ([{"prompt": "a", "chosen": "b " * 9, "rejected": "c"}, *pairs(5)], None),  # a few pairs prove nothing
    ],
)
def test_sound_preferences_of_each_shape_are_quiet(rows: list[dict[str, object]], form: str | None) -> None:
    assert diagnose(rows, form=form).rules("warning") == []


def test_rows_that_are_no_preferences_are_unusable(tmp_path: Path) -> None:
    rows = [*pairs(4), {"prompt": "a", "chosen": "b"}, {"prompt": "a", "chosen": "b", "rejected": ""}]
    report = diagnose(write_rows(tmp_path / "a.jsonl", rows))
    found = report.finding("unusable-row")
    assert found is not None
    assert [one.where.rpartition(":")[2] for one in found.evidence] == ["5", "6"]
    assert (report.source["kind"], report.judged) == ("preferences", len(PLANTS))
