"""Texts joined in one row, and nothing that says where one begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from niels_gpt.doctor import check_batch
from niels_gpt.episodes import build_episodes
from niels_gpt.format.attention import block_diagonal_mask
from niels_gpt.messages import Conversation
from tests.doctor.made import chats, report_on, rows, samples
from tests.episodes.made import loader
from tests.museum.exhibit import with_labels
from tests.renderers.tiny_families import folder_of, renderer_of


def naive(conversations: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "input_ids": [token for row in conversations for token in row["input_ids"]],
        "labels": [label for row in conversations for label in row["labels"]],
    }


def test_naive() -> None:
    made = rows(samples("llama-3"))
    report = report_on("llama-3", [naive(made[:3]), naive(made[3:6])])
    assert report.rules() == ["attention-crosses"]


def test_ours(tmp_path: Path) -> None:
    conversations = [Conversation(messages, "chat") for messages in chats()]
    build_episodes(conversations, tmp_path / "data", encoder=renderer_of("llama-3"), val_frac=0.0)
    opened = loader(tmp_path / "data", block_size=300, keywords={"packing": True})
    batch = opened.next_batch()
    assert batch.segment_ids.max() > 1
    ids, labels = (columns[:, :-1] for columns in with_labels(batch))
    report = check_batch(
        ids,
        labels,
        batch.segment_ids > 0,
        position_ids=batch.position_ids,
        tokenizer=folder_of("llama-3"),
        renderer="llama-3",
    )
    assert report.rules() == []
    allowed = block_diagonal_mask(batch.segment_ids)[0].squeeze()
    first, second = (int((batch.segment_ids[0] == text).nonzero()[0]) for text in (1, 2))
    assert not allowed[second, first]
    assert allowed[second + 1, second]
