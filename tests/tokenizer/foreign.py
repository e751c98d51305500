"""SentencePiece models that were not trained by us, but hold the sentinels."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import sentencepiece

from niels_gpt.samples import chats_file
from niels_gpt.tokenizer import SPECIAL_TOKENS


def foreign(**options: Any) -> bytes:
    """The bytes of a model of 400 pieces, with other options than ours."""
    return _trained(tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in options.items()))


@cache
def _trained(options: tuple[tuple[str, Any], ...]) -> bytes:
    model = io.BytesIO()
    own = {"vocab_size": 400, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    chosen = {key: list(value) if isinstance(value, tuple) else value for key, value in options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in chats_file().read_text().splitlines() if line.isascii()]),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        **{"user_defined_symbols": list(SPECIAL_TOKENS), **own, **chosen},
    )
    return model.getvalue()
