"""Rollouts as the doctor's input: groups repeat a prompt, and the answers in prompts were not sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.doctor import diagnose
from niels_gpt.rollouts import import_rollouts
from tests.doctor.made import samples
from tests.renderers.tiny_families import renderer_of


def test_groups_and_prompts_of_rollouts_are_no_findings(tmp_path: Path) -> None:
    lines = []
    for sample in samples("qwen2.5"):
        first = sample.bodies[-1][0]  # of the last answer: what is before it is the prompt
        last = sample.bodies[-1][1] + 1
        one = {"prompt_ids": sample.ids[:first], "completion_ids": sample.ids[first:last], "reward": 1.0}
        lines += [one | {"logprobs": [-0.5] * (last - first)}] * 2
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    import_rollouts([tmp_path / "in.jsonl"], tmp_path / "out")
    report = diagnose(tmp_path / "out", renderer=renderer_of("qwen2.5"))
    assert report.rows == len(lines)
    assert report.rules("warning") == []
    # The same rows as a dataset for supervised training are findings.
    rows = [
        {
            "input_ids": one["prompt_ids"] + one["completion_ids"],
            "labels": [-100] * len(one["prompt_ids"]) + one["completion_ids"],
        }
        for one in lines
    ]
    assert {"duplicate-row", "last-turn-only"} <= {*diagnose(rows, renderer=renderer_of("qwen2.5")).rules("warning")}
