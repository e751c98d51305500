"""Rows of ids whose turns or masks are nearly right: padded and packed ones, shifted masks, ends and headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import Report, diagnose
from tests.doctor.made import (
    chats,
    packed,
    padded,
    report_on,
    rows,
    samples,
    user,
)
from tests.doctor.planted_tokens import header_with_more_white_space
from tests.renderers.tiny_families import renderer_of

SERIOUS = ("error", "warning")


def found(report: Report) -> dict[str, int]:
    """Errors and warnings with their numbers of rows."""
    return {finding.rule: finding.rows for finding in report.findings if finding.severity in SERIOUS}


def uneven(n: int = 8) -> list[list[dict[str, Any]]]:
    """Conversations of different lengths."""
    given = chats(n)
    for number, messages in enumerate(given):
        messages[-1]["content"] += " and the world" * number
    return given


@pytest.mark.parametrize("family", ["glm-4.5", "glm-5"])
def test_packed_rows_of_a_format_without_stops_are_judged(family: str) -> None:
    assert found(report_on(family, rows(packed(samples(family), positions=True)))) == {}


@pytest.mark.parametrize("masked", [True, False])
def test_a_row_without_padding_among_padded_ones_was_not_cut(masked: bool) -> None:
    pad = renderer_of("glm-4.5").encoder.control_ids["<|endoftext|>"]
    given = padded(samples("glm-4.5", uneven()), pad, extra=0)
    for sample in given if not masked else ():
        sample.more.pop("attention_mask")
    assert found(report_on("glm-4.5", rows(given))) == {}


@pytest.mark.parametrize("family", ["qwen2.5", "llama-3", "gpt-oss", "glm-4.5"])
def test_a_generation_prompt_after_the_last_answer_is_named(family: str) -> None:
    renderer = renderer_of(family)
    question = [user("hello the fox")]
    whole, prompted = renderer.render_ids(question), renderer.render_ids(question, add_generation_prompt=True)
    given = samples(family, chats(8, turns=1))
    for sample in given[:2]:
        prompt = list(prompted[len(whole) :])
        sample.ids += prompt
        sample.trained += [False] * len(prompt)
    report = report_on(family, rows(given))
    assert found(report) == {"turn-order": 2}
    assert "generation prompt" in report.findings[0].evidence[0].note


@pytest.mark.parametrize(("some", "severity"), [(0, None), (1, None), (4, "warning"), (40, "error")])
def test_more_white_space_before_some_answers_may_be_their_own(some: int, severity: str | None) -> None:
    made = samples("llama-3", chats(40, turns=1))
    report = report_on("llama-3", [*header_with_more_white_space("llama-3", made[:some]), *rows(made[some:])])
    finding = report.finding("header-drift")
    assert (finding and finding.severity) == severity
    assert finding is None or (finding.count, finding.rows) == (some, some)


@pytest.mark.parametrize(("family", "end"), [("llama-3", "<|end_of_text|>"), ("gemma", "<eos>")])
def test_an_end_of_text_inside_a_message_is_reported_and_one_after_the_last_answer_is_not(
    family: str, end: str
) -> None:
    token = renderer_of(family).encoder.control_ids[end]
    inside, after = samples(family), samples(family)
    for sample in inside[:1]:
        at = sample.users[0][0] + 1
        sample.ids.insert(at, token)
        sample.trained.insert(at, False)
    for sample in after:
        sample.ids.append(token)
        sample.trained.append(False)
    assert found(report_on(family, rows(inside))) == {"special-tokens-in-content": 1}
    assert found(report_on(family, rows(after))) == {}


def test_masks_of_megatron_bridge_belong_to_the_targets(tmp_path: Path) -> None:
    good, bad = [], []
    for sample in packed(samples("qwen2.5"), lengths=True):
        of_tokens = [int(trained) for trained in sample.trained]
        row = {"input_ids": sample.ids, "seq_start_id": [0, sample.more["seq_lengths"][0]]}
        good.append(row | {"loss_mask": [*of_tokens[1:], 0]})
        bad.append(row | {"loss_mask": of_tokens})
    assert found(report_on("qwen2.5", good)) == {}
    assert found(report_on("qwen2.5", bad)) == {"mask-shifted": len(bad)}
    fixed = tmp_path / "fixed.jsonl"
    diagnose(bad, renderer=renderer_of("qwen2.5"), fix=fixed)
    assert [json.loads(line) for line in fixed.read_text().splitlines()] == good


@pytest.mark.parametrize("family", ["glm-5", "kimi-k2.5", "nemotron-3"])
def test_a_mask_may_leave_out_the_end_of_an_empty_think_block_in_all_rows(family: str) -> None:
    given = samples(family, chats(40, turns=1))
    for sample in given:
        sample.trained[sample.bodies[0][0]] = False
    assert "mask-shifted" not in report_on(family, rows(given)).rules()
