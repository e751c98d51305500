"""Padding recognised by its id, where the real end-of-turn has the same id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor import check_batch
from niels_gpt.episodes import build_episodes
from niels_gpt.messages import Conversation
from niels_gpt.renderers.base import RenderedTokens
from tests.doctor.made import chats
from tests.episodes.made import loader
from tests.museum.exhibit import with_labels
from tests.renderers.tiny_families import folder_of, renderer_of


def naive(rows: list[list[int]], masks: list[list[bool]], eos: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    width = max(map(len, rows)) + 1
    ids = np.array([row + [eos] * (width - len(row)) for row in rows])
    trained = np.array([mask + [False] * (width - len(mask)) for mask in masks])
    labels = np.where(trained, ids, -100)
    labels[ids == eos] = -100  # "do not train on padding"
    return ids, labels


def rendered() -> list[RenderedTokens]:
    return [renderer_of("chatml").render(messages) for messages in chats()]


def attended(width: int) -> npt.NDArray[np.bool_]:
    """What is no padding in rows of this width."""
    return np.arange(width) < np.array([[len(one.token_ids)] for one in rendered()])


def test_naive() -> None:
    made = rendered()
    stop = renderer_of("chatml").get_stop_token_ids()[0]
    ids, labels = naive([one.token_ids for one in made], [one.sampled_mask for one in made], stop)
    report = check_batch(ids, labels, attended(ids.shape[1]), tokenizer=folder_of("chatml"), renderer="chatml")
    assert report.rules() == ["eot-masked-as-padding"]


def test_ours(tmp_path: Path) -> None:
    """Padded with the very same id."""
    stop = renderer_of("chatml").get_stop_token_ids()[0]
    conversations = [Conversation(messages, "chat") for messages in chats()]
    build_episodes(conversations, tmp_path / "data", encoder=renderer_of("chatml"), val_frac=0.0)
    opened = loader(tmp_path / "data", batch_size=8, block_size=80, pad_token_id=stop)
    batch = next(opened.evaluation_batches("train"))  # in order
    ids, labels = with_labels(batch)
    assert not attended(81).all()
    report = check_batch(ids, labels, attended(81), tokenizer=folder_of("chatml"), renderer="chatml")
    assert report.rules() == []
    assert batch.num_trained_tokens == sum(sum(one.sampled_mask) for one in rendered())
