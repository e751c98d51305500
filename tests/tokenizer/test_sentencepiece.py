"""Our tokenizer in use: text in and out unchanged, sentinels never from text, foreign models refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import TokenizerError, UsageError
from niels_gpt.store.checksums import file_record
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer, load_tokenizer
from tests.tokenizer.foreign import foreign

# Text that is hard for a SentencePiece model: sentinels' spellings, its own marks, controls, many scripts.
HARD = [
    *(
        *SPECIAL_TOKENS,
        SPECIAL_TOKENS[0][:-1],
        "ngpt_",
        "<|",
        "<",
        "\u2581",
        "\u2585",
        " \u2047 ",
        "<0x0A>",
        "<unk>",
        "<s>",
    ),
    *("\0", "\ufeff", "\ufffd", "\r\n", "\t", "   ", "e\u0301", "ﬁ", "你好", "\U0001f600"),
]
texts = st.lists(st.sampled_from(HARD) | st.text(max_size=20), max_size=8).map("".join)


@given(text=texts)
@settings(deadline=None, max_examples=200)
def test_round_trip_and_no_sentinel_from_text(tokenizer: SentencePieceTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.special_token_ids().values())
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


def test_threads_may_share_one_instance(tokenizer: SentencePieceTokenizer) -> None:
    batch = [f"{text} {i}" for i, text in enumerate(HARD * 20)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, batch)) == [tokenizer.encode(text) for text in batch]


@pytest.mark.parametrize("wrong", ["a\ud800", None, 5])
def test_what_is_no_text_is_refused_by_its_number(tokenizer: SentencePieceTokenizer, wrong: Any) -> None:
    with pytest.raises(TokenizerError, match=r"text 1 is .*; expected text"):
        tokenizer.encode_batch(["a", wrong])


def test_sentinels(tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.special_token_ids()
    assert list(ids) == ["sys", "usr", "asst", "eot"]
    assert tokenizer.decode(list(ids.values())) == "".join(SPECIAL_TOKENS)
    assert [tokenizer.piece(token) for token in ids.values()] == list(SPECIAL_TOKENS)
    ids.clear()
    assert len(tokenizer.special_token_ids()) == 4  # the caller got a copy


def test_decode_takes_arrays_and_refuses_ids_outside_the_vocabulary(tokenizer: SentencePieceTokenizer) -> None:
    assert tokenizer.decode(np.array(tokenizer.encode("a b"), dtype=np.uint16)) == "a b"
    assert tokenizer.decode([]) == ""
    for outside in (-1, tokenizer.vocab_size):
        with pytest.raises(TokenizerError, match=f"id {outside} is outside the vocabulary of 2000 ids"):
            tokenizer.decode([0, outside])
    with pytest.raises(UsageError, match="expected token ids"):
        tokenizer.decode([0.5])  # type: ignore[list-item]


def test_pieces_are_shown_as_text(tokenizer: SentencePieceTokenizer) -> None:
    text = "the cat"
    assert "".join(tokenizer.piece(token) for token in tokenizer.encode(text)) == text
    assert tokenizer.piece(tokenizer.encode("\n")[0]) == "<0x0A>"


def test_load_takes_a_file_or_its_directory(tokenizer_dir: Path) -> None:
    for path in (tokenizer_dir, str(tokenizer_dir), tokenizer_dir / "spm.model"):
        loaded = load_tokenizer(path)
        assert loaded.model_path == str(tokenizer_dir / "spm.model")
        assert loaded.vocab_size == 2000
        assert loaded.sha256 == file_record(tokenizer_dir / "spm.model").sha256


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"user_defined_symbols": ["x"]}, 0),
        ({"user_defined_symbols": list(SPECIAL_TOKENS[:3]), "add_dummy_prefix": False}, 3),
        ({"user_defined_symbols": [SPECIAL_TOKENS[0], *SPECIAL_TOKENS[2:]], "add_dummy_prefix": False}, 1),
        ({"user_defined_symbols": list(SPECIAL_TOKENS)}, 0),  # adds a space in front, so text would not come back
        (
            {"user_defined_symbols": ["x"], "control_symbols": list(SPECIAL_TOKENS)},
            0,
        ),  # ids that no text reaches are not what we promise either
    ],
    ids=["no sentinels", "no eot", "no usr", "a space in front", "control symbols"],
)
def test_a_model_without_all_sentinels_is_refused(tmp_path: Path, options: dict[str, Any], missing: int) -> None:
    (tmp_path / "spm.model").write_bytes(foreign(**{"vocab_size": 700, "byte_fallback": True} | options))
    with pytest.raises(TokenizerError, match="was not trained for this project") as caught:
        load_tokenizer(tmp_path)
    assert f"{tmp_path}/spm.model: the sentinel {SPECIAL_TOKENS[missing]} encodes to [" in str(caught.value)


@pytest.mark.parametrize("name", ["absent", "absent/spm.model", "empty"])
def test_nothing_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TokenizerError, match=rf"{tmp_path}/{name}.*: no tokenizer here.*niels-gpt tokenizer train"):
        load_tokenizer(tmp_path / name)
