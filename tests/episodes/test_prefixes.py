"""Episodes whose first tokens are written once for several of them: `prefixes.idx`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.datasets.dataset import open_dataset
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.index_sets import Span
from niels_gpt.episodes.order.mixture import measured
from niels_gpt.episodes.verify import verify_dataset
from niels_gpt.episodes.writer import EpisodeWriter
from niels_gpt.errors import CacheError, UsageError
from tests.episodes.made import write_manifest, write_shard

Episode = tuple[list[int], list[int]]  # ids and mask
Group = tuple[Episode, list[tuple[tuple[int, int], Episode]]]  # a whole episode; and others, with their part of it


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    """Episodes that others begin with; ids say which episode and which token they are."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        number = 1000 * (len(made) + 1)
        n = draw(st.integers(1, 12))
        others = []
        for other in range(draw(st.integers(0, 3))):
            start = draw(st.integers(0, n - 1))
            ids, mask = episode(draw, number + 100 * (other + 1))
            others.append(((start, draw(st.integers(1, n - start))), (ids, [0, *mask[1:]])))
        made.append((episode(draw, number, n), others))
    return made


def episode(draw: st.DrawFn, number: int, n: int | None = None) -> Episode:
    n = n or draw(st.integers(1, 6))
    return list(range(number, number + n)), draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))


def whole(group: Group) -> list[Episode]:
    """The episodes as they are read."""
    (ids, mask), others = group
    return [
        (ids, mask),
        *((ids[start:][:n] + own, [0] * n + weights) for (start, n), (own, weights) in others),
    ]


def write(folder: Path, made: Sequence[Group], calls: Sequence[int], shard_bytes: int | None = None) -> None:
    """Write groups, so many episodes at a call."""
    rows: list[tuple[Episode, tuple[int, int]]] = []
    for first, others in made:
        rows.append((first, (0, 0)))
        before = len(first[0])
        for (start, n), own in others:
            rows.append((own, (start - before, n)))
            before += len(own[0])
    writer = EpisodeWriter(folder, "train", shard_bytes=shard_bytes, with_prefixes=True)
    cuts = sorted({0, len(rows), *(at % (len(rows) + 1) for at in calls)})
    for a, b in itertools.pairwise(cuts):
        part = rows[a:b]
        writer.write(
            np.array([token for (ids, _), _ in part for token in ids]),
            np.array([len(ids) for (ids, _), _ in part]),
            np.array([weight for (_, mask), _ in part for weight in mask]),
            prefixes=np.array([prefix for _, prefix in part]),
        )
    writer.close()
    write_manifest(folder, format_version=2, mask_dtype="uint8", vocab_size=100_000)


@given(
    made=groups(),
    calls=st.lists(st.integers(0, 30), max_size=4),
    shard_bytes=st.sampled_from([None, 40, 100]),
    width=st.integers(2, 12),
)
@settings(deadline=None, max_examples=150)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[Group],
    calls: list[int],
    shard_bytes: int | None,
    width: int,
) -> None:
    """Ids, masks and lengths, in any portions and shards; each token is in a file once."""
    folder = tmp_path_factory.mktemp("d")
    write(folder, made, calls, shard_bytes)
    wanted = [each for group in made for each in whole(group)]
    assert list(verify_dataset(folder)) == []
    (split,) = open_dataset(folder).splits.values()
    rows = split.rows(np.arange(len(split)))
    assert rows.weights is not None
    found = [
        (rows.ids[a:b].tolist(), rows.weights[a:b].tolist())
        for a, b in zip(rows.starts.tolist(), rows.starts[1:].tolist(), strict=False)
    ]
    assert found == wanted
    lengths = [len(ids) for ids, _ in wanted]
    assert split.lengths_of(np.arange(len(split))).tolist() == lengths
    opened = EpisodeSplit([folder], "train", min_tokens=2)
    kept = [length for length in lengths if length > 1]
    assert opened.lengths().tolist() == opened.lengths_of(Span(0, len(opened))).tolist() == kept
    assert opened.n_tokens == sum(len(first[0]) + sum(len(own[0]) for _, (own) in others) for first, others in made)
    # A mixture counts what rows of this width hold; the first token of each is no target.
    (part,) = measured([folder], ["x"], sequence_length=width - 1, packing=False, too_long="head")
    cut = [mask[:width] for ids, mask in wanted if len(ids) > 1]
    assert (part.rows, part.tokens) == (len(kept), sum(map(len, cut)))
    assert part.trained_tokens == sum(sum(mask[1:]) for mask in cut)


def test_a_group_stays_in_one_shard(tmp_path: Path) -> None:
    """Also where it is larger than a shard, and where several calls write it."""
    three: Group = (([1, 2, 3, 4], [0, 0, 0, 1]), [((0, 2), ([5, 6], [0, 1])), ((0, 3), ([7, 8, 9], [0, 1, 1]))])
    write(tmp_path, [three, three, (([10], [1]), [])], [1, 2, 4], shard_bytes=16)
    sizes = [np.fromfile(path, "<u8").reshape(-1, 2)[:, 1].tolist() for path in sorted(tmp_path.rglob("episodes.idx"))]
    assert sizes == [[4, 2, 3], [4, 2, 3], [1]]
    first = tmp_path / "train" / "shard_00000"
    assert np.fromfile(first / "prefixes.idx", "<u8").reshape(-1, 2).tolist() == [[0, 0], [0, 2], [0, 3]]


@pytest.mark.parametrize("prefix", [(-3, 2), (-2, 3), (-1, -1), (0, 1)])
def test_a_prefix_that_lies_elsewhere_is_refused(tmp_path: Path, prefix: tuple[int, int]) -> None:
    """Before the last episode without one, or not before its own episode."""
    writer = EpisodeWriter(tmp_path, "train", with_prefixes=True)
    writer.write(np.arange(4), np.array([4]), np.ones(4), prefixes=np.array([[0, 0]]))
    with pytest.raises(UsageError, match=r"expected it between -2 and 0"):
        writer.write(np.arange(4), np.array([2, 2]), np.zeros(4), prefixes=np.array([[0, 0], prefix]))
    with pytest.raises(UsageError, match="the first id after a prefix is trained"):
        writer.write(np.arange(4), np.array([2, 2]), np.ones(4), prefixes=np.array([[0, 0], [-2, 2]]))
    with pytest.raises(UsageError, match=r"prefixes of shape None; expected \(1, 2\)"):
        writer.write(np.arange(4), np.array([4]), np.ones(4))
    writer.abandon()


def test_writing_goes_on_after_a_refused_prefix(tmp_path: Path) -> None:
    """Its ids were in `tokens.bin` already, and what could be a prefix had moved behind the last episode."""
    writer = EpisodeWriter(tmp_path, "train", with_prefixes=True)
    writer.write(np.arange(4), np.array([4]), np.ones(4), prefixes=np.array([[0, 0]]))
    with pytest.raises(UsageError, match=r"expected it between -2 and 0"):
        writer.write(np.arange(4), np.array([2, 2]), np.zeros(4), prefixes=np.array([[0, 0], [-3, 2]]))
    writer.write(np.array([9]), np.array([1]), np.zeros(1), prefixes=np.array([[-1, 1]]))
    writer.close()
    found = {name: np.fromfile(tmp_path / "train" / f"{name}.idx", "<u8").tolist() for name in ("episodes", "prefixes")}
    assert found == {"episodes": [0, 4, 4, 1], "prefixes": [0, 0, 3, 1]}
    assert np.fromfile(tmp_path / "train" / "tokens.bin", "<u4").tolist() == [0, 1, 2, 3, 9]


FIRST: Group = (([1, 2, 3, 4], [0, 0, 0, 1]), [((0, 2), ([5, 6], [0, 1]))])


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([(0, 0), (5, 2)], "prefixes.idx: record 1: start 5 and length 2 end past the 6 tokens"),
        ([(0, 0)], "prefixes.idx: 1 records for 2 episodes; expected one for each"),
        (None, "prefixes.idx"),
    ],
)
def test_damaged_prefixes(tmp_path: Path, records: list[tuple[int, int]] | None, said: str) -> None:
    write(tmp_path, [FIRST], [])
    path = tmp_path / "train" / "prefixes.idx"
    if records is None:
        path.unlink()
    else:
        np.array(records, "<u8").tofile(path)
        (tmp_path / "episodes.json").unlink()  # else the size or the checksum is wrong already
    with pytest.raises(CacheError, match=said):
        EpisodeSplit([tmp_path], "train")


def test_earlier_versions_refuse_them(tmp_path: Path) -> None:
    """They know version 1 and no `prefixes.idx`; without it every second episode would have no question."""
    write(tmp_path, [FIRST], [])
    assert json.loads((tmp_path / "episodes.json").read_text())["format_version"] == 2
    write_manifest(tmp_path, format_version=3)
    with pytest.raises(CacheError, match="of the versions 1 and 2"):
        EpisodeSplit([tmp_path], "train")


def test_other_prefixes_are_another_dataset(tmp_path: Path) -> None:
    """Also without a manifest."""
    prints = []
    for number, prefix in enumerate([(0, 2), (0, 3), (1, 2)]):
        folder = tmp_path / str(number)
        shard: dict[str, Any] = {"mask": [0] * 6, "prefixes": [(0, 0), prefix]}
        write_shard(folder / "train", range(6), [(0, 4), (4, 2)], **shard)
        prints.append(EpisodeSplit([folder], "train").fingerprint)
    assert len(set(prints)) == 3


def test_items_of_other_prefixes_are_another_dataset(tmp_path: Path) -> None:
    """Although both make the same item, whose only difference is what its second sample sees."""
    prints = []
    for number, prefix in enumerate([(0, 2), (0, 3)]):
        folder = tmp_path / str(number)
        shard: dict[str, Any] = {"mask": [0] * 6, "prefixes": [(0, 0), prefix]}
        write_shard(folder / "train", range(6), [(0, 4), (4, 2)], **shard)
        prints.append(EpisodeSplit([folder], "train", share_prefixes=9).fingerprint)
    assert prints[0] != prints[1]
