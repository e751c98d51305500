"""Texts in units: the bytes of a build in one process, whatever the cuts, budgets, workers and faults."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.builds import rows as build_rows
from niels_gpt.builds.rows import checked_documents
from niels_gpt.builds.splits import ValidationSplit, shuffled
from niels_gpt.cache.build_cache import build_pretrain_cache
from niels_gpt.errors import DataError, InputError
from niels_gpt.sources import text_files as text_module
from niels_gpt.sources.files.inputs import Document, Rejected
from niels_gpt.sources.text_files import TextFiles, roam_notes, text_files
from niels_gpt.store.kinds import open_meta
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.scale.builds import build, units, write_texts
from tests.scale.test_engine import Notes
from tests.test_cache_determinism import digests

lines = st.one_of(
    st.builds(lambda text: json.dumps({"text": text}), st.text(max_size=60)),
    st.sampled_from(["{broken", '{"text": ""}', '{"tekst": "a"}', "", '"a line of its own"']),
)
contents = st.one_of(
    st.tuples(st.just("jsonl"), st.lists(lines, min_size=1, max_size=20).map("\n".join)),
    st.tuples(st.just("txt"), st.text("ab é\n", max_size=30)),
    st.tuples(st.just("md"), st.text("word é\n", min_size=80, max_size=300)),
)
corpora = st.lists(contents, min_size=1, max_size=5)


def write(folder: Path, corpus: list[tuple[str, str]]) -> TextFiles:
    """The files of a corpus; those above 64 bytes are handed out in parts."""
    for number, (suffix, text) in enumerate(corpus):
        (folder / f"{number}.{suffix}").write_text(text or " ", encoding="utf-8", newline="")
    return text_files([folder])


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "PART_BYTES", 64)


@pytest.mark.usefixtures("small_parts")
@given(corpus=corpora, slice_bytes=st.sampled_from([1, 40, 200, 1 << 20]))
@settings(deadline=None, max_examples=150)
def test_slices_in_order_are_the_documents(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[tuple[str, str]], slice_bytes: int
) -> None:
    source = write(tmp_path_factory.mktemp("texts"), corpus)
    resolved = source.resolved()
    parts = list(resolved.slices(slice_bytes))
    assert [row for part in parts for row in resolved.read(part)] == list(source)
    assert parts == list(source.slices(slice_bytes)), "the cut is a function of the files and the size"
    shares = [part.read for part in parts]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


@pytest.mark.parametrize("slice_bytes", [1, 3000, 1 << 20])
def test_notes_go_together(tmp_path: Path, slice_bytes: int) -> None:
    source = roam_notes(write_texts(tmp_path / "texts", 5))
    resolved = source.resolved()
    parts = list(resolved.slices(slice_bytes))
    assert [row for part in parts for row in resolved.read(part)] == list(source)
    assert len(parts) == {1: 12, 3000: 6, 1 << 20: 1}[slice_bytes]
    assert str(parts[0]).startswith("files 0 to ")


choices = st.fixed_dictionaries(
    {
        "max_train_tokens": st.one_of(st.just(1 << 40), st.integers(1, 400)),
        "max_val_tokens": st.one_of(st.just(1 << 40), st.integers(0, 200)),
        "val_frac": st.sampled_from([0.0, 0.3]),
        "shuffle_buffer": st.sampled_from([None, 1, 4]),
        "separator": st.sampled_from([None, "eos", "none"]),
        "max_bad_rows": st.sampled_from([0, 1, 100]),
        "seed": st.integers(0, 3),
    }
)


many_rows = st.lists(lines, min_size=15, max_size=40).map(lambda rows: [("jsonl", "\n".join(rows))])
small_budgets = st.builds(
    lambda chosen, train, val: chosen | {"max_train_tokens": train, "max_val_tokens": val, "max_bad_rows": 100},
    choices,
    st.integers(1, 150),
    st.integers(0, 50),
)


@pytest.mark.usefixtures("small_parts")
@given(
    builds=st.one_of(st.tuples(corpora, choices), st.tuples(many_rows, small_budgets)),
    slice_bytes=st.sampled_from([1, 60, 1 << 20]),
    limit=st.sampled_from([5, 50, 10**6]),
)
@settings(deadline=None, max_examples=60)
def test_units_give_the_bytes_of_one_process(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: SentencePieceTokenizer,
    builds: tuple[list[tuple[str, str]], dict[str, Any]],
    slice_bytes: int,
    limit: int,
) -> None:
    """And those of the old rule, a document at a time: budgets, groups, bad rows met before the end, and all."""
    corpus, chosen = builds
    folder = tmp_path_factory.mktemp("build")
    (folder / "texts").mkdir()
    source = write(folder / "texts", corpus)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_rows, "BATCH_CHARACTERS", limit)
        for name, executor in (("one", None), ("units", units(slice_bytes))):
            try:
                build_pretrain_cache(
                    source, str(folder / name), tokenizer=tokenizer, shard_bytes=1 << 20, executor=executor, **chosen
                )
                results.append(digests(folder / name))
            except DataError as error:
                results.append(str(error).replace(str(folder / name), "OUT"))
        assert results[0] == results[1]
        if isinstance(results[0], dict):
            assert {path.name for path in folder.iterdir()} == {"texts", "one", "units"}
            meta = open_meta(folder / "one")
            streams, dropped = by_hand(source, tokenizer, **chosen)
            assert {name: stored(folder / "one", name) for name in streams} == streams
            assert meta["dropped"] == dropped


def by_hand(source: TextFiles, tokenizer: Any, **chosen: Any) -> tuple[dict[str, list[int]], Counter[str]]:
    """What a pretraining cache holds, one document at a time; bad rows count up to the last of them."""
    budgets = {"train": chosen["max_train_tokens"], "val": chosen["max_val_tokens"]}
    split = ValidationSplit(chosen["val_frac"], chosen["seed"])
    dropped: Counter[str] = Counter()

    def documents() -> Iterator[tuple[Document, bool]]:
        for row in checked_documents(source):
            if isinstance(row, Rejected):
                dropped[row.reason] += 1
            else:
                yield row, split.draw(row.group)

    ordered: Any = documents()
    if chosen["shuffle_buffer"] is not None:
        ordered = shuffled(ordered, chosen["shuffle_buffer"], chosen["seed"])
    eot = [tokenizer.special_token_ids()["eot"]] if chosen["separator"] != "none" else []
    streams: dict[str, list[int]] = {"train": [], "val": []}
    for document, in_val in ordered:
        ids = [*tokenizer.encode(document.text), *eot]
        sides = ("val", "train") if in_val else ("train", "val")
        side = sides[0] if len(streams[sides[0]]) < budgets[sides[0]] else sides[1]
        streams[side] += ids[: budgets[side] - len(streams[side])]
        if all(len(streams[side]) == budgets[side] for side in streams):
            break
    return streams, dropped


def stored(cache: Path, split: str) -> list[int]:
    return [token for path in sorted((cache / split).glob("*.bin")) for token in np.fromfile(path, "<u2").tolist()]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TextFiles:
    return text_files([write_texts(tmp_path_factory.mktemp("texts") / "texts", 150)])


@pytest.fixture(scope="module")
def whole(texts: TextFiles, tokenizer: SentencePieceTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("one") / "out"
    build("pretrain", texts, out, tokenizer)
    return digests(out)


@pytest.mark.parametrize(("workers", "slice_bytes"), [(1, 5_000), (3, 5_000), (2, 30_000)])
def test_several_processes(
    tmp_path: Path, texts: TextFiles, whole: Any, tokenizer: SentencePieceTokenizer, workers: int, slice_bytes: int
) -> None:
    build("pretrain", texts, tmp_path / "out", tokenizer, units(slice_bytes, workers))
    assert digests(tmp_path / "out") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_budget_stops_the_workers_and_leaves_nothing(
    tmp_path: Path, texts: TextFiles, tokenizer: SentencePieceTokenizer
) -> None:
    progress, budget = Notes(), {"max_train_tokens": 900, "max_val_tokens": 100, "shuffle_buffer": None}
    build("pretrain", texts, tmp_path / "out", tokenizer, units(3_000, 2), progress=progress, **budget)
    assert open_meta(tmp_path / "out")["totals"] == {"train_tokens": 900, "val_tokens": 100}
    assert multiprocessing.active_children() == []
    assert progress.notes == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_that_cannot_be_read_matters_when_it_is_reached(
    tmp_path: Path, tokenizer: SentencePieceTokenizer
) -> None:
    """The cuts are looked for ahead; a budget that is full before the file needs none of it."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.jsonl").write_text('{"text": "many words of a text"}\n' * 200)
    (tmp_path / "texts" / "b.jsonl").write_text(" ")
    (tmp_path / "texts" / "b.parquet").write_bytes(b"PAR1")
    source = text_files([tmp_path / "texts"])
    enough = {"max_train_tokens": 300, "max_val_tokens": 0, "val_frac": 0.0, "shuffle_buffer": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_rows, "BATCH_CHARACTERS", 200)
        for name, executor in (("one", None), ("units", units(500))):
            build("pretrain", source, tmp_path / name, tokenizer, executor, **enough)
            with pytest.raises(InputError, match=r"b\.parquet: cannot be read"):
                build("pretrain", source, tmp_path / f"{name}-all", tokenizer, executor)
    assert digests(tmp_path / "one") == digests(tmp_path / "units")
