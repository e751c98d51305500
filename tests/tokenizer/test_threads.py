"""One encoder, many threads: a server renders while a survey does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.assets import ASSETS, encoder_at, needs_assets


@needs_assets
@pytest.mark.parametrize("many", [1, 40], ids=["few", "batch"])
def test_threads_share_an_encoder(many: int) -> None:
    encoder = encoder_at(ASSETS / "qwen3-8b")
    text = "The quick brown fox jumps over the lazy dog, twice. " * 400
    jobs = [[([f"<|im_start|>user {job} ", text], [True, False])] * many for job in range(12)]
    alone = [encoder.encode_many(job)[0].tolist() for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda job: encoder.encode_many(job)[0].tolist(), jobs))
    assert together == alone


@needs_assets
def test_threads_share_the_flat_way() -> None:
    import numpy as np

    encoder = encoder_at(ASSETS / "qwen3-8b")
    text = "The quick brown fox jumps over the lazy dog, twice. " * 400
    jobs = [(["<|im_start|>", f"user {job}", text], [True, False, False], np.array([3])) for job in range(24)]
    alone = [encoder.encode_flat(*job)[0].tolist() for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda job: encoder.encode_flat(*job)[0].tolist(), jobs))
    assert together == alone
