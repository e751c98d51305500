"""Filters of chat files: what they find equals a look at every row, whatever is indexed already."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import UsageError
from niels_gpt.explorer import chat_rows, dataset
from niels_gpt.explorer.byte_search import ByteSearch
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.dataset import Filter
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.explorer.row_columns import TRAITS, RowColumns, RowFacts, facts_of, plain_texts, size_of, texts_of
from niels_gpt.messages import Conversation, reasoning_of
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
    found._columns.wait()
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
        calls = [c["function"]["name"] for m in chat.messages for c in m.get("tool_calls", [])]
        names = {*calls, *(tool["function"]["name"] for tool in chat.tools or [])}
        traits = {
            "system": "system" in roles,
            "tools": bool(names),
            "reasoning": any(reasoning_of(m) is not None for m in chat.messages),
            "multi_turn": roles.count("user") > 1,
            "unusable": False,
        }
        passes = (
            all(traits[name] for name in wanted.has)
            and wanted.fits(sum(len(text) for m in chat.messages for text in texts_of(m)))
            and wanted.tool in ("", *names)
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


FILTERS = st.builds(
    Filter,
    text=st.sampled_from(["", "9", "answer-1", "größe", "ok", "rain", "because", r"\d{2}", r"^(answer|x).*", r"o?ok$"]),
    pattern=st.booleans(),
    role=st.sampled_from(["", "", "user", "assistant", "tool", "system", "developer", "wizard"]),
    has=st.sampled_from([(), *((name,) for name in TRAITS)]).map(frozenset),
    min_size=st.none() | st.integers(0, 40),
    max_size=st.none() | st.integers(0, 40),
    tool=st.sampled_from(["", "", "", "rain", "sun", "none"]),
)


ALONE = [
    *(Filter(role=role) for role in ("user", "assistant", "tool", "system", "developer", "wizard")),
    *(Filter(has=frozenset([name])) for name in TRAITS),
    *(Filter(tool=name) for name in ("rain", "sun", "none")),
    *(Filter(min_size=size) for size in (0, 8, 20)),
    *(Filter(max_size=size) for size in (0, 8, 20)),
    *(
        Filter(text=text, pattern=pattern)
        for text in ("9", "answer-1", "größe", "o?ok$", r"\d{2}")
        for pattern in (False, True)
    ),
    Filter(rows=(3, 5, 40)),
]


def check(rows: ChatRows, wanted: Filter, limit: int, known: int, few: int) -> None:
    done, rows._columns.done = rows._columns.done, min(known, len(rows.lines))
    before, chat_rows._FEW_ROWS = chat_rows._FEW_ROWS, few
    try:
        found = paged(rows, wanted, limit)
    finally:
        rows._columns.done, chat_rows._FEW_ROWS = done, before
    if not wanted.empty:
        assert found == looked_at(rows, wanted)


@pytest.mark.parametrize("wanted", ALONE, ids=str)
def test_each_filter_finds_what_a_look_at_every_row_finds(rows: ChatRows, wanted: Filter) -> None:
    """Whether the rows are indexed or not, and whether they are searched in bytes or read one by one."""
    for known, few in ((10**9, 0), (10**9, 2000), (37, 0), (0, 2000)):
        check(rows, wanted, 7, known, few)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(wanted=FILTERS, limit=st.integers(1, 50), known=st.integers(0, 120), few=st.sampled_from([0, 2000]))
def test_filters_together(rows: ChatRows, wanted: Filter, limit: int, known: int, few: int) -> None:
    """The same for several at once."""
    check(rows, wanted, limit, known, few)


def test_plain_rows_are_read_as_conversations_are(rows: ChatRows) -> None:
    plain = 0
    for row, line in enumerate(rows.lines.split(0, len(rows.lines))):
        texts, chat = plain_texts(line), rows.conversation(row)
        if texts is None:
            continue
        plain += 1
        assert isinstance(chat, Conversation)
        assert [(m["role"], *texts_of(m)) for m in chat.messages] == texts
        assert facts_of(chat).size == size_of(chat.messages) == sum(len(text) for _, text in texts)
    assert plain >= 60
    assert rows.about("all").tools == ["rain", "sun"]
    assert rows.about("all").indexed == 1


def lines_of(text: str) -> Iterator[bytes]:
    """The ways in which a row may hold a text: as a content, and in arguments that are an object, or JSON in JSON."""
    for ascii_only in (False, True):
        written = json.dumps(text, ensure_ascii=ascii_only)
        yield written.encode("utf-8", "surrogatepass")
        yield written.replace("/", "\\/").replace("<", "\\u003c").encode("utf-8", "surrogatepass")
        arguments = json.dumps({"a": text}, ensure_ascii=ascii_only)
        yield json.dumps(arguments, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


def found_in(pattern: str, line: bytes) -> bool:
    """Whether a search finds the line, and nothing that lies partly outside of it."""
    at = ByteSearch(pattern).find(memoryview(b"\n\n" + line + b"\n\n"))
    assert at in (-1, 0) or 2 <= at < 2 + len(line)
    return at >= 0


EXAMPLES = [
    (r"Needle-\d+", "a needle-7", "needle-x"),
    (r"foo|(bar) baz", "the BAR BAZ", "foz ba"),
    (r"[0-9]{5}$", "12345", "1234 5"),
    (r"\d{3}", "٣٤٥", "12"),
    (r"https?://\w+\.org", "see HTTP://exämple.org", "http:/example.org"),
    (r'say "é"', 'Say "É"', "say é"),
    (r"a\nb", "x a\nB", "a b"),
    (r"größe|你好", "GRÖßE 你好", "grüße 你"),
    ("[一-鿿]", "你", "abc"),
    ("[ĩ-ı]", "I", "xyz"),
    ("😀+", "😀😀", "smile"),
    (r"C:\\dir", r"c:\DIR", "c:dir"),
    (r"(?<!x)kiss(?=es)", "\u212aIſses", "kist"),
    (r"(a.c)\1", "aXcaxc", "abd"),
    (r"(?i:q)w(?>er)(t++)", "qwert", "qwet"),
    (r"<b>", "<B>", "b"),
]


@pytest.mark.parametrize(("pattern", "text", "other"), EXAMPLES, ids=[pattern for pattern, _, _ in EXAMPLES])
def test_bytes_are_found_where_a_text_matches_and_few_others(pattern: str, text: str, other: str) -> None:
    assert re.search(pattern, text, re.IGNORECASE)
    assert all(found_in(pattern, line) for line in lines_of(text))
    assert not any(found_in(pattern, line) for line in lines_of(other))


PARTS = ["ab", "C d", r"\d", "(e|fg)", "h?", "(ij)+", "[k-m]", "é", "Σ", "n{2,3}", r"\s", r"\W", r"\w+", ".", "[^a]"]
PARTS += [
    '"',
    r"\\",
    "/",
    r"\n",
    "你",
    "😀",
    "[à-ÿ]",
    "(?:o|p)*?",
    "ß",
    ", ",
    "x: ",
    r"[\t,]",
    "(?=.)",
    r"\b",
    "k",
    "[ -~]",
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=5))
def test_every_match_is_found_in_bytes(data: st.DataObject, parts: list[str]) -> None:
    pattern = "".join(parts)
    text = data.draw(st.from_regex(re.compile(pattern, re.IGNORECASE)))
    text = "".join(char for char in text if not "\ud800" <= char <= "\udfff")
    if re.search(pattern, text, re.IGNORECASE):
        assert all(found_in(pattern, line) for line in lines_of(text))


def test_every_letter_is_found_in_each_case() -> None:
    """Letters of all alphabets, also those whose other case is of another alphabet."""
    for char in map(chr, [*range(0x20, 0x250), *range(0x370, 0x530), *range(0x1C80, 0x1C89), 0x1E9E, 0x212A, 0x2126]):
        for case in {char, char.lower(), char.upper(), char.swapcase(), "\u0130", "\u0131", "\u017f", "\u212a", "ß"}:
            if re.fullmatch(re.escape(char), case, re.IGNORECASE):
                assert found_in(re.escape(char), json.dumps(case).encode()), (char, case)


@pytest.mark.parametrize("pattern", ["a*", "x?", "(?:a{900}){900}", "|y", "^$"])
def test_patterns_that_say_nothing_of_bytes_find_every_row(pattern: str) -> None:
    assert all(found_in(pattern, line) for line in (b'"b"', b"[9]"))
    assert ByteSearch(pattern).find(memoryview(b"")) == -1


def test_an_expression_that_tries_too_many_ways_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "MATCH_SECONDS", 0.05)
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a" * 60 + "!"}]}) + "\n")
    found = ChatRows(path, RendererList())
    try:
        while found.lines.share < 1:  # the last row is searched once the file has been read to its end
            time.sleep(0.01)
        with pytest.raises(UsageError, match=r"'\(a\|aa\)\+\$' takes more than 0\.05 s on one text of 61 characters"):
            paged(found, Filter(text="(a|aa)+$", pattern=True), 10)
        assert paged(found, Filter(text="(a|aa)+!", pattern=True), 10) == [0]
    finally:
        found.close()


def test_more_tools_than_bits() -> None:
    """Tools after the 63rd share a bit: their rows are looked at, and none is missed."""
    columns = RowColumns.__new__(RowColumns)
    columns.tools = {}
    entries = [columns._entry(RowFacts(1, {"user"}, {"tools"}, {f"t{n}"})) for n in range(70)]
    assert len(columns.tools) == 63
    assert all(entry[3] == 1 << min(n, 63) for n, entry in enumerate(entries))
    assert np.array(entries[-1][3], np.uint64) == np.uint64(1 << 63)


def test_a_file_that_is_still_read(tmp_path: Path) -> None:
    """The index follows, and what it knows is right as soon as it is known."""
    path = tmp_path / "chats.jsonl.gz"
    lines = [json.dumps(row) for row in ODD * 300 if not isinstance(row, str)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    found = ChatRows(path, RendererList())
    try:
        with found._columns.paused():
            found.lines.wait()
            page, known = found.page("all", 0, 200, Filter(role="tool")), found._columns.done
            assert len(page.rows) < 200
            assert (page.next, page.scanned) == (known, known)
        found._columns.wait()
        assert found._columns.done == len(found.lines)
        assert paged(found, Filter(tool="sun"), 100) == looked_at(found, Filter(tool="sun"))
    finally:
        found.close()


def test_a_python_whose_parser_has_other_names_searches_row_by_row_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    rows = [{"messages": [user(f"question {n}"), answer("a needle" if n in (7, 2800) else "hay")]} for n in range(3000)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code = f"""
import sys
from pathlib import Path
if sys.argv[1] == "without":
    sys.modules["re._casefix"] = None  # importing it raises ImportError
    import re
    del re._casefix
from niels_gpt.explorer import chat_rows, dataset
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.dataset import Filter
from niels_gpt.explorer.renderer_list import RendererList
chat_rows.SCAN_SECONDS = dataset.SCAN_SECONDS = 600  # one page has all, however busy the machine is
rows = ChatRows(Path({str(path)!r}), RendererList(()))
while rows.lines.share < 1:
    pass
print([row.row for row in rows.page("all", 0, 50, Filter(text="NEED.?le", pattern=True)).rows])
print(rows.about("all").facts.get("searched", "as usual"))
rows.close()
"""
    answers = {}
    for how in ("with", "without"):
        made = subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=False)
        assert not made.returncode, made.stderr
        answers[how] = made.stdout.splitlines()
    assert answers["with"] == ["[7, 2800]", "as usual"]
    assert answers["without"][0] == "[7, 2800]"
    assert answers["without"][1].startswith("row by row")
