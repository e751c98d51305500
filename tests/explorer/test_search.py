"""Filters of chat files: what they find equals a look at every row, in pages of any size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.explorer import dataset
from niels_gpt.explorer.chat_rows import ChatRows, texts_of
from niels_gpt.explorer.dataset import Filter
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.messages import reasoning_of
from niels_gpt.sources.files.inputs import Rejected

CALL = {"type": "function", "function": {"name": "rain", "arguments": {"city": "Oslo 9"}}}
TOOL = {"type": "function", "function": {"name": "sun", "description": "d", "parameters": {"type": "object"}}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


ODD: list[Any] = [
    {"messages": [user("Größe 12"), answer("GRÖSSE\n13")]},
    {"messages": [user("rain?"), answer("", tool_calls=[CALL]), {"role": "tool", "content": "no 9", "name": "rain"}]},
    {"messages": [user("x"), answer("y")], "tools": [TOOL]},
    {"messages": [user("x"), answer("y 9", reasoning_content="because 9")], "id": 7},
    {"messages": [{"role": "developer", "content": "dev"}, user("a"), answer("b"), user("c")]},
    {"messages": [{"role": "wizard", "content": "9 spells"}]},
    {"messages": [user([{"type": "text", "text": "part 9"}])]},
    {"messages": [user("\ud800 9")]},
    {"messages": [user(None)]},
    {"messages": []},
    {"text": "9"},
    [9],
    "{broken 9",
    '{"messages": [{"role": "user", "content": "x", "content": "y 9"}, {"role": "assistant", "content": "z"}]}',
    {"messages": [{"role": "system", "content": "nine"}, user('/ \\ " 9\u2028'), answer("\t9")], "tools": []},
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatRows]:
    """Odd rows between plain ones."""
    path = tmp_path_factory.mktemp("search") / "chats.jsonl"
    plain = [{"messages": [user(f"question {n}"), answer(f"Answer-{n * 7} ok")]} for n in range(60)]
    all_rows = [row for pair in zip(plain, ODD * 5, strict=False) for row in pair]
    spelled = (json.dumps(row, ensure_ascii=n % 2 == 0) for n, row in enumerate(all_rows))
    lines = [row if isinstance(row, str) else text for row, text in zip(all_rows, spelled, strict=True)]
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    found = ChatRows(path, RendererList())
    found.lines.wait()
    yield found
    found.close()


def looked_at(rows: ChatRows, wanted: Filter) -> list[int]:
    """The rows that pass, by their conversations alone."""
    found = []
    for row in range(len(rows.lines)):
        chat = rows.conversation(row)
        if isinstance(chat, Rejected):
            if wanted.has == {"unusable"} and wanted.matches(chat.why) and wanted.rows is None:
                found.append(row)
            continue
        roles = [m["role"] for m in chat.messages]
        traits = {
            "system": "system" in roles,
            "tools": bool(chat.tools) or any(m.get("tool_calls") for m in chat.messages),
            "reasoning": any(reasoning_of(m) is not None for m in chat.messages),
            "multi_turn": roles.count("user") > 1,
            "unusable": False,
        }
        passes = (
            all(traits[name] for name in wanted.has)
            and wanted.fits(sum(len(text) for m in chat.messages for text in texts_of(m)))
            and any(wanted.matches(t) for m in chat.messages if wanted.role in ("", m["role"]) for t in texts_of(m))
        )
        if passes and (wanted.rows is None or row in wanted.rows):
            found.append(row)
    return found


def paged(rows: ChatRows, wanted: Filter, limit: int) -> list[int]:
    found: list[int] = []
    start: int | None = 0
    while start is not None:
        page = rows.page("all", start, limit, wanted)
        found += [line.row for line in page.rows]
        assert page.next is None or page.next > start
        start = page.next
    return found


TRAITS = ("system", "tools", "reasoning", "multi_turn", "unusable")
FILTERS = st.builds(
    Filter,
    text=st.sampled_from(["", "9", "answer-1", "größe", "ok", "rain", "because", r"\d{2}", "(", "x.y"]),
    role=st.sampled_from(["", "", "user", "assistant", "tool", "system", "developer", "wizard"]),
    has=st.sampled_from([(), *((name,) for name in TRAITS)]).map(frozenset),
    min_size=st.none() | st.integers(0, 40),
    max_size=st.none() | st.integers(0, 40),
)


ALONE = [
    *(Filter(role=role) for role in ("user", "assistant", "tool", "system", "developer", "wizard")),
    *(Filter(has=frozenset([name])) for name in TRAITS),
    *(Filter(min_size=size) for size in (0, 8, 20)),
    *(Filter(max_size=size) for size in (0, 8, 20)),
    *(Filter(text=text) for text in ("9", "answer-1", "größe", r"\d{2}", "(")),
    Filter(rows=(3, 5, 40)),
]


@pytest.mark.parametrize("wanted", ALONE, ids=str)
def test_each_filter_finds_what_a_look_at_every_row_finds(rows: ChatRows, wanted: Filter) -> None:
    assert paged(rows, wanted, 7) == looked_at(rows, wanted)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    wanted=FILTERS.filter(lambda wanted: not wanted.empty), limit=st.integers(1, 50), seconds=st.sampled_from([0, 9])
)
def test_filters_together(rows: ChatRows, wanted: Filter, limit: int, seconds: float) -> None:
    """Several at once, also where the time of a request is over after each row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "SCAN_SECONDS", seconds)
        assert paged(rows, wanted, limit) == looked_at(rows, wanted)


def test_a_file_that_is_still_read(rows: ChatRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks again from where the rows so far end; the last of them may not be complete."""
    wanted, n = Filter(text="9"), len(rows.lines)
    monkeypatch.setattr(type(rows.lines), "share", 0.5)
    page = rows.page("all", 0, 200, wanted)
    assert [line.row for line in page.rows] == [row for row in looked_at(rows, wanted) if row < n - 1]
    assert (page.next, page.scanned) == (n - 1, n - 1)
    again = rows.page("all", n - 1, 200, wanted)
    assert (again.rows, again.next) == ([], n - 1)
    monkeypatch.undo()
    assert rows.page("all", n - 1, 200, wanted).next is None
