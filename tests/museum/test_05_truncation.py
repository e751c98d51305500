"""Rows cut to a length, through the middle of an answer."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.doctor import check_batch
from niels_gpt.episodes import build_episodes
from niels_gpt.messages import Conversation
from tests.doctor.made import chats, report_on
from tests.episodes.made import loader
from tests.museum.exhibit import row, with_labels
from tests.renderers.tiny_families import folder_of, renderer_of


def naive(ids: list[int], mask: list[bool], longest: int) -> tuple[list[int], list[bool]]:
    return ids[:longest], mask[:longest]


def test_naive() -> None:
    made = [renderer_of("chatml").render(messages) for messages in chats()]
    rows = [row(*naive(list(one.token_ids), list(one.sampled_mask), len(one.token_ids) - 6)) for one in made]
    assert report_on("chatml", rows).rules() == ["truncated-mid-turn"]


def test_ours(tmp_path: Path) -> None:
    """The same tokens stay, without loss on the turn that was cut."""
    made = [renderer_of("chatml").render(messages) for messages in chats()]
    room = min(len(one.token_ids) for one in made) - 6
    conversations = [Conversation(messages, "chat") for messages in chats()]
    build_episodes(conversations, tmp_path / "data", encoder=renderer_of("chatml"), val_frac=0.0)
    opened = loader(tmp_path / "data", batch_size=8, block_size=room, keywords={"too_long": "drop_partial_turn"})
    batch = opened.next_batch()
    report = check_batch(*with_labels(batch), tokenizer=folder_of("chatml"), renderer="chatml")
    assert report.rules() == []
    assert 0 < batch.num_trained_tokens < sum(sum(one.sampled_mask) for one in made)
