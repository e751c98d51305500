"""Damaged, foreign and mistaken episodes datasets: what is refused, and whether the message leads to the place."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.errors import CacheError, Mismatch, NielsError, UsageError
from tests.episodes.made import config, epoch_of, loader, numbered, one_line, write_manifest, write_shard, write_split

BIG = 2**64


def refusal(kind: type[NielsError], dataset: Any, **settings: Any) -> str:
    """The message with which opening, or else the first epoch, is refused."""
    with pytest.raises(NielsError) as caught:
        epoch_of(loader(dataset, **{"epoch_drop_last": False, "epoch_shuffle": False, "batch_size": 1} | settings))
    assert type(caught.value) is kind
    return one_line(caught.value)


def refused_at_opening(kind: type[NielsError], dataset: Any, **settings: Any) -> str:
    with pytest.raises(NielsError) as caught:
        loader(dataset, **settings)
    assert type(caught.value) is kind
    return one_line(caught.value)


# ---- the index


@pytest.mark.parametrize(
    ("start", "length"),
    [
        (0, 8),
        (7, 1),
        (8, 0),
        (3, 5),
        (BIG - 1, 2),  # start + length wraps around to 1
        (BIG - 3, 3),  # to 0
        (2, BIG - 1),  # to 1
        (BIG - 1, BIG - 1),
        (2**63, 2**63),  # to 0, and negative as int64
        (2**62, 4),
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_record_that_ends_past_the_tokens(tmp_path: Path, start: int, length: int, shards: int) -> None:
    """The file, the record's number in it, its values and what there is; also where the sum wraps around."""
    folder = tmp_path / "train"
    if shards == 2:
        write_shard(folder / "shard_00000", range(50), [(0, 3)] * 5)
        folder /= "shard_00001"
    write_shard(folder, range(7), [(0, 7), (7, 0), (start, length), (0, 99)])
    message = refused_at_opening(CacheError, tmp_path)
    assert message.startswith(
        f"{folder / 'episodes.idx'}: record 2: start {start:,} and length {length:,} end past the 7 tokens of "
    )


# ---- tokens and weights


def shards_with(bad: dict[str, Any], folder: Path) -> Path:
    """A good shard of three episodes and one with four, of which record 2 (tokens 4 to 8 of the file) may be bad."""
    write_split(folder / "train" / "shard_00000", numbered([3, 3, 3]), [[1, 1, 1]] * 3)
    given = {"tokens": [5] * 12, "mask": [1] * 12, "mask_dtype": "u1"} | bad
    return write_shard(folder / "train" / "shard_00001", records=[(0, 2), (2, 2), (4, 5), (9, 3)], **given)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize(("at", "token"), [(0, 1000), (2, 4_294_967_295), (4, 65_536)])
def test_a_token_outside_the_vocabulary(tmp_path: Path, packing: bool, at: int, token: int) -> None:
    tokens = [5] * 12
    tokens[4 + at] = token
    folder = shards_with({"tokens": tokens}, tmp_path)
    keywords = {"vocab_size": 1000, "packing": packing}
    message = refusal(CacheError, tmp_path, keywords=keywords, batch_size=3)
    index = folder / "episodes.idx"
    assert message.startswith(f"{index}: record 2: token {at} is {token}, outside the vocabulary of 1,000")


@pytest.mark.parametrize("source", ["keyword", "config", "tokenizer", "manifest"])
def test_the_vocabulary_is_known_from_several_sides(tmp_path: Path, source: str) -> None:
    write_split(tmp_path / "train", [[5, 999], [5, 1000]])
    tokenizer, settings = None, {}
    if source == "keyword":
        settings = {"keywords": {"vocab_size": 1000}, "vocab_size": 10**6}
    elif source == "config":
        settings = {"vocab_size": 1000}
    elif source == "tokenizer":
        tokenizer = SimpleNamespace(vocab_size=1000)
    else:
        write_manifest(tmp_path, vocab_size=1000)
    opened = loader(tmp_path, tokenizer, epoch_shuffle=False, batch_size=1, **settings)
    assert opened.vocab_size == 1000
    opened.get_batch()
    for _ in range(2):  # a batch that failed is asked for again, not passed over
        with pytest.raises(CacheError, match="record 1"):
            opened.get_batch()


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("<f4", np.nan, "mask nan; expected a weight of 0 or more"),
        ("<f4", -0.5, "mask -0.5; expected a weight of 0 or more"),
        ("<f4", np.inf, "mask inf; expected a weight of 0 or more"),
        ("u1", 2, "mask 2; expected 0 or 1"),
    ],
)
def test_a_mask_value_that_is_no_weight(tmp_path: Path, packing: bool, dtype: str, value: float, said: str) -> None:
    mask = [1.0] * 12
    mask[4 + 3] = value
    folder = shards_with({"mask": mask, "mask_dtype": dtype}, tmp_path)
    if dtype != "u1":
        ones = tmp_path / "train" / "shard_00000" / "mask.bin"
        np.ones(9, dtype=dtype).tofile(ones)
    message = refusal(CacheError, tmp_path, keywords={"packing": packing}, batch_size=3)
    assert message.startswith(f"{folder}")
    assert ": record 2: token 3: " in message
    assert said in message


@pytest.mark.parametrize("policy", ["head", "tail", "drop_partial_turn"])
def test_a_bad_weight_of_a_cut_episode_is_named(tmp_path: Path, policy: str) -> None:
    """Of 9 tokens 5 are shown; token 4 is the one that both ends have."""
    write_split(tmp_path / "train", numbered([3, 9]), [[1] * 3, [0, 0, 0, 0, 7, 0, 0, 0, 0]])
    message = refusal(CacheError, tmp_path, keywords={"too_long": policy})
    assert "record 1: token 4: mask 7" in message


# ---- too little, too much


def test_no_episode_is_left(tmp_path: Path) -> None:
    write_split(tmp_path / "train", numbered([1, 1, 9, 0]))
    message = refused_at_opening(CacheError, tmp_path, keywords={"too_long": "skip"})
    assert message.startswith(f"{tmp_path / 'train'}: no episode to read: of 4 in the index 3 are too short and 1 too")


@pytest.mark.parametrize(("batch_size", "ranks"), [(4, None), (2, 2)])
def test_a_batch_larger_than_the_dataset_with_drop_last(tmp_path: Path, batch_size: int, ranks: int | None) -> None:
    write_split(tmp_path / "train", numbered([3, 3, 3]))
    keywords = {"rank": 0, "world_size": ranks} if ranks else {}
    message = refused_at_opening(UsageError, tmp_path, batch_size=batch_size, keywords=keywords)
    assert message.startswith(f"{tmp_path / 'train'}: 3 rows an epoch, but a global batch has 4")
    assert "epoch_drop_last=False" in message
    filled = loader(tmp_path, batch_size=batch_size, epoch_drop_last=False, keywords=keywords)
    assert filled.get_batch()[0].shape == (batch_size, 4)


@pytest.mark.parametrize(("batch_size", "block_size"), [(2**31, 1), (1, 2**40), (1, 10**30), (70_000, 70_000)])
@pytest.mark.parametrize("packing", [False, True])
def test_a_batch_that_no_machine_can_hold(tmp_path: Path, batch_size: int, block_size: int, packing: bool) -> None:
    write_split(tmp_path / "train", numbered([2, 2]))
    message = refused_at_opening(
        UsageError,
        tmp_path,
        batch_size=batch_size,
        block_size=block_size,
        epoch_drop_last=False,
        keywords={"packing": packing},
    )
    assert f"{batch_size:,} rows of {block_size:,}" in message


@pytest.mark.parametrize(
    "keywords",
    [
        {"too_long": "heads"},
        {"rank": 0},
        {"world_size": 2},
        {"rank": 2, "world_size": 2},
        {"pad_token_id": 1000, "vocab_size": 1000},
    ],
)
def test_absurd_keywords(tmp_path: Path, keywords: dict[str, Any]) -> None:
    write_split(tmp_path / "train", numbered([3, 3, 3]))
    message = refused_at_opening(UsageError, tmp_path, keywords=keywords)
    assert next(iter(keywords)) in message


# ---- directories


def test_no_dataset_dir(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dataset_dir"):
        GPTEpisodeDataLoader(config())
    for empty in ([], {}):
        with pytest.raises(UsageError, match="dataset_dir is empty"):
            GPTEpisodeDataLoader(config(), None, empty)
    write_split(tmp_path / "train", numbered([3, 3, 3]))
    with pytest.raises(UsageError, match="twice"):
        GPTEpisodeDataLoader(config(), None, [tmp_path, tmp_path])


def test_no_val_is_no_mistake_until_it_is_asked_for(tmp_path: Path) -> None:
    write_split(tmp_path / "train", numbered([3, 3]))
    opened = loader(tmp_path)
    opened.get_batch()
    with pytest.raises(CacheError) as caught:
        opened.get_batch("val")
    assert one_line(caught.value).startswith(f"{tmp_path / 'val'}: no tokens.bin with an episodes.idx")


# ---- files and manifest


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset with a manifest; train has two shards."""
    folder = tmp_path / "d"
    write_split(folder / "train", numbered([3, 4]), [[1] * 3, [1] * 4], segments=[[0] * 3, [0] * 4], shards=2)
    write_split(folder / "val", numbered([3]), [[1, 1, 1]])
    write_manifest(folder, mask_dtype="uint8")
    return folder


def grown(name: str, n: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b"\0" * n)


def gone(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


def manifest(text: str = "", **changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        if changes:
            write_manifest(folder, **{"mask_dtype": "uint8"} | changes)
        else:
            (folder / "episodes.json").write_bytes(text.encode(errors="surrogateescape"))

    return change


def unlisted(folder: Path) -> None:
    shutil.copytree(folder / "val", folder / "val" / "shard_00000")


def both_forms(folder: Path) -> None:
    (folder / "episodes.json").unlink()
    write_split(folder / "train", numbered([3, 3]))


INDEX, TOKENS = "train/shard_00000/episodes.idx", "train/shard_00000/tokens.bin"
SEGMENTS, MASK, JSON = "train/shard_00000/segment_ids.bin", "train/shard_00000/mask.bin", "episodes.json"
# What happens to the dataset, the file that the message begins with, and what it says of it.
DAMAGED: list[tuple[Callable[[Path], object], str, str]] = [
    (lambda folder: (gone(JSON)(folder), grown(INDEX, 8)(folder)), INDEX, "24 bytes are 1 records of 16 bytes and 8 b"),
    (
        lambda folder: (gone(JSON)(folder), grown(TOKENS, 1)(folder)),
        TOKENS,
        "13 bytes is not a multiple of 4 bytes",
    ),
    (lambda folder: (gone(JSON)(folder), grown(SEGMENTS, 1)(folder)), SEGMENTS, "7 bytes for 3 tokens; expected 6 (ui"),
    *((gone(JSON, name), name, "no such file") for name in ("val/tokens.bin", "val/episodes.idx", TOKENS, INDEX)),
    (both_forms, "train", "holds tokens.bin and shard_00000 side by side"),
    (grown(MASK, 5), MASK, "8 bytes, but episodes.json records 3"),
    (gone(INDEX), INDEX, "missing although episodes.json lists it"),
    (unlisted, "val/shard_00000", "not listed in episodes.json"),
    (manifest("\udcff"), JSON, "not valid JSON"),
    (manifest('{"kind": "episodes"'), JSON, "not valid JSON"),
    (manifest("[]"), JSON, "holds list; expected a JSON object"),
    (manifest("{}"), JSON, "lacks files, splits, format_version, kind, token_dtype, mask_dtype, vocab_size"),
    (manifest(kind="sft"), JSON, "'sft' of version 1; this version of niels_gpt reads 'episodes' and 'preferences' of"),
    (manifest(format_version=3), JSON, "'episodes' of version 3"),
    (manifest(token_dtype="uint16"), JSON, "token_dtype is 'uint16'; expected 'uint32'"),
    (manifest(mask_dtype="float16"), JSON, "mask_dtype is 'float16'; expected 'uint8' or 'float32'"),
    (manifest(files=[]), JSON, "files is []; expected an object"),
    (manifest(splits=None), JSON, "splits is None; expected an object"),
    (manifest(files={"train/tokens.bin": 5}), JSON, "files.train/tokens.bin is 5; expected an object"),
    (manifest(vocab_size=0), JSON, "vocab_size is 0; expected"),
    (manifest(tokenizer_sha256=7), JSON, "tokenizer_sha256 is 7; expected"),
]


@pytest.mark.parametrize(("damage", "name", "expected"), DAMAGED)
def test_a_damaged_dataset_is_refused_and_the_file_named(
    dataset: Path, damage: Callable[[Path], object], name: str, expected: str
) -> None:
    damage(dataset)
    message = refused_at_opening(CacheError, dataset)
    assert message.startswith(str(dataset / name))
    assert expected in message


def test_no_episodes_at_all(tmp_path: Path) -> None:
    """The message says what would be an episodes dataset; a token stream is none."""
    for _ in range(2):
        message = refused_at_opening(CacheError, tmp_path)
        assert message.startswith(f"{tmp_path}: no episodes: expected train/tokens.bin and train/episodes.idx")
        (write_split(tmp_path / "train", numbered([3, 3])) / "episodes.idx").unlink()


def test_each_directory_of_a_list_must_hold_episodes(tmp_path: Path) -> None:
    """One that was copied by halves must not vanish from the training."""
    write_split(tmp_path / "a" / "train", numbered([3, 3, 3]))
    (tmp_path / "b").mkdir()
    with pytest.raises(CacheError, match="b: no episodes"):
        GPTEpisodeDataLoader(config(), None, [tmp_path / "a", tmp_path / "b"], pad_token_id=0)


def test_a_mask_of_255_beside_weights(tmp_path: Path) -> None:
    write_split(tmp_path / "a" / "train", numbered([3, 3]), [[0, 255, 255]] * 2)
    write_split(tmp_path / "b" / "train", numbered([3, 3]), [[0, 0.5, 1]] * 2, mask_dtype="<f4")
    with pytest.raises(CacheError, match=r"a/train/mask.bin: value 1 is 255; expected 0 or 1"):
        GPTEpisodeDataLoader(config(), None, [tmp_path / "a", tmp_path / "b"], pad_token_id=0)


def test_a_dataset_that_is_rebuilt_under_a_worker(tmp_path: Path) -> None:
    write_split(tmp_path / "train", numbered([3] * 9))
    held = pickle.dumps(GPTEpisodeDataLoader(config(), None, tmp_path, pad_token_id=0).batch_source("train"))
    assert len(held) < 20_000
    pickle.loads(held)
    write_split(tmp_path / "train", numbered([4] * 9))
    with pytest.raises(Mismatch, match="no longer what it was"):
        pickle.loads(held)


def test_datasets_of_two_tokenizers(tmp_path: Path) -> None:
    """Each fits the caller, who passes no tokenizer; a model would read one of them as noise."""
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, checksum in zip(folders, ("1" * 64, None, "2" * 64), strict=True):
        write_split(folder / "train", numbered([3] * 4))
        write_manifest(folder, tokenizer_sha256=checksum)
    GPTEpisodeDataLoader(config(), None, folders[:2], pad_token_id=0)
    with pytest.raises(Mismatch, match=r"built with tokenizer 222222222222, but .*a with 111111111111") as caught:
        GPTEpisodeDataLoader(config(), None, folders, pad_token_id=0)
    assert str(caught.value).startswith(f"{folders[2]}: ")
    assert one_line(caught.value)
