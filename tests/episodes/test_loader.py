"""The episode loader's contract: padding, truncation, masks, epochs, coverage, and every other rule."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.errors import CacheError, Mismatch, UsageError
from tests.conftest import EOT, FakeTokenizer
from tests.episodes.made import (
    PAD,
    batches_by_get_batch,
    epoch_of,
    loader,
    numbered,
    one_line,
    write_manifest,
    write_split,
)

LOG = "niels_gpt.episodes"


def in_order(dataset: Path, **settings: Any) -> GPTEpisodeDataLoader:
    """A loader whose batches come in the order of the index, none left out."""
    return loader(dataset, epoch_shuffle=False, epoch_drop_last=False, **settings)


# ---- the document's must-have tests


def test_padding_correctness(tmp_path: Path) -> None:
    """An episode shorter than block_size + 1 gives x and y of block_size; padding has mask 0."""
    write_split(tmp_path / "train", [[10, 11, 12]], [[1, 1, 1]], gap=3)
    x, y, mask = in_order(tmp_path, batch_size=1, block_size=5).get_batch()
    assert x.tolist() == [[10, 11, 12, PAD, PAD]]
    assert y.tolist() == [[11, 12, PAD, PAD, PAD]]
    assert mask.tolist() == [[1.0, 1.0, 0.0, 0.0, 0.0]]


def test_padding_is_told_by_position_not_by_value(tmp_path: Path) -> None:
    write_split(tmp_path / "train", [[10, PAD, PAD]], [[0, 1, 1]])
    _, y, mask = in_order(tmp_path, batch_size=1, block_size=5).get_batch()
    assert y.tolist() == [[PAD] * 5]
    assert mask.tolist() == [[1.0, 1.0, 0.0, 0.0, 0.0]]


def test_truncation_correctness(tmp_path: Path) -> None:
    """An episode longer than block_size + 1 keeps its first tokens."""
    write_split(tmp_path / "train", [[10, 11, 12, 13, 14, 15, 16]], [[0, 0, 0, 0, 1, 1, 1]])
    x, y, mask = in_order(tmp_path, batch_size=1, block_size=4).get_batch()
    assert x.tolist() == [[10, 11, 12, 13]]
    assert y.tolist() == [[11, 12, 13, 14]]
    assert mask.tolist() == [[0.0, 0.0, 0.0, 1.0]]


def test_mask_alignment(tmp_path: Path) -> None:
    """mask.shape == y.shape, and the mask is that of the targets: shifted by one."""
    masks = [[1, 0, 1, 1, 0], [1, 1, 0]]
    write_split(tmp_path / "train", [[10, 11, 12, 13, 14], [20, 21, 22]], masks, gap=2)
    _, y, mask = in_order(tmp_path).get_batch()
    assert mask.shape == y.shape == (2, 4)
    assert mask.dtype == torch.float32
    trained = [target for target, weight in zip(y.flatten().tolist(), mask.flatten().tolist(), strict=True) if weight]
    assert trained == [12, 13, 21], "the tokens whose own mask is 1, save those that nothing predicts"


def test_epoch_determinism(tmp_path: Path) -> None:
    """The same seed gives the same order, epoch by epoch; another epoch or seed another order."""
    write_split(tmp_path / "train", numbered([3] * 40))

    def orders(seed: int) -> list[list[int]]:
        opened = loader(tmp_path, batch_size=8, epoch_seed=seed)
        return [[row[0] for batch in epoch_of(opened) for row in batch.x.tolist()] for _ in range(3)]

    first = orders(1337)
    assert orders(1337) == first
    assert len({tuple(one) for one in [*first, *orders(1338)]}) == 6
    assert sorted(first[0]) != first[0]


def test_epoch_coverage(tmp_path: Path) -> None:
    """With drop_last=false every episode comes exactly once an epoch; what fills the last batch is padding alone."""
    write_split(tmp_path / "train", numbered([3] * 11), [[1, 1, 1]] * 11)
    opened = loader(tmp_path, batch_size=4, epoch_drop_last=False)
    for _ in range(3):
        rows = [row for batch in batches_by_get_batch(opened, 3) for row in zip(*batch, strict=True)]
        assert sorted(x[0] for x, _, _ in rows) == [PAD, *range(100, 1200, 100)]
        assert [row for row in rows if row[0][0] == PAD] == [([PAD] * 4, [PAD] * 4, [0.0] * 4)]


# ---- sampling


def test_random_mode_draws_with_replacement_evenly(tmp_path: Path) -> None:
    write_split(tmp_path / "train", numbered([3] * 5))

    def draw(seed: int) -> list[int]:
        opened = loader(tmp_path, batch_size=10, batch_sampling_mode="random", epoch_seed=seed)
        return [row[0] for x, _ in batches_by_get_batch(opened, 50) for row in x]

    drawn = draw(1)
    assert draw(1) == drawn != draw(2)
    seen = Counter(drawn)
    assert set(seen) == {100, 200, 300, 400, 500}
    # 500 draws of 5: 100 each, with a standard deviation of 9.
    assert all(55 < count < 145 for count in seen.values())
    assert any(len(set(drawn[at : at + 5])) < 5 for at in range(0, 500, 5)), "with replacement"


def test_vocabularies_above_65535(tmp_path: Path) -> None:
    write_split(tmp_path / "train", [[65_536, 4_294_967_295, 7]])
    x, y = loader(tmp_path, batch_size=1, block_size=3, pad_token_id=4_294_967_294).get_batch()
    assert x.tolist() == [[65_536, 4_294_967_295, 7]]
    assert y.tolist() == [[4_294_967_295, 7, 4_294_967_294]]


def test_an_episode_longer_than_the_policy_error_allows_is_named(tmp_path: Path) -> None:
    """Also behind an empty one, which is no episode but has a number."""
    write_split(tmp_path / "train", numbered([0, 3, 6, 7]))
    with pytest.raises(CacheError) as caught:
        loader(tmp_path, keywords={"too_long": "error"})
    message = one_line(caught.value)
    assert message.startswith(f"{tmp_path / 'train' / 'episodes.idx'}: record 2: 6 tokens do not fit into rows of 5")
    assert "nor do 1 other" in message


# ---- masks


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_without_masks_a_pair_and_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_split(tmp_path / "train", numbered([3, 3]))
    write_split(tmp_path / "val", numbered([3, 3]))
    opened = loader(tmp_path, use_loss_mask=True)
    assert [len(opened.get_batch(split)) for split in ("train", "train", "val")] == [2, 2, 2]
    assert warnings_of(caplog) == [
        "[EpisodeLoader] split=train: no loss mask, get_batch returns (x, y), where padding also counts: "
        f"{tmp_path / 'train' / 'mask.bin'}: no such file"
    ]
    assert opened.next_batch().mask.tolist() == [[1.0, 1.0, 0.0, 0.0]] * 2


def test_one_shard_without_mask_is_a_split_without_masks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_split(tmp_path / "train", numbered([3, 3]), [[1, 1, 1]] * 2, shards=2)
    lacking = tmp_path / "train" / "shard_00001" / "mask.bin"
    lacking.unlink()
    assert len(loader(tmp_path).get_batch()) == 2
    assert str(lacking) in warnings_of(caplog)[0]


def test_masks_can_be_declined_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_split(tmp_path / "train", numbered([3, 3]), [[1, 1, 1]] * 2)
    assert len(loader(tmp_path, use_loss_mask=False).get_batch()) == 2
    (tmp_path / "train" / "mask.bin").unlink()
    assert len(loader(tmp_path, use_loss_mask=False).get_batch()) == 2
    assert warnings_of(caplog) == []


# ---- settings


class Eos:
    """A tokenizer with some of the spellings of an eos."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


EOS: list[tuple[Any, int]] = [
    (Eos(eos_id=0), 0),
    (Eos(eos_id=lambda: 8), 8),
    (Eos(eos_id=7, eos_token_id=9), 7),
    (Eos(eos_id=lambda: -1, eos_token_id=9), 9),  # sentencepiece's way to say that there is none
    (Eos(eos_id=None, eos_token_id=9), 9),
    (FakeTokenizer(), EOT),
]


def test_the_tokenizers_eos_pads_where_nothing_else_says(tmp_path: Path) -> None:
    write_split(tmp_path / "train", [[10, 11]])
    for tokenizer, expected in EOS:
        opened = loader(tmp_path, tokenizer, batch_size=1, pad_token_id=None)
        assert opened.get_batch()[0].tolist() == [[10, 11, expected, expected]]
        assert loader(tmp_path, tokenizer, batch_size=1, pad_token_id=5).pad_token_id == 5
        assert loader(tmp_path, tokenizer, pad_token_id=5, batch_size=1, keywords={"pad_token_id": 0}).pad_token_id == 0


@pytest.mark.parametrize("tokenizer", [None, Eos(), Eos(eos_id=-1)])
def test_no_pad_id_at_all_is_a_clear_error(tmp_path: Path, tokenizer: Any) -> None:
    write_split(tmp_path / "train", [[10, 11]])
    with pytest.raises(UsageError, match="no tokenizer with an eos, and no eos in the dataset's manifest; pass pad_"):
        loader(tmp_path, tokenizer, batch_size=1, pad_token_id=None)


@pytest.mark.parametrize(
    ("name", "in_config", "in_call"),
    [
        ("use_loss_mask", True, False),
        ("batch_sampling_mode", "random", "epoch"),
        ("epoch_shuffle", True, False),
        ("epoch_drop_last", True, False),
        ("epoch_seed", 5, 0),
        ("pad_token_id", 5, 0),
        ("episode_min_tokens", 3, 1),
    ],
)
def test_a_keyword_wins_over_the_config(tmp_path: Path, name: str, in_config: Any, in_call: Any) -> None:
    write_split(tmp_path / "train", numbered([3, 3, 3]), [[1, 1, 1]] * 3)
    assert getattr(loader(tmp_path, **{name: in_config}).config, name) == in_config
    opened = loader(tmp_path, **{name: in_config}, keywords={name: in_call})
    assert getattr(opened.config, name) == in_call
    expected = loader(tmp_path, **{name: in_call})
    assert list(batches_by_get_batch(opened, 4)) == list(batches_by_get_batch(expected, 4))


def test_defaults_of_the_document(tmp_path: Path) -> None:
    write_split(tmp_path / "train", numbered([3] * 3))
    opened = GPTEpisodeDataLoader(SimpleNamespace(batch_size=2, block_size=4), Eos(eos_id=3), str(tmp_path))
    settings = opened.config
    assert (settings.sampling_mode, settings.epoch_shuffle, settings.epoch_drop_last) == ("epoch", True, True)
    assert (settings.epoch_seed, settings.episode_min_tokens, opened.pad_token_id) == (42, 2, 3)


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_batches_are_put_on_the_device(tmp_path: Path, device: Any) -> None:
    write_split(tmp_path / "train", numbered([3, 3]), [[1, 1, 1]] * 2)
    opened = loader(tmp_path, device=device)
    assert {tensor.device.type for tensor in opened.get_batch()} == {"meta"}
    packed = loader(tmp_path, device=device, batch_size=1, block_size=5, keywords={"packing": True}).next_batch()
    assert len(packed.tensors()) == 6
    assert {tensor.device.type for tensor in packed.tensors().values()} == {"meta"}


def test_the_datasets_tokenizer_must_be_the_given_one(tmp_path: Path, fake: FakeTokenizer) -> None:
    write_split(tmp_path / "train", numbered([3, 3]))
    write_manifest(tmp_path, tokenizer_sha256="0" * 64)
    with pytest.raises(Mismatch, match="built with tokenizer 000000000000 but opened with"):
        loader(tmp_path, fake)


# ---- the log


def test_the_log_of_opening_and_of_epochs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Word for word the document's example, with this dataset's numbers."""
    caplog.set_level(logging.INFO, LOG)
    write_split(tmp_path / "train", numbered([3, 3, 1, 3, 3, 3]), [[1] * n for n in (3, 3, 1, 3, 3, 3)], gap=1)
    opened = loader(tmp_path, batch_size=2, pad_token_id=50256)
    for _ in range(5):
        opened.get_batch()
    assert [record.getMessage() for record in caplog.records] == [
        "[EpisodeLoader] split=train episodes=5 too_short=1 too_long=0 tokens=23 mask=true",
        *(
            f"[EpisodeLoader] split=train epoch={epoch} episodes=5 batches=2 shuffle=true drop_last=true pad_id=50256 "
            "mask=true"
            for epoch in (0, 1, 2)
        ),
    ]


# Each case in a copy of a process that has imported what takes seconds, and set up nothing.
SCRIPT = """
import json, logging, os, sys
import torch
import niels_gpt.episodes as episodes
import niels_gpt.episodes.loader
config = {"batch_size": 2, "block_size": 4, "pad_token_id": 9}
for number, (setup, later, rank) in enumerate(json.loads(sys.argv[2])):
    if os.fork() == 0:
        os.dup2(os.open(f"{sys.argv[1]}/{number}.stderr", os.O_CREAT | os.O_WRONLY), 2)
        exec(setup)
        loader = episodes.GPTEpisodeDataLoader(config, None, sys.argv[1], rank=rank, world_size=2)
        exec(later)
        loader.get_batch()
        episodes.GPTEpisodeDataLoader(config, None, sys.argv[1], rank=rank, world_size=2)
        break
    assert os.wait()[1] == 0
"""
OPENED, BEGUN = "[EpisodeLoader] split=train episodes=5", "[EpisodeLoader] split=train epoch=0 episodes=5"
LINES: list[tuple[str, str, int, list[str]]] = [  # what a program does before and after, its rank, the lines
    ("", "", 0, [OPENED, BEGUN, OPENED]),
    ("", "", 1, []),  # once, not by every rank
    ("logging.basicConfig(level=logging.WARNING)", "", 0, []),  # the program's word counts
    ("logging.getLogger('niels_gpt').setLevel(logging.WARNING)", "", 0, []),
    ("logging.basicConfig(level=logging.INFO, format='%(message)s')", "", 0, [OPENED, BEGUN, OPENED]),
    ("", "logging.basicConfig(format='%(message)s')", 0, [OPENED, BEGUN, OPENED]),  # later, and nothing twice
]


def test_the_lines_are_seen_where_nobody_set_up_logging(tmp_path: Path) -> None:
    """In a process of its own, as a training script runs."""
    write_split(tmp_path / "train", numbered([3] * 5), [[1] * 3] * 5)
    cases = json.dumps([case[:3] for case in LINES])
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path, cases], capture_output=True, text=True, check=True)
    for number, (*case, lines) in enumerate(LINES):
        seen = (tmp_path / f"{number}.stderr").read_text().splitlines()
        assert [line[: len(expected)] for line, expected in zip(seen, lines, strict=True)] == lines, case
    assert done.stdout == done.stderr == ""


@pytest.mark.parametrize(("episodes", "told"), [(5, True), (4, False)])
@pytest.mark.parametrize("use_loss_mask", [None, False])
def test_the_log_warns_of_padding_rows_without_masks(
    tmp_path: Path, episodes: int, told: bool, use_loss_mask: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    write_split(tmp_path / "train", numbered([5] * episodes))
    settings = {"epoch_drop_last": False, "epoch_shuffle": False, "use_loss_mask": use_loss_mask}
    opened = loader(tmp_path, **settings)
    assert ("rows of nothing but padding, and without masks get_batch returns them as targets" in caplog.text) == told
    last = [opened.get_batch() for _ in range(opened.steps_per_epoch())][-1]
    assert len(last) == 2
    assert (last[1][-1] == PAD).all() == told
    if told:
        *_, batch = loader(tmp_path, **settings).batches()
        assert batch.mask[-1].sum() == 0


# ---- what else a batch says


def test_get_batch_is_next_batch_in_short(tmp_path: Path) -> None:
    write_split(tmp_path / "train", numbered([3, 6, 2, 5]), [[1] * n for n in (3, 6, 2, 5)])
    short, whole = loader(tmp_path), loader(tmp_path)
    for _ in range(4):
        batch = whole.next_batch()
        assert all(torch.equal(a, b) for a, b in zip(short.get_batch(), (batch.x, batch.y, batch.mask), strict=True))
        assert short.state_dict() == whole.state_dict() == batch.state


def test_a_small_val_is_not_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_split(tmp_path / "train", numbered([4] * 20))
    write_split(tmp_path / "val", numbered([3, 5]))
    opened = loader(tmp_path, batch_size=8)
    x, *_ = opened.get_batch("val")
    assert x.shape[0] == 8
    assert "fewer episodes than a batch" in caplog.text


def test_a_config_may_be_a_mapping_with_numpys_numbers(tmp_path: Path) -> None:
    write_split(tmp_path / "train", numbered([4] * 8))
    told = {"batch_size": np.int64(2), "block_size": np.int32(5), "pad_token_id": 0, "epoch_seed": None}
    assert GPTEpisodeDataLoader(told, None, tmp_path).get_batch()[0].shape == (2, 5)
