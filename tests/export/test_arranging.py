"""Whatever the arrangement: no token is lost or doubled, and every trained token is trained once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.export import source as source_module
from niels_gpt.export.arranging import Arrangement, arrange
from niels_gpt.export.megatron_bridge import label_aligned, text_starts
from niels_gpt.export.rows import cut, joined
from niels_gpt.export.source import open_source
from niels_gpt.store.rows import Rows, rows_of
from tests.episodes.made import write_split
from tests.export.sources import Row, episodes, untrained_first

rows_strategy = st.lists(
    st.lists(st.tuples(st.integers(0, 299), st.sampled_from([0.0, 1.0])), min_size=1, max_size=12),
    min_size=1,
    max_size=15,
).map(lambda rows: [Row([token for token, _ in row], [weight for _, weight in row]) for row in rows])


def texts_of(portions: list[Rows]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """The texts of all rows."""
    found = []
    for rows in portions:
        ends = np.cumsum(rows.text_lengths())[:-1]
        assert rows.weights is not None
        for ids, weights in zip(np.split(rows.ids, ends), np.split(rows.weights, ends), strict=True):
            found.append((tuple(ids.tolist()), tuple(weights.astype(float).tolist())))
    return found


@given(rows=rows_strategy, shards=st.integers(1, 3), packing=st.booleans(), shuffle=st.none() | st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_nothing_is_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], shards: int, packing: bool, shuffle: int | None
) -> None:
    folder = episodes(tmp_path_factory.mktemp("in"), rows, shards=min(shards, len(rows)))
    how = Arrangement(max_length=12, packing=packing, shuffle=shuffle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "PORTION_TOKENS", 20)
        portions = list(arrange(open_source(folder, "train"), how))
    wanted = [(tuple(row.ids), tuple(row.weights)) for row in map(untrained_first, rows)]
    assert Counter(texts_of(portions)) == Counter(wanted)
    assert all(length <= 12 for rows in portions for length in rows.lengths.tolist())
    if shuffle is None and not packing:
        assert texts_of(portions) == wanted


def test_texts_inside_an_episode(tmp_path: Path) -> None:
    """Segment ids say where texts begin; the first token of each is not trained."""
    write_split(tmp_path / "train", [[1, 2, 3, 4, 5]], [[1, 1, 1, 1, 1]], segments=[[0, 0, 7, 7, 7]])
    (rows,) = arrange(open_source(tmp_path, "train"), Arrangement())
    assert rows.text_lengths().tolist() == [2, 3]
    assert rows.texts_per_row().tolist() == [2]
    assert rows.labels().tolist() == [-100, 2, -100, 4, 5]


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    width=st.integers(1, 9),
    policy=st.sampled_from(["head", "tail"]),
)
def test_cutting_keeps_the_first_or_last_tokens(lengths: list[int], width: int, policy: str) -> None:
    ids = np.arange(sum(lengths), dtype=np.uint32)
    rows = cut(rows_of(ids, np.array(lengths), None), width, policy)
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    kept = [part[:width] if policy == "head" else part[-width:] for part in parts]
    assert rows.ids.tolist() == np.concatenate(kept).tolist()
    assert rows.lengths.tolist() == [len(part) for part in kept]


def test_the_label_aligned_mask_of_the_page() -> None:
    """The example of `megatron_bridge`."""
    rows = rows_of(np.arange(5, dtype=np.uint32), np.array([3, 2]), np.array([0, 0, 1, 0, 1], dtype=np.uint8))
    packed = joined(rows, np.array([2]))
    assert label_aligned(packed).tolist() == [0, 1, 0, 1, 0]
    assert text_starts(packed).tolist() == [0, 3]
    assert text_starts(rows).tolist() == [0, 0]
