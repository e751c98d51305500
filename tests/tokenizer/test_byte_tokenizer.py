"""Tokenizer objects of other libraries, real ones, against tokenizers of the same vocabulary with a tokenizer.json."""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from hypothesis import example, given, settings
from hypothesis import strategies as st

import niels_gpt as ng
from niels_gpt.errors import TokenizerError
from niels_gpt.tokenizer.description import from_byte_alphabet
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.engines import PROBE
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder
from tests.assets import ASSETS, encoder_at
from tests.memory import shared
from tests.tokenizer import tiny

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # how `tiny.byte_level` cuts words
TEXTS = [PROBE, "e\u0301 héllo", " wörld 你好", "a", "", " \n\n", "\u0301", "👩‍👩‍👧"]


def control_tokens() -> dict[str, int]:
    return {text: tiny.cached(tiny.byte_level).token_to_id(text) for text in (*tiny.CONTROLS, tiny.THINK)}


def encoding() -> tiktoken.Encoding:
    """The vocabulary of `tiny.byte_level` as tiktoken has it."""
    vocab = tiny.cached(tiny.byte_level).get_vocab(with_added_tokens=False)
    ranks = {from_byte_alphabet(word): rank for word, rank in vocab.items() if word not in control_tokens()}
    return tiktoken.Encoding("tiny", pat_str=GPT2, mergeable_ranks=ranks, special_tokens=control_tokens())


class Own:
    """What a user may have: two methods, and control tokens by their spellings."""

    def __init__(self, special_tokens: Any = None) -> None:
        self._encoding = encoding()
        if special_tokens is not None:
            self.special_tokens = special_tokens

    def encode(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(text)

    def decode_bytes(self, ids: list[int]) -> bytes:
        return self._encoding.decode_bytes(ids)


class Leaky(Own):
    """Its text becomes control tokens."""

    def encode(self, text: str) -> list[int]:
        return self._encoding.encode(text, allowed_special="all")


@shared
def opened(kind: str) -> PieceEncoder:
    return open_encoder(encoding() if kind == "tiktoken" else Own(control_tokens()))


@shared
def fast() -> TokenizerAdapter:
    return TokenizerAdapter.load(tiny.cached(tiny.byte_level)).with_controls([tiny.THINK])


words = st.sampled_from([*tiny.CONTROLS, tiny.THINK, "hello the", "e\u0301x", "中文", "\n", "<|im_"])
body = st.lists(words, max_size=5)
pieces_of = st.lists(st.tuples(body.map("".join) | st.text(max_size=5), st.booleans()), max_size=6)


@pytest.mark.parametrize("kind", ["tiktoken", "own"])
@settings(deadline=None, max_examples=60)
@given(pieces=pieces_of)
@example(pieces=[("<|im_", True), ("end|>", True), ("!", True), ("<thi", False), ("nk>", True)])
@example(pieces=[("<|im_end|>", False), ("\n", True), ("hel", False), ("lo", True)])
def test_ids_and_owners_are_those_of_the_same_vocabulary(kind: str, pieces: list[tuple[str, bool]]) -> None:
    texts, flags = [text for text, _ in pieces], [flag for _, flag in pieces]
    ids, owner = opened(kind).encode_pieces(texts, flags)
    expected_ids, expected_owner = fast().encode_pieces(texts, flags)
    assert ids.tolist() == expected_ids.tolist()
    assert owner.tolist() == expected_owner.tolist()
    assert b"".join(opened(kind).token_bytes(ids)) == "".join(texts).encode()
    assert opened(kind).decode(ids) == "".join(texts)


def test_fingerprints_are_those_of_vocabulary_and_control_tokens() -> None:
    """Not of the object or its name: another process finds the same, another control token another."""
    assert open_encoder(encoding()).fingerprints == opened("tiktoken").fingerprints == opened("own").fingerprints
    assert pickle.loads(pickle.dumps(opened("own"))).fingerprints == opened("own").fingerprints
    fewer = open_encoder(Own({tiny.END: control_tokens()[tiny.END]}))
    assert fewer.fingerprints != opened("own").fingerprints
    assert open_encoder(Own()).control_ids == {}  # `special_tokens` may be missing


def test_objects_without_a_size_are_asked_for_every_id() -> None:
    """Ids behind a hole of some thousand are found too."""

    class Far(Own):
        def decode_bytes(self, ids: list[int]) -> bytes:
            return b"<far>" if ids == [60_000] else super().decode_bytes(ids)

    assert open_encoder(Far()).vocab_size == 60_001


def test_refused() -> None:
    with pytest.raises(TokenizerError, match=r"Own: special_tokens is a list; expected a mapping"):
        open_encoder(Own([tiny.END]))
    with pytest.raises(TokenizerError, match=r"encode\(\) makes special tokens of plain text"):
        open_encoder(Leaky(control_tokens()))


# ---- real vocabularies


def folder(name: str) -> Path:
    if not (ASSETS / name).is_dir():
        pytest.skip(f"no {ASSETS / name} (set NGPT_ASSETS)")
    return ASSETS / name


def without_added(text: str, added: dict[str, int]) -> str:
    for spelling in added:
        text = text.replace(spelling, "")
    return text


def same_on_texts(made: PieceEncoder, expected: PieceEncoder) -> None:
    """Texts without the spellings that a tokenizer.json recognises in any text, and these as markup."""
    texts = [without_added(text, dict(expected.added_ids)) for text in TEXTS]
    ids, owner = made.encode_pieces(texts, [False] * len(texts))
    expected_ids, expected_owner = expected.encode_pieces(texts, [False] * len(texts))
    assert ids.tolist() == expected_ids.tolist()
    assert owner.tolist() == expected_owner.tolist()
    for spelling, token in made.control_ids.items():
        assert token not in made.encode_pieces(["x", spelling], [True, False])[0]
        assert made.encode_pieces([spelling, "x"], [True, False])[0][0] == token


@pytest.mark.skipif(find_spec("mistral_common") is None, reason="no mistral-common")
def test_tekken_of_mistral_common() -> None:
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    data = Path(mistral_common.__file__).parent / "data" / "tekken_240718.json"
    made, expected = open_encoder(Tekkenizer.from_file(data)), encoder_at(folder("mistral-nemo-instruct-2407"))
    assert (made.vocab_size, made.stop_ids) == (expected.vocab_size, (2,))
    assert made.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    same_on_texts(made, expected)
    chat = [{"role": "user", "content": "[INST] hi"}, {"role": "assistant", "content": "a"}]
    assert ng.renderer(made, "mistral").render(chat) == ng.renderer(expected, "mistral").render(chat)
    assert np.isin(made.encode_pieces(["</s>"], [False])[0], list(made.control_ids.values())).sum() == 0
