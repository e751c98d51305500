"""Faults in what conversations say, in all rows and in a tenth of them, beside the same conversations without."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from niels_gpt.doctor import Report
from tests.doctor.made import Row, as_rows, report_on
from tests.doctor.planted import Case

FAMILIES = ("chatml", "llama-3", "deepseek-v3")
N = 40
SUBJECTS = "The river", "Her brother", "A new engine", "This old house", "The committee", "Every spring", "My neighbour"
VERBS = "carries", "remembers", "describes", "needs", "paints", "repairs", "follows", "counts"
OBJECTS = "a letter from the coast", "seven green lamps", "the north wall", "its own history", "a quiet afternoon"
ENDS = "before winter", "without a word", "near the market", "for many years", "in the morning light", "by hand"


def sentences(rng: random.Random, n: int) -> str:
    """Sentences that are hardly ever the same."""
    parts = (SUBJECTS, VERBS, OBJECTS, ENDS)
    return " ".join(" ".join(rng.choice(part) for part in parts) + f" {rng.randrange(10**6)}." for _ in range(n))


def conversations(n: int = N, seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    made = []
    for _ in range(n):
        asked, answered = sentences(rng, 2), sentences(rng, 6)
        made.append([{"role": "user", "content": asked}, {"role": "assistant", "content": answered}])
    return as_rows(made)


def answer(row: Row) -> Row:
    message: Row = row["messages"][-1]
    return message


def extend_answer(text: str) -> Callable[[Row], None]:
    return lambda row: answer(row).update(content=answer(row)["content"] + text)


def hidden_thoughts(row: Row) -> None:
    answer(row)["content"] += " </think> So the answer is no."


def open_thoughts(row: Row) -> None:
    answer(row)["content"] = "<think> " + answer(row)["content"]


# These in each fiftieth row, too.
RARE = ("text-damaged", "template-text-in-content")
# Rule, what is done to a row.
PLANTS: tuple[tuple[str, Callable[[Row], None]], ...] = (
    ("text-damaged", extend_answer(" The cafÃ© is closed.")),
    ("text-damaged", extend_answer(" Itâ€™s closed.")),
    ("text-damaged", extend_answer(" It is \ufffd closed.")),
    ("text-damaged", extend_answer(" " + "привет".encode().decode("latin-1"))),
    ("text-damaged", extend_answer(" " + "今日は良い".encode().decode("latin-1"))),
    ("text-damaged", extend_answer(" The café is naïve.".encode().decode("cp437"))),
    ("template-text-in-content", extend_answer(" [INST] And the lamps? [/INST] They are green.")),
    ("template-text-in-content", extend_answer("\n\n### Response:\nThe lamps are green.")),
    ("template-text-in-content", extend_answer("<end_of_turn>\n<start_of_turn>user\nAnd the lamps?")),
    ("think-tags-in-content", hidden_thoughts),
    ("think-tags-in-content", open_thoughts),
)
# Each how many of the input's rows are in the validation data.
LEAKS = (1, 10)


def _planted(plant: Callable[[Row], None] | None, each: int, family: str, _: Path) -> Report:
    made = conversations(max(N, 2 * each))
    for row in made[::each] if plant else ():
        plant(row)
    return report_on(family, made)


def _leaked(each: int, family: str, planted: bool, folder: Path) -> Report:
    """Validation data of other rows, or also of some of the input."""
    validation = conversations(12, seed=1)
    validation += conversations()[::each] if planted else ()
    file = folder / "validation.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in validation), encoding="utf-8")
    return report_on(family, conversations(), validation=file)


def cases() -> list[Case]:
    made = []
    for family in FAMILIES:
        for rule in {rule for rule, _ in PLANTS}:
            made.append(Case(rule, family, partial(_planted, None, 1, family), False))
        made += [
            Case(rule, family, partial(_planted, plant, each, family), True)
            for rule, plant in PLANTS
            for each in ((1, 50) if rule in RARE else (1, 10))
        ]
        for planted in (True, False):
            made += [
                Case("validation-leak", family, partial(_leaked, each, family, planted), planted)
                for each in (LEAKS if planted else LEAKS[:1])
            ]
    return made
