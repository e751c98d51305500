"""Whatever the columns hold, the doctor reports; it never falls over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.doctor import diagnose
from niels_gpt.episodes import build_episodes
from niels_gpt.errors import Mismatch
from niels_gpt.samples import chats_file
from niels_gpt.sources.chat_files import chat_files
from tests.doctor.made import rows, samples
from tests.doctor.test_reading import as_jsonl, as_parquet
from tests.renderers.tiny_families import folder_of, renderer_of

numbers = st.integers(-3, 12) | st.sampled_from([-(2**63), 2**63 - 1, 2**70, 699, 700, -100])
lists = st.lists(numbers, max_size=12)
odd = st.none() | st.text(max_size=3) | st.lists(st.none() | st.floats() | st.text(max_size=2), max_size=3)
NAMES = ("labels", "attention_mask", "position_ids", "seq_lengths", "assistant_masks", "completion_mask", "loss_mask")


@st.composite
def row(draw: Any) -> dict[str, Any]:
    ids = draw(lists)
    made: dict[str, Any] = {"input_ids": ids}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)):
        same = st.lists(numbers, min_size=len(ids), max_size=len(ids))
        made[name] = draw(same | st.just(ids) | lists | odd)
    return made


@settings(max_examples=150, deadline=None)
@given(st.lists(row(), min_size=1, max_size=5), st.sampled_from(["chatml", "glm-4.5", "llama-3", "kimi-k2.5", None]))
def test_any_columns_make_a_report(made: list[dict[str, Any]], family: str | None) -> None:
    renderer = renderer_of(family) if family else None
    report = diagnose(made, renderer=renderer, max_length=4)
    assert report.rows == len(made)
    json.dumps(report.to_json())
    for finding in report.findings:
        assert finding.count >= 1
        assert finding.rows <= len(made)
        for evidence in finding.evidence:
            assert -1 <= evidence.row < len(made)
            if evidence.token is not None and evidence.mark is not None:
                assert evidence.window[evidence.mark].id == made[evidence.row]["input_ids"][evidence.token]


def test_numbers_that_are_no_ids_are_told_apart_from_ids(tmp_path: Path) -> None:
    made = rows(samples("chatml"))
    made[1]["input_ids"][3] = 1.5
    made[2]["input_ids"][3] = 2**70
    report = diagnose(as_jsonl(made, tmp_path), renderer=renderer_of("chatml"))
    finding = report.finding("unusable-row")
    assert finding is not None
    assert [evidence.row for evidence in finding.evidence] == [1, 2]
    nulls = rows(samples("chatml"))
    nulls[1]["input_ids"][3] = None
    for form in (as_jsonl, as_parquet):
        assert diagnose(form(nulls, tmp_path), renderer=renderer_of("chatml")).rules("error") == ["unusable-row"]


def test_a_dataset_of_ours_is_examined_with_its_own_tokenizer_only(tmp_path: Path) -> None:
    build_episodes(chat_files([chats_file()]), tmp_path / "episodes", encoder=as_encoder(renderer_of("qwen2.5")))
    with pytest.raises(Mismatch, match="built with tokenizer"):
        diagnose(tmp_path / "episodes", tokenizer=folder_of("llama-3"), renderer="llama-3")
