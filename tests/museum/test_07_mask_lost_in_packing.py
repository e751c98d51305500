"""A mask that was right, and did not come along."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.episodes import build_episodes
from niels_gpt.messages import Conversation
from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import chats, report_on
from tests.episodes.made import epoch_of, loader
from tests.renderers.tiny_families import renderer_of


def naive(samples: list[tuple[list[int], list[bool]]], capacity: int) -> list[dict[str, list[int]]]:
    rows: list[list[int]] = [[]]
    for ids, _ in samples:  # packing needs no mask
        if len(rows[-1]) + len(ids) > capacity:
            rows.append([])
        rows[-1] += ids
    return [{"input_ids": ids, "labels": ids} for ids in rows]


def test_naive() -> None:
    samples = [build_training_sample(renderer_of("chatml"), messages) for messages in chats()]
    rows = naive(samples, 200)
    assert len(rows) < len(samples)
    assert report_on("chatml", rows).rules() == ["mask-all-one"]


def test_ours(tmp_path: Path) -> None:
    made = [renderer_of("chatml").render(messages) for messages in chats()]
    conversations = [Conversation(messages, "chat") for messages in chats()]
    build_episodes(conversations, tmp_path / "data", encoder=renderer_of("chatml"), val_frac=0.0)
    for packing in (False, True):
        opened = loader(tmp_path / "data", block_size=200, keywords={"packing": packing, "epoch_drop_last": False})
        trained = sum(batch.num_trained_tokens for batch in epoch_of(opened))
        assert trained == sum(sum(one.sampled_mask) for one in made)
