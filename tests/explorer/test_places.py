"""The explorer names rows as the doctor does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.doctor import diagnose
from niels_gpt.errors import InputError, UsageError
from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.example_view import view_example
from niels_gpt.explorer.findings import Findings
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.explorer.requests import Browse, Open, Train
from tests.export.sources import Row, episodes


def opened(path: Path) -> tuple[Explorer, Any]:
    renderers = RendererList(())
    dataset = open_dataset(path, renderers)
    return Explorer(renderers, dataset), dataset


def test_token_ids_of_another_program_are_imported_first(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input_ids": [1, 2]}\n')
    with pytest.raises(InputError, match=r"of another program.*with niels-gpt import"):
        opened(path)


def test_findings_open_in_their_split(tmp_path: Path) -> None:
    """The doctor counts through both splits; the page has rows of one split."""

    def placed(path: Path, row: int) -> tuple[str, int]:
        evidence = [{"row": row}, {"row": -1}]
        finding = {"rule": "x", "severity": "error", "title": "x", "evidence": evidence}
        report = Findings.model_validate({"version": 1, "findings": [finding]})
        renderers = RendererList(())
        explorer = Explorer(renderers, open_dataset(path, renderers), report)
        assert explorer.findings is not None
        place = explorer.findings.findings[0].evidence[0]
        assert explorer.rows(Browse(split=place.split, finding=0))["page"]["rows"][0]["row"] == place.row
        other = "val" if place.split == "train" else "train"
        assert explorer.rows(Browse(split=other, finding=0))["page"]["rows"] == []
        explorer.close()
        return place.split, place.row

    train, val = [Row([token, 1], [0, 1]) for token in range(5)], [Row([9, 2], [0, 1])] * 3
    path = episodes(tmp_path / "episodes", train, val)
    assert [placed(path, row) for row in (0, 4, 5, 7)] == [("train", 0), ("train", 4), ("val", 0), ("val", 2)]


def test_empty_episodes_have_the_doctors_numbers(tmp_path: Path) -> None:
    made = [Row([1, 2], [0, 1]), Row([], []), Row([3, 4, 5, 6], [0, 1, 1, 1]), Row([], []), Row([7, 8], [0, 1])]
    path = episodes(tmp_path / "episodes", made)
    found = diagnose(path).finding("empty-row")
    assert found is not None
    explorer, _ = opened(path)
    listed = explorer.rows(Browse())["page"]["rows"]
    assert [row["size"] for row in listed] == [2, 0, 4, 0, 2]
    assert [row["row"] for row in listed if row["problem"]] == [place.row for place in found.evidence] == [1, 3]
    assert [explorer.row(Open(row=row))["table"]["ids"] for row in (0, 2, 4)] == [[1, 2], [3, 4, 5, 6], [7, 8]]
    assert "no tokens" in explorer.row(Open(row=3))["problem"]
    fitted = explorer.training(Train(block_size=8, packed=False, row=2))
    assert [part["episode"] for row in fitted["fitted"]["shown"] for part in row["parts"]] == [0, 2, 4]
    assert fitted["table"]["ids"][:2] == [7, 8]
    explorer.close()
    shown = view_example(path, 4)
    assert shown.ids.tolist() == [7, 8]
    assert "episode 4 of 5" in shown.title
    with pytest.raises(UsageError, match="episode 1 of train has no tokens"):
        view_example(path, 1)
    with pytest.raises(UsageError, match="episodes 0 to 4; no 5"):
        view_example(path, 5)


def test_a_folder_of_several_formats_names_its_rows_alike(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "a \ufffd"}, {"role": "assistant", "content": "b"}]}
    line = json.dumps(chat)
    (tmp_path / "a.jsonl").write_text(f"{line}\n\n{line}\n")
    (tmp_path / "b.json").write_text(f"[{line}, {line}]")
    (tmp_path / "c.json").write_text(f"{line}\n{line}\n")
    found = diagnose(tmp_path).finding("text-damaged")
    assert found is not None
    explorer, rows = opened(tmp_path)
    assert isinstance(rows, ChatRows)
    assert rows.lines.wait(60)
    assert len(found.evidence) > 4
    assert [rows.lines.record(place.row).where for place in found.evidence] == [place.where for place in found.evidence]
    assert rows.lines.record(1).where == f"{tmp_path}/a.jsonl:3"
    explorer.close()
