"""One encoder, many threads: a server renders a row while its survey renders sixty-four."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.assets import ASSETS, encoder_at, needs_assets

TEXT = "The quick brown fox jumps over the lazy dog, twice. "


@needs_assets
def test_threads_share_an_encoder() -> None:
    encoder = encoder_at(ASSETS / "qwen3-8b")

    def encoded(strings: int) -> list[int]:
        texts = ["<|im_start|>", f"user {strings}\n", TEXT * 20]
        found = encoder.encode_strings([texts] * strings, [[4, 0, 0]] * strings)
        return found.ids.tolist()  # type: ignore[no-any-return]

    jobs = [400, 1, 1, 1, 1, 1] * 12  # gigatoken lets other threads run during a batch
    alone = {strings: encoded(strings) for strings in set(jobs)}
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encoded, jobs)) == [alone[strings] for strings in jobs]
