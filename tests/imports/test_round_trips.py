"""Out and in again: ids and masks as they were; and what other programs write."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.errors import InputError, StorageError, UsageError
from niels_gpt.export import export
from niels_gpt.imports import import_episodes
from niels_gpt.store.kinds import open_manifest
from niels_gpt.store.split import IndexedSplit
from tests.export.sources import EOT, as_written, episodes, random_rows


def read(dataset: Path, split: str = "train") -> list[tuple[list[int], list[float]]]:
    """Episodes as they lie in the files."""
    opened = IndexedSplit([dataset], split)
    found = []
    for shard in opened.shards:
        for start, length in zip(
            *(part.tolist() for part in shard.index.spans(np.arange(len(shard.index)))), strict=True
        ):
            part = slice(start, start + length)
            mask = np.ones(length) if shard.mask is None else shard.mask[part]
            found.append((shard.tokens[part].tolist(), mask.astype(float).tolist()))
    return found


@pytest.mark.parametrize(
    ("written", "form", "options"),
    [
        ("hf", "hf", {}),
        ("megatron", "megatron", {}),
        ("trl", "hf", {"packing": True, "max_length": 50}),
        ("megatron-bridge", "hf", {"packing": True, "max_length": 50}),  # its masks belong to the targets
    ],
)
def test_ids_and_mask_come_back(written: str, form: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows, val = random_rows(80), random_rows(9, seed=4)
    export(episodes(tmp_path / "in", rows, val), written, tmp_path / "out", **options)
    manifest = import_episodes(tmp_path / "out", form, tmp_path / "back")
    for split, wanted in (("train", rows), ("val", val)):
        found = read(tmp_path / "back", split)
        assert (sorted(found) if options else found) == (sorted if options else list)(as_written(wanted))
    assert (manifest["vocab_size"], manifest["special_token_ids"]) == (300, {"eot": EOT})
    assert open_manifest(tmp_path / "back") == manifest


def test_a_mask_that_is_a_dead_link_is_not_left_out(tmp_path: Path) -> None:
    export(episodes(tmp_path / "in", random_rows(8)), "megatron", tmp_path / "out")
    (mask,) = (tmp_path / "out").rglob("train_mask.idx")
    mask.unlink()
    mask.symlink_to("nowhere")
    (tmp_path / "out" / "export.json").unlink()  # else the file is missed
    with pytest.raises(StorageError, match=r"train_mask\.idx: reading failed: No such file"):
        import_episodes(mask.with_name("train"), "megatron", tmp_path / "back")


def write_parquet(path: Path, **columns: Any) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table(columns), path)
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "ROWS.JSONL", "rows.jsonl.gz", "rows.json", "rows.ndjson", "saved"])
def test_rows_of_ids_in_any_file_of_rows(name: str, tmp_path: Path) -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [-100, 9]}]
    path = tmp_path / name
    if name == "saved":
        pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(str(path))
    else:
        lines = json.dumps(rows) if name == "rows.json" else "\n".join(map(json.dumps, rows))
        path.write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())
    import_episodes(path, "hf", tmp_path / "back")
    assert read(tmp_path / "back") == [([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1])]


def test_padding_of_a_foreign_dataset_goes_away(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "mine.parquet",
        input_ids=[[5, 6, 7, 0, 0], [8, 9]],
        attention_mask=[[1, 1, 1, 0, 0], [1, 1]],
        labels=[[-100, 6, 7, -100, -100], [-100, -100]],
        text=["a", "b"],
    )
    import_episodes(path, "hf", tmp_path / "back")
    assert read(tmp_path / "back") == [([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 0])]


@pytest.mark.parametrize(
    ("masks", "trained"),
    [
        ({"completion_mask": [[0, 0, 1, 1]]}, [0, 0, 1, 1]),
        ({"assistant_mask": [[0, 1, 0, 1]]}, [0, 1, 0, 1]),
        ({"assistant_masks": [[0, 1, 0, 1]], "completion_mask": [[0, 0, 1, 1]]}, [0, 0, 0, 1]),
        ({"labels": [[-100, 6, 7, 8]], "completion_mask": [[0, 0, 0, 1]]}, [0, 1, 1, 1]),
    ],
)
def test_masks_of_trl_are_read(tmp_path: Path, masks: dict[str, Any], trained: list[int]) -> None:
    """A mask that is not read would train the prompt. Of several, TRL trains what all of them train; labels decide."""
    path = write_parquet(tmp_path / "mine.parquet", input_ids=[[5, 6, 7, 8]], **masks)
    import_episodes(path, "hf", tmp_path / "back")
    assert read(tmp_path / "back") == [([5, 6, 7, 8], trained)]


@pytest.mark.parametrize(
    ("columns", "episodes_found"),
    [
        ({"position_ids": [[0, 1, 0, 1]]}, [[5, 6], [7, 8]]),
        ({"position_ids": [[0, 1, 0, 1]], "attention_mask": [[1, 1, 1, 0]]}, [[5, 6], [7]]),
        ({"position_ids": [[1, 0, 1, 2]], "attention_mask": [[0, 1, 1, 1]]}, [[6, 7, 8]]),
        ({"attention_mask": [[1, 1, 2, 2]]}, [[5, 6], [7, 8]]),
        ({"attention_mask": [[1, 2, 2, 0]]}, [[5], [6, 7]]),
        ({"attention_mask": [[1, 1, 2, 2]], "position_ids": [[0, 1, 2, 3]]}, [[5, 6], [7, 8]]),
        ({"attention_mask": [[1, 1, 2, 2]], "position_ids": [[0, 1, 0, 1]]}, [[5, 6], [7, 8]]),
        ({"seq_lengths": [[1, 3]], "position_ids": [[0, 0, 1, 2]]}, [[5], [6, 7, 8]]),
        ({"seq_start_id": [[0, 3]]}, [[5, 6, 7], [8]]),
    ],
)
def test_texts_of_packed_rows_are_episodes(
    columns: dict[str, Any], episodes_found: list[list[int]], tmp_path: Path
) -> None:
    """However a row tells where its texts begin: one episode of all would let texts attend to each other."""
    path = write_parquet(tmp_path / "mine.parquet", input_ids=[[5, 6, 7, 8]], **columns)
    import_episodes(path, "hf", tmp_path / "back")
    assert [ids for ids, _ in read(tmp_path / "back")] == episodes_found


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, r"expected input_ids"),
        ({"input_ids": [[1, 2, 3]], "labels": ["1 2 3"]}, r"row 0: labels is '1 2 3'; expected a list of integers"),
        ({"input_ids": [[1, 2, 3]], "labels": [b"123"]}, r"row 0: labels is b'123'; expected a list of integers"),
        ({"input_ids": [[1, 2, 3]], "labels": [None]}, r"row 0: neither labels nor a mask"),
        ({"input_ids": [[1, 2], [3]], "labels": [[1, 2], None]}, r"row 1: 1 ids without labels, which other rows have"),
        (
            {"input_ids": [[1, 2], [3]], "labels": [[1, 2], [None]]},
            r"row 1: labels is \[None\]; expected a list of integers",
        ),
        ({"input_ids": [[1, 2, 3]], "train_mask": [[0, 1, 1]]}, r"a column train_mask, which is not read"),
        ({"input_ids": [[1, 2, 3]], "document_ids": [[0, 0, 1]]}, r"a column document_ids, which is not read"),
        ({"input_ids": [[1, 2, 3]], "position_ids": [[5, 2, 0]]}, r"row 0: position_ids neither count up"),
        ({"input_ids": [[1, 2, 3]], "labels": [[2, 3, -100]]}, r"shifted by one"),
        ({"input_ids": [[1, 2, 3]], "labels": [[9, 9, 9]]}, r"something else"),
        ({"input_ids": [[1, 2, 3]], "labels": [[1, 2]]}, r"row 0: 3 ids and 2 labels"),
        ({"input_ids": [[1, 2, 3], None]}, r"row 1: input_ids is null"),
        ({"input_ids": [[1, -2, 3]]}, r"row 0: input_ids holds -2"),
        ({"input_ids": [[1, 2, 3]], "seq_lengths": [[2]]}, r"row 0: seq_lengths add up to"),
        ({"input_ids": [[1, 2, 3]], "seq_lengths": [[5, -2]]}, r"row 0: seq_lengths add up to"),
        ({"input_ids": [[1, 2, 3]], "assistant_masks": [[0, 2, 1]]}, r"holds 2; expected 0 and 1"),
        ({"input_ids": [1, 2]}, "row 0: input_ids is 1; expected a list of integers"),
        ({"input_ids": [[1, 2**32 + 5]]}, r"row 0: input_ids holds 4294967301; expected ids from 0 to 2\*\*32 - 1"),
    ],
)
def test_foreign_rows_that_are_wrong(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = write_parquet(tmp_path / "in" / "train.parquet", **columns)
    with pytest.raises(InputError, match=message) as error:
        import_episodes(path.parent, "hf", tmp_path / "back")
    assert str(path) in str(error.value)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("form", ["megatron", "hf"])
def test_damage_of_an_export_is_found_before_it_is_imported(tmp_path: Path, form: str) -> None:
    """Without checksums a changed id, or a mask that was lost, would be imported without a word."""
    export(episodes(tmp_path / "in", random_rows(20)), form, tmp_path / "out")
    data = sorted(path for path in (tmp_path / "out").rglob("*") if path.suffix not in (".json", ".md", ""))
    file = data[0]
    whole, at = file.read_bytes(), file.stat().st_size // 2
    for damaged, said in (
        (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], "damaged: its sha256 is"),
        (whole[:-1], f"{len(whole) - 1:,} bytes, but export.json records {len(whole):,}"),
        (None, "missing, although export.json lists it"),
    ):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        with pytest.raises(InputError, match=f"^{re.escape(str(file))}: .*{said}.*remove export.json"):
            import_episodes(tmp_path / "out", form, tmp_path / "back")
        assert not (tmp_path / "back").exists()
    file.write_bytes(whole)
    import_episodes(tmp_path / "out", form, tmp_path / "back")


def test_a_wrong_format_path_or_vocabulary_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "in" / "train.parquet", input_ids=[[1, 200]])
    for form, source, options, says in (
        ("hf", path, {"vocab_size": 100}, "id 200 is outside the vocabulary of 100"),
        ("hf", tmp_path / "nowhere", {}, "no such file"),
        ("megatron", path.parent, {}, r"holds no \.idx file"),
        ("megatorn", path, {}, "did you mean 'megatron'"),
    ):
        with pytest.raises((InputError, UsageError), match=says):
            import_episodes(source, form, tmp_path / "back", **options)  # type: ignore[arg-type]


def test_two_halves_of_a_dataset_must_agree(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in" / "train.parquet", input_ids=[[1, 2]], labels=[[-100, 2]])
    write_parquet(tmp_path / "in" / "validation.parquet", input_ids=[[1, 2]])
    with pytest.raises(InputError, match="one split has a mask and the other does not"):
        import_episodes(tmp_path / "in", "hf", tmp_path / "back")


@pytest.mark.parametrize("masked", ["train-0", "train-1"])
def test_labels_of_some_files_alone_are_refused(tmp_path: Path, masked: str) -> None:
    """The labels of the first file decided for all: the rows of the others were trained whole, or all of them."""
    for name in ("train-0", "train-1"):
        labels = {"labels": [[-100, 2]]} if name == masked else {}
        write_parquet(tmp_path / "in" / f"{name}.parquet", input_ids=[[1, 2]], **labels)
    with pytest.raises(InputError, match=rf"does not record which tokens are trained, while {masked}\.parquet does"):
        import_episodes(tmp_path / "in", "hf", tmp_path / "back")


def test_damaged_parquet_ends_in_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "in" / "train.parquet"
    write_parquet(path, input_ids=[[n, n + 1, 3] for n in range(400)], labels=[[-100, n + 1, 3] for n in range(400)])
    whole, rng = path.read_bytes(), random.Random(0)
    failed = unnamed = 0
    for _ in range(80):
        cut = bytearray(whole)
        cut[rng.randrange(len(cut))] ^= 1 << rng.randrange(8)
        path.write_bytes(cut)
        try:
            import_episodes(tmp_path / "in", "hf", tmp_path / "back", overwrite=True)
        except InputError as error:
            failed += str(path) in str(error)
            unnamed += str(path) not in str(error)
    assert failed > 20
    assert not unnamed
