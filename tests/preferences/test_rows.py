"""What a row says, in every shape in use, and what is said of rows that cannot be used."""

from __future__ import annotations

from typing import Any

import pytest

from niels_gpt.errors import InputError, MessageError, UsageError
from niels_gpt.sources.preference_files import preference_files
from niels_gpt.sources.rows.preference_rows import Preference, to_preference
from niels_gpt.sources.rows.shapes import detect_form
from tests.preferences.made import labelled, pairs, write_rows

USER = {"role": "user", "content": "Hi"}
TWICE = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1, "a": 2}'}}]}
GOOD, BAD = {"role": "assistant", "content": "Hello!"}, {"role": "assistant", "content": "Go away."}
SYSTEM = {"role": "system", "content": "Be kind."}
HUMAN = "\n\nHuman: Hi\n\nAssistant:"


def read(row: dict[str, Any]) -> Preference:
    form = detect_form(row)
    assert form is not None
    return to_preference(row, form, "rows.jsonl:1")


def contents(found: Preference) -> tuple[list[str], list[list[str]]]:
    prompt = [f"{message['role']}: {message['content']}" for message in found.prompt.messages]
    return prompt, [[str(message["content"]) for message in one.messages] for one in found.completions]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "Go away."},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "Hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": f"{HUMAN} Hello!", "rejected": f"{HUMAN} Go away."},
        {"prompt": HUMAN, "chosen": "Hello!", "rejected": "Go away."},
        {"prompt": HUMAN, "completions": ["Go away.", "Hello!"], "scores": [1, 2.5]},
        {"prompt": HUMAN, "answers": [{"answer": "Go away.", "rank": 7.0}, {"answer": "Hello!", "rank": 1.0}]},
        {"instruction": "Hi", "completions": [{"response": "Go away."}, {"response": "Hello!"}], "ranks": [2, 1]},
        {"instruction": "Hi", "responses": [[BAD], [GOOD]], "ranks": [2, 1]},
    ],
    ids=[
        "texts",
        "messages",
        "implicit",
        "ultrafeedback",
        "hh",
        "hh-prompt",
        "scores",
        "nectar",
        "ranks",
        "messages-ranked",
    ],
)
def test_the_same_pair_in_every_shape(row: dict[str, Any]) -> None:
    assert contents(read(row)) == (["user: Hi"], [["Hello!"], ["Go away."]])
    assert [one.rank for one in read(row).completions] == [0, 1]


def test_a_prompt_of_several_turns() -> None:
    before = [SYSTEM, USER, GOOD, {"role": "user", "content": "More"}]
    found = read({"chosen": [*before, GOOD], "rejected": [*before, BAD]})
    assert found.prompt.messages == before
    assert contents(found)[1] == [["Hello!"], ["Go away."]]
    transcript = "\n\nHuman: Hi\n\nAssistant: Hello!\n\nHuman: More\n\nAssistant:"
    assert contents(read({"chosen": f"{transcript} a", "rejected": f"{transcript} b"})) == (
        ["user: Hi", "assistant: Hello!", "user: More"],
        [["a"], ["b"]],
    )


def test_completions_of_several_turns_differ_from_the_first_answer_on() -> None:
    more = [{"role": "user", "content": "More"}, GOOD]
    found = read({"chosen": [USER, GOOD, *more], "rejected": [USER, BAD, *more]})
    assert contents(found) == (["user: Hi"], [["Hello!", "More", "Hello!"], ["Go away.", "More", "Hello!"]])


def test_identical_sides_keep_their_last_answer() -> None:
    assert contents(read({"chosen": [USER, GOOD], "rejected": [USER, GOOD]}))[1] == [["Hello!"], ["Hello!"]]


def test_scores_margin_system_and_tools() -> None:
    row = {"prompt": "Hi", "chosen": "a", "rejected": "b", "score_chosen": 8, "score_rejected": 2.5, "margin": 5.5}
    found = read({**row, "system": "Be kind.", "tools": '[{"type": "function", "function": {"name": "f"}}]', "id": 7})
    assert [one.score for one in found.completions] == [8.0, 2.5]
    assert (found.margin, found.prompt.messages[0], found.prompt.metadata) == (
        5.5,
        SYSTEM,
        {"score_chosen": 8, "score_rejected": 2.5, "id": 7},
    )
    assert found.prompt.tools == [{"type": "function", "function": {"name": "f"}}]


def test_equal_ranks_stay_equal() -> None:
    found = read({"prompt": "Hi", "completions": ["a", "b", "c"], "scores": [1, 3, 1]})
    assert [(one.rank, contents(found)[1][at][0]) for at, one in enumerate(found.completions)] == [
        (0, "b"),
        (1, "a"),
        (1, "c"),
    ]


def test_a_label_and_a_score() -> None:
    found = read({"prompt": "Hi", "completion": "a", "label": False})
    assert (found.form, [one.label for one in found.completions]) == ("unpaired", [False])
    scored = read({"prompt": "Hi", "completion": "a", "score": 0.5})
    assert (scored.form, [one.score for one in scored.completions]) == ("scored", [0.5])


@pytest.mark.parametrize(
    ("row", "form", "reason", "said"),
    [
        (
            {"prompt": "Hi", "chosen": "a"},
            "preference",
            "missing_column",
            "no 'rejected' in the row, or it is null; columns found: 'prompt', 'chosen'",
        ),
        ({"chosen": "a", "rejected": "b"}, "preference", "no_prompt", "chosen is a text and there is no prompt"),
        ({"prompt": "Hi", "chosen": "a", "rejected": " "}, "preference", "empty_completion", "rejected is empty"),
        (
            {"prompt": "", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
            "preference",
            "prompt_differs",
            "chosen and rejected begin with user 'Hi', but prompt is user ''",
        ),
        (
            {"chosen": [USER, GOOD], "rejected": [SYSTEM, USER, BAD]},
            "preference",
            "prompt_differs",
            "differ from message 0 on",
        ),
        (
            {"prompt": "Hi", "chosen": [USER, GOOD], "rejected": "b"},
            "preference",
            "prompt_differs",
            "chosen begins with a prompt of its own and rejected does not",
        ),
        ({"prompt": "Hi", "chosen": 3, "rejected": "b"}, "preference", "wrong_type", "chosen is a int"),
        (
            {"prompt": "Hi", "chosen": "a", "rejected": "b", "margin": "big"},
            "preference",
            "wrong_score",
            "margin is 'big'",
        ),
        (
            {"prompt": "Hi", "chosen": "a", "rejected": "b", "chosen_score": float("nan")},
            "preference",
            "wrong_score",
            "chosen_score is nan",
        ),
        (
            {"prompt": "Hi", "chosen": [GOOD, USER], "rejected": [BAD]},
            "preference",
            "no_answer",
            "chosen ends with a message of user",
        ),
        (
            {"prompt": "Hi", "completion": "a", "label": "yes"},
            "unpaired",
            "wrong_label",
            "label is 'yes'; expected true or false",
        ),
        (
            {"prompt": "Hi", "completion": "a", "label": 1},
            "unpaired",
            "wrong_label",
            "label is 1; expected true or false",
        ),
        ({"prompt": "Hi", "answers": ["a"], "ranks": [1]}, "ranked", "one_completion", "answers has 1 completion"),
        ({"prompt": "Hi", "answers": ["a", "b"]}, "ranked", "no_rank", "answers 0 has neither a rank nor a score"),
        (
            {"prompt": "Hi", "answers": ["a", "b"], "ranks": [1]},
            "ranked",
            "wrong_type",
            "ranks has 1 values; expected one for each of the 2 answers",
        ),
        (
            {"prompt": "Hi", "chosen": [TWICE], "rejected": [BAD]},
            "preference",
            "repeated_key",
            "chosen: message 0: tool_calls.0.function.arguments: an object has the key 'a' 2 times",
        ),
        ({"prompt": "Hi", "answers": [{"rank": 1}, "b"]}, "ranked", "missing_column", "answers 0 has none of messages"),
    ],
)
def test_what_cannot_be_used(row: dict[str, Any], form: str, reason: str, said: str) -> None:
    with pytest.raises(MessageError) as caught:
        to_preference(row, form)
    assert caught.value.reason == reason
    assert said in str(caught.value)


def test_files_of_one_form(tmp_path: Any) -> None:
    one, other = write_rows(tmp_path / "a.jsonl", pairs(3)), write_rows(tmp_path / "b.jsonl", pairs(2, 5))
    source = preference_files([str(one), str(other)])
    assert (source.detected_form(), source.name, len(list(source.iterate()))) == ("preference", "a + 1 more", 5)
    assert len(list(source.iterate(start=4))) == 1
    whole = [row for part in source.resolved().slices(100) for row in source.read(part)]
    assert whole == list(source.iterate())
    mixed = preference_files([str(one), str(write_rows(tmp_path / "c.jsonl", labelled(2)))])
    with pytest.raises(UsageError, match="rows of different forms"):
        mixed.detected_form()
    with pytest.raises(InputError, match="no row has the columns of preferences"):
        preference_files([str(write_rows(tmp_path / "d.jsonl", [{"messages": []}]))]).detected_form()


def test_parquet(tmp_path: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    rows = [{"chosen": [USER, GOOD], "rejected": [USER, BAD], "score_chosen": 1.0, "score_rejected": 0.0}] * 3
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = list(preference_files([str(tmp_path / "a.parquet")]).iterate())
    assert [contents(row)[0] for row in found if isinstance(row, Preference)] == [["user: Hi"]] * 3


SIDES = {"chosen": "Hello!", "rejected": "Go away."}
WHOLE = {"chosen": [USER, GOOD], "rejected": [USER, BAD]}


@pytest.mark.parametrize(
    "row", [WHOLE, {"prompt": "Hi", **WHOLE}, {"prompt": "Hi", **SIDES}, {"prompt": [USER], **SIDES}]
)
def test_a_system_text_beside_any_shape(row: dict[str, Any]) -> None:
    expected = ["system: Be kind.", "user: Hi"]
    assert contents(read({**row, "system": "Be kind."})) == (expected, [["Hello!"], ["Go away."]])


def test_another_system_text_beside_one() -> None:
    row = {"prompt": [SYSTEM, USER], **SIDES}
    assert contents(read({**row, "system": "Be kind."}))[0] == ["system: Be kind.", "user: Hi"]
    for twice in (row, {"chosen": [SYSTEM, USER, GOOD], "rejected": [SYSTEM, USER, BAD]}):
        with pytest.raises(MessageError, match="begin with another system message"):
            read({**twice, "system": "Be rude."})


def test_input_and_history_beside_an_instruction() -> None:
    """LLaMA-Factory's rows: alpaca's columns with two sides."""
    row = {"instruction": "Translate.", "input": "Hallo", "history": [["Hi", "Hello!"]], **SIDES}
    expected = ["user: Hi", "assistant: Hello!", "user: Translate.\n\nHallo"]
    assert contents(read(row)) == (expected, [["Hello!"], ["Go away."]])
    assert read(row).prompt.metadata == {}
    assert contents(read({"instruction": "Hi", "input": "", "history": None, **SIDES}))[0] == ["user: Hi"]
    with pytest.raises(MessageError, match="input is a int; expected a text"):
        read({**row, "input": 7})
    # Beside another prompt it is metadata.
    assert read({"prompt": "Hi", "input": "x", **SIDES}).prompt.metadata == {"input": "x"}
