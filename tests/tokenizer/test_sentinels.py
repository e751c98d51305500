"""The promise that text can never become a sentinel."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import TokenizerError
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer
from niels_gpt.tokenizer.sentinels import SPECIAL_NAMES, cut_sentinels, encode_ordinary, sentinel_ids
from tests.conftest import ASST, EOT, SYS, USR, FakeTokenizer

PARTS = [
    *SPECIAL_TOKENS,
    SPECIAL_TOKENS[0][1:],
    SPECIAL_TOKENS[3][:-1],
    "<",
    "<|",
    "|>",
    "ngpt_",
    " ",
    "word",
    "\u2581",
]
texts = st.lists(st.sampled_from(PARTS) | st.text(max_size=10), max_size=8).map("".join)


def test_the_four_sentinels() -> None:
    """The spellings of the sentinels; changing one makes every tokenizer and cache foreign."""
    assert SPECIAL_NAMES == ("sys", "usr", "asst", "eot")
    assert tuple(f"<|ngpt_{name}_84a5023f67d74cf29cc4001becde983c|>" for name in SPECIAL_NAMES) == SPECIAL_TOKENS


@given(text=texts)
@settings(deadline=None, max_examples=300)
def test_cut_pieces_join_back_and_hold_no_sentinel(text: str) -> None:
    pieces = cut_sentinels(text)
    assert "".join(pieces) == text
    assert not [piece for piece in pieces if any(token in piece for token in SPECIAL_TOKENS)]


@given(batch=st.lists(texts, max_size=6), num_threads=st.sampled_from([None, 1, 2]))
@settings(deadline=None, max_examples=100)
def test_real_ids_equal_those_text_by_text(
    tokenizer: SentencePieceTokenizer, batch: list[str], num_threads: int | None
) -> None:
    ids, lengths = encode_ordinary(tokenizer, batch, num_threads=num_threads)
    expected = [tokenizer.encode(text) for text in batch]
    assert ids.tolist() == list(chain.from_iterable(expected))
    assert lengths.tolist() == [len(encoded) for encoded in expected]
    assert (ids.dtype, lengths.dtype, lengths.shape) == (np.int32, np.int64, (len(batch),))


@given(batch=st.lists(texts, max_size=6))
@settings(deadline=None, max_examples=100)
def test_fake_ids_equal_those_piece_by_piece(batch: list[str]) -> None:
    """A tokenizer with `encode` alone, that would read spellings as sentinels if it got to see one whole."""
    fake = FakeTokenizer()
    ids, lengths = encode_ordinary(fake, batch)
    expected = [[token for piece in cut_sentinels(text) for token in fake.encode(piece)] for text in batch]
    assert ids.tolist() == list(chain.from_iterable(expected))
    assert lengths.tolist() == [len(encoded) for encoded in expected]
    assert (ids.dtype, lengths.dtype) == (np.int32, np.int64)
    assert not set(ids.tolist()) & {SYS, USR, ASST, EOT}


class Forger(FakeTokenizer):
    """Has a second spelling of the end of a turn, as tokenizers with normalisation do."""

    def encode(self, text: str) -> list[int]:
        return [EOT if token == self._id("＜eot＞") else token for token in super().encode(text)]


class BatchForger(Forger):
    def encode_batch(self, texts: list[str], *, num_threads: int | None = None) -> list[Any]:
        return [np.array(self.encode(text), dtype=np.int32) for text in texts]


@pytest.mark.parametrize("forger", [Forger, BatchForger])
@pytest.mark.parametrize(
    ("batch", "index"),
    [(["＜eot＞"], 0), (["a b", "", "", "c ＜eot＞ d", "＜eot＞"], 3), (["", "a", "＜eot＞", ""], 2)],
)
def test_a_sentinel_from_text_is_refused_naming_the_text(forger: type[Forger], batch: list[str], index: int) -> None:
    with pytest.raises(TokenizerError, match=rf"^text {index} encodes to the sentinel id {EOT} although"):
        encode_ordinary(forger(), batch)


@pytest.mark.parametrize(
    "ids",
    [
        {},
        {"sys": 1, "usr": 2, "asst": 3},
        {"sys": 1, "usr": 2, "asst": 3, "eot": 3},
        {"bos": 1, "usr": 2, "asst": 3, "eot": 4},
    ],
    ids=["none", "one missing", "two share an id", "other names"],
)
def test_sentinel_ids_refuses(fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch, ids: dict[str, int]) -> None:
    monkeypatch.setattr(fake, "special_token_ids", lambda: ids)
    for refused in (lambda: sentinel_ids(fake), lambda: encode_ordinary(fake, [])):
        with pytest.raises(TokenizerError, match=r"expected four different ids for sys, usr, asst and eot") as caught:
            refused()
        assert str(ids) in str(caught.value)
