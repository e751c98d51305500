"""Random windows of token streams."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.errors import CacheError, UsageError


def write_shards(folder: Path, sizes: list[int], dtype: str = "<u2") -> list[int]:
    """Shards that count on through all of them: a token says where it stands."""
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for number, size in enumerate(sizes):
        np.arange(start, start + size).astype(dtype).tofile(folder / f"shard_{number:05d}.bin")
        start += size
    return list(range(start))


def stream(folder: Path, T: int) -> PretrainTokenStreamDataset:
    return PretrainTokenStreamDataset(str(folder), T=T, device="cpu")


def possible_starts(sizes: list[int], T: int) -> set[int]:
    """Where a window of T + 1 tokens can begin without leaving its shard."""
    starts, first = set(), 0
    for size in sizes:
        starts |= {first + at for at in range(size - T)}
        first += size
    return starts


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 15), st.integers(1, 9), st.integers(0, 9))
@settings(deadline=None, max_examples=120)
def test_windows_are_runs_of_one_shard_with_targets_shifted_by_one(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], T: int, B: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder, sizes)
    possible = possible_starts(sizes, T)
    if not possible:
        with pytest.raises(UsageError, match=f"T \\+ 1 = {T + 1}"):
            stream(folder, T)
        return
    data = stream(folder, T)
    x, y = data.get_batch(B=B, generator=torch.Generator().manual_seed(seed))
    assert x.shape == y.shape == (B, T)
    assert x.dtype == y.dtype == torch.int64
    assert x.is_contiguous() and y.is_contiguous()  # noqa: PT018
    assert torch.equal(y[:, :-1], x[:, 1:])
    assert all(row[0] in possible and row == list(range(row[0], row[0] + T)) for row in x.tolist())
    assert torch.equal(y, x + 1)
    assert data.n_windows == len(possible)


def test_every_window_of_the_whole_stream_is_equally_likely(tmp_path: Path) -> None:
    """Chi-square over 36 windows of three shards (one too short to be used), 18 000 draws, fixed seed."""
    sizes, T = [30, 5, 14], 5
    write_shards(tmp_path, sizes)
    x, _ = stream(tmp_path, T).get_batch(B=18_000, generator=torch.Generator().manual_seed(3))
    seen = np.bincount(x[:, 0].numpy(), minlength=sum(sizes))
    possible = sorted(possible_starts(sizes, T))
    assert seen[possible].sum() == 18_000
    expected = 18_000 / len(possible)
    chi_square = ((seen[possible] - expected) ** 2 / expected).sum()
    assert chi_square < 60, f"{chi_square:.0f}: with 33 degrees of freedom a fair draw exceeds 60 once in 400 times"


def test_the_generator_decides_and_nothing_else(tmp_path: Path) -> None:
    write_shards(tmp_path, [500])
    data = stream(tmp_path, 8)

    def draw(seed: int) -> list[list[int]]:
        return data.get_batch(B=4, generator=torch.Generator().manual_seed(seed))[0].tolist()

    torch.manual_seed(1)
    first = draw(7)
    torch.manual_seed(2)
    assert draw(7) == first != draw(8)


def test_shards_are_mapped_not_loaded(tmp_path: Path) -> None:
    """A shard of 8 GB, almost all of it a hole: opening and drawing must not read it."""
    with (tmp_path / "shard_00000.bin").open("wb") as file:
        file.truncate(8 << 30)
    x, _ = stream(tmp_path, 64).get_batch(B=4, generator=torch.Generator().manual_seed(0))
    assert int(x.abs().max()) == 0


def test_batches_are_the_caller_s_own_memory(tmp_path: Path) -> None:
    write_shards(tmp_path, [50])
    data = stream(tmp_path, 4)
    generator = torch.Generator().manual_seed(0)
    x, y = data.get_batch(B=2, generator=generator)
    kept = x.clone(), y.clone()
    x2, _ = data.get_batch(B=2, generator=generator)
    x2.fill_(-1)
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])


def test_a_pickled_dataset_reopens_its_files(tmp_path: Path) -> None:
    """Data loaders that spawn workers send the dataset to them; the tokens must not travel along."""
    write_shards(tmp_path, [50_000])
    data = stream(tmp_path, 4)
    packed = pickle.dumps(data)
    assert len(packed) < 1000
    again = pickle.loads(packed)
    batches = [some.get_batch(B=3, generator=torch.Generator().manual_seed(1))[0] for some in (data, again)]
    assert torch.equal(*batches)


@pytest.mark.parametrize(("B", "T", "says"), [(0, 4, "B is 0"), (2, 0, "T is 0"), (2, -1, "T is -1")])
def test_nonsense_sizes_are_refused(tmp_path: Path, B: int, T: int, says: str) -> None:
    write_shards(tmp_path, [50])
    with pytest.raises(UsageError, match=says):
        stream(tmp_path, T).get_batch(B=B, generator=torch.Generator())


def test_a_window_too_large_for_every_shard_names_the_sizes(tmp_path: Path) -> None:
    write_shards(tmp_path, [50, 20])
    with pytest.raises(UsageError, match=r"shard_00000\.bin 50, shard_00001\.bin 20"):
        stream(tmp_path, 50)
    assert stream(tmp_path, 49).n_windows == 1


@pytest.mark.parametrize("prepare", ["nothing", "no shards", "odd size"])
def test_what_is_not_a_split_is_refused(tmp_path: Path, prepare: str) -> None:
    folder = tmp_path / "train"
    if prepare != "nothing":
        folder.mkdir()
    if prepare == "odd size":
        (folder / "shard_00000.bin").write_bytes(b"abc")
    says = {"nothing": "no such directory", "no shards": "no shard_", "odd size": "shard_00000.bin: 3 bytes"}
    with pytest.raises(CacheError, match=says[prepare]):
        stream(folder, 1)
