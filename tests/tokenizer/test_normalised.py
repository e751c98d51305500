"""Texts that a tokenizer normalises: the fast path normalises piece by piece, with the ids of the general path."""

from __future__ import annotations

import random
import unicodedata

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("gigatoken")
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.pieces import SCAFFOLD
from tests.assets import ASSETS, encoder_at, needs_assets
from tests.tokenizer import tiny

# Letters that change, marks that combine with what stands before them, signs that a normaliser makes of others.
CHANGING = (
    "e\u0301",
    "য\u09bc",
    "\u09df",
    "\u0301",
    "ﬁ",
    "\u212b",
    "\u1100\u1161",
    "\u0338",
    "\uff1c",
    "\u037e",
    "Ä",
    "각",
)
PLAIN = ("a", " ", "\n", "é", ">", "<", "|", "中")


def compared(encoder: TokenizerAdapter, seed: int, count: int) -> int:
    """Compare random strings of pieces; how many of them changed and were not left to the general path."""
    rng, quick = random.Random(seed), 0
    controls = list(encoder.control_ids)
    fast, left = encoder.fast, []
    assert fast is not None
    for _ in range(count):
        texts, facts = [], []
        for _ in range(rng.randint(1, 6)):
            parts = rng.choices((*PLAIN, *rng.choices(CHANGING, k=2), rng.choice(controls)), k=rng.randint(0, 6))
            texts += [rng.choice(controls), "".join(parts)]
            facts += [SCAFFOLD, rng.choice((0, 0, 0, SCAFFOLD))]
        left.clear()

        def general(texts: list[list[str]], facts: list[list[int]]) -> object:
            left.append(texts)
            return encoder._encode_general(texts, facts)

        made = fast.encode([texts, texts], [facts, facts], general)
        expected = encoder._encode_general([texts, texts], [facts, facts])
        for name, one, other in zip(made._fields, made, expected, strict=True):
            assert one.tolist() == other.tolist(), (name, texts, facts)
        quick += not left and not unicodedata.is_normalized("NFC", "".join(texts))
    return quick


def test_ids_and_counts_are_those_of_the_general_path() -> None:
    """NFC is the form of Qwen's tokenizers, and the only one that gigatoken has."""
    assert compared(TokenizerAdapter.load(tiny.byte_level(form="NFC")), 33, 400) > 50


@needs_assets
def test_ids_and_counts_of_an_official_tokenizer() -> None:
    assert compared(encoder_at(ASSETS / "qwen3-8b"), 33, 400) > 50
