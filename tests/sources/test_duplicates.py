"""Duplicates and contamination, against slow references: the first row stays, and each row left out is listed."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import InputError, UsageError
from niels_gpt.messages import Conversation, normalise
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.curation.contamination import Benchmarks
from niels_gpt.sources.curation.duplicates import (
    DuplicateOptions,
    Duplicates,
    find_duplicates,
    minhashes_of,
)
from niels_gpt.sources.curation.filters import RowFilters
from niels_gpt.sources.curation.ngrams import RULE, words_of
from niels_gpt.sources.files.inputs import Rejected

WORDS = [f"word{n}" for n in range(400)]


def write(path: Path, texts: Sequence[str]) -> Path:
    rows = [{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]} for text in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def found(folder: Path, files: dict[str, Path], **options: Any) -> tuple[dict[str, Duplicates], list[dict[str, Any]]]:
    out = folder / "out"
    out.mkdir(exist_ok=True)
    sources = {name: chat_files([str(path)]) for name, path in files.items()}
    duplicates = find_duplicates(sources, DuplicateOptions(**options), out)
    return duplicates, [json.loads(line) for line in (out / "left_out.jsonl").read_text().splitlines()]


# ---- n-grams


def slow_ngrams(text: str, n: int) -> list[str]:
    words = words_of(text).split()
    return [" ".join(words[at : at + n]) for at in range(max(1, len(words) - n + 1))] if words else []


def test_the_rule_of_words_is_recorded_by_its_number() -> None:
    """Recorded searches for duplicates are used again while `RULE` is the same, so it must stand for one behaviour."""
    texts = [
        "Das Wasser des Sees, 25\N{DEGREE SIGN} warm!",
        "e\u0301tude d'e\u0301te\u0301",
        "今日はx1年",
        "a_b-c's",
        "",
    ]
    pytest.importorskip("rensa")
    words = [words_of(text, symbols=symbols) for text in texts for symbols in (False, True)]
    hashes = minhashes_of([[{"role": "user", "content": text}] for text in texts], 2, ("user",))
    seen = hashlib.sha256(json.dumps([words, hashes.tolist()]).encode()).hexdigest()[:16]
    assert (RULE, seen) == (2, "dd434b921de824a3")


def test_what_a_word_is() -> None:
    assert words_of("The cat sat, down!  X_1") == "the cat sat down x 1"
    assert words_of("日本の本 and it's") == "日 本 の 本 and it s"
    assert words_of("Straße ÉTÉ") == "straße été"
    assert words_of("...") == ""
    # Also after a letter or digit a character of Chinese is a word of its own.
    assert words_of("GPT是一个7个人々") == "gpt 是 一 个 7 个 人 々"
    assert words_of("ไทย") == "ไ ท ย"
    # Texts that Unicode calls equal; vowels that combine with the letter before them; the look of an emoji.
    assert words_of("cafe\u0301 Zu\u0308rich") == words_of("café Zürich") == "café zürich"
    assert words_of("हिन्दी, भाषा") == "हिन्दी भाषा"
    assert words_of("great \u2764\ufe0f day") == "great day"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("C++", "C#"),
        ("2 + 2", "2 * 2"),
        ("-5", "5"),
        ("10 €", "10 $"),
    ],
)
def test_symbols_are_words_for_duplicates(tmp_path: Path, one: str, other: str) -> None:
    """Rows that differ in them say different things; a hyphen and punctuation change nothing."""
    pytest.importorskip("rensa")
    assert words_of(one) == words_of(other) or "€" in one
    assert words_of(one, symbols=True) != words_of(other, symbols=True)
    assert words_of("un-laden, x_1", symbols=True) == "un laden x 1"
    file = write(tmp_path / "a.jsonl", [f"What is {text}? I ask." for text in (one, other, f"{one} ", f"{other}!")])
    _, listed = found(tmp_path, {"a": file}, near=0.8)
    assert [(row["where"], row["duplicate_of"]) for row in listed] == [
        (f"{file}:3", f"{file}:1"),
        (f"{file}:4", f"{file}:2"),
    ]


# ---- contamination


def benchmark(folder: Path) -> Path:
    rows = [
        {"question": "What is the airspeed velocity of an unladen swallow?", "choices": ["B", "42"], "n": 3},
        {"question": "Name the capital of the country that lies between Spain and Germany."},
    ]
    path = folder / "bench.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_contaminated_rows_are_named(tmp_path: Path) -> None:
    texts = [
        "I wonder: WHAT is the airspeed, velocity of an un-laden swallow",  # un-laden is two words
        "so what is the airspeed velocity of an unladen swallow then",
        "B",  # an answer that is too short to be searched for
        "capital of the country that lies between spain and portugal",
        "nothing of it",
    ]
    check = Benchmarks.of([str(benchmark(tmp_path))], 8)
    source = replace(chat_files([str(write(tmp_path / "a.jsonl", texts))]), checks=(check,))
    rows = list(source.iterate())
    assert [isinstance(row, Rejected) for row in rows] == [False, True, False, True, False]
    first, second = (row for row in rows if isinstance(row, Rejected))
    assert first.reason == "contaminated"
    assert first.expected
    assert first.why.startswith("contains 'what is the airspeed velocity of an unladen' of")
    assert first.why.endswith("bench.jsonl:1")
    assert "'capital of the country that lies between spain' of" in second.why
    assert source.config()["decontaminate"]["files"][0]["name"] == "bench.jsonl"


@pytest.mark.parametrize(
    "answer",
    [
        {"content": "5", "reasoning_content": "{}"},
        {"content": [{"type": "thinking", "thinking": "{}"}, {"type": "text", "text": "5"}]},
    ],
)
def test_reasoning_counts_wherever_it_is(tmp_path: Path, answer: dict[str, Any]) -> None:
    """For benchmarks, near duplicates and filters alike."""
    leak = "what is the airspeed velocity of an unladen swallow"
    said = json.loads(json.dumps(answer).replace("{}", leak))
    chat = Conversation(normalise([{"role": "user", "content": "?"}, {"role": "assistant", **said}]))
    (contaminated,) = Benchmarks.of([str(benchmark(tmp_path))], 8).reasons([chat])
    assert contaminated is not None
    assert RowFilters(exclude="airspeed", role="assistant").reasons([chat]) != [None]
    assert RowFilters(min_characters=len(leak)).reasons([chat]) == [None]
    plain = [[{"role": "assistant", "content": text}] for text in (leak, leak + " 5")]
    hashes = minhashes_of([chat.messages, *plain], 5, ("assistant",))
    assert any((hashes[0] == other).all() for other in hashes[1:])


def test_benchmarks_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "short.jsonl").write_text('{"answer": "B"}\n')
    chat = Conversation([{"role": "assistant", "content": "B"}])
    with pytest.raises(InputError, match="no text of 13 words or more in any row"):
        Benchmarks.of([str(tmp_path / "short.jsonl")]).reasons([chat])
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(InputError, match=r"bad\.jsonl:1: not valid JSON.*repair the benchmark"):
        Benchmarks.of([str(tmp_path / "bad.jsonl")]).reasons([chat])


# ---- duplicates


def test_exact_duplicates_across_sources(tmp_path: Path) -> None:
    files = {"a": write(tmp_path / "a.jsonl", ["x", "y", "x"]), "b": write(tmp_path / "b.jsonl", ["z", "y", "Y"])}
    checks, listed = found(tmp_path, files)
    assert [(row["where"], row["duplicate_of"]) for row in listed] == [
        (f"{files['a']}:3", f"{files['a']}:1"),
        (f"{files['b']}:2", f"{files['a']}:2"),
    ]
    for name, left in (("a", 2), ("b", 2)):
        rows = list(replace(chat_files([str(files[name])]), checks=(checks[name],)).iterate())
        assert sum(isinstance(row, Conversation) for row in rows) == left
        assert {row.reason for row in rows if isinstance(row, Rejected)} == {"duplicate"}


def jaccard(a: str, b: str, n: int) -> float:
    one, other = set(slow_ngrams(a, n)), set(slow_ngrams(b, n))
    return len(one & other) / len(one | other)


def test_near_duplicates_against_the_true_similarity(tmp_path: Path) -> None:
    """Pairs well above the threshold are found, pairs well below are not; the estimate is near the truth."""
    pytest.importorskip("rensa")
    rng = random.Random(4)
    texts, pairs = [], []
    for number in range(120):
        text = [rng.choice(WORDS) for _ in range(120)]
        other = text.copy()
        for _ in range(number % 12):
            other[rng.randrange(120)] = "else"
        pairs.append((len(texts), len(texts) + 1))
        texts += [" ".join(text), " ".join(other) + " end"]  # never equal
    path = write(tmp_path / "a.jsonl", texts)
    checks, listed = found(tmp_path, {"a": path}, near=0.8, words=3, exact=False)
    left_out = {int(row["where"].rpartition(":")[2]) - 1: row for row in listed}
    for first, second in pairs:
        # The question "?" is no word, so the answers alone are compared.
        true = jaccard(texts[first], texts[second], 3)
        if true > 0.9:
            assert left_out[second]["duplicate_of"] == f"{path}:{first + 1}"
        if true < 0.7:
            assert second not in left_out
        if second in left_out:
            assert abs(left_out[second]["similarity"] - true) < 0.15
        assert first not in left_out, "the first stays"
    kept = [
        row
        for row in replace(chat_files([str(path)]), checks=(checks["a"],)).iterate()
        if isinstance(row, Conversation)
    ]
    assert len(kept) == len(texts) - len(left_out)


def test_a_row_that_cannot_be_used_is_not_the_one_that_stays(tmp_path: Path) -> None:
    """Else neither it nor its duplicate would be trained."""
    words = " ".join(WORDS[:60])
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": words}]
    unusable = [
        [turns[0], {**turns[1], "weight": 0}],
        [turns[0], {**turns[1], "train": False}],
        [{**turns[1], "role": "user"}],
    ]
    rows = [*unusable, turns, turns]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows), encoding="utf-8")
    _, listed = found(tmp_path, {"a": path}, near=0.8, roles=("user", "assistant"))
    assert [(row["where"], row["duplicate_of"]) for row in listed] == [(f"{path}:5", f"{path}:4")]


def test_the_same_rows_give_the_same_files_and_digest_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("rensa")
    texts = [" ".join(random.Random(n % 7).choices(WORDS, k=50)) + (" x" if n > 7 else "") for n in range(30)]
    digests = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        checks, listed = found(tmp_path / place, {"a": write(tmp_path / place / "a.jsonl", texts)}, near=0.8)
        digests.append(checks["a"].digest)
        assert len(listed) == 23
    assert len(set(digests)) == 1
    assert sorted(path.name for path in (tmp_path / "one/out").iterdir()) == ["left_out.jsonl"]


def test_rows_without_words_are_no_near_duplicates(tmp_path: Path) -> None:
    pytest.importorskip("rensa")
    _, listed = found(tmp_path, {"a": write(tmp_path / "a.jsonl", ["!", "?", "...", "?"])}, near=0.8)
    assert [row["similarity"] for row in listed] == [1.0], "only the exact one"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"near": 0.2}, "near is 0.2; expected a similarity from 0.5 to 1"),
        ({"exact": False}, "nothing would be found"),
        ({"words": 0}, "words is 0"),
        ({"roles": ()}, "roles is empty"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        DuplicateOptions(**options)
