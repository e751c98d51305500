"""Drift on a user's own conversations, beside the built-in probes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import diagnose
from niels_gpt.doctor import examine as pool
from niels_gpt.doctor.layouts.probes import PROBES
from niels_gpt.errors import UsageError
from tests.doctor.made import CHATML, Row, as_rows, assistant, chats, model, rows, samples, template_of, user
from tests.doctor.test_reading import as_jsonl

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


def test_a_difference_that_no_probe_shows_is_found(sides: tuple[Path, Path], tmp_path: Path) -> None:
    assert diagnose(*sides).findings == ()
    assert diagnose(*sides, chats=own(loud=())).findings == ()
    path = as_jsonl(own(), tmp_path)
    report = diagnose(*sides, chats=path)
    finding = report.finding("template-drift")
    assert finding is not None
    assert report.rules() == ["template-drift"]
    assert (finding.rows, finding.details) == (2, {"conversations": 2, "probes": 0})
    assert (report.rows, report.source["conversations"]) == (12 + len(PROBES), 12)
    assert [(one.row, one.where, one.message) for one in finding.evidence] == [(3, f"{path}:4", 2), (7, f"{path}:8", 2)]
    evidence = finding.evidence[0]
    assert evidence.mark is not None
    assert evidence.window[evidence.mark].text.strip().startswith("L")


def test_what_the_probes_show_is_counted_apart(sides: tuple[Path, Path], tmp_path: Path) -> None:
    loose = template_of("qwen2.5").replace("'\n' + m.content", "'\n\n' + m.content")
    finding = diagnose(sides[0], model(tmp_path / "two", "qwen2.5", template=loose), chats=own()).finding(
        "template-drift"
    )
    assert finding is not None
    assert finding.details["conversations"] == 12
    assert 0 < finding.details["probes"] == finding.rows - 12


def test_workers_and_broken_rows_change_nothing_for_the_others(
    sides: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SECONDS_BEFORE_WORKERS", 0.0)
    given = own(600, (3, 300, 599))
    given[5] = {"messages": "no"}
    path = as_jsonl(given, tmp_path)
    one, two = (diagnose(*sides, chats=path, workers=workers) for workers in (1, 2))
    assert json.dumps(one.to_json()) == json.dumps(two.to_json())
    assert {finding.rule: finding.rows for finding in one.findings} == {"template-drift": 3, "unusable-row": 1}


def test_conversations_need_two_sides_and_must_be_some(sides: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="also name the second one"):
        diagnose(sides[0], chats=own())
    with pytest.raises(UsageError, match="compared on conversations"):
        diagnose(*sides, chats=rows(samples("qwen2.5")))
