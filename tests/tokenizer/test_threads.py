"""One encoder, many threads: a server renders a row while its survey renders sixty-four."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.assets import ASSETS, encoder_at, needs_assets

TEXT = "The quick brown fox jumps over the lazy dog, twice. "


@needs_assets
@pytest.mark.parametrize("way", ["encode_many", "encode_flat"])
def test_threads_share_an_encoder(way: str) -> None:
    encoder = encoder_at(ASSETS / "qwen3-8b")

    def encoded(strings: int) -> list[int]:
        texts, scaffold = ["<|im_start|>", f"user {strings}\n", TEXT * 20], [True, False, False]
        if way == "encode_many":
            return encoder.encode_many([(texts, scaffold)] * strings)[0].tolist()  # type: ignore[no-any-return]
        found = encoder.encode_flat(texts * strings, scaffold * strings, np.full(strings, 3))
        return found[0].tolist()  # type: ignore[no-any-return]

    jobs = [400, 1, 1, 1, 1, 1] * 12  # gigatoken lets other threads run during a batch
    alone = {strings: encoded(strings) for strings in set(jobs)}
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encoded, jobs)) == [alone[strings] for strings in jobs]
