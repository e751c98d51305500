"""Rows of chat files: found as their reader finds them, filtered, named as the doctor names them."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from niels_gpt.doctor import diagnose
from niels_gpt.errors import InputError, UsageError
from niels_gpt.explorer import dataset as paging
from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.chat_rows import ChatRows, texts_of
from niels_gpt.explorer.dataset import ALL_ROWS, Filter
from niels_gpt.explorer.line_index import LineIndex
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.inputs.opened import open_input
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.records import read_records

RENDERERS = RendererList()
CALL = {"type": "function", "function": {"name": "rain", "arguments": {"city": "Oslo 9"}}}
TOOL = {"type": "function", "function": {"name": "sun", "description": "d", "parameters": {"type": "object"}}}
PAIR = {"prompt": "a?", "chosen": "yes", "rejected": "never", "chosen_score": 0.9, "rejected_score": 0.25}


def opened(path: Path, form: str | None = None) -> ChatRows:
    """What is at a path, once all its rows are found."""
    rows = open_dataset(path, RENDERERS, form)
    assert isinstance(rows, ChatRows)
    assert rows.lines.wait(60)
    return rows


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def chat(text: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "a", **more}]}


# ---- finding rows

LINES = st.lists(
    st.sampled_from(['{"a": 1}', "{}", "", " ", "\t\r", "nonsense", '{"b": "' + "x" * 40 + '"}', ' {"c": 2}', "\x0b"]),
    max_size=30,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=LINES, ends=st.sampled_from(["\n", "\r\n"]), last=st.booleans())
def test_rows_of_lines_are_those_of_the_reader(tmp_path: Path, rows: list[str], ends: str, last: bool) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes((ends.join(['{"first": 0}', *rows]) + (ends if last else "")).encode())
    lines = LineIndex(open_input(path))
    assert lines.wait(60)
    assert [lines.record(row) for row in range(len(lines))] == list(read_records(path))
    lines.close()


def test_files_of_all_kinds_in_a_folder_are_one_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    chats = [chat(f"question {n} é 🙂") for n in range(11)]
    datasets.Dataset.from_list(chats[:3]).save_to_disk(tmp_path / "a")
    (tmp_path / "b.jsonl").write_text("\n\n".join(map(json.dumps, chats[3:5])))
    datasets.Dataset.from_list(chats[5:7]).to_parquet(tmp_path / "c" / "train.parquet")
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, chats[7:9])).encode()))
    (tmp_path / "e.json").write_text(json.dumps(chats[9:]))
    rows = opened(tmp_path)
    assert [rows.lines.record(n).value for n in range(len(rows.lines))] == chats  # type: ignore[union-attr]
    places = [rows.lines.record(n).where.removeprefix(f"{tmp_path}/") for n in (2, 4, 6, 8)]
    assert places == ["a/data-00000-of-00001.arrow row 2", "b.jsonl:3", "c/train.parquet row 1", "d.jsonl.gz:2"]
    assert [row.row for row in rows.page("all", 0, 9, Filter(text="question 4")).rows] == [4]
    rows.close()


def test_a_file_that_breaks_off_says_so(tmp_path: Path) -> None:
    rows = opened(written(tmp_path / "broken.json", ["[", *[json.dumps(chat("a")) + ","] * 200, "{"]))
    assert "not valid JSON" in rows.about("all").problem
    rows.close()


@pytest.mark.parametrize("change", [10, 3000, 4000])
def test_a_file_that_is_rewritten_while_it_is_open_is_refused(tmp_path: Path, change: int) -> None:
    """What is now at the places of its rows must not be shown as them."""
    path = written(tmp_path / "chats.jsonl", [chat(f"question {n}") for n in range(3000)])
    rows = opened(path)
    written(path, [chat(f"something {n}") for n in range(change)])
    os.utime(path, ns=(0, 1))  # later writes may fall into the same tick of the file system's clock
    for ask in (
        lambda: rows.detail("all", 5, RENDERERS.first, []),
        lambda: rows.page("all", 0, 5, ALL_ROWS),
        lambda: rows.sizes("all", [1, 2], RENDERERS.first),
    ):
        with pytest.raises(InputError, match=r"chats\.jsonl: written to since it was opened.*start it again"):
            ask()
    rows.close()


def test_a_file_that_grows_while_it_is_open_is_shown(tmp_path: Path) -> None:
    path = written(tmp_path / "chats.jsonl", [chat(f"question {n}") for n in range(300)])
    rows = opened(path)
    with path.open("a") as file:
        file.write(json.dumps(chat("one more")) + "\n")
    assert rows.detail("all", 299, RENDERERS.first, []).conversation is not None
    rows.close()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("notes.md", "none here", "nothing to read"),
        ("ids.jsonl", '{"input_ids": [1, 2]}\n', "of another program.*with niels-gpt import"),
        (None, "", "no file there ends in .jsonl"),
    ],
)
def test_what_has_no_conversations_is_refused(tmp_path: Path, name: str | None, content: str, words: str) -> None:
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=words):
        open_dataset(tmp_path / name if name == "ids.jsonl" else tmp_path, RENDERERS)


def test_rows_have_the_places_that_the_doctor_names(tmp_path: Path) -> None:
    line = json.dumps(chat("a \ufffd"))
    (tmp_path / "a.jsonl").write_text(f"{line}\n\n{line}\n")
    (tmp_path / "b.json").write_text(f"[{line}, {line}]")
    found = diagnose(tmp_path).finding("text-damaged")
    assert found is not None
    rows = opened(tmp_path)
    assert len(found.evidence) == 4
    assert [rows.lines.record(place.row).where for place in found.evidence] == [place.where for place in found.evidence]
    rows.close()


# ---- filters

ODD: list[Any] = [
    chat("Größe 12"),
    {"messages": [{"role": "user", "content": "rain?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
    chat("x") | {"tools": [TOOL]},
    chat("x", reasoning_content="because 9"),
    {"messages": [{"role": "developer", "content": "dev"}, *chat("a")["messages"], *chat("c")["messages"]]},
    {"messages": [{"role": "wizard", "content": "9 spells"}]},
    chat([{"type": "text", "text": "part 9"}]),
    chat("\ud800 9"),
    chat(None),
    {"messages": []},
    [9],
    "{broken 9\n",
    {"messages": [{"role": "system", "content": "nine"}, *chat('/ \\ " 9\u2028')["messages"]], "tools": []},
]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatRows]:
    """Odd rows between plain ones."""
    plain = [chat(f"question {n}") for n in range(2 * len(ODD))]
    rows = [row for pair in zip(plain, ODD * 2, strict=True) for row in pair]
    found = opened(written(tmp_path_factory.mktemp("search") / "chats.jsonl", rows))
    yield found
    found.close()


def passes(rows: ChatRows, row: int, wanted: Filter) -> bool:
    """Whether a row passes, by its conversation alone."""
    found = rows.conversation(row)
    if isinstance(found, Rejected):
        return wanted.unusable and wanted.matches(found.why)
    texts = [text for message in found.messages for text in texts_of(message)]
    fits = wanted.fits(sum(map(len, texts))) and any(map(wanted.matches, texts))
    return fits and not wanted.unusable


FILTERS = st.builds(
    Filter,
    text=st.sampled_from(["", "9", "QUESTION 1", "größe", "rain", "because", r"\d{2}", "(", "x.y"]),
    unusable=st.booleans(),
    min_size=st.none() | st.integers(0, 40),
    max_size=st.none() | st.integers(0, 40),
)


@settings(max_examples=120)
@given(wanted=FILTERS.filter(lambda wanted: wanted != ALL_ROWS), limit=st.integers(1, 50), time_is_over=st.booleans())
def test_filters_find_what_a_look_at_every_row_finds(
    odd: ChatRows, wanted: Filter, limit: int, time_is_over: bool
) -> None:
    """In pages of any size, also where the time of a request is over after each row."""
    found: list[int] = []
    start: int | None = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging, "SCAN_SECONDS", 0 if time_is_over else 60)
        while start is not None:
            page = odd.page("all", start, limit, wanted)
            found += [line.row for line in page.rows]
            assert page.next is None or page.next > start
            start = page.next
    assert found == [row for row in range(len(odd.lines)) if passes(odd, row, wanted)]


def test_a_file_that_is_still_read_has_more_rows(odd: ChatRows, monkeypatch: pytest.MonkeyPatch) -> None:
    n = len(odd.lines)
    monkeypatch.setattr(LineIndex, "share", 0.5)
    page = odd.page("all", n - 1, 200, ALL_ROWS)
    assert ([line.row for line in page.rows], page.next) == ([n - 1], n)
    again = odd.page("all", n, 200, ALL_ROWS)
    assert (again.rows, again.next) == ([], n)


# ---- preferences


def test_a_pair_shows_both_sides(tmp_path: Path) -> None:
    pairs = [PAIR, {}, {"prompt": "b?", "chosen": "x" * 3000, "rejected": "perhaps"}]
    explorer = Explorer(RENDERERS, opened(written(tmp_path / "pairs.jsonl", pairs)))
    listed = explorer.row(0)["completions"]
    assert [(one["name"], one["facts"], one["text"]) for one in listed] == [
        ("chosen", "score 0.9", "yes"),
        ("rejected", "score 0.25", "never"),
    ]
    for completion, expected in enumerate(["yes", "never"]):
        shown = explorer.row(0, completion=completion)
        assert [message["content"] for message in shown["conversation"]["messages"]] == ["a?", expected]
    with pytest.raises(UsageError, match="completion is 2; the row has completions 0 to 1"):
        explorer.row(0, completion=2)
    long = explorer.row(2)["completions"][0]
    assert (len(long["text"]), long["size"]) == (2000, 3000)

    def found(**wanted: Any) -> list[int]:
        return [row["row"] for row in explorer.rows(wanted=Filter(**wanted))["page"]["rows"]]

    assert found(unusable=True) == [1]
    assert found(text="PERHAPS") == found(min_size=11) == [2]
    assert found(text="yes") == found(text="never") == [0]
    explorer.close()


def test_ranks_and_labels_are_named(tmp_path: Path) -> None:
    ranked = {"prompt": "a?", "completions": [{"answer": "bad", "rank": 3}, {"answer": "good", "rank": 1}]}
    judged = {"prompt": "a?", "completion": "b", "label": False}
    facts = {}
    for form, row in (("ranked", ranked), ("unpaired", judged)):
        explorer = Explorer(RENDERERS, opened(written(tmp_path / f"{form}.jsonl", [row] * 2), form))
        facts[form] = [(one["text"], one["facts"]) for one in explorer.row(1)["completions"]]
        explorer.close()
    assert facts == {"ranked": [("good", "rank 0 (best)"), ("bad", "rank 1")], "unpaired": [("b", "undesirable")]}
