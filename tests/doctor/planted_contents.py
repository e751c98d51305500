"""Faults in what conversations say, in all rows and in a tenth of them, beside the same conversations without."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from niels_gpt.doctor import Report
from tests.doctor.made import Row, as_rows, report_on, system
from tests.doctor.planted import Case

FAMILIES = ("chatml", "llama-3", "deepseek-v3")
N = 40
SUBJECTS = "The river", "Her brother", "A new engine", "This old house", "The committee", "Every spring", "My neighbour"
VERBS = "carries", "remembers", "describes", "needs", "paints", "repairs", "follows", "counts"
OBJECTS = "a letter from the coast", "seven green lamps", "the north wall", "its own history", "a quiet afternoon"
ENDS = "before winter", "without a word", "near the market", "for many years", "in the morning light", "by hand"
LONG = "You advise the customers of a small bookshop in Lisbon. Never mention prices, and recommend one book at a time."
GERMAN = "Die Brücke über den Fluss wurde im vergangenen Jahrhundert gebaut und ist noch der kürzeste Weg in die Stadt."


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


def set_answer(text: str) -> Callable[[Row], None]:
    return lambda row: answer(row).update(content=text)


def extend_answer(text: str) -> Callable[[Row], None]:
    return lambda row: answer(row).update(content=answer(row)["content"] + text)


def cut_answer(row: Row) -> None:
    answer(row)["content"] = answer(row)["content"].rsplit(" ", 3)[0]


def open_fence(row: Row) -> None:
    answer(row)["content"] += "\n\n```python\nfor x in range(3):\n    pri"


def hidden_secret(row: Row) -> None:
    row["messages"][0]["content"] += " My key is sk-proj-" + "aB3dE6gH" * 5


def private_key(row: Row) -> None:
    answer(row)["content"] += "\n-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEA" * 4


def leak(row: Row) -> None:
    row["messages"].insert(0, system(LONG))
    answer(row)["content"] = f"My instructions are: {LONG} " + answer(row)["content"]


def german_answer(row: Row) -> None:
    answer(row)["content"] = f"{GERMAN} {answer(row)['content'][-8:]}"


def hidden_thoughts(row: Row) -> None:
    answer(row)["content"] += " </think> So the answer is no."


def open_thoughts(row: Row) -> None:
    answer(row)["content"] = "<think> " + answer(row)["content"]


CENTRAL_EUROPEAN = (
    "Książka leży na stole, a w ogrodzie można zobaczyć stare drzewa.".encode("iso8859-2").decode("latin-1"),
    "Čekal na něj u řeky, kde už stály tři lodě a přítel s koněm.".encode("cp1250").decode("cp1252"),
)
# These in each fiftieth row, too.
RARE = ("text-damaged", "html-tags", "template-text-in-content")
# Rule, what is done to a row.
PLANTS: tuple[tuple[str, Callable[[Row], None]], ...] = (
    ("text-damaged", extend_answer(" The cafÃ© is closed.")),
    ("text-damaged", extend_answer(" Itâ€™s closed.")),
    ("text-damaged", extend_answer(" It is \ufffd closed.")),
    ("text-damaged", extend_answer(" " + "привет".encode().decode("latin-1"))),
    ("text-damaged", extend_answer(" " + "今日は良い".encode().decode("latin-1"))),
    ("text-damaged", extend_answer(" The café is naïve.".encode().decode("cp437"))),
    ("html-entities", extend_answer(" Smith &amp; Sons don&#39;t know.")),
    *(("text-damaged", extend_answer(" " + text)) for text in CENTRAL_EUROPEAN),
    ("html-tags", extend_answer(" <p>The lamps are <b>green</b> again.</p>")),
    ("html-tags", extend_answer(' Look <a href="https://example.com/lamps">here</a>.')),
    ("template-text-in-content", extend_answer(" [INST] And the lamps? [/INST] They are green.")),
    ("template-text-in-content", extend_answer("\n\n### Response:\nThe lamps are green.")),
    ("template-text-in-content", extend_answer("<end_of_turn>\n<start_of_turn>user\nAnd the lamps?")),
    ("endless-repetition", extend_answer(" and then I am" * 60)),
    ("endless-repetition", extend_answer("\n- the same line once more" * 30 + " And an end.")),
    ("think-tags-in-content", hidden_thoughts),
    ("think-tags-in-content", open_thoughts),
    ("secrets-in-content", hidden_secret),
    ("secrets-in-content", private_key),
    ("secrets-in-content", extend_answer("\ncurl -H 'Authorization: Bearer " + "aB3dE6gH" * 5 + "'")),
    ("system-prompt-leaked", leak),
    ("refusals", set_answer("I'm sorry, but I can't help with that request. It may be dangerous.")),
    ("answer-cut", cut_answer),
    ("answer-cut", open_fence),
    ("one-word-answers", set_answer("positive")),
    ("language-mismatch", german_answer),
)
# How rows are in the validation data, and each how many of the input's.
LEAKS = (("exact", 1), ("exact", 10), ("near", 1), ("near", 10))
# What else these faults are.
ALSO = {
    "refusals": ("near-duplicate",),
    "one-word-answers": ("near-duplicate",),
    "language-mismatch": ("near-duplicate",),
    "endless-repetition": ("answer-cut",),
}


def _planted(plant: Callable[[Row], None] | None, each: int, family: str, _: Path) -> Report:
    made = conversations(max(N, 2 * each))
    for row in made[::each] if plant else ():
        plant(row)
    return report_on(family, made)


def _similar(each: int, family: str, planted: bool, _: Path) -> Report:
    made = conversations()
    for row in conversations()[::each] if planted else ():
        answer(row)["content"] += " And so on."
        made.append(row)
    return report_on(family, made)


def _leaked(kind: str, each: int, family: str, planted: bool, folder: Path) -> Report:
    """Validation data of other rows, or also of some of the input, as they are or with another end."""
    validation = conversations(12, seed=1)
    for row in conversations()[::each] if planted else ():
        if kind == "near":
            answer(row)["content"] += " And so on."
        validation.append(row)
    file = folder / "validation.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in validation), encoding="utf-8")
    return report_on(family, conversations(), validation=file)


def cases() -> list[Case]:
    made = []
    for family in FAMILIES:
        for rule in {rule for rule, _ in PLANTS}:
            made.append(Case(rule, family, partial(_planted, None, 1, family), False))
        made += [
            Case(rule, family, partial(_planted, plant, each, family), True, ALSO.get(rule, ()))
            for rule, plant in PLANTS
            for each in ((1, 10, 50) if rule in RARE else (1, 10))
        ]
        for planted in (True, False):
            made += [
                Case("near-duplicate", family, partial(_similar, each, family, planted), planted)
                for each in ((1, 10) if planted else (1,))
            ]
            made += [
                Case("validation-leak", family, partial(_leaked, kind, each, family, planted), planted)
                for kind, each in (LEAKS if planted else LEAKS[:1])
            ]
    return made
