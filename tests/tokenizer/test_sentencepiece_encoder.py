"""Our own tokenizer as a `PieceEncoder`, against a count of characters token by token."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from niels_gpt.errors import TokenizerError, UsageError
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer, load_tokenizer
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder
from niels_gpt.tokenizer.sentencepiece import SentencePieceEncoder
from tests.tokenizer.foreign import foreign
from tests.tokenizer.pieces import Pieces, check_many, split

SYS, USR, ASST, EOT = SPECIAL_TOKENS

FRAGMENTS = [
    *("user\n", "hello", " the", " ", "  ", "\n\n", "", SYS[:9], SYS[9:], "ngpt_", "é", "e\u0301", "中文", "👩‍👧"),
    *("\u2581", " \u2581", "<0x0A>", "<0x", "<unk>", "\x00", "\t", "It is a", "question"),
]
body = st.lists(st.sampled_from([*FRAGMENTS, *SPECIAL_TOKENS]), max_size=5).map("".join) | st.text(max_size=6)
pieces_of = st.lists(st.tuples(body, st.booleans()), max_size=7)
hypothesis_settings = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def made(tokenizer: SentencePieceTokenizer) -> SentencePieceEncoder:
    return SentencePieceEncoder(tokenizer)


def runs(pieces: Pieces) -> list[tuple[str, int]]:
    """Slow: sentinels in scaffold, and what lies between, each with the character at which it starts."""
    text = "".join(text for text, _ in pieces)
    inside = [flag for text, flag in pieces for _ in text]
    found, start = [], 0
    for match in re.finditer("|".join(map(re.escape, SPECIAL_TOKENS)), text):
        if all(inside[slice(*match.span())]):
            found += [(text[start : match.start()], start), (match[0], match.start())]
            start = match.end()
    return [(part, at) for part, at in [*found, (text[start:], start)] if part]


def expected(made: SentencePieceEncoder, pieces: Pieces) -> tuple[list[int], list[int]]:
    """Slow: each run by itself; a token starts where what the tokens before it decode to ends."""
    ids, owners = [], []
    owner_of = [index for index, (text, _) in enumerate(pieces) for _ in text]
    inside = [flag for text, flag in pieces for _ in text]
    for run, at in runs(pieces):
        if run in SPECIAL_TOKENS and all(inside[at : at + len(run)]):
            ids.append(made.control_ids[run])
            owners.append(owner_of[at])
            continue
        found = made.tokenizer.encode(run)
        sizes = [len(spelt(made.tokenizer, token)) for token in found]
        assert sum(sizes) == len(run.encode())
        bytes_before = [sum(sizes[:k]) for k in range(len(sizes))]
        # The character that holds a byte: how many characters end before it.
        owners += [owner_of[at + len(run.encode()[:start].decode("utf-8", "ignore"))] for start in bytes_before]
        ids += found
    return ids, owners


def spelt(tokenizer: SentencePieceTokenizer, token: int) -> bytes:
    shown = tokenizer.piece(token)
    return bytes.fromhex(shown[3:5]) if re.fullmatch("<0x..>", shown) else shown.encode()


@hypothesis_settings
@given(pieces=pieces_of)
@example(pieces=[])
@example(pieces=[("", True), ("", False)])
@example(pieces=[(USR[:9], True), ("", False), (USR[9:], True), ("hel", False), ("lo wor", False), (EOT, True)])
@example(pieces=[(USR[:9], True), (USR[9:], False), (EOT, False)])
@example(pieces=[("a", False), ("\U0001f6f8", False), ("b", True)])
@example(pieces=[(" ", True), ("\u2581 ", False), ("\u2581", True)])
def test_ids_and_owners_are_those_of_a_slow_count(made: SentencePieceEncoder, pieces: Pieces) -> None:
    ids, owner = made.encode_pieces(*split(pieces))
    assert ids.dtype == owner.dtype == np.int32
    expected_ids, expected_owner = expected(made, pieces)
    assert ids.tolist() == expected_ids
    assert owner.tolist() == expected_owner
    text = "".join(text for text, _ in pieces)
    assert made.decode(ids) == text
    assert b"".join(made.token_bytes(ids)) == text.encode()


@hypothesis_settings
@given(batch=st.lists(pieces_of, max_size=5))
def test_many_are_as_one_by_one(made: SentencePieceEncoder, batch: list[Pieces]) -> None:
    check_many(made, batch)


def test_what_it_says_of_itself(made: SentencePieceEncoder, tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.special_token_ids()
    assert isinstance(made, PieceEncoder)
    assert (made.name, made.engine, made.vocab_size) == (tokenizer.model_path, "sentencepiece", 2000)
    assert made.control_ids == made.added_ids == dict(zip(SPECIAL_TOKENS, ids.values(), strict=True))
    assert made.stop_ids == (ids["eot"],)
    assert (made.template, made.special_tokens) == (None, {"eos_token": EOT})
    assert made.fingerprints == {"tokenizer": tokenizer.sha256}
    again = pickle.loads(pickle.dumps(made))
    assert again.encode_pieces([USR, "hi"], [True, False])[0].tolist() == [ids["usr"], *tokenizer.encode("hi")]


def test_bad_calls(made: SentencePieceEncoder) -> None:
    with pytest.raises(UsageError, match="2 texts and 1 scaffold flags"):
        made.encode_pieces(["a", "b"], [True])
    with pytest.raises(TokenizerError, match="lone surrogate"):
        made.encode_pieces(["\ud800"], [True])
    with pytest.raises(TokenizerError, match="id 2000 is outside the vocabulary of 2000 ids"):
        made.token_bytes([2000])


# Models that were not trained by us, but hold the sentinels


def saved(folder: Path, **options: Any) -> SentencePieceEncoder:
    (folder / "spm.model").write_bytes(foreign(**options))
    return SentencePieceEncoder(SentencePieceTokenizer(folder / "spm.model"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"normalization_rule_name": "nfkc"}, r"'\uff21' comes back as 'A'"),
        ({"normalization_rule_name": "nfkc_cf"}, r"'\uff21' comes back as 'a'"),
        ({"remove_extra_whitespaces": True}, "'a  b' comes back as 'a b'"),
        ({"byte_fallback": False, "vocab_size": 400}, r"'\uff21' comes back as ' \u2047 '"),
    ],
    ids=["nfkc", "case folding", "spaces", "unknown characters"],
)
def test_models_that_change_text_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], reason: str
) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    made = saved(folder, **{"add_dummy_prefix": False, "byte_fallback": True, "vocab_size": 700} | options)
    reason = reason.encode().decode("unicode_escape")
    assert made.tokenizer.inexact_reason == reason
    assert not caplog.records  # whoever makes the object asks it; the functions that load one say it
    for load in (load_tokenizer, open_encoder):
        load(folder)
        (record,) = caplog.records
        assert record.getMessage().startswith(f"{folder}/spm.model: this model does not give every text back ({reason}")
        caplog.clear()


def test_normalised_text_needs_runs_of_one_piece(tmp_path: Path) -> None:
    made = saved(tmp_path, add_dummy_prefix=False, byte_fallback=True, vocab_size=700, normalization_rule_name="nfkc")
    ids, owner = made.encode_pieces([USR, "\ufb01", EOT], [True, False, True])
    assert made.decode(ids) == f"{USR}fi{EOT}"
    assert owner.tolist() == [0, *[1] * (ids.size - 2), 2]
    with pytest.raises(TokenizerError, match="'\ufb01x', in 2 pieces, became ids that stand for 'fix'"):
        made.encode_pieces(["\ufb01", "x"], [False, False])


def test_unknown_characters_need_runs_of_one_piece(tmp_path: Path) -> None:
    made = saved(tmp_path, add_dummy_prefix=False, byte_fallback=False)
    ids, owner = made.encode_pieces([USR, "", "a 中 b", EOT, "", "c"], [True, False, False, True, False, False])
    assert owner.tolist() == [0, *[2] * (ids.size - 3), 3, 5]
    with pytest.raises(TokenizerError, match="'a 中文', in 2 pieces, became ids that stand for 'a <unk>'"):
        made.encode_strings([[], [USR, "a 中", "文"]], [[], [4, 0, 0]])
