"""Byte-level BPE: a pure function of files and options, saved as a directory that every tool opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from niels_gpt.errors import OutputExists, TokenizerError, UsageError
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.training import BOS, EOS, train_byte_bpe
from tests.conftest import run_cli

INPUTS = [notes_dir(), chats_file()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bpe") / "tokenizer"
    train_byte_bpe(INPUTS, out, vocab_size=1000)
    return out


@pytest.fixture(scope="module")
def encoder(folder: Path) -> TokenizerAdapter:
    opened = open_encoder(folder)
    assert isinstance(opened, TokenizerAdapter)
    return opened


def test_the_same_bytes_in_another_process(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread: how many count words must not matter."""
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    done = run_cli(
        *("tokenizer", "train", *INPUTS, "--kind", "byte-bpe", "--vocab-size", 1000, "--out", "again", "--json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for path in folder.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    assert json.loads(done.stdout)["special_token_ids"] == {"eos": 0, "bos": 1}


def test_what_it_has(encoder: TokenizerAdapter) -> None:
    assert encoder.vocab_size == 1000
    assert encoder.control_ids == {EOS: 0, BOS: 1}
    assert encoder.special_tokens["eos_token"] == EOS
    assert encoder.special_tokens["bos_token"] == BOS
    assert encoder.engine == "gigatoken", encoder.engine_reason
    assert encoder.fast is not None
    assert b"\n\n" in encoder.token_bytes(range(2, 1000)), "blank lines are learned"


@given(st.text())
def test_any_text_comes_back(encoder: TokenizerAdapter, text: str) -> None:
    ids, _ = encoder.encode_pieces([text + EOS], [False])
    assert encoder.decode(ids) == text + EOS
    assert not {0, 1}.intersection(ids.tolist())


def test_other_tools_open_it(folder: Path, encoder: TokenizerAdapter) -> None:
    text = "The quick brown fox's 12 naïve 中文\n\n  x"
    ids = encoder.encode_pieces([text], [False])[0].tolist()
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids == ids
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs(text)["input_ids"] == ids
    assert (theirs.eos_token_id, theirs.bos_token_id) == (0, 1)
    assert theirs.decode(ids) == text


def test_refusals(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputExists):
        train_byte_bpe(INPUTS, folder, vocab_size=1000)
    (tmp_path / "small.txt").write_text("a few words\n")
    with pytest.raises(TokenizerError, match="at most --vocab-size"):
        train_byte_bpe([tmp_path / "small.txt"], tmp_path / "out")
    with pytest.raises(UsageError):
        train_byte_bpe(INPUTS, tmp_path / "out", vocab_size=10)
    assert not (tmp_path / "out").exists()
    done = run_cli("tokenizer", "train", notes_dir(), "--kind", "byte-bpe", "--model-type", "bpe", cwd=tmp_path)
    assert done.returncode == 2
    assert "for --kind sentencepiece" in " ".join(done.stderr.split())
