"""`--fix`: what is certain is repaired, other rows are written as they are, and what is left is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.doctor import diagnose
from niels_gpt.episodes import build_episodes
from niels_gpt.errors import UsageError
from niels_gpt.messages import Conversation
from tests.conftest import run_cli
from tests.doctor.made import Row, Sample, as_rows, chats, model, report_on, rows, samples, template_of
from tests.doctor.planted_tokens import leave_out, shift, train, train_headers, without_stop
from tests.doctor.test_reading import as_jsonl
from tests.renderers.tiny_families import folder_of, renderer_of

FAMILIES = ("qwen2.5", "llama-3", "gemma", "qwen3", "glm-4.5", "gpt-oss")


PLANTS: tuple[Callable[[Sample], None], ...] = (
    partial(shift, "", by=1),
    lambda sample: train(sample, 0, len(sample.ids)),
    partial(without_stop, ""),
    lambda sample: train(sample, *sample.users[-1]),
    partial(train_headers, ""),
)


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("plant", PLANTS)
def test_masks_become_what_they_were(plant: Callable[[Sample], None], family: str, tmp_path: Path) -> None:
    clean, broken = samples(family), samples(family)
    for sample in broken[::2]:
        plant(sample)
    report = report_on(family, rows(broken), fix=tmp_path / "out.jsonl")
    if family == "glm-4.5":  # its answers have no stop of their own, so what should be trained is not certain
        assert not report.repaired["repaired"]  # type: ignore[index]
        return
    written = lines(tmp_path / "out.jsonl")
    assert [row["labels"] for row in written] == [row["labels"] for row in rows(clean)]
    assert set(report_on(family, written).rules("warning")) == set(report_on(family, rows(clean)).rules("warning"))


def test_columns_of_every_form_are_repaired(tmp_path: Path) -> None:
    """Shifted labels, none, masks, arrays; only turns that a row trains."""
    out, clean = tmp_path / "out.jsonl", rows(samples("llama-3"))
    moved = [row | {"labels": [*row["labels"][1:], -100]} for row in clean]
    assert report_on("llama-3", moved, fix=out).repaired["repaired"] == {"labels-preshifted": 8}  # type: ignore[index]
    assert lines(out) == clean
    report_on("llama-3", [{"input_ids": np.array(row["input_ids"])} for row in clean], fix=out)
    assert lines(out) == clean
    masked = [{"input_ids": r["input_ids"], "assistant_masks": [1] * len(r["input_ids"])} for r in clean]
    report_on("llama-3", masked, fix=out)
    assert [row["assistant_masks"] for row in lines(out)] == [[int(x != -100) for x in r["labels"]] for r in clean]
    made = samples("llama-3")
    leave_out("", made[0], slice(1))
    expected = list(made[0].trained)
    made[0].trained[made[0].stops[1]] = False
    report_on("llama-3", rows(made), fix=out)
    assert [label != -100 for label in lines(out)[0]["labels"]] == expected


def test_a_tokenizer_gets_its_end_of_turn_into_the_stops(tmp_path: Path) -> None:
    other = renderer_of("llama-3").encoder.control_ids["<|begin_of_text|>"]
    held = {"eos_token_id": [other], "do_sample": True}
    folder = model(tmp_path / "m", "llama-3", template=template_of("llama-3"), generation=held)
    report = diagnose(folder, fix=tmp_path / "generation_config.json")
    stop = renderer_of("llama-3").encoder.control_ids["<|eot_id|>"]
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {
        "eos_token_id": [other, stop],
        "do_sample": True,
    }
    assert report.repaired["repaired"] == {"eot-not-in-stop-set": 1}  # type: ignore[index]
    (tmp_path / "generation_config.json").rename(folder / "generation_config.json")
    assert "eot-not-in-stop-set" not in diagnose(folder).rules()


def test_what_cannot_be_written_is_refused_before_the_input_is_read(tmp_path: Path) -> None:
    given = as_jsonl(rows(samples("chatml")), tmp_path)
    conversations = [Conversation(messages) for messages in chats()]  # type: ignore[arg-type]
    build_episodes(conversations, tmp_path / "episodes", encoder=as_encoder(renderer_of("chatml")))
    for source, fix, said in (
        (given, given, "is the input itself"),
        (given, tmp_path / "out.parquet", "name a .jsonl file"),
        (tmp_path / "episodes", tmp_path / "out.jsonl", "build this dataset again"),
        (as_rows(chats()), tmp_path / "out.jsonl", "only rows of ids and tokenizers are repaired"),
    ):
        with pytest.raises(UsageError, match=said):
            diagnose(source, fix=fix)
    with pytest.raises(UsageError, match="repairs all rows of one input"):
        diagnose(given, fix=tmp_path / "out.jsonl", sample=2)


def test_the_command_says_what_it_repaired_and_what_it_left(tmp_path: Path) -> None:
    made, out = rows(samples("chatml")), tmp_path / "out.jsonl"
    made += [made[2], {"input_ids": [], "labels": []}, {"input_ids": [1, 2], "labels": [1]}]
    made[0]["labels"] = [*made[0]["labels"][1:], -100]
    options = ("--tokenizer", folder_of("chatml"), "--renderer", "chatml")
    done = run_cli("doctor", as_jsonl(made, tmp_path), *options, "--fix", out)
    assert done.returncode == 1
    left_out = "left out: empty-row (1 row), unusable-row (1 row)"
    said = f"repaired: labels-preshifted (1 row); {left_out}; left as it is: duplicate-row (1 row)"
    assert f"{out}: 9 rows; {said}" in " ".join(done.stderr.split())
    shown = json.loads(run_cli("doctor", as_jsonl(made, tmp_path), *options, "--fix", out, "--json").stdout)
    assert shown["repaired"]["left_out"] == {"empty-row": 1, "unusable-row": 1}


@pytest.mark.parametrize("others", ["train their empty think blocks", "leave them out", "have no mask either"])
def test_a_row_without_a_mask_treats_empty_think_blocks_as_the_others_do(others: str, tmp_path: Path) -> None:
    clean = samples("qwen3")
    think = renderer_of("qwen3").encoder.added_ids["</think>"]
    if others == "leave them out":
        for sample in clean:
            low, _ = sample.bodies[-1]  # the format writes the block in the last answer
            behind = sample.ids.index(think) + 2
            behind += sample.ids[behind] == sample.ids[behind - 1]  # an empty line
            sample.trained[low:behind] = [False] * (behind - low)
    broken = rows(clean)
    for row in broken if others == "have no mask either" else broken[::2]:
        del row["labels"]
    report_on("qwen3", broken, fix=tmp_path / "out.jsonl")
    assert lines(tmp_path / "out.jsonl") == rows(clean)


def test_labels_that_a_repair_writes_anew_are_not_left(tmp_path: Path) -> None:
    """Labels of which each is that of the token before are no ids, and are also a shifted mask."""
    made = rows(samples("qwen2.5"))
    for row in made[:3]:
        row["labels"] = [-100, *row["labels"][:-1]]
    made[5]["labels"] = [-100 if label == -100 else 7 for label in made[5]["labels"]]  # with a mask that is right
    report = report_on("qwen2.5", made, fix=tmp_path / "out.jsonl")
    assert report.repaired is not None
    assert report.repaired["repaired"] == {"labels-foreign": 3, "mask-shifted": 3}
    assert report.repaired["left"]["labels-foreign"] == 1
    found = report_on("qwen2.5", lines(tmp_path / "out.jsonl")).finding("labels-foreign")
    assert found is not None
    assert found.rows == 1
