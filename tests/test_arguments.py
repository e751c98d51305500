"""Arguments of another type are refused by our own errors, in every loader and data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.episodes import GPTDataLoader, GPTEpisodeDataLoader
from niels_gpt.errors import UsageError
from niels_gpt.format.sft import collate_sft_batch, pack_sft_ids_and_mask
from niels_gpt.ranges import BATCH_SIZE
from tests.episodes.made import write_split

Open = Callable[..., Any]


@pytest.fixture
def opened(tmp_path: Path) -> dict[str, Open]:
    """Every data set and loader over small files; keywords replace their arguments."""
    (tmp_path / "stream").mkdir()
    np.arange(50).astype("<u2").tofile(tmp_path / "stream" / "shard_00000.bin")
    np.array([3, 7, 4] * 3).astype("<u2").tofile(tmp_path / "t.bin")
    np.save(tmp_path / "i.npy", np.array([0, 3, 6]))
    write_split(tmp_path / "data" / "train", [[1, 2, 3], [4, 5], [6, 7, 8, 9]])

    def config(given: dict[str, Any]) -> dict[str, Any]:
        sizes = {"batch_size": given.pop("B", 2), "block_size": given.pop("T", 3)}
        return {**sizes, "device": given.pop("device", "cpu")}

    def stream(**given: Any) -> Any:
        return PretrainTokenStreamDataset(str(tmp_path / "stream"), **({"T": 4, "device": "cpu"} | given))

    def chats(**given: Any) -> Any:
        options = {"T": 4, "device": "cpu", "eot_id": 4, "asst_id": 3} | given
        return SFTExampleDataset(str(tmp_path / "t.bin"), str(tmp_path / "i.npy"), **options)

    def episodes(**given: Any) -> Any:
        return GPTEpisodeDataLoader(config(given), None, tmp_path / "data", pad_token_id=0, **given)

    def windows(**given: Any) -> Any:
        return GPTDataLoader(config(given), None, tmp_path / "data", **given)

    return {"stream": stream, "chats": chats, "episodes": episodes, "windows": windows}


def first_batch(opened: dict[str, Open], kind: str, size: Any) -> Any:
    """Data sets take the size of a batch when they make one, loaders when they are opened."""
    if kind in ("stream", "chats"):
        return opened[kind]().get_batch(B=size, generator=torch.Generator())
    return opened[kind](B=size)


@pytest.mark.parametrize("kind", ["stream", "chats", "episodes", "windows"])
def test_devices_and_sizes_of_another_kind_are_refused(opened: dict[str, Open], kind: str) -> None:
    for device, told in (("gpu", "did you mean 'cuda'"), ("cuda:4096", "no CUDA device|CUDA devices")):
        with pytest.raises(UsageError, match=told):
            opened[kind](device=device)
    for size in ("8", 0):
        with pytest.raises(UsageError, match=r"^(T|TrainingConfig: block_size) is .*; expected"):
            opened[kind](T=size)
    for size in ("8", 0):
        with pytest.raises(UsageError, match=r"(B|batch_size) is .*; expected"):
            first_batch(opened, kind, size)


def test_integers_of_numpy_are_integers(opened: dict[str, Open]) -> None:
    for kind in ("stream", "chats"):
        x, *_ = opened[kind](T=np.int64(4)).get_batch(B=np.uint8(2), generator=torch.Generator())
        assert x.shape == (2, 4)
    assert opened["episodes"](B=np.int32(3)).get_batch()[0].shape == (3, 3)
    assert type(BATCH_SIZE.whole(np.int8(3))) is int
    with pytest.raises(UsageError, match="B is tensor"):
        BATCH_SIZE.whole(torch.tensor(2.5))


def test_numbers_of_the_episode_loader_are_checked(opened: dict[str, Open]) -> None:
    for given, told in (
        ({"vocab_size": "1000"}, "vocab_size is '1000'"),
        ({"rank": 1, "world_size": 1}, "rank is 1 of world_size 1"),
    ):
        with pytest.raises(UsageError, match=told):
            opened["episodes"](**given)
    loader = opened["episodes"]()
    for make in (lambda: loader.prefetch(depth="2"), lambda: loader.places(epochs=1.5)):
        with pytest.raises(UsageError, match=r"is ('2'|1.5); expected a whole number from 1 to"):
            make()


def test_rows_of_document_000() -> None:
    with pytest.raises(UsageError, match="S is '8'"):
        pack_sft_ids_and_mask([1], [True], S="8", pad_id=0, sys_id=1, usr_id=2, asst_id=3, eot_id=4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="did you mean 'cuda'"):
        collate_sft_batch([([1, 2], [True, True])], T=1, device="gpu")
