"""Rules on preferences: found in every row and in one of ten, and never on clean data."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.doctor import diagnose
from tests.doctor.planted_preferences import FAMILIES, PLANTS, made
from tests.preferences.made import built, labelled, pairs, ranked, write_rows
from tests.renderers.tiny_families import renderer_of


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", [rule for rule, _, _ in PLANTS])
def test_found_in_every_row_and_in_one_of_ten(tmp_path: Path, rule: str, family: str) -> None:
    for share, expected in ((1.0, 300), (0.1, 30)):
        report = made(rule, share, family, tmp_path / str(share))
        found = next(finding for finding in report.findings if finding.rule == rule)
        assert found.count == (1 if rule == "length-leakage" else expected)
    clean = made(rule, 0, family, tmp_path / "clean")
    assert clean.rules("warning") == []


def test_the_leak_is_told_in_numbers(tmp_path: Path) -> None:
    rows = [{**row, "chosen": f"{row['chosen']} {row['chosen']}"} for row in pairs(50)]
    found = next(f for f in diagnose(write_rows(tmp_path / "a.jsonl", rows)).findings if f.rule == "length-leakage")
    assert "pairs; chosen sides are" in found.evidence[0].note
    assert "of 50 pairs" in found.evidence[0].note
    shorter = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
    note = next(f for f in diagnose(write_rows(tmp_path / "b.jsonl", shorter)).findings if f.rule == "length-leakage")
    assert "are 0." in note.evidence[0].note


def test_labels_and_ranked_lists(tmp_path: Path) -> None:
    for rows, form in ((labelled(200), "unpaired"), (ranked(200), "ranked")):
        assert diagnose(rows, form=form).rules("warning") == []
    draw = random.Random(0)
    long = [
        {**row, "completion": row["completion"] + " again" * (draw.randint(5, 9) * row["label"])}
        for row in labelled(80)
    ]
    assert diagnose(long, form="unpaired").rules() == ["length-leakage"]
    stored = built(tmp_path, long, val_frac=0)
    assert "length-leakage" in diagnose(stored, renderer=renderer_of("qwen3")).rules()


def test_a_few_pairs_prove_nothing(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "chosen": "b " * 9, "rejected": "c"}, *pairs(5)]
    assert "length-leakage" not in diagnose(rows).rules()


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    rows = [*pairs(4), {"prompt": "a", "chosen": "b"}, {"prompt": "a", "chosen": "b", "rejected": ""}]
    report = diagnose(write_rows(tmp_path / "a.jsonl", rows))
    found = next(finding for finding in report.findings if finding.rule == "unusable-row")
    assert [one.where.rpartition(":")[2] for one in found.evidence] == ["5", "6"]
    assert report.source["kind"] == "preferences"
    assert report.judged == len(PLANTS)
