"""Rollouts as they are written and read: every value comes back, and what is wrong is refused or found."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.episodes import GPTEpisodeDataLoader
from niels_gpt.errors import CacheError, DataError, InputError, OutputExists, TokenizerError, UsageError
from niels_gpt.renderers.base import build_trajectory_step
from niels_gpt.rollouts import RolloutDataset, RolloutWriter, trajectory
from niels_gpt.rollouts.advantages import group_advantages
from niels_gpt.rollouts.imported_lines import import_rollouts
from niels_gpt.rollouts.verify import verify_rollouts
from tests.renderers.tiny_families import renderer_of
from tests.rollouts.made import rows, turn, write

FLOATS = st.floats(-50, 0, width=32)
IDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=7)


@st.composite
def one_turn(draw: st.DrawFn, before: tuple[int, ...] = ()) -> dict[str, Any]:
    completion = draw(IDS)
    n = len(completion)
    return {
        "prompt_ids": [*before, *draw(IDS)],
        "completion_ids": completion,
        "completion_mask": draw(st.lists(st.booleans(), min_size=n, max_size=n)),
        "completion_logprobs": draw(st.lists(FLOATS, min_size=n, max_size=n)),
        "version": draw(st.integers(0, 5)),
    }


@st.composite
def some_turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        before = [*turns[-1]["prompt_ids"], *turns[-1]["completion_ids"]] if turns else []
        turns.append(draw(one_turn(tuple(before))))
    return turns


@st.composite
def some_rollouts(draw: st.DrawFn) -> list[dict[str, Any]]:
    reward = st.floats(-1e6, 1e6)
    return [
        {
            "group_id": draw(st.one_of(st.integers(-3, 3), st.sampled_from(["a", "1"]))),
            "turns": draw(some_turns()),
            "reward": draw(reward),
            "advantage": draw(st.none() | reward),
            "metadata": draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers(), max_size=2)),
        }
        for _ in range(draw(st.integers(1, 6)))
    ]


def slowly(turns: list[dict[str, Any]]) -> list[tuple[int, bool, float, int]]:
    """Id, mask, logprob and version of every token of a row, one token after the other."""
    found: list[tuple[int, bool, float, int]] = []
    for each in turns:
        for token in each["prompt_ids"][len(found) :]:
            found.append((token, False, math.nan, -1))
        for at, token in enumerate(each["completion_ids"]):
            sampled = each["completion_mask"][at]
            logprob, version = each["completion_logprobs"][at], each["version"]
            found.append((token, True, logprob, version) if sampled else (token, False, math.nan, -1))
    return found


@settings(max_examples=60, deadline=None)
@given(rollouts=some_rollouts())
def test_every_value_comes_back(tmp_path_factory: pytest.TempPathFactory, rollouts: list[dict[str, Any]]) -> None:
    path = write(tmp_path_factory.mktemp("r") / "out", rollouts, token_versions=True)
    opened = RolloutDataset(path)
    assert len(opened) == len(rollouts)
    assert opened.n_groups == len({row["group_id"] for row in rollouts})
    for number, row in enumerate(rollouts):
        found, tokens = opened[number], slowly(row["turns"])
        assert found.ids.tolist() == [token for token, _, _, _ in tokens]
        assert found.mask.tolist() == [sampled for _, sampled, _, _ in tokens]
        assert found.logprobs is not None
        np.testing.assert_array_equal(found.logprobs, np.array([each for _, _, each, _ in tokens], np.float32))
        assert found.versions is not None
        assert found.versions.tolist() == [each for _, _, _, each in tokens]
        sampled = [each for _, _, _, each in tokens if each >= 0]
        assert found.version == min(sampled or [each["version"] for each in row["turns"]])
        assert found.prompt_length == len(row["turns"][0]["prompt_ids"])
        assert (found.reward, found.group_id, found.metadata) == (row["reward"], row["group_id"], row["metadata"])
        assert math.isnan(found.advantage) if row["advantage"] is None else found.advantage == row["advantage"]
    by_group = [opened.group(number).tolist() for number in range(opened.n_groups)]
    assert sorted(number for members in by_group for number in members) == list(range(len(rollouts)))
    for members in by_group:
        assert len({(type(rollouts[each]["group_id"]), rollouts[each]["group_id"]) for each in members}) == 1
    assert list(verify_rollouts(path)) == []
    for row in rollouts:  # and as lists, as trainers take one row
        joined, tokens = trajectory(row["turns"]), slowly(row["turns"])
        assert joined.ids == [token for token, _, _, _ in tokens]
        assert joined.logprobs == [each if sampled else 0.0 for _, sampled, each, _ in tokens]


def test_ids_of_groups_differ_by_type(tmp_path: Path) -> None:
    made = [{"group_id": group_id, "turns": GOOD, "reward": 1.0} for group_id in (1, "1", 1)]
    opened = RolloutDataset(write(tmp_path / "out", made))
    assert opened.groups.tolist() == [0, 1, 0]
    assert [opened[number].group_id for number in range(3)] == [1, "1", 1]


def test_many_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write(tmp_path / "whole", rows(20))
    monkeypatch.setattr("niels_gpt.rollouts.writer.WAITING_TOKENS", 30)
    parts = write(tmp_path / "parts", rows(20))
    names = [path.name for path in sorted((whole / "train").iterdir())]
    assert names == ["episodes.idx", "logprobs.bin", "mask.bin", "rollouts.bin", "rollouts.jsonl", "tokens.bin"]
    for name in names:
        assert (whole / "train" / name).read_bytes() == (parts / "train" / name).read_bytes()
    assert RolloutDataset(whole).fingerprint == RolloutDataset(parts).fingerprint


def test_several_datasets_are_one(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"step_{step}", rows(5, seed=step, version=step)) for step in range(3)]
    opened, alone = RolloutDataset(paths), [RolloutDataset(path) for path in paths]
    assert opened.n_groups == 15
    assert opened.groups.tolist() == [5 * at + group for at, each in enumerate(alone) for group in each.groups.tolist()]
    assert opened.versions.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    for number in (0, 19, 20, 59):
        own = alone[number // 20][number % 20]
        assert opened[number].ids.tolist() == own.ids.tolist()
        assert opened[number].metadata == own.metadata
        np.testing.assert_array_equal(opened[number].logprobs, own.logprobs)
    np.testing.assert_allclose(opened.advantages(), np.concatenate([each.advantages() for each in alone]))


def test_a_trajectory_step_keeps_what_the_model_did_not_write(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "the quick"}]
    said = [
        {"role": "assistant", "content": "brown"},
        {"role": "user", "content": "fox"},
        {"role": "assistant", "content": "jumps"},
    ]
    renderer = renderer_of("qwen3")
    step = build_trajectory_step(renderer, prompt, said)
    step["completion_logprobs"] = [-0.5] * len(step["completion_ids"])
    path = write(tmp_path / "out", [{"group_id": 1, "turns": step, "reward": 1}], renderer=renderer)
    found = RolloutDataset(path)[0]
    assert found.ids.tolist() == step["prompt_ids"] + step["completion_ids"]
    assert found.mask.tolist() == step["prompt_mask"] + step["completion_mask"]
    assert not all(step["completion_mask"])
    assert (np.isfinite(found.logprobs) == found.mask).all()
    manifest = json.loads((path / "episodes.json").read_text(encoding="utf-8"))
    assert manifest["vocab_size"] == renderer.vocab_size
    assert manifest["tokenizer_sha256"] == renderer.fingerprints["tokenizer_sha256"]
    with RolloutWriter(tmp_path / "other", renderer) as writer:
        writer.add(1, step, 1.0)
        with pytest.raises(TokenizerError, match="id"):
            writer.add(1, {**step, "prompt_ids": [renderer.vocab_size]}, 1.0)


GOOD: dict[str, Any] = {"prompt_ids": [1, 2], "completion_ids": [3, 4, 5], "completion_logprobs": [-0.5, -1.0, -2.0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"completion_logprobs": [-0.5]}, "completion_logprobs: 1 values for 3 tokens"),
        ({"completion_mask": [True]}, "completion_mask: 1 values for 3 tokens"),
        ({"version": [1, 2]}, "version: 2 values for 3 tokens"),
        ({"completion_logprobs": [-0.5, math.nan, -1.0]}, "nan at token 1, which was sampled"),
        ({"completion_logprobs": [-0.5, -1.0, -math.inf]}, "-inf at token 2"),
        ({"completion_logprobs": [-0.5, -1.0, -1e300]}, "at token 2, which was sampled"),
        ({"completion_logprobs": [3, 4, 5]}, "completion_logprobs are int64"),
        ({"completion_logprobs": None}, "no completion_logprobs"),
        ({"completion_ids": [3.0, 4.0, 5.0]}, "completion_ids are float64; expected integers"),
        ({"completion_ids": [[3, 4, 5]]}, "shape"),
        ({"completion_ids": [3, -1, 5]}, "from -1 to 5"),
        ({"prompt_ids": [2**32]}, "4294967296"),
        ({"prompt_ids": []}, "prompt_ids is empty"),
        ({"completion_ids": [], "completion_logprobs": []}, "completion_ids is empty"),
        ({"completion_mask": [1, 2, 0]}, "completion_mask holds"),
        ({"version": 1.5}, "version is 1.5"),
        ({"version": -2}, "version is -2"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with RolloutWriter(tmp_path / "out") as writer:
        writer.add("a", GOOD, 1.0)
        with pytest.raises(UsageError) as refused:
            writer.add("b", {**GOOD, **change}, 1.0)
        assert message in str(refused.value)
        writer.add("c", GOOD, 0.0)
    opened = RolloutDataset(tmp_path / "out")
    assert [opened[number].group_id for number in range(len(opened))] == ["a", "c"]
    assert opened.n_groups == 2
    assert list(verify_rollouts(tmp_path / "out")) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": math.nan}, "reward is nan"),
        ({"reward": "high"}, "reward is 'high'"),
        ({"turns": {**GOOD, "completion_logprobs": [0.25] * len(GOOD["completion_ids"])}}, "Are these probabilities?"),
        ({"advantage": math.inf}, "advantage is inf"),
        ({"reward": 1e39}, "reward is 1e+39; expected a finite number of float32"),
        ({"group_id": None}, "group_id is None"),
        ({"metadata": [1]}, "metadata is"),
        ({"metadata": {"a": math.nan}}, "cannot be written as JSON"),
        ({"metadata": {1: "a", "1": "b"}}, "metadata has the key 1"),
        # The first prompt is empty, that of the second turn is not.
        ({"turns": [{**GOOD, "prompt_ids": []}, {**GOOD, "prompt_ids": [3, 4, 5, 6]}]}, "prompt_ids is empty"),
        ({"turns": []}, "no turns"),
        ({"turns": {"prompt_ids": [1]}}, "no completion_ids"),
        ({"turns": [GOOD, GOOD]}, "turn 1: its prompt differs from the turns before it at token 2"),
    ],
)
def test_other_values_that_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with RolloutWriter(tmp_path / "out") as writer:
        writer.add("a", GOOD, 1.0)
        with pytest.raises(UsageError) as refused:
            writer.add(**{"group_id": "b", "turns": GOOD, "reward": 1.0, **change})
        assert message in str(refused.value)
    assert len(RolloutDataset(tmp_path / "out")) == 1


LINE: dict[str, Any] = {"prompt_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.5, -1.0], "reward": 1.0}
TURNS = [{name: value for name, value in LINE.items() if name != "reward"}]


def imported(folder: Path, row: dict[str, Any]) -> RolloutDataset:
    (folder / "in.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    import_rollouts([folder / "in.jsonl"], folder / "out", overwrite=True)
    return RolloutDataset(folder / "out")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"turns": TURNS, "reward": 1, "completion_mask": [1, 0]}, "turns and completion_mask beside them"),
        ({"turns": TURNS, "reward": 1, "logprobs": [-9.0, -9.0]}, "turns and logprobs beside them"),
        ({**LINE, "completion_logprobs": [-2.0, -2.0]}, "completion_logprobs and logprobs are given, and differ"),
        ({**LINE, "level": 1, "metadata": {"level": 2}}, "level is 1 in the row and 2 in its metadata"),
    ],
)
def test_lines_of_which_a_part_would_be_lost(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        imported(tmp_path, row)
    assert f"in.jsonl:1: {message}" in str(refused.value)


def test_everything_of_a_line_is_kept(tmp_path: Path) -> None:
    row = {**LINE, "completion_logprobs": LINE["logprobs"], "level": 1, "metadata": {"level": 1, "by": "x"}}
    assert imported(tmp_path, row)[0].metadata == {"level": 1, "by": "x"}
    later = {"prompt_ids": [1, 2, 3, 4, 9], "completion_ids": [5], "logprobs": [-0.5]}
    rollout = imported(tmp_path, {"turns": [{**TURNS[0], "finish": "stop", "reward": 0.5}, later], "reward": 2})[0]
    assert rollout.metadata == {"turns": [{"finish": "stop", "reward": 0.5}, {}]}
    assert rollout.mask.tolist() == [False, False, True, True, False, True]


def test_arrays_and_tensors_are_taken_as_they_are(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensors = {name: torch.tensor(values) for name, values in GOOD.items()}
    arrays = {name: np.asarray(values) for name, values in GOOD.items()}
    names = [
        write(tmp_path / name, [{"group_id": 1, "turns": row, "reward": 1}])
        for name, row in (("lists", GOOD), ("tensors", tensors), ("arrays", arrays))
    ]
    assert len({RolloutDataset(path).fingerprint for path in names}) == 1


def test_without_logprobs(tmp_path: Path) -> None:
    path = write(tmp_path / "out", rows(3), logprobs=False)
    assert not (path / "train" / "logprobs.bin").exists()
    opened = RolloutDataset(path)
    assert opened.logprobs is None
    assert opened[0].logprobs is None
    with pytest.raises(CacheError, match=r"logprobs\.bin: no such file, but other datasets have one"):
        RolloutDataset([write(tmp_path / "with", rows(3)), path])


def write_two(writer: RolloutWriter) -> None:
    writer.add("a", GOOD, 1.0)
    writer.add("b", GOOD, math.nan)


def test_an_error_or_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reward"), RolloutWriter(tmp_path / "out") as writer:
        write_two(writer)
    with pytest.raises(DataError, match="no rollouts"), RolloutWriter(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []
    path = write(tmp_path / "out", rows(2))
    with pytest.raises(OutputExists), RolloutWriter(path):
        pass
    write(path, rows(3), overwrite=True)
    assert RolloutDataset(path).n_groups == 3
    with pytest.raises(UsageError, match="not open"):
        RolloutWriter(tmp_path / "new").add("a", GOOD, 1.0)


KILLED = """
import sys
from tests.killing import count_and_kill
steps = count_and_kill(sys.argv[1], int(sys.argv[2]))
import niels_gpt.rollouts.writer as writer
from pathlib import Path
from tests.rollouts.made import rows, write
writer.WAITING_TOKENS = 20
write(Path(sys.argv[1]), rows(6))
print(steps())
"""


def test_a_writer_that_is_killed_leaves_no_half_dataset(tmp_path: Path) -> None:
    def run(out: Path, point: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(out), str(point)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run(tmp_path / "whole" / "out", 0)
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    expected = RolloutDataset(tmp_path / "whole" / "out").fingerprint
    last = 0
    for point in sorted({*range(1, steps + 1, max(1, steps // 12)), *range(steps - 4, steps + 1)}):
        out = tmp_path / str(point) / "out"
        out.parent.mkdir()
        assert run(out, point).returncode == -signal.SIGKILL
        if out.exists():
            assert RolloutDataset(out).fingerprint == expected
            last += 1
        else:
            write(out, rows(6))
            assert RolloutDataset(out).fingerprint == expected
        assert [path.name for path in out.parent.iterdir() if not path.name.startswith(".")] == ["out"]
    assert last < steps


@pytest.mark.parametrize(
    "name", ["tokens.bin", "mask.bin", "logprobs.bin", "rollouts.bin", "rollouts.jsonl", "episodes.idx"]
)
def test_a_changed_byte_is_found(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "out", rows(4))
    file = path / "train" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    (finding,) = verify_rollouts(path)
    assert finding.startswith(f"{file}: damaged: its sha256 is")


def rewritten(path: Path, name: str, change: Any) -> None:
    """Change a file, and the manifest with it, as another program might write it."""
    from niels_gpt.storage.checksums import file_record
    from niels_gpt.storage.manifests import with_manifest_hash

    file = path / "train" / name
    file.write_bytes(change(bytearray(file.read_bytes())))
    manifest = json.loads((path / "episodes.json").read_text(encoding="utf-8"))
    manifest["files"][f"train/{name}"] = file_record(file).to_json()
    (path / "episodes.json").write_text(json.dumps(with_manifest_hash(manifest)), encoding="utf-8")


def with_float(at: int, value: float) -> Any:
    def change(data: bytearray) -> bytearray:
        data[4 * at : 4 * at + 4] = np.float32(value).tobytes()
        return data

    return change


def test_what_checksums_cannot_tell_is_found_too(tmp_path: Path) -> None:
    made = [{"group_id": 1, "turns": GOOD, "reward": 1.0}]
    for at, value in ((0, -1.0), (3, math.nan)):  # token 0 is the prompt's, token 3 was sampled
        path = write(tmp_path / f"logprobs {at}", made)
        rewritten(path, "logprobs.bin", with_float(at, value))
        (finding,) = verify_rollouts(path)
        assert f"logprobs.bin: token {at} has {value}" in finding
    for name, message in (("logprobs.bin", "5 tokens"), ("rollouts.bin", "1 rollouts")):
        path = write(tmp_path / name, made)
        rewritten(path, name, lambda data: data[:-4])
        (finding,) = verify_rollouts(path)
        assert message in finding
        with pytest.raises(CacheError, match=name):
            RolloutDataset(path)
    path = write(tmp_path / "lines", made)
    rewritten(path, "rollouts.jsonl", lambda data: data.replace(b"{", b"["))
    (finding,) = verify_rollouts(path)
    assert "the line of rollout 0 is damaged" in finding
    path = write(tmp_path / "group", made)
    rewritten(path, "rollouts.bin", lambda data: b"\x07" + data[1:])
    with pytest.raises(CacheError, match="group 7 of 1 rollouts"):
        RolloutDataset(path)


def test_other_readers_refuse_rollouts(tmp_path: Path) -> None:
    path = write(tmp_path / "out", rows(4))
    with pytest.raises(UsageError, match="a dataset of rollouts"):
        GPTEpisodeDataLoader({"batch_size": 1, "block_size": 8, "device": "cpu"}, dataset_dir=path, pad_token_id=0)
    with pytest.raises(UsageError, match="at least one directory"):
        RolloutDataset([])
    opened = RolloutDataset(path)
    for wrong in (-1, 16):
        with pytest.raises(UsageError, match="rollouts 0 to 15"):
            opened[wrong]
    with pytest.raises(UsageError, match="groups 0 to 3"):
        opened.group(4)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-100, 100)), max_size=20))
def test_advantages_are_those_of_each_group(pairs: list[tuple[int, float]]) -> None:
    groups = np.array([group for group, _ in pairs], np.int64)
    rewards = np.array([reward for _, reward in pairs], np.float64)
    for formula in ("grpo", "mean"):
        found = group_advantages(rewards, groups, formula)
        for group in set(groups.tolist()):
            own = rewards[groups == group]
            expected = own - own.mean()
            if formula == "grpo":
                expected = expected / ((own.std(ddof=1) if len(own) > 1 else 0.0) + 1e-6)
            if len(set(own.tolist())) == 1:
                expected = np.zeros(len(own))
            np.testing.assert_allclose(found[groups == group], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("formula", ["grpo", "mean"])
def test_advantages_of_equal_rewards_are_exactly_zero(formula: str) -> None:
    """The mean of 0.1 0.1 0.1 is not 0.1; and what differs only by rounding must not become an advantage of 1."""
    rewards, groups = np.array([0.1, 0.1, 0.1, 0.7, 0.1 + 0.2, 0.3]), np.array([0, 0, 0, 2, 3, 3])
    found = group_advantages(rewards, groups, formula)
    assert found[:4].tolist() == [0.0] * 4
    assert abs(found).max() < 1e-9


def test_stored_advantages(tmp_path: Path) -> None:
    made = rows(2)
    opened = RolloutDataset(write(tmp_path / "all", [{**row, "advantage": 0.25} for row in made]))
    assert opened.advantages().tolist() == [0.25] * 8
    assert opened.advantages("mean").tolist() != [0.25] * 8
    some = RolloutDataset(write(tmp_path / "some", [{**made[0], "advantage": 0.25}, *made[1:]]))
    with pytest.raises(UsageError, match="7 of 8 rollouts have no stored advantage, the first is 1"):
        some.advantages()
    assert len(some.advantages("grpo")) == 8
    with pytest.raises(UsageError, match="did you mean 'grpo'"):
        some.advantages("gpro")


def test_tokens_of_several_policies(tmp_path: Path) -> None:
    row = {**GOOD, "version": [7, 8, 8], "completion_mask": [False, True, True]}
    path = write(tmp_path / "out", [{"group_id": 1, "turns": row, "reward": 1.0}], token_versions=True)
    found = RolloutDataset(path)[0]
    assert found.versions is not None
    assert found.versions.tolist() == [-1, -1, -1, 8, 8]
    assert found.version == 8
    draw = np.random.default_rng(0)
    plain = write(tmp_path / "plain", [{"group_id": 1, "turns": turn(draw, 2, 3), "reward": 1.0, "version": 4}])
    assert (RolloutDataset(plain)[0].version, RolloutDataset(plain)[0].versions) == (4, None)
