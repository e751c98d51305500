"""Caches of plain text: documents found slice by slice, as a plain loop finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from niels_gpt.datasets import open_dataset
from niels_gpt.doctor import diagnose
from niels_gpt.doctor import examine as pool
from niels_gpt.doctor import stored as documents
from niels_gpt.doctor.open_input import open_input
from niels_gpt.doctor.stored import document_slices, rows_of_pieces, stream_of
from niels_gpt.errors import UsageError
from tests.doctor.planted_documents import built, edited, ended_twice, outside, texts


def slow(folder: Path) -> list[list[int]]:
    """All documents, by splitting the whole run at its ends."""
    from niels_gpt.cache.meta import open_meta

    eot = open_meta(folder)["special_token_ids"]["eot"]
    found: list[list[int]] = [[]]
    for shard in sorted((folder / "train").iterdir()):
        for token in np.fromfile(shard, dtype="<u2").tolist():
            found[-1].append(token)
            if token == eot:
                found.append([])
    return [document for document in found if document]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100, 1 << 18])
def test_documents_come_whole_or_in_pieces_whatever_the_size_of_a_slice(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "SLICE_TOKENS", size)
    cache = built(tmp_path, "qwen2.5", texts(6), max_train_tokens=301)  # the budget cuts the last document
    edited(cache, ended_twice)
    wanted = slow(cache)
    found: dict[int, list[int]] = {}
    begun, ended = [], []
    dataset = open_dataset(cache)
    for numbers, pieces in document_slices(dataset, {"train": len(wanted)}, None):
        rows, filled = rows_of_pieces(dataset, pieces, numbers)
        parts = np.split(rows.ids, rows.starts[1:-1])
        for at, number in enumerate(numbers.tolist()):
            own = np.flatnonzero(filled == at)
            found.setdefault(number, []).extend(parts[int(own[0])].tolist() if len(own) else [])
            begun += [number] * int(pieces.begins[at])
            ended += [number] * int(pieces.ends[at])
    eot = wanted[0][-1]
    assert list(found.values()) == [[token for token in document if token != eot] for document in wanted]
    assert begun == ended == list(range(len(wanted)))


def test_a_wrong_id_is_told_with_its_document(tmp_path: Path) -> None:
    cache = built(tmp_path, "qwen2.5")
    edited(cache, outside, shard=1)
    (finding,) = diagnose(cache).findings
    at = 512 + 5  # shards of 1 KiB
    lengths = np.cumsum([len(document) for document in slow(cache)])
    number = int(np.searchsorted(lengths, at, side="right"))
    (evidence,) = finding.evidence
    assert (evidence.row, evidence.token) == (number, at - (int(lengths[number - 1]) if number else 0))
    assert evidence.where == f"{cache} train document {number}"


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_are_documents_and_tokens_theirs(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "SLICE_TOKENS", 50)
    monkeypatch.setattr(pool, "SECONDS_BEFORE_WORKERS", 0.0)
    cache = built(tmp_path, "qwen2.5", max_val_tokens=400, max_train_tokens=1 << 20, val_frac=0.2)
    report = diagnose(cache, workers=workers)
    assert report.findings == ()
    assert report.rows == 40
    dataset = open_dataset(cache)
    assert (
        report.tokens == sum(len(stream_of(dataset, split)) for split in ("train", "val")) - 40
    )  # each document's end
    assert report.source["form"] == "documents"
    assert report.skipped == {}  # rules on turns and masks are for other kinds of input
    alone = diagnose(cache, split="val")
    assert 0 < alone.rows < 40
    assert diagnose(cache, sample=10, seed=1).rows == 10


def test_a_document_cut_by_the_budget_still_counts(tmp_path: Path) -> None:
    cache = built(tmp_path, "qwen2.5", max_train_tokens=301)
    assert diagnose(cache).findings == ()
    assert open_input(cache).splits["train"] == len(slow(cache))


@pytest.mark.parametrize("more", [{"max_length": 40}, {"renderer": "qwen2.5"}, {"template": "x{{ messages }}"}])
def test_what_is_for_turns_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave --"):
        diagnose(built(tmp_path, "qwen2.5"), **more)
