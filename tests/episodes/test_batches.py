"""Batches share no memory, and damage is told where its batch comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from niels_gpt.errors import CacheError
from tests.episodes.rows import LENGTHS, open_loader, write_dataset


def test_damage_is_told_where_its_batch_comes(tmp_path: Path) -> None:
    """Not before; and the place stays, so that it is told again."""
    folder = write_dataset(tmp_path / "d")
    tokens = np.fromfile(folder / "train" / "tokens.bin", dtype="<u4")
    tokens[sum(LENGTHS[:9]) + 1] = 2**31  # in episode 9, so in the fifth batch
    tokens.tofile(folder / "train" / "tokens.bin")
    loader = open_loader(folder, epoch_shuffle=False, vocab_size=10_000)
    for _ in range(4):
        loader.next_batch()
    for _ in range(2):
        with pytest.raises(CacheError, match="record 9: token 1 is 2147483648"):
            loader.next_batch()
    assert loader.rows_read() == 8
    loader.seek(10)
    assert loader.next_batch().episodes.tolist() == [10, 11]
