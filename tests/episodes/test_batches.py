"""Batches share no memory, and damage is told where its batch comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from niels_gpt.errors import CacheError
from tests.episodes.rows import LENGTHS, assert_equal, open_loader, write_dataset


def test_batches_share_no_memory(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "d")
    (np.arange(sum(LENGTHS)) // 3).astype("<u2").tofile(folder / "train" / "segment_ids.bin")
    loader = open_loader(folder)
    batch_source = loader.batch_source("train")
    first = loader.next_batch()
    for tensor in first.tensors().values():
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes  # what `torch.save` would write
        tensor.fill_(9)
    place = batch_source.place(first.state)
    for _ in range(8):
        expected = batch_source[place]
        assert_equal(loader.next_batch(), expected)
        place = batch_source.place(expected.state)


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
