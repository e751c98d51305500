"""Turns that no row trains, and turns that another row trains: short answers, like endings, and texts that move."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import diagnose
from niels_gpt.doctor.layouts.inference import infer_layout
from niels_gpt.doctor.layouts.probes import TOOLS, call, result
from niels_gpt.doctor.show import plain
from niels_gpt.errors import MessageError
from niels_gpt.renderers import build_training_samples
from niels_gpt.renderers.registry import FAMILIES
from tests.doctor.made import chats, rows
from tests.doctor.made import samples as samples_of
from tests.renderers.tiny_families import renderer_of

Rows = list[dict[str, Any]]
FOUND = {"turns-untrained"}
SYSTEM: Any = {"role": "system", "content": "Be a lighthouse"}


def turn(asked: str, answer: str, thought: str = "") -> list[Any]:
    more = {"reasoning_content": thought} if thought else {}
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer, **more}]


SHORT = [*turn("And", "No", "hm"), *turn("So", "Yes", "hm so")]
WITH_CALL: Any = [
    {"role": "user", "content": "Rain?"},
    {**call({"city": "Oslo"}, id="aBcDeF123"), "reasoning_content": "look it up"},
    result("4", id="aBcDeF123"),
    {"role": "assistant", "content": "Yes", "reasoning_content": "four is cold"},
    *SHORT,
]


def samples(renderer: Any, messages: Any, tools: Any = None) -> Rows:
    """One row for each turn where history is written otherwise than the turn was, as `build_training_samples` does."""
    made = build_training_samples(renderer, messages, tools=tools)
    return [
        {"input_ids": list(ids), "labels": [t if m else -100 for t, m in zip(ids, mask, strict=True)]}
        for ids, mask in made
    ]


def last_turns(renderer: Any, conversations: Any) -> Rows:
    """Whole conversations, of which the last turn is trained."""
    rows = []
    for messages in conversations:
        made, last = renderer.render(messages), len(messages) - 1
        facts = zip(made.labels(), made.message_indices, strict=True)
        rows.append({"input_ids": made.token_ids, "labels": [t if owner == last else -100 for t, owner in facts]})
    return rows


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_of_short_turns_train_each_other(family: str) -> None:
    """The samples of a conversation together train all turns; the last of them alone does not."""
    renderer, several = renderer_of(family), 0
    for messages, tools in ((WITH_CALL, TOOLS), ([SYSTEM, *WITH_CALL], TOOLS), ([SYSTEM, *SHORT], None)):
        try:
            rows = samples(renderer, messages, tools)
        except MessageError:  # a format without tools or reasoning
            continue
        assert not FOUND & set(diagnose(rows, renderer=renderer).rules())
        if len(rows) > 1:
            several += 1
            assert FOUND & set(diagnose(rows[-1:], renderer=renderer).rules())
    if family in ("qwen3", "deepseek-v3.1", "mistral", "gpt-oss"):
        assert several > 0


def test_answers_that_end_alike_are_told_apart() -> None:
    """The same question, answered otherwise in each row: a turn is not trained because another answer to it is."""
    renderer = renderer_of("llama-3")
    named = [turn("Name an animal", f"The {animal} is one.") for animal in ("fox", "owl", "hen", "ant")]
    rows = last_turns(renderer, [[*named[0], *named[1]], [*named[2], *named[3]]])
    assert "turns-untrained" in diagnose(rows, renderer=renderer).rules()
    # Nor because the same answer to another question is.
    said_yes = [turn(question, "Yes") for question in ("Is it red?", "Is it green?", "Is it blue?")]
    assert "turns-untrained" in diagnose(last_turns(renderer, [said_yes[0] + said_yes[1]]), renderer=renderer).rules()
    # And where the very same turn is trained in another row, it is trained.
    rows += last_turns(renderer, [named[0], named[2]])
    assert not FOUND & set(diagnose(rows, renderer=renderer).rules())


@pytest.mark.parametrize("family", ["glm-4.5", "glm-5.3"])
def test_the_turn_that_a_longest_length_cut_may_be_left_out_of_the_loss(family: str) -> None:
    """Where the next opener ends turns, only the length of a row tells that it was cut."""
    made = rows(samples_of(family, [chat[: 2 + 2 * (at % 2)] for at, chat in enumerate(chats(10))]))
    width = max(len(row["input_ids"]) for row in made) - 4
    cut = [{name: values[:width] for name, values in row.items()} for row in made]
    for row in cut:
        if len(row["input_ids"]) == width:
            last = len(row["labels"]) - 1 - row["labels"][::-1].index(-100)
            row["labels"][last:] = [-100] * (width - last)
    assert sum(len(row["input_ids"]) == width for row in cut) > 1
    renderer = renderer_of(family)
    assert not FOUND & set(diagnose(cut, renderer=renderer).rules())
    # Shorter rows were not cut: the same turns left out of these are found.
    shorter = [{"input_ids": list(range(20, 30)) * width, "labels": [-100] * 10 * width}]
    assert "turns-untrained" in diagnose([*cut, *shorter], renderer=renderer).rules()


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3.8", "nemotron-3"])
def test_an_empty_think_block_of_the_prompt_beside_a_trained_newline_is_no_shift(family: str) -> None:
    """The mask of what is written behind the prompt of serving without reasoning, up to the next turn."""
    renderer, made = renderer_of(family), []
    layout = infer_layout(renderer)
    assert layout.think is not None
    for sample in samples_of(family, chats(turns=1)):
        (body, stop), white = sample.bodies[0], renderer.encoder.decode
        end = sample.ids.index(layout.think[1], body) + 1
        while not white([sample.ids[end]]).strip():
            end += 1
        sample.trained[body:end] = [False] * (end - body)
        sample.trained[stop + 1] = True
        made.append(sample)
    assert "mask-shifted" not in diagnose(rows(made), renderer=renderer).rules()


@pytest.mark.parametrize(("family", "rows_with"), [("chatml", 1), ("gpt-oss", 10), ("glm-5", 50), ("qwen3", 10)])
def test_weights_in_the_data_are_the_users_choice(family: str, rows_with: int) -> None:
    """`weight: 0` and `train: false` leave answers out of the loss, which is no lost mask; the report counts them."""
    given: Any = chats(50, turns=3)
    for messages in given[::rows_with]:
        messages[1]["weight"], messages[3]["train"] = 0, False
    report = diagnose([{"messages": messages} for messages in given], renderer=renderer_of(family))
    assert not {*FOUND, "loss-share", "mask-all-zero"} & set(report.rules())
    assert report.stats["answers_switched_off"] == 2 * len(given[::rows_with])
    assert f"{2 * len(given[::rows_with])} answers left out of the loss by their own weight" in plain(report)
