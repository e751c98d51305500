"""Builds beside the bare encoding of the same text: what reading, splitting, masking and writing add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import inputs
from benchmarks.pairs import Result, measure
from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.tokenizer import SentencePieceTokenizer

CHARACTERS = 8_000_000
VOCAB_SIZES = (2000, 6000)
ROUNDS = 5


def run(folder: Path) -> list[Result]:
    """Pretrain and SFT builds with a small and a larger vocabulary."""
    results: list[Result] = []
    for vocab_size in VOCAB_SIZES:
        tokenizer = inputs.tokenizer(folder, vocab_size)
        results += _pretrain(folder, tokenizer) + _sft(folder, tokenizer)
    return results


def _pretrain(folder: Path, tokenizer: SentencePieceTokenizer) -> list[Result]:
    texts = list(inputs.documents(CHARACTERS))

    def build() -> None:
        inputs.build_whole_cache(texts, folder / "pretrain", tokenizer)

    return _beside_encoding("pretrain", build, texts, tokenizer)


def _sft(folder: Path, tokenizer: SentencePieceTokenizer) -> list[Result]:
    chats = list(inputs.chats(CHARACTERS))

    def build() -> None:
        build_sft_cache(chats, str(folder / "sft"), tokenizer=tokenizer, val_frac=0.1, seed=42, overwrite=True)

    texts = [str(message["content"]) for messages in chats for message in messages]
    return _beside_encoding("SFT", build, texts, tokenizer)


def _beside_encoding(
    kind: str, build: Callable[[], None], texts: Sequence[str], tokenizer: SentencePieceTokenizer
) -> list[Result]:
    return measure(
        "tokenizer",
        f"{kind}, {CHARACTERS // 10**6} M characters, {tokenizer.vocab_size:,} pieces",
        {
            "build": build,
            "encode, all threads": lambda: tokenizer.encode_batch(texts),
            "encode, one thread": lambda: tokenizer.encode_batch(texts, num_threads=1),
        },
        amounts={
            "tokens": float(sum(map(len, tokenizer.encode_batch(texts)))),
            "bytes": float(sum(len(text.encode()) for text in texts)),
        },
        rounds=ROUNDS,
    )
