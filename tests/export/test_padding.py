"""Texts padded for context parallelism: nothing else about them changes, and Megatron-Bridge finds their ends."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.errors import UsageError
from niels_gpt.export import export
from tests.conftest import run_cli
from tests.export.sources import Row, episodes, random_rows
from tests.export.test_megatron import pairs_in_megatron_bridge

parquet = pytest.importorskip("pyarrow.parquet")
EOS = 299  # of the tokenizer that the reader has


def offsets_in_megatron_bridge(row: dict[str, list[int]]) -> tuple[list[int], list[int]]:
    """Where inputs of texts end, physically and logically, as Megatron-Bridge reckons with `pad_seq_to_mult`.

    A text's inputs are its tokens but the last; logically they end behind the last that is not eos.
    """
    bounds = [*row["seq_start_id"], len(row["input_ids"])]
    physical, logical = [0], [0]
    for start, stop in pairwise(bounds):
        inputs = row["input_ids"][start : stop - 1]
        kept = [at for at, token in enumerate(inputs) if token != EOS]
        physical.append(physical[-1] + len(inputs))
        logical.append(logical[-1] + (kept[-1] + 1 if kept else 0))
    return physical, logical


def texts_without_eos(n: int, longest: int) -> list[Row]:
    return [Row([token % EOS for token in row.ids], row.weights) for row in random_rows(n, longest=longest)]


def read(folder: Path, name: str = "training") -> list[dict[str, Any]]:
    return list(parquet.ParquetFile(folder / f"{name}.idx.parquet").read().to_pylist())


@pytest.mark.parametrize("multiple", [2, 8, 12])
def test_every_pair_is_ours_and_every_text_a_multiple(
    tmp_path: Path, multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed: the pairs that are trained, the offsets that attention gets, and no row over `packed_sequence_size`."""
    monkeypatch.setattr("niels_gpt.export.source.PORTION_TOKENS", 200)
    rows = texts_without_eos(700, 40)
    source = episodes(tmp_path / "in", rows, random_rows(5, seed=1))
    options = {"packing": True, "max_length": 48, "pad_multiple": multiple, "pad_id": EOS}
    manifest = export(source, "megatron-bridge", tmp_path / "out", **options)  # type: ignore[arg-type]
    found, lengths = [], []
    for row in read(tmp_path / "out"):
        assert len(row["loss_mask"]) == len(row["input_ids"])
        physical, logical = offsets_in_megatron_bridge(row)
        assert physical[-1] <= 48
        assert not any(offset % multiple for offset in physical)
        lengths += np.diff(logical).tolist()
        for pairs in pairs_in_megatron_bridge(row):
            own = [pair for pair in pairs if pair[0] != EOS]
            assert not any(loss for _, _, loss in pairs[len(own) :])
            found.append([(a, b, loss) for a, b, loss in own if b != EOS or loss])
    wanted = [
        list(zip(row.ids[:-1], row.ids[1:], [int(weight) for weight in row.weights[1:]], strict=True)) for row in rows
    ]
    assert sorted(found) == sorted(wanted)
    # The last token of a padded text is an input too; of one that fits exactly it is only a label.
    exact = [len(row.ids) > 1 and (len(row.ids) - 1) % multiple == 0 for row in rows]
    assert sorted(lengths) == sorted(len(row.ids) - fits for row, fits in zip(rows, exact, strict=True))
    assert manifest["options"] == {"pad_multiple": multiple, "pad_id": EOS}
    assert any(f"pad_seq_to_mult={multiple}" in line for line in manifest["use"])
    assert read(tmp_path / "out", "validation")


def test_rows_of_one_text_are_padded_too(tmp_path: Path) -> None:
    source = episodes(tmp_path / "in", [Row([1, 2, 3], [0, 1, 1]), Row([4], [1]), Row([5, 6, 7, 8, 9], [1] * 5)])
    export(source, "megatron-bridge", tmp_path / "out", pad_multiple=4, pad_id=EOS)
    assert read(tmp_path / "out") == [
        {"input_ids": [1, 2, 3, EOS, EOS], "loss_mask": [1, 1, 0, 0, 0], "seq_start_id": [0]},
        {"input_ids": [4, EOS, EOS, EOS, EOS], "loss_mask": [0, 0, 0, 0, 0], "seq_start_id": [0]},
        {"input_ids": [5, 6, 7, 8, 9], "loss_mask": [1, 1, 1, 1, 0], "seq_start_id": [0]},
    ]


def test_what_cannot_be_padded_is_said(tmp_path: Path) -> None:
    source = episodes(tmp_path / "in", random_rows(20))

    def refused(match: str, form: str = "megatron-bridge", **options: Any) -> None:
        with pytest.raises(UsageError, match=match):
            export(source, form, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()

    refused(r"pad_id is None; expected an id up to 299: the eos of Megatron-Bridge's tokenizer", pad_multiple=4)
    refused(r"pad_id is 300; expected an id up to 299", pad_multiple=4, pad_id=300)
    refused(r"pad_id without pad_multiple", pad_id=3)
    refused(r"pad_multiple is 'four'; expected a whole number", pad_multiple="four", pad_id=3)
    refused(r"max_length is 30, not a multiple of pad_multiple \(8\); use 32", pad_multiple=8, pad_id=3, max_length=30)
    refused(r"megatron has no option 'pad_multiple'", form="megatron", pad_multiple=8)


def test_rows_that_are_packed_already(tmp_path: Path) -> None:
    source = episodes(tmp_path / "in", random_rows(20))
    packed = run_cli("pack", source, "--out", tmp_path / "packed", "--sequence-length", 64)
    assert packed.returncode == 0, packed.stderr
    with pytest.raises(UsageError, match="its rows hold several texts already"):
        export(tmp_path / "packed", "megatron-bridge", tmp_path / "out", pad_multiple=4, pad_id=3)
