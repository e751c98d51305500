"""Prompts with answers: which columns are read, the ids that are sampled from, and an order that can be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import DataError, InputError, Mismatch, UsageError
from niels_gpt.rollouts import PromptSet, RolloutDataset, RolloutWriter
from niels_gpt.sources.rejections import TooManyBadRows
from tests.preferences.made import write_rows
from tests.renderers.tiny_families import renderer_of

QUESTION = [{"role": "user", "content": "the quick brown"}]


def test_columns_as_data_sets_have_them(tmp_path: Path) -> None:
    renderer = renderer_of("qwen3")
    rows: list[dict[str, Any]] = [
        {"messages": QUESTION, "answer": "fox", "level": 3},
        {"prompt": "the quick brown", "ground_truth": 4},
        {"problem": "the quick brown", "solution": ["a", {"b": None}], "answer": None},
        {"question": "the quick brown", "answer": {"x": 1}},
        {"prompt": QUESTION, "reward_model": {"ground_truth": "4", "style": "rule"}, "extra_info": {"index": 7}},
        {"prompt": "over", "system": "the lazy", "answer": "dogs"},
    ]
    found = PromptSet.open(str(write_rows(tmp_path / "rows.jsonl", rows)), renderer)
    assert len(found) == len(rows)
    assert [found[at].answer for at in range(6)] == ["fox", 4, ["a", {"b": None}], {"x": 1}, "4", "dogs"]
    expected = renderer.render_ids(QUESTION, add_generation_prompt=True)
    for at in range(5):
        assert found[at].ids.tolist() == expected
        assert found[at].number == at
        assert found[at].where == f"{tmp_path / 'rows.jsonl'}:{at + 1}"
    assert [dict(found[at].metadata) for at in (0, 1, 4)] == [
        {"level": 3},
        {},
        {"reward_model": {"ground_truth": "4", "style": "rule"}, "extra_info": {"index": 7}},
    ]
    assert [message["role"] for message in found[5].messages] == ["system", "user"]
    assert found.left_out == {}


def test_columns_that_are_named(tmp_path: Path) -> None:
    row = {"task": {"text": "the quick", "truth": "42"}, "answer": "not this", "prompt": "nor this"}
    path = write_rows(tmp_path / "rows.jsonl", [row])
    columns = {"prompt": "task.text", "answer": "task.truth"}
    found = PromptSet.open([path], renderer_of("qwen3"), columns=columns)
    assert found[0].answer == "42"
    assert found[0].messages[0]["content"] == "the quick"
    assert dict(found[0].metadata) == row
    with pytest.raises(UsageError, match="did you mean 'answer'"):
        PromptSet.open([path], renderer_of("qwen3"), columns={"answers": "x"})
    with pytest.raises(TooManyBadRows, match=r"rows\.jsonl:1: .*task\.nothing.*no 'nothing'"):
        PromptSet.open([path], renderer_of("qwen3"), columns={"answer": "task.nothing"})


def test_parquet_and_datasets(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"messages": QUESTION, "answer": "4", "level": 1}, {"messages": QUESTION, "answer": "5", "level": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    renderer = renderer_of("qwen3")
    stored, given = PromptSet.open(tmp_path / "rows.parquet", renderer), PromptSet.open(rows, renderer)
    assert stored.fingerprint == given.fingerprint
    assert [stored[at].answer for at in range(2)] == ["4", "5"]
    assert [given[at].where for at in range(2)] == ["row 0", "row 1"]


ANSWER = {"role": "assistant", "content": "fox"}
BAD: list[tuple[Any, str, str]] = [
    ({"text": "the quick", "answer": "4"}, "no_prompt", "no 'messages' or 'prompt'"),
    ({"prompt": "the quick"}, "no_answer", "--columns answer=PATH"),
    ({"prompt": "the quick", "answer": None}, "no_answer", "or it is null"),
    ({"prompt": "  ", "answer": "4"}, "no_prompt", "empty text"),
    ({"prompt": 5, "answer": "4"}, "messages_not_a_list", "list"),
    (
        {"messages": [*QUESTION, {"role": "assistant", "content": "fox"}], "answer": "4"},
        "prompt_ends_with_answer",
        "remove",
    ),
    ({"messages": [{"role": "nobody", "content": "fox"}], "answer": "4"}, "unknown_role", "nobody"),
    (["the quick"], "row_not_an_object", "expected an object"),
]


@pytest.mark.parametrize(("row", "reason", "message"), BAD)
def test_unusable_rows(tmp_path: Path, row: Any, reason: str, message: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"prompt": "the quick", "answer": "4"}, row])
    with pytest.raises(TooManyBadRows) as refused:
        PromptSet.open([path], renderer_of("qwen3"))
    assert f"{path}:2" in str(refused.value)
    assert message in str(refused.value)
    found = PromptSet.open([path], renderer_of("qwen3"), max_bad_rows=1)
    assert len(found) == 1
    assert found.left_out == {reason: 1}
    assert found.rejected[0].where == f"{path}:2"


def test_what_is_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": "the quick", "answer": "4"}, {"prompt": "the quick " * 50, "answer": "4"}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    found = PromptSet.open([path], renderer_of("qwen3"), max_tokens=60)
    assert found.left_out == {"too_long": 1}
    assert "1 too_long" in repr(found)
    with pytest.raises(DataError, match="no usable prompt of 2 rows"):
        PromptSet.open([path], renderer_of("qwen3"), max_tokens=1)
    with pytest.raises(UsageError, match="max_tokens is 0"):
        PromptSet.open([path], renderer_of("qwen3"), max_tokens=0)
    with pytest.raises(InputError):
        PromptSet.open([tmp_path / "nothing.jsonl"], renderer_of("qwen3"))
    with pytest.raises(UsageError, match="prompts 0 to 1; there is no 2"):
        PromptSet.open([path], renderer_of("qwen3"))[2]
    no_answers = write_rows(tmp_path / "more.jsonl", [{"prompt": "the quick"}])
    assert PromptSet.open([no_answers], renderer_of("qwen3"), answers=False)[0].answer is None


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    return PromptSet.open([{"prompt": "the " * (n % 5 + 1), "answer": n} for n in range(23)], renderer_of("qwen3"))


@settings(max_examples=60, deadline=None)
@given(
    batch_size=st.integers(1, 6),
    world_size=st.integers(1, 3),
    seed=st.integers(0, 3),
    taken=st.integers(0, 30),
    drop_last=st.booleans(),
)
def test_resumed_on_other_ranks(
    prompts: PromptSet, batch_size: int, world_size: int, seed: int, taken: int, drop_last: bool
) -> None:
    """The prompts of all ranks together are those of one rank with a batch as large; a state goes from one to many."""
    options: dict[str, Any] = {"seed": seed, "drop_last": drop_last}
    one = prompts.loader(batch_size=batch_size * world_size, **options)
    batches = [[each.number for each in one.next_batch()] for _ in range(taken)]
    per_epoch = one.steps_per_epoch()
    for first in range(0, taken - per_epoch + 1, per_epoch):
        epoch = [number for batch in batches[first : first + per_epoch] for number in batch]
        assert len(set(epoch)) == len(epoch)
        assert len(epoch) == (23 // (batch_size * world_size) * batch_size * world_size if drop_last else 23)
    state = json.loads(json.dumps(one.state_dict()))
    several = [
        prompts.loader(batch_size=batch_size, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]
    for each in several:
        each.load_state_dict(state)
    for _ in range(3):
        whole = [each.number for each in one.next_batch()]
        assert whole == [prompt.number for each in several for prompt in each.next_batch()]
        assert {each.epoch for each in several} == {one.epoch}


def test_orders_and_states(prompts: PromptSet) -> None:
    def order(**options: Any) -> list[int]:
        return [each.number for batch, _ in zip(prompts.loader(batch_size=5, **options), range(8)) for each in batch]  # noqa: B905

    assert order(seed=1) == order(seed=1) != order(seed=2)
    assert order(shuffle=False)[:20] == list(range(20))
    state = prompts.loader(batch_size=5).state_dict()
    with pytest.raises(Mismatch):
        prompts.loader(batch_size=5, seed=9).load_state_dict(state)
    other = PromptSet.open([{"prompt": "the", "answer": 1}] * 23, renderer_of("qwen3"))
    with pytest.raises(Mismatch):
        other.loader(batch_size=5).load_state_dict(state)
    with pytest.raises(UsageError, match="drop_last"):
        prompts.loader(batch_size=24)


def test_ids_of_a_prompt_are_stored_as_they_are(prompts: PromptSet, tmp_path: Path) -> None:
    prompt = prompts[3]
    with RolloutWriter(tmp_path / "out") as writer:
        for n in range(2):
            turn = {"prompt_ids": prompt.ids, "completion_ids": [n + 1], "completion_logprobs": [-1.0]}
            writer.add(prompt.number, turn, float(n))
    for n in range(2):
        assert RolloutDataset(tmp_path / "out")[n].ids.tolist() == [*prompt.ids.tolist(), n + 1]
