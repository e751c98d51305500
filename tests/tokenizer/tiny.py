"""Tiny Hugging Face tokenizers, trained in the test: byte-level BPE with control tokens, and its odd relatives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.memory import shared

START, END, THINK = "<|im_start|>", "<|im_end|>", "<think>"
CONTROLS = (START, END)
TEXTS = (
    "user assistant system tool hello hello world the quick brown fox jumps over the lazy dog\n",
    "def f(x):\n    return x + 1\n\n\n{'a': 12345, 'b': [1, 2, 3]}\n",
    "Größe naïve café Ελληνικά Русский текст 中文字符 日本語 한국어 हिन्दी 🤖 👩‍👩‍👧 e\u0301 …\n",
)


def _finished(tokenizer: Tokenizer, size: int, **options: Any) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(CONTROLS), show_progress=False, **options)
    tokenizer.train_from_iterator([*TEXTS] * 20, trainer)
    tokenizer.add_tokens([AddedToken(THINK, normalized=False, special=False)])
    return tokenizer


def byte_level(*, form: str | None = None, prefix: bool = False, split: bool = True) -> Tokenizer:
    """Byte-level BPE of 500 ids, as GPT-2, Llama 3 and Qwen have it; without `split`, merges go over any seam."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split)
    tokenizer.decoder = decoders.ByteLevel()
    if form:
        tokenizer.normalizer = getattr(normalizers, form)()
    return _finished(tokenizer, 500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def metaspace(scheme: str = "first") -> Tokenizer:
    """SentencePiece-like BPE whose pre-tokenizer writes spaces as U+2581 and puts one before the text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return _with_bytes(_finished(tokenizer, 400))


def spaced() -> Tokenizer:
    """SentencePiece-like BPE as Gemma has it: the normalizer writes spaces as U+2581, nothing is put before."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    return _with_bytes(_finished(tokenizer, 400))


def _with_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the 256 byte tokens that byte fallback needs, behind the others."""

    def edit(data: dict[str, Any]) -> None:
        vocab = data["model"]["vocab"]
        first = 1 + max([*vocab.values(), *(token["id"] for token in data["added_tokens"])])
        vocab.update({f"<0x{byte:02X}>": first + byte for byte in range(256)})
        # `tokenizers` numbers an added token outside the vocabulary by the vocabulary's size; keep <think> in place.
        vocab.update({token["content"]: token["id"] for token in data["added_tokens"]})

    return edited(tokenizer, edit)


def edited(tokenizer: Tokenizer, edit: Callable[[dict[str, Any]], None]) -> Tokenizer:
    """The tokenizer with its JSON changed."""
    data = json.loads(tokenizer.to_str())
    edit(data)
    return Tokenizer.from_str(json.dumps(data))


def flagged(**flags: bool) -> Tokenizer:
    """`byte_level` with these flags set on `<|im_end|>`."""

    def edit(data: dict[str, Any]) -> None:
        next(token for token in data["added_tokens"] if token["content"] == END).update(flags)

    return edited(byte_level(), edit)


@shared
def cached(kind: Callable[..., Tokenizer], *arguments: tuple[str, Any]) -> Tokenizer:
    """A tokenizer that tests share: `cached(byte_level, ("form", "NFC"))`."""
    return kind(**dict(arguments))


def save(tokenizer: Tokenizer, folder: Path, **config: Any) -> Path:
    """Write a tokenizer directory."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
