"""Writing episodes: every format, the masks, the manifest, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.config import TrainingConfig
from niels_gpt.episodes import EpisodeWriter, GPTEpisodeDataLoader, build_episodes
from niels_gpt.errors import DataError, Mismatch, OutputExists, TokenizerError, UsageError
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT, serialize_chat_to_ids, sft_loss_mask_for_ids
from niels_gpt.messages import Conversation
from niels_gpt.samples import chats_file
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.store.kinds import is_episode_indexed_dataset, open_manifest
from niels_gpt.store.schema import COMPLETION
from niels_gpt.store.verify import verify_dataset
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import ASST, EOT, SYS, USR, FakeTokenizer

CHAT = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]


def test_texts_that_the_segments_file_cannot_number(tmp_path: Path) -> None:
    """65536 became 0 in uint16, and two texts one."""
    with pytest.raises(UsageError, match="segments_dtype is 'uint8'; expected one of uint16, uint32, or None"):
        EpisodeWriter(tmp_path, "train", mask_dtype=None, segments_dtype="uint8")
    for number in (1 << 16, -1):
        writer = EpisodeWriter(tmp_path, "train", mask_dtype=None, segments_dtype="uint16")
        with pytest.raises(UsageError, match=r"segments from .*; expected 0 to 65,535"):
            writer.write(np.arange(2), np.array([2]), segments=np.array([0, number]))


def records(folder: Path) -> list[list[int]]:
    return np.fromfile(folder / "episodes.idx", dtype="<u8").reshape(-1, 2).tolist()


def ids_of(folder: Path) -> list[int]:
    return np.fromfile(folder / "tokens.bin", dtype="<u4").tolist()


def mask_of(folder: Path, dtype: str = "u1") -> list[float]:
    return np.fromfile(folder / "mask.bin", dtype=dtype).tolist()


# ---- files


def test_the_bytes_of_a_small_dataset(tmp_path: Path, fake: FakeTokenizer) -> None:
    build_episodes([CHAT, CHAT], tmp_path / "out", encoder=SentinelEncoder(fake, default_system_text="s"), val_frac=0)
    s, a, b, c = fake.encode("s a b c")
    row = [SYS, s, EOT, USR, a, b, EOT, ASST, c, EOT]
    assert ids_of(tmp_path / "out" / "train") == row + row
    assert mask_of(tmp_path / "out" / "train") == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1] * 2
    assert records(tmp_path / "out" / "train") == [[0, 10], [10, 10]]
    assert not (tmp_path / "out" / "val").exists()
    assert is_episode_indexed_dataset(tmp_path / "out")


def test_ids_and_masks_are_document_000s(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    chats = [row for row in chat_files([chats_file()]).iterate() if isinstance(row, Conversation)]
    build_episodes(iter(chats), tmp_path / "out", encoder=tokenizer, val_frac=0)
    folder = tmp_path / "out" / "train"
    ids, mask = ids_of(folder), mask_of(folder)
    special = {f"{name}_id": token for name, token in tokenizer.special_token_ids().items()}
    for (start, length), chat in zip(records(folder), chats, strict=True):
        example: Any = {"messages": chat.messages}
        expected = serialize_chat_to_ids(example, tokenizer=tokenizer, default_system_text=DEFAULT_SYSTEM_TEXT)
        assert ids[start : start + length] == expected
        assert [bool(value) for value in mask[start : start + length]] == sft_loss_mask_for_ids(expected, **special)


def test_the_manifest_says_what_was_built(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    source = chat_files([chats_file()])
    out = tmp_path / "out"
    build_episodes(source.iterate(), out, encoder=tokenizer, source_name="chats", source_config=source.config())
    manifest = open_manifest(out)
    assert manifest is not None
    assert manifest["tokenizer_sha256"] == tokenizer.sha256
    assert (manifest["token_dtype"], manifest["mask_dtype"]) == ("uint32", "uint8")
    assert manifest["vocab_size"] == tokenizer.vocab_size
    for split in ("train", "val"):
        counts = manifest["splits"][split]
        assert counts["episodes"] == len(records(out / split))
        assert counts["tokens"] == len(ids_of(out / split))
        assert counts["trained_tokens"] == sum(mask_of(out / split))
    assert manifest["splits"]["train"]["episodes"] == 90
    assert set(manifest["files"]) == {
        f"{split}/{name}" for split in ("train", "val") for name in ("tokens.bin", "mask.bin", "episodes.idx")
    }
    assert list(verify_dataset(out)) == []


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=25),
    portions=st.lists(st.integers(1, 5), min_size=25, max_size=25),
    shard_tokens=st.one_of(st.none(), st.integers(1, 20)),
    seed=st.integers(0, 99),
)
def test_any_portions_and_shards_hold_the_same_episodes(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    portions: list[int],
    shard_tokens: int | None,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("w")
    rng = np.random.default_rng(seed)
    episodes = [rng.integers(0, 200_000, n) for n in lengths]
    masks = [rng.integers(0, 2, n) for n in lengths]
    writer = EpisodeWriter(folder, "train", shard_bytes=None if shard_tokens is None else 4 * shard_tokens)
    at = 0
    for portion in portions:
        part = slice(at, at + portion)
        if episodes[part]:
            writer.write(np.concatenate(episodes[part]), np.array(lengths[part]), np.concatenate(masks[part]))
        at += portion
    writer.close()
    shards = [folder / "train"] if shard_tokens is None else sorted((folder / "train").iterdir())
    found, found_masks = [], []
    for shard in shards:
        ids, mask = ids_of(shard), mask_of(shard)
        for start, length in records(shard):
            found.append(ids[start : start + length])
            found_masks.append(mask[start : start + length])
        if shard_tokens is not None:  # a shard is full, or holds one episode that is too long for any
            assert len(ids) <= shard_tokens or len(records(shard)) == 1
    assert found == [episode.tolist() for episode in episodes]
    assert found_masks == [mask.tolist() for mask in masks]
    assert writer.counts() == {
        "episodes": len(lengths),
        "tokens": sum(lengths),
        "trained_tokens": int(sum(mask.sum() for mask in masks)),
    }


# ---- masks


def test_train_and_weight_of_a_message_are_kept(tmp_path: Path, fake: FakeTokenizer) -> None:
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b b", "train": False},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "c", "weight": 0.25},
        {"role": "assistant", "content": "d"},
    ]
    encoder = SentinelEncoder(fake, default_system_text="s")
    build_episodes([chat], tmp_path / "out", encoder=encoder, val_frac=0, mask_dtype="float32")
    #        s a E    U a E    A b b E     U a E    A c E         A d E
    assert mask_of(tmp_path / "out" / "train", "<f4") == (
        [*[0, 0, 0], *[0, 0, 0], *[0, 0, 0, 0], *[0, 0, 0], *[0, 0.25, 0.25], *[0, 1, 1]]
    )
    loader = GPTEpisodeDataLoader(TrainingConfig(batch_size=1, block_size=30), fake, tmp_path / "out")
    batch = loader.next_batch()
    assert (batch.num_trained_tokens, batch.mask_sum) == (4, 2.5)


def test_a_weight_that_the_mask_cannot_hold_is_a_bad_row(tmp_path: Path, fake: FakeTokenizer) -> None:
    chat = [CHAT[0], CHAT[1] | {"weight": 0.5}]
    with pytest.raises(DataError, match=r"example 1: message 1: weight 0.5, .* --mask float32"):
        build_episodes([CHAT, chat], tmp_path / "out", encoder=fake)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("untrained", [{"train": False}, {"weight": 0}, {"weight": 0.0, "train": True}])
def test_a_row_that_says_that_nothing_counts_is_dropped_and_counted(
    tmp_path: Path, fake: FakeTokenizer, untrained: dict[str, Any]
) -> None:
    """It is no fault of the data, so it needs no `max_bad_rows`."""
    chat = [CHAT[0], CHAT[1] | untrained]
    build_episodes([CHAT, chat], tmp_path / "out", encoder=fake, val_frac=0)
    build_episodes([CHAT], tmp_path / "without", encoder=fake, val_frac=0)
    manifest = open_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest["dropped"] == {"nothing_trained": 1}
    made = [(tmp_path / name / "train" / "tokens.bin").read_bytes() for name in ("out", "without")]
    assert made[0] == made[1]


def test_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"returned id \d+; expected 0 to 4"):
        build_episodes([CHAT], tmp_path / "out", encoder=FakeTokenizer(vocab_size=5))


def test_without_mask(tmp_path: Path, fake: FakeTokenizer) -> None:
    build_episodes([CHAT], tmp_path / "out", encoder=fake, val_frac=0, mask_dtype=None)
    assert not (tmp_path / "out" / "train" / "mask.bin").exists()
    loader = GPTEpisodeDataLoader(TrainingConfig(batch_size=1, block_size=8), fake, tmp_path / "out")
    assert len(loader.get_batch()) == 2


# ---- metadata


def test_metadata_is_a_row_per_episode(tmp_path: Path, fake: FakeTokenizer) -> None:
    import pyarrow.parquet

    rows = tmp_path / "chats.jsonl"
    facts: list[dict[str, Any]] = [{"type": "tool"}, {"source": "web"}, {"type": None, "weight": None}]
    rows.write_text("".join(json.dumps({"messages": CHAT, **more}) + "\n" for more in facts))
    source = chat_files([rows])
    build_episodes(source.iterate(), tmp_path / "out", encoder=fake, val_frac=0, metadata=True, source_name=source.name)
    table = pyarrow.parquet.read_table(tmp_path / "out" / "train" / "episodes.parquet")
    assert table.to_pylist() == [
        {"type": "tool", "source": "chats", "weight": 1.0},
        {"type": None, "source": "web", "weight": 1.0},
        {"type": None, "source": "chats", "weight": 1.0},
    ]


# ---- whole or absent


def test_the_same_build_is_not_repeated_another_is_refused(tmp_path: Path, fake: FakeTokenizer) -> None:
    def build(**more: Any) -> None:
        rows: Iterator[Any] = iter([CHAT] * 20)
        build_episodes(rows, tmp_path / "out", encoder=fake, **{"source_config": {"file": "x"}, **more})

    build()
    before = (tmp_path / "out" / "episodes.json").stat().st_mtime_ns
    build()
    assert (tmp_path / "out" / "episodes.json").stat().st_mtime_ns == before
    with pytest.raises(Mismatch, match="seed 42, now 7"):
        build(seed=7)
    build(seed=7, overwrite=True, source_config=None)
    with pytest.raises(OutputExists):  # nothing is known of the rows, so they may be others
        build(seed=7, source_config=None)


# ---- the writer alone


@pytest.mark.parametrize(
    ("ids", "lengths", "weights", "said"),
    [
        ([1, 2, 3], [2], [0, 0, 0], "3 ids for lengths that add up to 2"),
        ([1, 2], [2, 0], [0, 0], "each above 0"),
        ([1, -2], [2], [0, 0], "ids from -2 to 1"),
        ([1, 2**32], [2], [0, 0], "expected 0 to 2"),
        ([1, 2], [2], [0], "2 ids but 1 weights"),
        ([1, 2], [2], None, "2 ids but 0 weights"),
        ([1, 2], [2], [0, 0.5], "0.5"),
        ([1, 2], [2], [0, 2], "a weight of 2"),
    ],
)
def test_what_does_not_belong_together(
    tmp_path: Path, ids: list[int], lengths: list[int], weights: list[float] | None, said: str
) -> None:
    writer = EpisodeWriter(tmp_path, "train")
    with pytest.raises(UsageError, match=said):
        writer.write(np.array(ids), np.array(lengths), None if weights is None else np.array(weights))
    writer.abandon()


def test_completions_are_checked_and_part_shards(tmp_path: Path) -> None:
    # Room for six tokens a shard, so for three episodes; groups begin at episodes 0 2 4.
    writer = EpisodeWriter(tmp_path, "train", mask_dtype=None, shard_bytes=24, with_completions=True)
    completions = np.zeros(6, COMPLETION)
    completions["number"] = [0, 1, 0, 1, 0, 1]
    with pytest.raises(UsageError, match="no records of completions"):
        writer.write(np.arange(12), np.full(6, 2))
    writer.write(np.arange(12), np.full(6, 2), completions=completions)
    writer.close()
    sizes = [(tmp_path / "train" / f"shard_0000{n}" / "completions.bin").stat().st_size for n in range(3)]
    assert sizes == [2 * COMPLETION.itemsize] * 3


def test_float32_weights_are_rounded_and_nan_is_refused(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path, "train", mask_dtype="float32")
    writer.write(np.array([5]), np.array([1]), np.array([0.1]))
    with pytest.raises(UsageError, match="nan"):
        writer.write(np.array([5]), np.array([1]), np.array([np.nan]))
    writer.abandon()
