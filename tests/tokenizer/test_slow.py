"""Python tokenizers without offsets, against a slow count of bytes; tiny ones, and Kimi's where it is available."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer

from niels_gpt.errors import TokenizerError
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.engines import PROBE
from niels_gpt.tokenizer.pieces import PieceEncoder
from niels_gpt.tokenizer.python_tokenizer import PythonEncoder
from tests.assets import ASSETS, needs_assets
from tests.memory import shared
from tests.tokenizer.pieces import Pieces, check_many, split
from tests.tokenizer.python_tokenizers import (
    BYTES,
    CONTROLS,
    END,
    FRAGMENTS,
    LONG,
    START,
    THINK,
    Bytes,
    Leaky,
    Lower,
    Prefixed,
    TikToken,
    greedy,
)


@shared
def encoder(kind: type[Bytes]) -> PythonEncoder:
    return PythonEncoder(kind())


def owner_of_bytes(pieces: Pieces) -> list[int]:
    return [index for index, (text, _) in enumerate(pieces) for _ in text.encode()]


def cut_slowly(pieces: Pieces) -> list[tuple[str, int, str | None]]:
    """Slow: `(text, byte at which it starts, special token or None)`, character by character."""
    text = "".join(text for text, _ in pieces)
    inside = [flag for text, flag in pieces for _ in text]
    at, taken = 0, {}
    while at < len(text):  # in scaffold every spelling competes, in the rest only those that are no control tokens
        here = [word for word in (*CONTROLS, THINK) if text.startswith(word, at) and all(inside[at : at + len(word)])]
        word = max(here, key=len, default="")
        taken |= {at: word} if word else {}
        at += len(word) or 1
    found: list[tuple[str, int, str | None]] = []
    at = start = 0
    while at <= len(text):
        other = THINK if text.startswith(THINK, at) and not any(at < a < at + len(THINK) for a in taken) else None
        word = taken.get(at, other)
        if word or at == len(text):
            found += [(text[start:at], len(text[:start].encode()), None)] if start < at else []
            found += [(word, len(text[:at].encode()), word)] if word else []
            start = at + len(word or "")
        at += len(word or "") or 1
    return found


body = st.lists(st.sampled_from([*FRAGMENTS, *CONTROLS]), max_size=5).map("".join) | st.text(max_size=5)
pieces_of = st.lists(st.tuples(body, st.booleans()), max_size=7)


@pytest.mark.parametrize("kind", [Bytes, TikToken])
@settings(deadline=None, max_examples=150)
@given(pieces=pieces_of)
@example(pieces=[])
@example(pieces=[("", True), ("", False)])
@example(pieces=[("<|im_", True), ("", False), ("end|>", True), ("!", True), ("<thi", False), ("nk>", True)])
@example(pieces=[("<|im_end|>", True), ("!", False), (LONG, False)])
@example(pieces=[("hel", False), ("lo\n", True), ("\ne", False), ("\u0301x", False)])
def test_ids_and_owners_are_those_of_a_slow_count(kind: type[Bytes], pieces: Pieces) -> None:
    made = encoder(kind)
    expected_ids, expected_owner, owners = [], [], owner_of_bytes(pieces)
    for text, at, special in cut_slowly(pieces):
        for word in [text.encode()] if special else greedy(text.encode()):
            expected_ids.append(made.added_ids[special] if special else BYTES.index(word))
            expected_owner.append(owners[at])
            at += len(word)
    ids, owner = made.encode_pieces(*split(pieces))
    assert ids.dtype == owner.dtype == np.int32
    assert ids.tolist() == expected_ids
    assert owner.tolist() == expected_owner
    text = "".join(text for text, _ in pieces)
    assert b"".join(made.token_bytes(ids)) == text.encode()
    assert made.decode(ids) == text


@pytest.mark.parametrize("kind", [Bytes, TikToken])
@settings(deadline=None, max_examples=30)
@given(batch=st.lists(pieces_of, max_size=5))
def test_many_are_as_one_by_one(kind: type[Bytes], batch: list[Pieces]) -> None:
    check_many(encoder(kind), batch)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Leaky, {}, r"encode\(\) makes special tokens of plain text.*still makes a special token of '<\|im_start"),
        (Lower, {}, "comes back as .the quick.*; expected the bytes of its ids to be the text"),
        (Prefixed, {}, "has other ids than as a whole"),
        (
            Bytes,
            {"added_tokens_decoder": {300: AddedToken(END, special=True, rstrip=True, normalized=False)}},
            r"'<\|im_end\|>' has rstrip set",
        ),
    ],
)
def test_refused(kind: type[Bytes], options: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        PythonEncoder(kind(**options))


def test_what_it_says_of_itself() -> None:
    made, tiktoken = PythonEncoder(Bytes(name_or_path="me/model")), encoder(TikToken)
    assert isinstance(made, PieceEncoder)
    assert (made.name, made.engine, made.vocab_size, made.stop_ids) == ("me/model", "python", 311, (301,))
    assert made.control_ids == {START: 300, END: 301, LONG: 302}
    assert made.added_ids == {**made.control_ids, THINK: 310}
    assert (made.template, made.special_tokens["eos_token"]) == ("T", END)
    assert made.parts.stop_ids == made.stop_ids
    again, other = PythonEncoder(Bytes(name_or_path="you/model")), PythonEncoder(Bytes(chat_template=None))
    assert again.fingerprints == made.fingerprints
    assert other.fingerprints == {"tokenizer": made.fingerprints["tokenizer"]}
    assert tiktoken.fingerprints["tokenizer"] != made.fingerprints["tokenizer"]


def _in_another_process(made: PythonEncoder) -> list[int]:
    return made.encode_pieces([START, "hello " + END], [True, False])[0].tolist()


def test_pickles_and_works_in_other_processes() -> None:
    made = encoder(Bytes)
    assert _in_another_process(pickle.loads(pickle.dumps(made))) == _in_another_process(made)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_in_another_process, (made,)) == _in_another_process(made)


@needs_assets
@pytest.mark.parametrize("folder", ["kimi-k2-slow", "kimi-k2.5-slow"])
def test_kimi(folder: str) -> None:
    pytest.importorskip("tiktoken", reason="Kimi's tokenizer runs on tiktoken")
    official = AutoTokenizer.from_pretrained(ASSETS / folder, trust_remote_code=True)
    made, fast = PythonEncoder(official), TokenizerAdapter.load(ASSETS / folder.removesuffix("-slow"))
    texts = ["<|im_user|>", "user", "<|im_middle|>", PROBE, *made.added_ids, "<think>", "é\u0301 ", "<|im_end|>"]
    flags = [True, False, True, False, *[False] * len(made.added_ids), False, False, True]
    ids, owner = made.encode_pieces(texts, flags)
    assert np.isin(ids, list(made.control_ids.values())).sum() == 3
    assert b"".join(made.token_bytes(ids)) == "".join(texts).encode()
    scaffold = [True] * len(texts)
    assert made.encode_pieces(texts, scaffold)[0].tolist() == official.encode("".join(texts), add_special_tokens=False)
    assert made.control_ids.items() >= {text: made.added_ids[text] for text in ("<|im_end|>", "[EOS]")}.items()
    assert made.decode(ids) == "".join(texts)
    # The same vocabulary with a tokenizer.json, whose offsets are known.
    expected_ids, expected_owner = fast.encode_pieces(texts, flags)
    assert ids.tolist() == expected_ids.tolist()
    assert owner.tolist() == expected_owner.tolist()
