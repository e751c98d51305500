"""`GPTDataLoader` and the function that chooses between the two loaders."""

from __future__ import annotations

import itertools
import logging
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from niels_gpt.episodes import GPTDataLoader, GPTEpisodeDataLoader, make_data_loader
from niels_gpt.errors import CacheError, Mismatch, UsageError
from tests.episodes.made import write_split

B, T = 4, 6


def settings(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"batch_size": B, "block_size": T, "device": "cpu", **more})


def counting(folder: Path, n: int, *, first: int = 0, mask: str | None = None) -> Path:
    """Tokens first, first + 1, ...; the mask is 1 on odd ones."""
    folder.mkdir(parents=True)
    tokens = np.arange(first, first + n)
    tokens.astype("<u4").tofile(folder / "tokens.bin")
    if mask:
        (tokens % 2).astype(mask).tofile(folder / "mask.bin")
    return folder.parent.parent if folder.name.startswith("shard") else folder.parent


# ---- batches


def test_shards_are_drawn_by_their_windows_and_not_crossed(tmp_path: Path) -> None:
    for number, (first, n) in enumerate(((0, 10), (1000, 3), (2000, 28))):  # 4, 0 and 22 windows
        counting(tmp_path / "train" / f"shard_{number:05d}", n, first=first, mask="u1")
    loader = GPTDataLoader(settings(), dataset_dir=tmp_path)
    firsts = []
    for _ in range(1500):
        x, y, own = loader.get_batch()
        assert y.equal(x + 1)
        assert own.equal((y % 2).float())
        firsts += x[:, 0].tolist()
    counts = np.bincount(np.array(firsts))
    assert set(np.flatnonzero(counts)) == {*range(4), *range(2000, 2022)}
    share = counts[:4].sum() / len(firsts)
    assert abs(share - 4 / 26) < 0.02  # four standard deviations


# ---- order


def test_same_seed_same_windows_and_ranks_share_them(tmp_path: Path) -> None:
    dataset = counting(tmp_path / "train", 500)
    alone = GPTDataLoader(settings(batch_size=2 * B, use_loss_mask=False), dataset_dir=dataset, epoch_seed=5)
    ranks = [
        GPTDataLoader(settings(use_loss_mask=False), dataset_dir=dataset, epoch_seed=5, rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    other = GPTDataLoader(settings(batch_size=2 * B, use_loss_mask=False), dataset_dir=dataset, epoch_seed=6)
    for _ in range(5):
        x, _ = alone.get_batch()
        assert x.equal(torch.cat([loader.get_batch()[0] for loader in ranks]))
        assert not x.equal(other.get_batch()[0])


def test_resuming_goes_on_where_it_stopped(tmp_path: Path) -> None:
    dataset = counting(tmp_path / "train", 500)
    loader = GPTDataLoader(settings(use_loss_mask=False), dataset_dir=dataset)
    for _ in range(3):
        loader.get_batch()
    state = loader.state_dict()
    assert set(state) == {"version", "fingerprint", "seed", "epoch", "position"}
    expected = [loader.get_batch()[0] for _ in range(3)]
    again = GPTDataLoader(settings(use_loss_mask=False), dataset_dir=dataset)
    again.load_state_dict(state)
    assert all(a.equal(again.get_batch()[0]) for a in expected)
    counting(tmp_path / "other" / "train", 501)
    with pytest.raises(Mismatch, match="fingerprint"):
        GPTDataLoader(settings(), dataset_dir=tmp_path / "other").load_state_dict(state)
    with pytest.raises(Mismatch, match="fingerprint"):
        GPTDataLoader(settings(block_size=5), dataset_dir=dataset).load_state_dict(state)


# ---- what is missing


def test_a_missing_mask_is_said_once_where_one_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = counting(tmp_path / "train", 50)
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        loader = GPTDataLoader(settings(), dataset_dir=dataset, use_loss_mask=True)
        assert len(loader.get_batch()) == len(loader.get_batch()) == 2
    assert len(caplog.records) == 3
    assert "mask.bin: no such file" in caplog.text


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dataset_dir"):
        GPTDataLoader(settings())
    with pytest.raises(CacheError, match="no token stream"):
        GPTDataLoader(settings(), dataset_dir=tmp_path)
    dataset = counting(tmp_path / "train", T)
    with pytest.raises(UsageError, match=r"block_size \+ 1 = 7 tokens .*tokens.bin 6"):
        GPTDataLoader(settings(), dataset_dir=dataset)
    loader = GPTDataLoader(settings(block_size=3), dataset_dir=dataset)
    with pytest.raises(CacheError, match="no val split"):
        loader.get_batch("val")
    with pytest.raises(UsageError, match="split is 'test'"):
        loader.get_batch("test")
    with pytest.raises(UsageError, match="epochs need episodes"):
        GPTDataLoader(settings(block_size=3, batch_sampling_mode="epoch"), dataset_dir=dataset)


# ---- choosing


def test_the_mode_chooses_and_absent_means_a_stream(tmp_path: Path) -> None:
    write_split(tmp_path / "train", [[1, 2, 3, 4, 5, 6, 7, 8]] * 5)
    assert isinstance(make_data_loader(settings(), None, tmp_path), GPTDataLoader)
    assert isinstance(make_data_loader(settings(dataset_mode="token_stream"), None, tmp_path), GPTDataLoader)
    episodes = settings(dataset_mode="sft_episode", pad_token_id=0)
    assert isinstance(make_data_loader(episodes, None, tmp_path), GPTEpisodeDataLoader)
    assert isinstance(make_data_loader(episodes, None, tmp_path, dataset_mode="token_stream"), GPTDataLoader)
    with pytest.raises(UsageError, match=r"'sft_episodes'.*did you mean 'sft_episode'"):
        make_data_loader(settings(dataset_mode="sft_episodes"), None, tmp_path)


def test_an_unknown_mode_is_refused_everywhere(tmp_path: Path) -> None:
    write_split(tmp_path / "train", [[1, 2, 3, 4, 5, 6, 7, 8]] * 5)
    for mode, make in itertools.product(
        ("SFT_EPISODE", "", 1), (make_data_loader, GPTDataLoader, GPTEpisodeDataLoader)
    ):
        with pytest.raises(UsageError, match=r"dataset_mode is .*; expected token_stream or sft_episode"):
            make(settings(dataset_mode=mode), None, tmp_path)
    with pytest.raises(UsageError, match="dataset_mode is"):
        make_data_loader(settings(), None, tmp_path, dataset_mode="sft")


def test_episodes_read_as_a_stream_are_pointed_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_split(tmp_path / "train", [[1] * 9] * 3)
    GPTDataLoader(settings(), dataset_dir=tmp_path)
    assert "dataset_mode sft_episode reads whole episodes" in caplog.text


def test_a_pickled_loader_carries_no_tokens_and_goes_on(tmp_path: Path) -> None:
    loader = GPTDataLoader(settings(use_loss_mask=False), dataset_dir=counting(tmp_path / "train", 20_000))
    loader.get_batch()
    held = pickle.dumps(loader)
    assert len(held) < 5_000
    assert pickle.loads(held).get_batch()[0].equal(loader.get_batch()[0])
