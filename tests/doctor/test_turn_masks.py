"""Rows of ids whose turns or masks are nearly right: padded and packed ones, shifted masks, ends and headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import Report, diagnose
from niels_gpt.renderers.template.renderer import DefaultRenderer
from tests.doctor.made import (
    Sample,
    chats,
    model,
    packed,
    padded,
    report_on,
    rows,
    samples,
    system,
    template_of,
    user,
)
from tests.doctor.made import sample_of as rendered
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


def shifted(sample: Sample) -> Sample:
    sample.trained = [False, *sample.trained[:-1]]
    return sample


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


def test_the_token_after_the_stop_may_be_trained_where_the_prompt_closes_the_think_block() -> None:
    given = samples("laguna-xs.2", chats(turns=1))
    for sample in given:
        sample.trained[sample.bodies[0][0] :] = [True] * (len(sample.ids) - sample.bodies[0][0])
    assert found(report_on("laguna-xs.2", rows(given))) == {}


@pytest.mark.parametrize("family", ["kimi-k2.5", "nemotron-3"])
def test_a_mask_shifted_to_the_right_behind_empty_think_blocks_is_found(family: str) -> None:
    given = chats(8)
    if family == "nemotron-3":  # its answers without reasoning look as if the block were left out on purpose
        for messages in given:
            messages[-1]["reasoning_content"] = "you return the fox"
    report = report_on(family, rows([shifted(sample) for sample in samples(family, given)]))
    assert found(report) == {"mask-shifted": 8}
    assert found(report_on(family, rows(samples(family, given)))) == {}


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


def test_texts_begin_with_a_system_turn_where_the_template_writes_no_bos(tmp_path: Path) -> None:
    """Nemotron 3 and Kimi K2 have a bos that only other tools write."""
    folder = model(tmp_path / "model", "qwen2.5", template=template_of("qwen2.5"), bos_token="<|endoftext|>")
    renderer = DefaultRenderer(str(folder))
    given = [rendered(renderer, [system(), *messages]) for messages in chats()]
    for made, rules in (
        (rows(given), {}),
        (rows(packed(given, positions=True)), {}),
        (rows(packed(given)), {"attention-crosses": 4}),
        ([*rows(packed(given[:2])), *rows(given[2:])], {"attention-crosses": 1}),
    ):
        assert found(diagnose(made, renderer=renderer)) == rules


def test_rows_with_one_sample_a_turn_and_a_long_system_prompt_have_a_small_share_by_right() -> None:
    renderer, made = renderer_of("qwen2.5"), []
    for messages in [*chats(28, turns=1)[8:], *chats(8, turns=3)]:
        one = rendered(renderer, [system("Think of everything. " * 40), *messages])
        for turn in range(len(one.bodies)):
            low, high = one.bodies[turn]
            labels = [token if low <= at <= high else -100 for at, token in enumerate(one.ids[: high + 1])]
            made.append({"input_ids": one.ids[: high + 1], "labels": labels})
    report = diagnose(made, renderer=renderer)
    assert report.stats["loss_share"] < 0.1
    assert found(report) == {}
