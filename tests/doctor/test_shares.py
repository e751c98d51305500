"""Refusals, answers that break off or have one word, other languages: by their share a warning, a remark or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from niels_gpt.doctor import diagnose
from niels_gpt.samples import chats_file
from tests.doctor.made import Row, assistant, user
from tests.doctor.planted_contents import GERMAN, answer, conversations, sentences

SHARED = ("refusals", "answer-cut", "one-word-answers", "language-mismatch")


def refused(row: Row) -> None:
    answer(row)["content"] = "I'm sorry, but I can't help with that request. It may be dangerous."


def cut(row: Row) -> None:
    answer(row)["content"] = answer(row)["content"].rsplit(" ", 3)[0]


def cut_in_the_first_sentence(row: Row) -> None:
    answer(row)["content"] = "The river carries seven green lamps along the north wall before the"


def one_word(row: Row) -> None:
    answer(row)["content"] = "positive"


def german(row: Row) -> None:
    answer(row)["content"] = GERMAN


PLANTS: list[tuple[str, Callable[[Row], None], int, int]] = [
    # Rule, fault, of 400 answers how many are a remark, how many a warning.
    ("refusals", refused, 8, 24),
    ("answer-cut", cut, 5, 10),
    ("answer-cut", cut_in_the_first_sentence, 5, 10),
    ("one-word-answers", one_word, 10, 24),
    ("language-mismatch", german, 5, 10),
]


def severities(made: list[Row]) -> dict[str, str]:
    return {finding.rule: finding.severity for finding in diagnose(made).findings if finding.rule in SHARED}


@pytest.mark.parametrize(("rule", "fault", "remark", "warning"), PLANTS)
def test_the_share_decides(rule: str, fault: Callable[[Row], None], remark: int, warning: int) -> None:
    if rule == "language-mismatch":
        pytest.importorskip("py3langid")
    for number, expected in ((1, {}), (remark, {rule: "info"}), (warning, {rule: "warning"})):
        made = conversations(400)
        for row in made[:number]:
            fault(row)
        assert severities(made) == expected, number


def test_ordinary_answers_are_no_finding() -> None:
    assert {*diagnose(chats_file()).rules()}.isdisjoint(SHARED)


LIMIT = 400  # characters


def informal(rng: random.Random, words: int) -> str:
    """A message as people type it: no capital, no full stop, and sometimes two sentences."""
    text = sentences(rng, 1 + words // 8).lower().replace(".", "") if rng.random() < 0.8 else sentences(rng, 3)
    return " ".join([text.rsplit(" ", 1)[0], rng.choice(("i think", "for sure", "lol", "no problem", "of course"))])


def test_writers_who_leave_out_full_stops_break_nothing_off() -> None:
    rng, made = random.Random(2), []
    for n in range(200):
        text = informal(rng, rng.randrange(8, 40)) if n % 2 else "sure, no problem"
        made.append({"messages": [user(sentences(rng, 2)), assistant(text)]})
    assert severities(made) == {}
    # Beside formal answers of any length, too, and where few answers are short.
    assert severities([*made[1::2], *conversations(300)]) == {}


@pytest.mark.parametrize("share", [1, 10, 40])
def test_answers_cut_at_a_limit_are_found_by_their_last_words(share: int) -> None:
    made = conversations(400)
    for n, row in enumerate(made[::share]):
        text = answer(row)["content"]
        # Where the limit falls differs, because tokens have different lengths.
        answer(row)["content"] = " ".join(text.replace(" seven", ", seven").split(" ")[: 14 + n % 37])
    assert severities(made) == {"answer-cut": "warning"}


def test_a_limit_is_seen_by_lengths_in_any_language() -> None:
    """Words of no language that the rule knows; many answers are shorter than the limit, none is longer."""
    rng, made = random.Random(3), []
    for _ in range(300):
        text = " ".join("".join(rng.choices("bdgklmnprt", k=rng.randrange(3, 9))) for _ in range(rng.randrange(10, 90)))
        cut = len(text) > LIMIT
        text = text[: LIMIT - rng.randrange(40)].rstrip() if cut else f"{text}."
        made.append({"messages": [user(sentences(rng, 2)), assistant(text)]})
    assert severities(made)["answer-cut"] == "warning"
    for row in made:  # some are longer after all: no limit, these end so by habit
        if rng.random() < 0.05:
            answer(row)["content"] += " glorb" * 80 + "."
    assert "answer-cut" not in severities(made)


def test_the_language_of_the_last_answer_counts_and_short_questions_are_read_together() -> None:
    pytest.importorskip("py3langid")
    made: list[dict[str, Any]] = []
    for row in conversations(100):
        first, last = row["messages"]
        made.append({"messages": [first, last, user("And what else?"), assistant(answer(row)["content"] + " And so.")]})
    assert severities(made) == {}
    for row in made[::10]:
        german(row)
    assert severities(made) == {"language-mismatch": "warning"}
    for row in made:
        row["messages"].insert(0, {"role": "system", "content": "Answer in German."})
    assert severities(made) == {}
