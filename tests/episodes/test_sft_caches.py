"""SFT caches in the loader of episodes: the same batches as episodes of the same rows, whichever mask they have."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import niels_gpt as ng
from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.datasets import open_dataset
from niels_gpt.episodes import EpisodeWriter
from tests.conftest import FakeTokenizer
from tests.store.written import CHATS

LONG: list[list[dict[str, Any]]] = [
    [
        {"role": role, "content": f"{role} {number} " * (number + 1)}
        for role in ("user", "assistant", "user", "assistant")
    ]
    for number in range(6)
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An SFT cache, and episodes with the weights that its sentinels give."""
    folder = tmp_path_factory.mktemp("sft")
    rows: Any = [*CHATS, *LONG]
    build_sft_cache(rows, str(folder / "cache"), tokenizer=FakeTokenizer(), val_frac=0.2, seed=3)
    for split, stored in open_dataset(folder / "cache").splits.items():
        writer = EpisodeWriter(folder / "episodes", split, mask_dtype="uint8")
        found = stored.rows(np.arange(len(stored)))
        writer.write(found.ids, found.lengths, found.weights)
        writer.close()
    return folder / "cache", folder / "episodes"


def batches(path: Any, n: int = 9, **options: Any) -> list[tuple[np.ndarray, ...]]:
    given = {"batch_size": 2, "sequence_length": 40, "pad_token_id": 0, "seed": 5, "epochs": None} | options
    found = islice(ng.loader(path, **given), n)
    return [(batch.x.numpy(), batch.y.numpy(), batch.mask.numpy()) for batch in found]


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("too_long", ["head", "tail", "drop_partial_turn", "skip"])
@pytest.mark.parametrize("length", [12, 40, 70])
def test_batches_are_those_of_episodes(built: tuple[Path, Path], packing: bool, too_long: str, length: int) -> None:
    cache, episodes = built
    options: dict[str, Any] = {"packing": packing, "too_long": too_long, "sequence_length": length}
    for ours, theirs in zip(batches(cache, **options), batches(episodes, **options), strict=True):
        for found, wanted in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_some_targets_are_trained_and_some_are_not(built: tuple[Path, Path]) -> None:
    masks = np.concatenate([mask for _, _, mask in batches(built[0])])
    assert 0 < masks.sum() < masks.size


def test_a_cache_beside_episodes(built: tuple[Path, Path]) -> None:
    """Files of uint16 and of uint32 ids, of computed and of stored masks."""
    cache, episodes = built
    mixed = batches([str(cache), str(episodes)])
    assert len(mixed) == 9
    assert any(mask.any() for _, _, mask in mixed)


def test_resumes(built: tuple[Path, Path]) -> None:
    cache, _ = built
    options: dict[str, Any] = {"batch_size": 3, "sequence_length": 40, "seed": 5, "epochs": None}
    loader = ng.loader(cache, **options)
    running = iter(loader)
    for _ in range(4):
        next(running)
    state, wanted = loader.state_dict(), next(running)
    again = ng.loader(cache, **options)
    again.load_state_dict(state)
    assert next(iter(again)).x.equal(wanted.x)


def test_with_workers(built: tuple[Path, Path]) -> None:
    for found, wanted in zip(batches(built[0], 4, num_workers=1), batches(built[0], 4), strict=True):
        np.testing.assert_array_equal(found[2], wanted[2])
