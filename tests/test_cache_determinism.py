"""The same input, tokenizer, options and seed give the same bytes; another seed gives others."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from niels_gpt.builds import rows
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cache.meta import read_meta
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.text_files import text_files
from niels_gpt.tokenizer import SentencePieceTokenizer


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a directory, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def pretrain(out: Path, tokenizer: SentencePieceTokenizer, **changes: object) -> dict[str, str]:
    options: dict[str, object] = {
        "max_train_tokens": 1 << 40,
        "max_val_tokens": 1 << 40,
        "val_frac": 0.2,
        "shard_bytes": 8192,
        "seed": 1,
        "shuffle_buffer": 10,
    }
    build_pretrain_cache(text_files([notes_dir()]).iterate(), str(out), tokenizer=tokenizer, **options | changes)
    return digests(out)


def sft(out: Path, tokenizer: SentencePieceTokenizer, **changes: object) -> dict[str, str]:
    options: dict[str, object] = {"val_frac": 0.2, "seed": 1}
    build_sft_cache(chat_files([chats_file()]).iterate(), str(out), tokenizer=tokenizer, **options | changes)
    return digests(out)


BUILDERS = pytest.mark.parametrize("build", [pretrain, sft])


@BUILDERS
def test_same_input_and_seed_give_the_same_bytes(build: object, tmp_path: Path, tokenizer: object) -> None:
    first = build(tmp_path / "a", tokenizer)
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert build(tmp_path / "elsewhere" / "b", tokenizer) == first
    assert "meta.json" in first


@BUILDERS
def test_another_seed_gives_other_bytes(build: object, tmp_path: Path, tokenizer: object) -> None:
    first, second = build(tmp_path / "a", tokenizer), build(tmp_path / "b", tokenizer, seed=2)
    train = next(name for name in first if name.startswith("train") and name.endswith(".bin"))
    assert first[train] != second[train]


@BUILDERS
def test_threads_and_batching_do_not_show(
    build: object, tmp_path: Path, tokenizer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(tmp_path / "a", tokenizer, num_threads=1)
    for batch_rows, threads in ((1, 2), (7, 5)):
        monkeypatch.setattr(rows, "BATCH_ROWS", batch_rows)
        assert build(tmp_path / f"b{batch_rows}", tokenizer, num_threads=threads) == first


@BUILDERS
def test_building_leaves_global_random_states_alone(build: object, tmp_path: Path, tokenizer: object) -> None:
    torch.manual_seed(9)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    build(tmp_path / "a", tokenizer)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_nothing_of_the_place_or_time_is_recorded(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    sft(tmp_path / "a", tokenizer, source_name="chats", source_config=chat_files([chats_file()]).config())
    text = (tmp_path / "a" / "meta.json").read_text()
    assert str(tmp_path) not in text
    assert str(chats_file().parent) not in text


def test_the_split_is_pinned(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Changing these numbers means that everybody's validation examples move into training."""
    sft(tmp_path / "a", tokenizer, seed=42, val_frac=0.1)
    meta = read_meta(str(tmp_path / "a" / "meta.json"))
    assert meta["totals"] == {"train_examples": 90, "val_examples": 10}
    assert meta["special_token_ids"] == {"sys": 1, "usr": 2, "asst": 3, "eot": 4}
