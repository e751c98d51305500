"""Rows of preferences on the page: all completions, which is the best, and what is searched of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import UsageError
from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.explorer.requests import Browse, Open

PAIR = {"prompt": "a?", "chosen": "yes", "rejected": "never", "chosen_score": 0.9, "rejected_score": 0.25}


def opened(path: Path, rows: list[Any], form: str | None = None) -> Explorer:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    renderers = RendererList(())
    dataset = open_dataset(path, renderers, form)
    assert isinstance(dataset, ChatRows)
    assert dataset.lines.wait(60)
    return Explorer(renderers, dataset)


def answers(explorer: Explorer, row: int, completion: int = 0) -> list[str]:
    shown = explorer.row(Open(row=row, completion=completion))
    assert shown["completion"] == completion
    assert shown["table"] is not None
    return [message["content"] for message in shown["conversation"]["messages"]]


def test_a_pair_shows_both_sides(tmp_path: Path) -> None:
    explorer = opened(tmp_path / "pairs.jsonl", [PAIR, {}, {"prompt": "b?", "chosen": "x" * 3000, "rejected": "y"}])
    listed = explorer.row(Open(row=0))["completions"]
    assert [(one["name"], one["facts"], one["text"]) for one in listed] == [
        ("chosen", "score 0.9", "yes"),
        ("rejected", "score 0.25", "never"),
    ]
    assert answers(explorer, 0) == ["a?", "yes"]
    assert answers(explorer, 0, 1) == ["a?", "never"]
    with pytest.raises(UsageError, match="completion is 2; the row has completions 0 to 1"):
        explorer.row(Open(row=0, completion=2))
    long = explorer.row(Open(row=2))["completions"][0]
    assert (len(long["text"]), long["size"]) == (2000, 3000)
    assert explorer.rows(Browse(has=["unusable"]))["page"]["rows"][0]["row"] == 1
    explorer.close()


def test_searches_and_sizes_take_all_completions(tmp_path: Path) -> None:
    explorer = opened(tmp_path / "pairs.jsonl", [PAIR, {"prompt": "b?", "chosen": "no", "rejected": "perhaps"}])

    def found(**wanted: Any) -> list[int]:
        return [row["row"] for row in explorer.rows(Browse(**wanted))["page"]["rows"]]

    assert found(text="PERHAPS") == [1]
    assert found(text="yes") == found(text="never", role="assistant") == [0]
    assert found(min_size=11) == [1]
    assert explorer.rows(Browse())["page"]["rows"][1]["size"] == len("b?noperhaps")
    explorer.close()


def test_ranks_and_labels_are_named(tmp_path: Path) -> None:
    ranked = {"prompt": "a?", "completions": [{"answer": "bad", "rank": 3}, {"answer": "good", "rank": 1}]}
    explorer = opened(tmp_path / "ranked.jsonl", [ranked], "ranked")
    listed = explorer.row(Open(row=0))["completions"]
    assert [one["text"] for one in listed] == ["good", "bad"]
    assert listed[0]["facts"] == "rank 0 (best)"
    assert "best" not in listed[1]["facts"]
    explorer.close()
    explorer = opened(tmp_path / "judged.jsonl", [{"prompt": "a?", "completion": "b", "label": False}] * 2, "unpaired")
    assert explorer.row(Open(row=1))["completions"][0]["facts"] == "undesirable"
    explorer.close()


def test_rows_that_are_no_preferences_have_one_reading(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    explorer = opened(tmp_path / "chats.jsonl", [chat])
    assert explorer.row(Open(row=0))["completions"] == []
    with pytest.raises(UsageError, match="completion"):
        explorer.row(Open(row=0, completion=1))
    explorer.close()
