"""The known data sets, on rows made for the test: what becomes of a row, before any network is involved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.messages import Conversation
from niels_gpt.sources import text_files as text_module
from niels_gpt.sources.files.inputs import Document, Rejected
from niels_gpt.sources.hub_corpora import Dolly, articles, text_of
from niels_gpt.sources.oasst1 import threads
from niels_gpt.sources.text_files import clean, roam_notes, text_files

# --- texts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "text"),
    [({"id": "x", "text": "t"}, "t"), ({"n": 1, "TEXT": "t", "other": "u"}, "t"), ({"text": ""}, "")],
)
def test_the_field_rule_text_else_the_first_string(row: dict[str, Any], text: str) -> None:
    assert text_of(row, "r") == Document("r", text)


@pytest.mark.parametrize(("row", "says"), [({"n": 1, "k": None}, "keys found: 'n', 'k'"), ({"text": 5}, "is a int")])
def test_rows_without_text_list_their_keys(row: dict[str, Any], says: str) -> None:
    found = text_of(row, "repo row 7")
    assert isinstance(found, Rejected)
    assert found.detail.startswith("repo row 7: ")
    assert says in found.detail


def test_articles_are_put_together_without_changing_a_character() -> None:
    lines = ["", " = One = \n", "", " text of one \n", " = = Part = = \n", " more \n", "", " = Two = \n", "", " end \n"]
    found = list(articles((Document(f"row {n}", line) for n, line in enumerate(lines)), "val"))
    assert [article.text for article in found] == ["".join(lines[:7]), "".join(lines[7:])]
    assert [article.where for article in found] == ["row 0", "row 7"]
    assert {article.split for article in found} == {"val"}


@pytest.mark.parametrize(
    ("note", "text"),
    [
        ("---\ntitle: x\ntags: [a]\n---\n# T\nbody", "# T\nbody"),
        ("---\r\nt: x\r\n---\r\nbody", "body"),
        ("no front\n---\nrule\n---\n", "no front\n---\nrule\n---\n"),
        ("a [[note]] and [[page|shown]] ![[image.png]]", "a note and shown image.png"),
        ('a [page](https://example.org/x_(y)) and ![alt](i.png "t") end', "a page and alt end"),
        ("- [ ] task, f(x)[0] and [brackets] stay", "- [ ] task, f(x)[0] and [brackets] stay"),
        ("---\nonly front matter\n---", ""),
    ],
)
def test_notes_lose_front_matter_and_links_become_text(note: str, text: str) -> None:
    assert clean(note) == text


def test_roam_reads_a_folder_in_a_fixed_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, data in (("b/two.md", b"[[2]]"), ("one.md", b"1"), ("bad.md", b"\xff"), ("skip.png", b"x")):
        (tmp_path / name).write_bytes(data)
    source = roam_notes(tmp_path)
    found = list(source.iterate())
    assert [(row.text if isinstance(row, Document) else row.reason) for row in found] == ["2", "invalid_utf8", "1"]
    assert list(source.iterate(start=2)) == found[2:]
    assert [entry["name"] for entry in source.config()["inputs"]] == ["two.md", "bad.md", "one.md"]
    before = source.config()
    (tmp_path / "one.md").write_text("changed")
    assert roam_notes(tmp_path).config() != before


def test_large_text_files_come_in_parts_that_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost at the seams, whatever stands there: line ends, spaces, or the middle of a character."""
    monkeypatch.setattr(text_module, "PART_BYTES", 100)
    texts = {
        "lines.txt": "".join(f"line {n}\n" for n in range(60)),
        "words.txt": "word " * 100,
        "solid.txt": "é😀" * 70 + "x",
        "small.txt": "small",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name, text in texts.items():
        parts = list(text_files([tmp_path / name]).iterate())
        assert "".join(part.text for part in parts) == text, name
        assert all(len(part.text.encode()) <= 100 for part in parts)
        assert {part.group for part in parts} == ({None} if name == "small.txt" else {str(tmp_path / name)})
    second = list(text_files([tmp_path / "lines.txt"]).iterate())[1]
    assert second.where == f"{tmp_path}/lines.txt:{1 + second.text[:7].count('x') + int(second.text.split()[1])}"


def test_a_large_text_file_is_decoded_as_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mark of the encoding at its beginning, and a bad byte is counted in the file, not in the part."""
    text, broken = tmp_path / "text.txt", tmp_path / "broken.txt"
    text.write_bytes(b"\xef\xbb\xbf" + b"word\n" * 50)
    broken.write_bytes(b"word\n" * 49 + b"w\xffrd\n")
    for part_bytes in (1 << 20, 100):
        monkeypatch.setattr(text_module, "PART_BYTES", part_bytes)
        whole = [row.text for row in text_files([text]) if isinstance(row, Document)]
        assert "".join(whole) == "word\n" * 50
        (told,) = [row.detail for row in text_files([broken]) if isinstance(row, Rejected)]
        assert "broken.txt:50: invalid UTF-8 at byte 246 " in told


# --- conversations -----------------------------------------------------------------------------------------------


def test_dolly_rows() -> None:
    row = {"instruction": "Who?", "context": "", "response": "Me.", "category": "open_qa"}
    plain = Dolly().row(row, "r")
    assert isinstance(plain, Conversation)
    assert [(m["role"], m["content"]) for m in plain.messages] == [("user", "Who?"), ("assistant", "Me.")]
    assert plain.metadata == {"category": "open_qa"}
    with_context = Dolly().row({**row, "context": "Ann came."}, "r")
    assert with_context.messages[0]["content"] == "Who?\n\ncontext:\nAnn came."
    bad = Dolly().row({"instruction": "x"}, "repo row 3")
    assert bad.reason == "missing_field"
    assert "no text under 'response'" in bad.detail


def message(number: int, parent: int | None, role: str, **changes: Any) -> dict[str, Any]:
    tree = changes.pop("tree", 0)
    plain = {"text": f"text {number}", "lang": "en", "deleted": False}
    return {
        "message_id": str(number),
        "parent_id": None if parent is None else str(parent),
        "message_tree_id": str(tree),
        "role": role,
        **plain,
        **changes,
    }


def random_forest(seed: int) -> list[dict[str, Any]]:
    """Trees of random shape with deleted, foreign and orphaned messages, in random order."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for tree in range(rng.randint(1, 6)):
        first = len(rows)
        rows.append(message(first, None, "prompter", tree=first))
        for _ in range(rng.randint(0, 12)):
            parent = rng.randrange(first, len(rows))
            role = "assistant" if rows[parent]["role"] == "prompter" else "prompter"
            lang, deleted = rng.choice(["en"] * 9 + ["de"]), rng.random() < 0.05
            rows.append(message(len(rows), parent, role, tree=first, lang=lang, deleted=deleted))
        del tree
    rng.shuffle(rows)
    return [row for row in rows if rng.random() > 0.03]


def threads_reference(rows: list[dict[str, Any]], english_only: bool) -> list[list[str]]:
    """Every path to a message without replies that is not deleted, by looking for the parent again and again."""

    def below(parent: str | None) -> list[dict[str, Any]]:
        return [row for row in rows if row["parent_id"] == parent and not row["deleted"]]

    def paths(row: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        replies = below(row["message_id"])
        if not replies:
            yield [row]
        for reply in replies:
            for rest in paths(reply):
                yield [row, *rest]

    found = [path for root in below(None) for path in paths(root)]
    found = [path for path in found if any(row["role"] == "assistant" for row in path)]
    if english_only:
        found = [path for path in found if all(row["lang"] == "en" for row in path)]
    return [[row["message_id"] for row in path] for path in found]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("english_only", [True, False])
def test_threads_are_all_paths_from_root_to_leaf(seed: int, english_only: bool) -> None:
    rows = random_forest(seed)
    found = [t for t in threads(rows, "r", english_only=english_only, max_messages=None) if isinstance(t, Conversation)]
    assert [thread.metadata["message_ids"] for thread in found] == threads_reference(rows, english_only)
    trees = [thread.group for thread in found]
    assert [tree for n, tree in enumerate(trees) if tree not in trees[:n]] == [
        tree for n, tree in enumerate(trees) if n == 0 or tree != trees[n - 1]
    ], "threads of one tree follow each other"


def test_messages_in_a_circle_and_second_messages_of_an_id_are_counted() -> None:
    rows = [
        message(0, None, "prompter"),
        message(1, 0, "assistant"),
        message(1, 0, "assistant"),
        message(2, 3, "prompter"),
        message(3, 2, "assistant"),
        message(4, 3, "prompter"),
    ]
    found = list(threads(rows, "r", english_only=True, max_messages=None))
    assert [row.reason for row in found if isinstance(row, Rejected)] == ["duplicate", "cycle", "cycle", "cycle"]
    (kept,) = (row for row in found if isinstance(row, Conversation))
    assert kept.metadata["message_ids"] == ["0", "1"]


def test_what_is_left_out_is_counted_and_is_no_bad_row() -> None:
    rows = [
        message(0, None, "prompter"),
        message(1, 0, "assistant"),
        message(2, 0, "assistant", lang="de"),
        message(3, 99, "assistant"),
        message(4, None, "prompter", tree=4),
        message(5, None, "prompter", tree=5, deleted=True),
    ]
    found = list(threads(rows, "r", english_only=True, max_messages=None))
    left_out = [row for row in found if isinstance(row, Rejected)]
    assert sorted(row.reason for row in left_out) == ["no_assistant", "orphan", "other_language"]
    assert all(row.expected for row in left_out)
    (kept,) = (row for row in found if isinstance(row, Conversation))
    assert [m["role"] for m in kept.messages] == ["user", "assistant"]
    assert kept.metadata == {"tree_id": "0", "message_ids": ["0", "1"], "lang": "en"}


def test_threads_can_be_cut_and_deep_trees_are_no_problem() -> None:
    rows = [message(n, n - 1 if n else None, "assistant" if n % 2 else "prompter") for n in range(5000)]
    (whole,) = threads(rows, "r", english_only=True, max_messages=None)
    assert len(whole.messages) == 5000
    (cut,) = threads(rows, "r", english_only=True, max_messages=4)
    assert cut.metadata["message_ids"] == ["0", "1", "2", "3"]


def test_unknown_roles_and_missing_columns_are_bad_rows() -> None:
    rows = [message(0, None, "moderator"), {"text": "x"}]
    found = list(threads([message(1, 0, "assistant"), *rows], "r", english_only=True, max_messages=None))
    assert [row.reason for row in found] == ["missing_field", "unknown_role"]
    assert not any(row.expected for row in found)
