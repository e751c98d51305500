"""Rows become groups of episodes: the same bytes by any executor, with the prompt found among the ids."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.datasets import open_dataset
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.errors import CacheError, DataError, UsageError
from niels_gpt.preferences.dataset import Fitting, PreferenceSplit, summarise
from niels_gpt.preferences.encode import shared_prompt
from niels_gpt.progress import Progress
from niels_gpt.store.schema import COMPLETION
from niels_gpt.store.verify import verify_dataset
from tests.preferences.made import built, labelled, pairs, ranked
from tests.renderers.tiny_families import renderer_of


class Notes(Progress):
    """The lines that a build shows."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def hashes(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_ids_masks_and_prompts_are_the_renderers(tmp_path: Path) -> None:
    rows, renderer = pairs(20), renderer_of("qwen3")
    split = PreferenceSplit([built(tmp_path, rows, val_frac=0)], "train", Fitting(1000))
    stored = open_dataset(tmp_path / "out").split("train")
    assert (len(split), split.begins.tolist()) == (20, list(range(0, 41, 2)))
    for number, row in enumerate(rows):
        prompt = [{"role": "user", "content": row["prompt"]}]
        generated = renderer.render_ids(prompt, add_generation_prompt=True)
        for side, name in enumerate(("chosen", "rejected")):
            rendered = renderer.render([*prompt, {"role": "assistant", "content": row[name]}])
            found = stored.rows(np.array([2 * number + side]))
            assert found.ids.tolist() == rendered.token_ids
            assert (np.asarray(found.weights) > 0).tolist() == rendered.sampled_mask
            assert found.ids[np.flatnonzero(found.weights)[-1]] in renderer.get_stop_token_ids()
            record = split.records(np.array([2 * number + side]))[0]
            assert found.ids[: record["prompt_length"]].tolist() == generated
            assert (record["number"], record["rank"], record["label"]) == (side, side, -1)


@pytest.mark.parametrize("rows", [pairs(60), labelled(60), ranked(40)], ids=["pairs", "labelled", "ranked"])
def test_any_executor_gives_the_same_bytes(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    plain = hashes(built(tmp_path / "plain", rows, shard_bytes=1000))
    executor = UnitExecutor(LocalRunner(2), slice_bytes=900)
    units = hashes(built(tmp_path / "units", rows, shard_bytes=1000, executor=executor))
    assert plain == units
    assert list(verify_dataset(tmp_path / "units" / "out")) == []
    folders = sorted((tmp_path / "plain" / "out" / "train").glob("shard_*"))
    assert len(folders) > 3
    for folder in folders:  # no group is cut
        assert np.fromfile(folder / "completions.bin", COMPLETION)["number"][0] == 0


def test_completions_of_a_row_are_in_one_split(tmp_path: Path) -> None:
    out = built(tmp_path, ranked(40), val_frac=0.25)
    manifest = json.loads((out / "episodes.json").read_text())
    assert (manifest["kind"], manifest["form"]) == ("preferences", "ranked")
    assert (manifest["splits"]["train"]["groups"], manifest["splits"]["val"]["groups"]) == (30, 10)
    for name in ("train", "val"):
        assert len(PreferenceSplit([out], name, Fitting(10_000))) == manifest["splits"][name]["groups"]


def test_scores_labels_and_margins_are_stored(tmp_path: Path) -> None:
    rows = [{**row, "chosen_score": 0.1, "rejected_score": -3, "margin": 1.5} for row in pairs(3)]
    records = np.fromfile(built(tmp_path / "a", rows, val_frac=0) / "train/completions.bin", COMPLETION)
    assert records["score"].tolist() == [0.1, -3.0] * 3
    assert records["margin"][::2].tolist() == [1.5] * 3
    assert np.isnan(records["margin"][1::2]).all()
    labels = np.fromfile(built(tmp_path / "b", labelled(6), val_frac=0) / "train/completions.bin", COMPLETION)
    assert labels["label"].tolist() == [0, 1, 1, 0, 1, 1]
    assert np.isnan(labels["score"]).all()


def test_a_bad_side_rejects_its_row_once(tmp_path: Path) -> None:
    rows = pairs(6)
    rows[2]["rejected"] = ""
    rows[4] = {"prompt": "Hi", "chosen": "a"}
    with pytest.raises(DataError, match=r"rows.jsonl:3: rejected is empty"):
        built(tmp_path, rows)
    assert not (tmp_path / "out").exists()
    out = built(tmp_path, rows, max_bad_rows=2)
    manifest = json.loads((out / "episodes.json").read_text())
    assert manifest["dropped"] == {"empty_completion": 1, "missing_column": 1}
    assert sum(manifest["splits"][name]["groups"] for name in ("train", "val")) == 4
    lines = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert [line["where"].rpartition(":")[2] for line in lines] == ["3", "5"]


def test_the_renderer_refuses_one_side(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = pairs(4)
    rows[1]["chosen"] = [
        {"role": "assistant", "content": "a"},
        {"role": "nobody", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    with pytest.raises(DataError, match=r"rows.jsonl:2, chosen.*nobody"):
        built(tmp_path, rows)


def test_rows_that_are_all_refused_are_told_as_such(tmp_path: Path) -> None:
    """Nothing of the batch is encoded."""
    rows = [row | {"prompt": [{"role": "robot", "content": "a"}]} for row in pairs(3)]
    with pytest.raises(DataError, match=r"rows.jsonl:1, chosen: .*robot"):
        built(tmp_path, rows)


def test_answers_in_the_prompt_are_not_trained(tmp_path: Path) -> None:
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    rows = [{"prompt": before, "chosen": "the fox", "rejected": "the dog"}]
    out = built(tmp_path, rows, val_frac=0)
    found = open_dataset(out).split("train").rows(np.array([0]))
    record = np.fromfile(out / "train/completions.bin", COMPLETION)[0]
    assert not np.asarray(found.weights)[: record["prompt_length"]].any()
    assert np.count_nonzero(found.weights) < len(found.ids) - record["prompt_length"] + 1


def test_an_untrained_last_answer_has_no_stop(tmp_path: Path) -> None:
    untrained = [{"role": "assistant", "content": "b", "train": False}]
    with pytest.raises(DataError, match=r"rows.jsonl:1, rejected"):
        built(tmp_path, [{"prompt": "a", "chosen": "b", "rejected": untrained}])


def test_the_shared_prompt() -> None:
    def prompt(ids: list[list[int]], begins: list[int], generation: list[int] | None = None) -> int:
        weights = [
            np.array([at >= begin for at in range(len(one))], np.float32)
            for one, begin in zip(ids, begins, strict=True)
        ]
        return shared_prompt([np.array(one) for one in ids], weights, generation)

    assert prompt([[1, 2, 3, 4], [1, 2, 5]], [2, 2]) == 2
    # Both completions begin with the same id.
    assert prompt([[1, 2, 3, 4], [1, 2, 3, 5]], [2, 2], [1, 2]) == 2
    # The last id of the prompt joins the completion.
    assert prompt([[1, 2, 30, 4], [1, 2, 31, 5]], [3, 3], [1, 2, 3]) == 2
    # One side has a block before what is trained, such as empty reasoning.
    assert prompt([[1, 2, 8, 9, 4], [1, 2, 8, 5]], [4, 2], [1, 2]) == 2
    with pytest.raises(Exception, match="differ from token 1 on"):
        prompt([[1, 2, 3, 4], [1, 7, 3, 5]], [3, 3], [1, 2, 3])
    with pytest.raises(Exception, match="differ from token 2 on"):
        prompt([[1, 2, 30, 4], [1, 2, 31, 5]], [3, 3])


def test_episodes_and_preferences_are_not_mixed_up(tmp_path: Path) -> None:
    out = built(tmp_path, pairs(8), val_frac=0)
    with pytest.raises(UsageError, match="its rejected completions would be trained"):
        GPTEpisodeDataLoader({"batch_size": 1, "block_size": 64}, dataset_dir=out, pad_token_id=0)
    (out / "train" / "completions.bin").rename(tmp_path / "kept.bin")
    with pytest.raises(CacheError):
        PreferenceSplit([out], "train", Fitting(100))


def test_records_that_contradict_the_index(tmp_path: Path) -> None:
    out = built(tmp_path, pairs(8), val_frac=0)
    path = out / "train" / "completions.bin"
    good = np.fromfile(path, COMPLETION)
    for name, value in (("number", 5), ("prompt_length", 0), ("prompt_length", 10_000)):
        bad = good.copy()
        bad[name][7] = value
        bad.tofile(path)
        with pytest.raises(CacheError, match=r"completions.bin: record 7"):
            PreferenceSplit([out], "train", Fitting(100))
        assert any("completions.bin" in line for line in verify_dataset(out))
    good[1:].tofile(path)
    with pytest.raises(CacheError, match=r"480 bytes, but episodes\.json records 512"):
        PreferenceSplit([out], "train", Fitting(100))


def test_summary(tmp_path: Path) -> None:
    rows = [{**row, "chosen": f"{row['chosen']} and more of it and then it sleeps again"} for row in pairs(30, most=2)]
    found = summarise(built(tmp_path, rows, val_frac=0), 20)
    assert list(found) == ["train"]
    assert found["train"]["groups"] == 30
    assert found["train"]["chosen_longer"] == 1.0
    assert found["train"]["length_ratio"] > 1.2
    assert found["train"]["too_long"] > 0
    alone = summarise(built(tmp_path / "b", labelled(5), val_frac=0), 20)["train"]
    assert alone["median_rejected"] is None


def test_sides_that_are_the_same_are_counted(tmp_path: Path) -> None:
    rows = pairs(5)
    rows[1]["rejected"] = rows[1]["chosen"]
    told = Notes()
    out = built(tmp_path, rows, val_frac=0, progress=told)
    assert json.loads((out / "episodes.json").read_text())["changed"] == {"identical_completions": 1}
    assert any("1 rows: completions of different ranks have the same ids" in note for note in told.notes)
    both = ["a b", "a b", "c"]
    tied = [{"prompt": "x", "completions": both, "ranks": ranks} for ranks in ([1, 1, 2], [1, 2, 3], [2, 2, 1])]
    manifest = json.loads((built(tmp_path / "ranked", tied, val_frac=0) / "episodes.json").read_text())
    assert manifest["changed"] == {"identical_completions": 1}, "completions of one rank are not compared"


def test_scores_that_contradict_the_sides_are_counted(tmp_path: Path) -> None:
    scores: list[dict[str, Any]] = [
        {"chosen_score": 1, "rejected_score": 2},
        {"chosen_score": 2, "rejected_score": 2},
        {"chosen_score": 2},
        {"margin": -0.5},
        {"margin": 0},
    ]
    rows = [{**row, **more} for row, more in zip(pairs(5), scores, strict=True)]
    told = Notes()
    out = built(tmp_path, rows, val_frac=0, progress=told)
    assert json.loads((out / "episodes.json").read_text())["changed"] == {"scores_contradict_ranks": 2}
    assert any("are the columns exchanged?" in note for note in told.notes)


def test_another_end_of_the_prompt_is_told_as_such(tmp_path: Path) -> None:
    """DeepSeek-R1's prompt opens a think block, which answers without reasoning do not have."""
    told = Notes()
    encoder = renderer_of("deepseek-r1")
    out = built(tmp_path, pairs(3), val_frac=0, encoder=encoder, progress=told)
    assert json.loads((out / "episodes.json").read_text())["changed"] == {"generation_prompt_differs": 3}
    assert any("3 rows: the prompt ends otherwise than serving writes it" in note for note in told.notes)
    assert not any("is not written" in note for note in told.notes)
