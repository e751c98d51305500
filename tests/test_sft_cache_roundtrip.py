"""What goes into a cache comes out of it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.builds.splits import ValidationSplit
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cache.meta import read_meta, sha256_file, write_meta
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.errors import DataError
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT, serialize_chat_to_ids
from niels_gpt.samples import chats_file
from niels_gpt.store.kinds import open_meta
from niels_gpt.store.masks import IGNORE_INDEX
from niels_gpt.store.schema import SPLITS
from niels_gpt.store.verify import verify_dataset
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import ASST, EOT, SYS, USR, FakeTokenizer

CHATS = [json.loads(line)["messages"] for line in chats_file().read_text(encoding="utf-8").splitlines() if line]


def stored_examples(folder: Path, split: str) -> list[list[int]]:
    """The examples of a split, read without any of the package's readers."""
    tokens = np.fromfile(folder / f"{split}_tokens.bin", dtype="<u2")
    starts = np.load(folder / f"{split}_idx.npy")
    assert starts.dtype == np.int64
    return [part.tolist() for part in np.split(tokens, starts[1:])] if len(starts) else []


def test_every_conversation_comes_back_as_it_was_serialised(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    build_sft_cache(CHATS, str(tmp_path / "c"), tokenizer=tokenizer, val_frac=0.1, seed=42)
    expected = [
        serialize_chat_to_ids({"messages": chat}, tokenizer=tokenizer, default_system_text=DEFAULT_SYSTEM_TEXT)
        for chat in CHATS
    ]
    in_val = ValidationSplit(0.1, 42).draws([None] * (len(CHATS)))
    assert stored_examples(tmp_path / "c", "train") == [ids for ids, v in zip(expected, in_val, strict=True) if not v]
    assert stored_examples(tmp_path / "c", "val") == [ids for ids, v in zip(expected, in_val, strict=True) if v]
    assert list(verify_dataset(tmp_path / "c")) == []


def test_trained_tokens_are_conserved_from_conversation_to_batch(
    tmp_path: Path, tokenizer: SentencePieceTokenizer
) -> None:
    """Counted three ways: from the texts, in the build's report, and in the batches of the reader."""
    build_sft_cache(CHATS, str(tmp_path / "c"), tokenizer=tokenizer, val_frac=0.25, seed=3)
    answers = [m["content"] for chat in CHATS for m in chat if m["role"] == "assistant"]
    from_texts = sum(len(tokenizer.encode(answer)) + 1 for answer in answers)
    meta = open_meta(tmp_path / "c")
    reported = sum(split["trained_tokens"] for split in meta["splits"].values())
    in_batches = 0
    for split in SPLITS:
        longest = max(map(len, stored_examples(tmp_path / "c", split)))
        data = reader(tmp_path / "c", split, T=longest)
        *_, y_masked = data.rows(np.arange(len(data)))
        in_batches += int((y_masked != IGNORE_INDEX).sum())
    assert from_texts == reported == in_batches


def reader(folder: Path, split: str, *, T: int, eot_id: int = EOT) -> SFTExampleDataset:
    tokens, index = folder / f"{split}_tokens.bin", folder / f"{split}_idx.npy"
    return SFTExampleDataset(str(tokens), str(index), T=T, device="cpu", eot_id=eot_id)


messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text("ab c", max_size=9)}),
    min_size=1,
    max_size=4,
).filter(lambda chat: any(message["role"] == "assistant" for message in chat))


@given(st.lists(messages, min_size=1, max_size=12), st.sampled_from([0.0, 0.1, 0.5, 0.9]), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_nothing_is_lost_or_doubled_between_the_splits(
    tmp_path_factory: pytest.TempPathFactory, chats: list[list[dict[str, str]]], val_frac: float, seed: int
) -> None:
    out = tmp_path_factory.mktemp("c") / "cache"
    fake = FakeTokenizer()
    build_sft_cache(chats, str(out), tokenizer=fake, val_frac=val_frac, seed=seed)
    stored = [example for split in SPLITS for example in stored_examples(out, split)]
    expected = [
        serialize_chat_to_ids({"messages": c}, tokenizer=fake, default_system_text=DEFAULT_SYSTEM_TEXT) for c in chats
    ]
    assert sorted(stored) == sorted(expected)
    n_val = len(stored_examples(out, "val"))
    assert abs(n_val - len(chats) * val_frac) <= 1


def test_the_meta_has_the_document_s_keys(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    build_sft_cache(CHATS, str(tmp_path / "c"), tokenizer=tokenizer, val_frac=0.1, seed=42, source_name="chats")
    meta = read_meta(str(tmp_path / "c" / "meta.json"))
    assert meta["dataset_name"] == "chats"
    assert meta["dataset_config"] is None
    assert meta["seed"] == 42
    assert meta["token_dtype"] == "uint16-le"
    assert meta["tokenizer_sha256"] == sha256_file(tokenizer.model_path) == tokenizer.sha256
    assert meta["vocab_size"] == tokenizer.vocab_size == 2000
    assert set(meta["special_token_ids"]) == {"sys", "usr", "asst", "eot"}
    assert meta["totals"] == {"train_examples": 90, "val_examples": 10}
    assert (meta["train_examples"], meta["val_examples"]) == (90, 10)
    assert "val" in meta["split_rule"]
    assert set(meta["files"]) == {"train_tokens.bin", "train_idx.npy", "val_tokens.bin", "val_idx.npy"}
    for name, record in meta["files"].items():
        assert record["sha256"] == sha256_file(str(tmp_path / "c" / name))
        assert record["bytes"] == (tmp_path / "c" / name).stat().st_size
    write_meta(str(tmp_path / "again.json"), meta)
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "c" / "meta.json").read_bytes()


def test_documents_come_back_in_order_with_a_separator_after_each(tmp_path: Path, fake: FakeTokenizer) -> None:
    texts = ["a b c", "d", "", "e f"]
    build(tmp_path / "c", texts, fake)
    meta = open_meta(tmp_path / "c")
    assert stream(tmp_path / "c", "train") == [
        *fake.encode("a b c"),
        EOT,
        *fake.encode("d"),
        EOT,
        *fake.encode("e f"),
        EOT,
    ]
    assert meta["dropped"] == {"empty": 1}
    assert meta["splits"]["train"] == {"documents": 3, "tokens": 9}
    assert meta["totals"] == {"train_tokens": 9, "val_tokens": 0}
    build(tmp_path / "d", texts, fake, separator="none")
    assert stream(tmp_path / "d", "train") == fake.encode("a b c d e f")


def build(out: Path, texts: list[str], tokenizer: FakeTokenizer, **changes: object) -> None:
    options = {
        "max_train_tokens": 10**9,
        "max_val_tokens": 0,
        "shard_bytes": 1 << 20,
        "seed": 0,
        "shuffle_buffer": None,
    }
    build_pretrain_cache(texts, str(out), tokenizer=tokenizer, **options | changes)


def stream(folder: Path, split: str, dtype: str = "<u2") -> list[int]:
    """All tokens of a split, read without any of the package's readers."""
    return [token for path in sorted((folder / split).glob("*.bin")) for token in np.fromfile(path, dtype).tolist()]


def test_shards_hold_at_most_their_bytes_and_the_stream_runs_on_through_them(
    tmp_path: Path, fake: FakeTokenizer
) -> None:
    texts = [f"w{n} w{n + 1} w{n + 2}" for n in range(20)]
    build(tmp_path / "c", texts, fake, shard_bytes=15)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "c" / "train").iterdir())]
    assert sizes == [14] * 11 + [6]
    build(tmp_path / "one", texts, FakeTokenizer())
    assert stream(tmp_path / "c", "train") == stream(tmp_path / "one", "train")


def budget_reference(lengths: list[int], in_val: list[bool], train: int, val: int) -> dict[str, int]:
    """Where tokens go, one document at a time."""
    left = {"train": train, "val": val}
    for length, drawn in zip(lengths, in_val, strict=True):
        first, second = ("val", "train") if drawn else ("train", "val")
        split = first if left[first] else second
        left[split] -= min(length, left[split])
    return {"train_tokens": train - left["train"], "val_tokens": val - left["val"]}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 60), st.integers(0, 40), st.integers(0, 9))
@settings(deadline=None, max_examples=80)
def test_budgets_are_met_exactly_and_reading_stops_there(
    tmp_path_factory: pytest.TempPathFactory, words: list[int], train: int, val: int, seed: int
) -> None:
    if train + val == 0:
        return
    out = tmp_path_factory.mktemp("c") / "cache"
    texts = [" ".join(["w"] * n) for n in words]
    build(out, texts, FakeTokenizer(), max_train_tokens=train, max_val_tokens=val, seed=seed)
    fraction = val / (train + val) if train else 0.0
    in_val = ValidationSplit(fraction, seed).draws([None] * (len(words))).tolist()
    totals = open_meta(out)["totals"]
    assert totals == budget_reference([n + 1 for n in words], in_val, train, val)
    assert len(stream(out, "train")) == totals["train_tokens"]


def test_an_endless_stream_is_read_only_as_far_as_needed(tmp_path: Path, fake: FakeTokenizer) -> None:
    read = 0

    def endless() -> object:
        nonlocal read
        while True:
            read += 1
            yield "some words of text"

    build_pretrain_cache(
        endless(),
        str(tmp_path / "c"),
        tokenizer=fake,
        max_train_tokens=5000,
        max_val_tokens=500,
        shard_bytes=1 << 20,
        seed=1,
        shuffle_buffer=16,
    )
    assert open_meta(tmp_path / "c")["totals"] == {"train_tokens": 5000, "val_tokens": 500}
    assert read < 10_000


def test_examples_with_no_assistant_or_no_text_at_all_are_data_errors(tmp_path: Path, fake: FakeTokenizer) -> None:
    with pytest.raises(DataError, match="example 0: no assistant message"):
        build_sft_cache([[{"role": "user", "content": "x"}]], str(tmp_path / "c"), tokenizer=fake, val_frac=0.1, seed=0)
    with pytest.raises(DataError, match="no usable conversation"):
        build_sft_cache([], str(tmp_path / "c"), tokenizer=fake, val_frac=0.1, seed=0)
    with pytest.raises(DataError, match="holds no text"):
        build(tmp_path / "c", ["", ""], fake)
    assert list(tmp_path.iterdir()) == []


def test_large_vocabularies_are_stored_in_four_bytes(tmp_path: Path) -> None:
    class Large(FakeTokenizer):
        def encode(self, text: str) -> list[int]:
            return [token + 100_000 for token in super().encode(text)]

    large = Large(vocab_size=200_000)
    build(tmp_path / "p", ["a b"], large, token_dtype="uint32")
    assert stream(tmp_path / "p", "train", "<u4") == [*large.encode("a b"), EOT]
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]
    build_sft_cache(
        [chat], str(tmp_path / "s"), tokenizer=large, val_frac=0, seed=0, token_dtype="uint32", default_system_text="b"
    )
    x, y, _ = reader(tmp_path / "s", "train", T=8).rows(np.array([0]))
    a, b, c = large.encode("a b c")
    assert min(a, b, c) > 65_535
    assert x[0].tolist() == [SYS, b, EOT, USR, a, EOT, ASST, c]
    assert y[0, -1] == EOT


def test_a_pickled_reader_reopens_its_files(tmp_path: Path, fake: FakeTokenizer) -> None:
    chat = [{"role": "assistant", "content": "word " * 2000}]
    build_sft_cache([chat], str(tmp_path / "s"), tokenizer=fake, val_frac=0, seed=0)
    data = reader(tmp_path / "s", "train", T=8)
    packed = pickle.dumps(data)
    assert len(packed) < 1000
    assert torch.equal(pickle.loads(packed).rows(np.array([0]))[0], data.rows(np.array([0]))[0])
