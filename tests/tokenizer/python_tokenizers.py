"""Tiny tokenizers written in Python, as models without a tokenizer.json bring them, and their odd relatives."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizer

START, END, THINK, LONG = "<|im_start|>", "<|im_end|>", "<think>", "<|im_end|>!"
CONTROLS = (START, END, LONG)
WORDS = [b"hello", b"hel", b" the", b"user\n", b"\n\n", b"e\xcc", b"\x81x", " é".encode(), "中文".encode(), b"<|im_"]
BYTES = [bytes([byte]) for byte in range(256)] + WORDS


FRAGMENTS = [
    *("user\n", "user", "hello", "hello the", " ", "  ", "\n", "\n\n", "", THINK, "<thi", "nk>", "<|im_", "end|>", "!"),
    *("e\u0301x", "é", "中文", "👩‍👧", "\u2581", "<0x0A>", "\x00", "x"),
]


def greedy(data: bytes) -> list[bytes]:
    """Slow: the longest word of the vocabulary at each place."""
    found = []
    while data:
        word = max([data[:1], *(word for word in WORDS if data.startswith(word))], key=len)
        found.append(word)
        data = data[len(word) :]
    return found


@cache
def printable(word: bytes) -> str:
    """A word in GPT-2's byte alphabet."""
    spare = [byte for byte in range(256) if chr(byte).isspace() or byte in (*range(33), *range(127, 161), 173)]
    return "".join(chr(256 + spare.index(byte)) if byte in spare else chr(byte) for byte in word)


class Bytes(PreTrainedTokenizer):
    """Greedy words of bytes, written in the byte alphabet."""

    def __init__(self, **options: Any) -> None:
        self.words = [self.show(word) for word in self.all_words()]
        self.ids = {word: index for index, word in enumerate(self.words)}
        added = {300 + i: AddedToken(text, special=True, normalized=False) for i, text in enumerate(CONTROLS)}
        added[310] = AddedToken(THINK, special=False, normalized=False)
        options = {"eos_token": END, "chat_template": "T", "added_tokens_decoder": added} | options
        super().__init__(**options)

    def all_words(self) -> list[bytes]:
        return BYTES

    def show(self, word: bytes) -> Any:
        return printable(word)

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    def get_vocab(self) -> dict[Any, int]:
        return {**self.ids, **self.added_tokens_encoder}

    def _tokenize(self, text: str, **_: Any) -> list[Any]:
        return [self.show(word) for word in greedy(text.encode())]

    def _convert_token_to_id(self, token: Any) -> int:
        return self.ids[token]

    def _convert_id_to_token(self, index: int) -> Any:
        return self.words[index]


class TikToken(Bytes):
    """As Kimi's class: an option of its own, words as bytes, and no way through that of transformers."""

    def show(self, word: bytes) -> bytes:
        return word

    def encode(self, text: str, allow_special_tokens: bool = True, **options: Any) -> list[int]:
        return super().encode(text, add_special_tokens=False, split_special_tokens=not allow_special_tokens)


class Prefixed(Bytes):
    """A mark comes before each text with a control token, so cutting would change ids."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return [5] * (END in text and "split_special_tokens" not in options) + super().encode(text, **options)


class Leaky(Bytes):
    """Control spellings always become control tokens."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return super().encode(text, add_special_tokens=False)


class Lower(Bytes):
    """Text is changed before it is encoded."""

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return super()._tokenize(text.lower())
