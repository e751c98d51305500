"""`mds`, `litdata`, `llmc` and `npy`: what is read back, other people's encodings, and damaged files."""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.errors import InputError, OutputExists, UsageError
from niels_gpt.export import export
from niels_gpt.imports import FORMATS, import_episodes
from niels_gpt.imports.arrays import NO_ID
from niels_gpt.imports.formats import ImportOptions
from niels_gpt.imports.samples import _with_shape
from niels_gpt.progress import Progress
from tests.export.sources import EOT, episodes, pretrain_cache, random_rows
from tests.export.test_others import as_written
from tests.imports.test_round_trips import read


@pytest.mark.parametrize("form", ["mds", "litdata"])
def test_packed_samples_come_back_as_episodes(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_gpt.imports.samples.PORTION_TOKENS", 100)
    rows = random_rows(80)
    export(episodes(tmp_path / "in", rows), form, tmp_path / "out", packing=True, max_length=50)
    import_episodes(tmp_path / "out", form, tmp_path / "back")
    assert sorted(read(tmp_path / "back")) == sorted(as_written(rows))


def test_a_stream_of_llmc_comes_back_by_its_end_of_text(tmp_path: Path) -> None:
    source, rows = pretrain_cache(tmp_path / "cache")
    export(source, "llmc", tmp_path / "out")
    import_episodes(tmp_path / "out", "llmc", tmp_path / "back", eos_id=EOT)
    assert [ids for ids, _ in read(tmp_path / "back")] == [row.ids for row in rows]
    with pytest.raises(UsageError, match="--eos-id"):
        import_episodes(tmp_path / "out", "llmc", tmp_path / "no")


@pytest.mark.parametrize("dtype", ["<u2", "<i4", "<i8"])
def test_arrays_of_rows_and_of_one_stream(dtype: str, tmp_path: Path) -> None:
    for name, array in (("rows", np.arange(12).reshape(3, 4)), ("stream", np.array([5, 6, 1, 7, 1, 8]))):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "train.npy", array.astype(dtype))
    import_episodes(tmp_path / "rows", "npy", tmp_path / "a")
    assert [ids for ids, _ in read(tmp_path / "a")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    import_episodes(tmp_path / "stream" / "train.npy", "npy", tmp_path / "b", eos_id=1)
    assert [ids for ids, _ in read(tmp_path / "b")] == [[5, 6, 1], [7, 1], [8]]


def mosaic(folder: Path, columns: list[tuple[str, str, int | None]], samples: list[list[bytes]]) -> Path:
    """A shard as MosaicML's writer makes it."""
    folder.mkdir(parents=True)
    body, places = b"", [0]
    for sample in samples:
        sizes = [len(value) for value, (_, _, size) in zip(sample, columns, strict=True) if size is None]
        body += np.array(sizes, "<u4").tobytes() + b"".join(sample)
        places.append(len(body))
    head = 4 * (len(samples) + 2)
    table = np.array([len(samples), *(head + place for place in places)], "<u4").tobytes()
    (folder / "shard.00000.mds").write_bytes(table + body)
    names, kinds, sizes = zip(*columns, strict=True)
    shard = {"column_names": names, "column_encodings": kinds, "column_sizes": sizes, "compression": None}
    shard |= {"format": "mds", "raw_data": {"basename": "shard.00000.mds"}, "samples": len(samples)}
    (folder / "index.json").write_text(json.dumps({"shards": [shard], "version": 2}))
    return folder.parent


def test_bytes_of_int64_and_arrays_of_one_shape(tmp_path: Path) -> None:
    ids = [np.array([3, 4, 5]), np.array([6, 7, 8])]
    as_bytes = [[b"a text", one.astype("<i8").tobytes()] for one in ids]
    written = mosaic(tmp_path / "m" / "train", [("source", "str", None), ("tokens", "bytes", None)], as_bytes)
    import_episodes(written, "mds", tmp_path / "a")
    fixed = [[one.astype("<u4").tobytes(), np.array([0, 1, 1], "u1").tobytes()] for one in ids]
    columns = [("input_ids", "ndarray:uint32:3", 12), ("mask", "ndarray:uint8:3", 3)]
    import_episodes(mosaic(tmp_path / "n" / "train", columns, fixed), "mds", tmp_path / "b")
    assert (
        [row for row, _ in read(tmp_path / "a")] == [row for row, _ in read(tmp_path / "b")] == [[3, 4, 5], [6, 7, 8]]
    )
    assert [mask for _, mask in read(tmp_path / "b")] == [[0, 1, 1]] * 2


@pytest.mark.parametrize("texts", [[], [2], [2, 2], [0, 3], [4, -1]])
def test_lengths_of_texts_that_do_not_cover_their_sample(texts: list[int], tmp_path: Path) -> None:
    sample = [np.array([3, 4, 5], "<i8").tobytes(), np.array(texts, "<i8").tobytes()]
    columns = [("tokens", "bytes", None), ("seq_lengths", "bytes", None)]
    written = mosaic(tmp_path / "in" / "train", columns, [sample])
    with pytest.raises(InputError, match="a sample of 3 tokens whose mask or seq_lengths are of others"):
        import_episodes(written, "mds", tmp_path / "back")


def test_shapes_before_values() -> None:
    values = np.array([7, 8, 9], "<u2")
    assert _with_shape(memoryview(bytes([4, 3]) + values.tobytes()), "uint16").tolist() == [7, 8, 9]
    assert _with_shape(memoryview(bytes([2, 5, 3, 0]) + values.tobytes()), None).tolist() == [7, 8, 9]


def test_chunks_that_litdata_itself_wrote(tmp_path: Path) -> None:
    litdata = pytest.importorskip("litdata", reason="make installs it: pip install --no-deps litdata")
    torch = pytest.importorskip("torch")
    litdata.optimize(
        fn=_numbers, inputs=[3, 5], output_dir=str(tmp_path / "train"), num_workers=1, chunk_bytes="1MB", verbose=False
    )
    assert torch is not None
    import_episodes(tmp_path, "litdata", tmp_path / "back")
    assert sorted(ids for ids, _ in read(tmp_path / "back")) == [[0, 1, 2], [0, 1, 2, 3, 4]]


def test_labels_beside_the_ids_are_the_mask(tmp_path: Path) -> None:
    columns = [("input_ids", "bytes", None), ("labels", "bytes", None)]
    labels = [-100, -100, 7]
    mosaic(tmp_path / "in", columns, [[np.array(a, "<i8").tobytes() for a in ([5, 6, 7], labels)]])
    import_episodes(tmp_path / "in", "mds", tmp_path / "back")
    assert [(ids, list(weights)) for ids, weights in read(tmp_path / "back")] == [([5, 6, 7], [0, 0, 1])]
    mosaic(tmp_path / "shifted", columns, [[np.array(a, "<i8").tobytes() for a in ([5, 6, 7], [6, 7, -100])]])
    with pytest.raises(InputError, match="labels differ from the ids"):
        import_episodes(tmp_path / "shifted", "mds", tmp_path / "none")


def test_chunks_of_litgpt_hold_ids_alone(tmp_path: Path) -> None:
    litdata = pytest.importorskip("litdata", reason="make installs it: pip install --no-deps litdata")
    torch = pytest.importorskip("torch")
    from litdata.streaming import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    del litdata
    writer = BinaryWriter(str(tmp_path / "in"), chunk_bytes="64MB", item_loader=TokensLoader(block_size=3))
    (tmp_path / "in").mkdir(exist_ok=True)
    texts = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    for number, text in enumerate(texts):
        writer[number] = torch.tensor(text, dtype=torch.int32)
    writer.done()
    writer.merge(1)
    import_episodes(tmp_path / "in", "litdata", tmp_path / "back")
    assert [ids for ids, _ in read(tmp_path / "back")] == texts


def _numbers(n: int) -> dict[str, object]:
    import torch

    return {"input_ids": torch.arange(n)}


@pytest.mark.parametrize("form", ["mds", "litdata"])
def test_damaged_shards_name_the_file(form: str, tmp_path: Path) -> None:
    export(episodes(tmp_path / "in", random_rows(30)), form, tmp_path / "out")
    (tmp_path / "out" / "export.json").unlink()  # as from another program, whose files have no checksums
    shard = next(file for file in sorted((tmp_path / "out" / "train").iterdir()) if file.name != "index.json")
    whole, rng = shard.read_bytes(), np.random.default_rng(0)
    for trial in range(40):
        damaged = bytearray(whole if trial % 4 else whole[: rng.integers(len(whole))])
        if trial % 4:
            damaged[rng.integers(min(200, len(whole)))] ^= 1 << int(rng.integers(8))
        shard.write_bytes(damaged)
        # Some flips change an id or a mask, which no file of this kind can show.
        with contextlib.suppress(InputError, UsageError):
            import_episodes(tmp_path / "out", form, tmp_path / "back", overwrite=True)


def test_other_things_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    index = tmp_path / "train" / "index.json"
    for text, said in (
        ("{", "expected the index of a dataset"),
        ("{}", "lists no shards"),
        (json.dumps({"shards": [{"format": "jsonl"}]}), "this reads mds without compression"),
        (json.dumps({"shards": [{"format": "mds"}]}), "it is damaged or newer"),
    ):
        index.write_text(text)
        with pytest.raises(InputError, match=said):
            import_episodes(tmp_path, "mds", tmp_path / "back")
    (tmp_path / "a.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match=r"a\.npy: .*expected an array"):
        import_episodes(tmp_path / "a.npy", "npy", tmp_path / "back")
    np.save(tmp_path / "a.npy", np.array([0.5]))
    with pytest.raises(InputError, match="expected ids, in rows or not"):
        import_episodes(tmp_path / "a.npy", "npy", tmp_path / "back")
    (tmp_path / "x.bin").write_bytes(b"\0" * 2000)
    with pytest.raises(InputError, match=r"does not begin as a token file of llm\.c"):
        import_episodes(tmp_path / "x.bin", "llmc", tmp_path / "back", eos_id=1)


def test_ids_are_never_wrapped(tmp_path: Path) -> None:
    """2**32 + 5 as uint32 is 5, a token of every vocabulary."""
    large = np.array([3, 2**32 + 5, 7])
    for form, dtype in (("npy", "<i8"), ("npy", "<u8"), ("mds", "<i8"), ("litdata", "<i8"), ("megatron", "<i8")):
        folder = tmp_path / f"{form}{dtype}"
        export(episodes(tmp_path / f"in{form}{dtype}", random_rows(1)), "megatron", folder)
        (folder / "export.json").unlink()
        if form == "npy":
            np.save(folder / "train.npy", large.astype(dtype))
        elif form == "mds":
            mosaic(folder / "train", [("tokens", "ndarray:int64:3", 24)], [[large.astype(dtype).tobytes()]])
        elif form == "litdata":
            data = np.array([1, 12, 40], "<u4").tobytes() + np.array([24], "<u4").tobytes() + large.tobytes()
            (folder / "train").mkdir()
            (folder / "train" / "chunk-0-0.bin").write_bytes(data)
            config = {"data_format": ["no_header_numpy:3"], "data_spec": None}
            index = {"config": config, "chunks": [{"filename": "chunk-0-0.bin"}]}
            (folder / "train" / "index.json").write_text(json.dumps(index))
        else:
            (folder / "train_mask.idx").unlink()
            large.tofile(folder / "train.bin")
            head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 5, 1, 2)
            (folder / "train.idx").write_bytes(head + struct.pack("<iqqq", 3, 0, 0, 1))
        for eos_id in (7, NO_ID):
            files = FORMATS[form].open(folder, ImportOptions(eos_id))["train"]
            with pytest.raises(InputError, match=r"id 4294967301; expected ids from 0 to 2\*\*32 - 1") as found:
                list(files.read())
            assert str(folder) in str(found.value)


def test_masks_of_some_files_alone_are_refused(tmp_path: Path) -> None:
    """Rows without a mask would be trained whole, and so would all the others if the masks were left out."""
    export(episodes(tmp_path / "in", random_rows(5)), "olmo", tmp_path / "olmo")
    export(tmp_path / "in", "megatron", tmp_path / "megatron")
    for form, folder, names in (
        ("olmo", tmp_path / "olmo" / "train", ("token_ids_part_0000.npy", "token_ids_part_0000.csv.gz")),
        ("megatron", tmp_path / "megatron", ("train.bin", "train.idx")),
    ):
        for name in names:  # a second file of tokens, without a mask
            second = name.replace("train", "train_2").replace("0000", "0001")
            (folder / second).write_bytes((folder / name).read_bytes())
        (tmp_path / form / "export.json").unlink()
        with pytest.raises(InputError, match=r"does not record which tokens are trained, while .* does"):
            import_episodes(tmp_path / form, form, tmp_path / "back")
        assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("form", ["megatron", "olmo", "mds"])
def test_every_file_that_is_read_is_an_input(form: str, tmp_path: Path) -> None:
    """The manifest names what a dataset was made of: the tokens and masks, not the index alone."""
    export(episodes(tmp_path / "in", random_rows(5), random_rows(3)), form, tmp_path / "out")
    manifest = import_episodes(tmp_path / "out", form, tmp_path / "back")
    listed = [each["name"] for files in manifest["dataset_config"]["inputs"].values() for each in files]
    read = {
        file.name for file in (tmp_path / "out").rglob("*") if file.suffix in (".bin", ".idx", ".npy", ".gz", ".mds")
    }
    assert sorted(set(listed)) == sorted(read)


def test_nothing_is_read_for_a_call_that_cannot_work(tmp_path: Path) -> None:
    export(episodes(tmp_path / "in", random_rows(5)), "llmc", tmp_path / "out")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    for out, eos_id, error in ((tmp_path / "taken", 1, OutputExists), (tmp_path / "back", None, UsageError)):
        steps: list[str] = []
        progress = Progress()
        progress.begin = lambda what, steps=steps, **_: steps.append(what)  # type: ignore[method-assign]
        (tmp_path / "out" / "export.json").unlink(missing_ok=True)
        with pytest.raises(error):
            import_episodes(tmp_path / "out", "llmc", out, eos_id=eos_id, progress=progress)
        assert not steps


@pytest.mark.parametrize(("form", "option"), [("npy", "--eos-id"), ("olmo", "--token-dtype")])
def test_what_the_files_do_not_say_is_asked_for_before_they_are_read(form: str, option: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    if form == "npy":
        np.save(tmp_path / "in" / "a.npy", np.ones((2, 3), np.uint16))  # rows, which need no id
        np.save(tmp_path / "in" / "b.npy", np.ones(6, np.uint16))
    else:
        np.ones(6, "<u2").tofile(tmp_path / "in" / "token_ids_part_0000.npy")  # without a mask
    steps: list[str] = []
    progress = Progress()
    progress.begin = lambda what, **_: steps.append(what)  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=option):
        import_episodes(tmp_path / "in", form, tmp_path / "back", progress=progress)
    assert not steps


@pytest.mark.parametrize(
    "values", [np.ones(6, np.float32), np.ones((1, 2, 3), np.uint16)], ids=["floats", "three axes"]
)
def test_an_array_that_holds_no_ids_is_refused_before_files_are_hashed(values: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", np.ones((2, 3), np.uint16))
    np.save(tmp_path / "in" / "b.npy", values)
    steps: list[str] = []
    progress = Progress()
    progress.begin = lambda what, **_: steps.append(what)  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"b\.npy: .*; expected ids"):
        import_episodes(tmp_path / "in", "npy", tmp_path / "back", progress=progress)
    assert not steps


@pytest.mark.parametrize("masked", [False, True])
def test_an_empty_token_file_needs_no_dtype(masked: bool, tmp_path: Path) -> None:
    """It asked for --token-dtype, with which it said that no file contains rows."""
    (tmp_path / "in").mkdir()
    for name in ("token_ids_part_0000.npy", *(["labels_mask_part_0000.npy"] if masked else [])):
        (tmp_path / "in" / name).touch()
    with gzip.open(tmp_path / "in" / "token_ids_part_0000.csv.gz", "wb"):
        pass
    with pytest.raises(InputError, match="no file contains rows"):
        import_episodes(tmp_path / "in", "olmo", tmp_path / "back")
