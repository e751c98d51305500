"""SFT caches in the loader of episodes: the same batches as episodes of the same rows, whichever mask they have."""

from __future__ import annotations

import itertools
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


@pytest.mark.parametrize("too_long", ["head", "tail", "drop_partial_turn", "skip"])
def test_batches_are_those_of_episodes(built: tuple[Path, Path], too_long: str) -> None:
    for packing, length in ((False, 12), (True, 40), (False, 70)):
        options: dict[str, Any] = {"packing": packing, "too_long": too_long, "sequence_length": length}
        ours, theirs = (batches(path, **options) for path in built)
        assert 0 < sum(mask.sum() for *_, mask in ours) < sum(mask.size for *_, mask in ours)
        for found, wanted in zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_a_cache_beside_episodes(built: tuple[Path, Path]) -> None:
    """Files of uint16 and of uint32 ids, of computed and of stored masks."""
    cache, episodes = built
    mixed = batches([str(cache), str(episodes)])
    assert len(mixed) == 9
    assert any(mask.any() for _, _, mask in mixed)
