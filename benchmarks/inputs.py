"""What the benches work on: text from the bundled samples, and random caches of realistic shape."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.build_cache import build_pretrain_cache
from niels_gpt.cache.formats import DEFAULT_SHARD_BYTES
from niels_gpt.messages import ChatMsg
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.tokenizer import SentencePieceTokenizer, train_tokenizer

SYS, USR, ASST, EOT = range(4)  # sentinels of the random caches
VOCAB = 60_000


def tokenizer(folder: Path, vocab_size: int) -> SentencePieceTokenizer:
    """A tokenizer trained on the samples; they allow some 6300 pieces."""
    return train_tokenizer([chats_file(), notes_dir()], folder / f"tokenizer-{vocab_size}", vocab_size=vocab_size)


def documents(characters: int) -> Iterator[str]:
    """The bundled notes' paragraphs in ever new orders, as documents of some 4000 characters."""
    shuffler = random.Random(1)
    notes = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(notes_dir().glob("*.md")))
    paragraphs = notes.split("\n\n")
    while characters > 0:
        text = "\n\n".join(shuffler.choices(paragraphs, k=20))
        characters -= len(text)
        yield text


def chats(characters: int) -> Iterator[list[ChatMsg]]:
    """The bundled conversations over and over."""
    rows = [json.loads(line)["messages"] for line in chats_file().read_text(encoding="utf-8").splitlines()]
    while True:
        for messages in rows:
            if characters <= 0:
                return
            characters -= sum(len(message["content"]) for message in messages)
            yield messages


def build_whole_cache(source: Any, folder: Path, tokenizer: Any) -> None:
    """A pretraining cache of all texts of a source, without validation, in place of the one in `folder`."""
    build_pretrain_cache(
        source,
        str(folder),
        tokenizer=tokenizer,
        max_train_tokens=1 << 40,
        max_val_tokens=0,
        shard_bytes=DEFAULT_SHARD_BYTES,
        seed=42,
        shuffle_buffer=None,
        overwrite=True,
    )


class RandomTokens:
    """Stands in for a tokenizer where only the amount of tokens matters: each character becomes a random id."""

    vocab_size = VOCAB

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)

    def special_token_ids(self) -> dict[str, int]:
        return {"sys": SYS, "usr": USR, "asst": ASST, "eot": EOT}

    def encode(self, text: str) -> list[int]:
        return list(self.encode_batch([text])[0])

    def encode_batch(self, texts: Sequence[str], *, num_threads: int | None = None) -> list[npt.NDArray[np.int32]]:
        return [self._rng.integers(EOT + 1, VOCAB, len(text), dtype=np.int32) for text in texts]


def build_shards(folder: Path, tokens: int, shards: int, dtype: str) -> Path:
    """A pretrain cache of random tokens in shards of equal size; returns the directory of its train split."""
    build_pretrain_cache(
        ("x" * 100_000 for _ in range(tokens // 100_000)),
        str(folder),
        tokenizer=RandomTokens(),
        max_train_tokens=tokens,
        max_val_tokens=0,
        shard_bytes=tokens // shards * np.dtype(dtype).itemsize,
        seed=42,
        shuffle_buffer=None,
        token_dtype=dtype,
    )
    return folder / "train"


def lengths_of_chats(n: int) -> npt.NDArray[np.int64]:
    """Log-normal lengths with a mean near 700 tokens, at least 40."""
    drawn = np.random.default_rng(2).lognormal(mean=np.log(700) - 0.32, sigma=0.8, size=n)
    return np.maximum(drawn, 40).astype(np.int64)


def write_sft(folder: Path, n: int) -> Path:
    """`n` random conversations of one to four questions and answers: `train_tokens.bin` and `train_idx.npy`."""
    rng = np.random.default_rng(3)
    lengths = lengths_of_chats(n)
    ids = rng.integers(EOT + 1, VOCAB, int(lengths.sum()), dtype=np.uint16)
    starts = np.cumsum(lengths) - lengths
    ids[starts] = SYS
    ids[starts + 8] = EOT
    for start, length, turns in zip(starts, lengths, 2 * rng.integers(1, 5, n), strict=True):
        # Of 41 tokens in two turns the first 9 are the system turn; the others open at 9 and 9 + 32 // 2 = 25.
        openers = start + 9 + np.arange(turns) * (length - 9) // turns
        ids[openers] = np.resize([USR, ASST], turns)
        ids[np.append(openers[1:], start + length) - 1] = EOT
    folder.mkdir(parents=True)
    ids.astype("<u2").tofile(folder / "train_tokens.bin")
    np.save(folder / "train_idx.npy", starts)
    return folder
