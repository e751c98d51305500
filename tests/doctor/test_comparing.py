"""Drift on a user's own conversations, beside the built-in probes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import diagnose
from niels_gpt.doctor import examine as pool
from niels_gpt.doctor.layouts.probes import PROBES
from niels_gpt.errors import UsageError
from tests.doctor.made import CHATML, Row, as_rows, assistant, chats, model, rows, samples, template_of, user
from tests.doctor.test_reading import as_jsonl, as_parquet

# Writes as ChatML does, unless a message shouts.
SHOUTS = CHATML.replace("m.content +", "(m.content | lower if 'LOUD' in m.content else m.content) +")


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sides")
    one = model(folder / "one", "qwen2.5", template=template_of("qwen2.5"))
    return one, model(folder / "two", "qwen2.5", template=template_of("qwen2.5", SHOUTS))


def own(n: int = 12, loud: tuple[int, ...] = (3, 7)) -> list[Row]:
    made = chats(n)
    for number in loud:
        made[number][2:] = [user(f"hello LOUD fox {number}"), assistant("the lazy dog")]
    return as_rows(made)


def test_a_difference_that_no_probe_shows_is_found_in_the_conversations(
    sides: tuple[Path, Path], tmp_path: Path
) -> None:
    assert diagnose(*sides).findings == ()
    path = as_jsonl(own(), tmp_path)
    report = diagnose(*sides, chats=path)
    finding = report.finding("template-drift")
    assert finding is not None
    assert report.rules() == ["template-drift"]
    assert (finding.rows, finding.details) == (2, {"conversations": 2, "probes": 0})
    assert report.rows == 12 + len(PROBES)
    assert [(one.row, one.where, one.message) for one in finding.evidence] == [(3, f"{path}:4", 2), (7, f"{path}:8", 2)]
    evidence = finding.evidence[0]
    assert evidence.mark is not None
    assert evidence.window[evidence.mark].text.strip().startswith("L")
    assert (report.source["chats"], report.source["conversations"]) == (str(path), 12)


def test_the_two_agree_on_conversations_without_a_difference(sides: tuple[Path, Path]) -> None:
    report = diagnose(*sides, chats=own(loud=()))
    assert report.findings == ()


def test_what_the_probes_show_is_counted_apart(sides: tuple[Path, Path], tmp_path: Path) -> None:
    loose = template_of("qwen2.5").replace("'\n' + m.content", "'\n\n' + m.content")
    two = model(tmp_path / "two", "qwen2.5", template=loose)
    finding = diagnose(sides[0], two, chats=own()).finding("template-drift")
    assert finding is not None
    assert finding.details["conversations"] == 12
    assert 0 < finding.details["probes"] <= len(PROBES)
    assert finding.rows == sum(finding.details.values())


@pytest.mark.parametrize("form", [as_jsonl, as_parquet])
def test_workers_change_nothing(
    form: Any, sides: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SECONDS_BEFORE_WORKERS", 0.0)
    path = form(own(600, (3, 300, 599)), tmp_path)
    one, two = (json.dumps(diagnose(*sides, chats=path, workers=workers).to_json()) for workers in (1, 2))
    assert one == two
    assert json.loads(one)["findings"][0]["rows"] == 3


def test_a_broken_row_is_a_finding_and_the_others_are_compared(sides: tuple[Path, Path]) -> None:
    given = own()
    given[5] = {"messages": "no"}
    report = diagnose(*sides, chats=given)
    assert sorted(report.rules()) == ["template-drift", "unusable-row"]


def test_conversations_need_two_sides_and_must_be_some(sides: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="also name the second one"):
        diagnose(sides[0], chats=own())
    with pytest.raises(UsageError, match="compared on conversations"):
        diagnose(*sides, chats=rows(samples("qwen2.5")))
