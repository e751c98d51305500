"""`tokens`: arrays of numpy, token files of llm.c, raw ids; and what is refused, so that no wrong id is imported."""

from __future__ import annotations

import struct
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.doctor import diagnose
from niels_gpt.errors import InputError, UsageError
from niels_gpt.export import export
from niels_gpt.imports import FORMATS, import_episodes
from niels_gpt.inputs.arrays import NO_ID
from niels_gpt.inputs.token_formats import DTYPES, TokenOptions
from niels_gpt.progress import Progress
from tests.conftest import run_cli
from tests.export.sources import EOT, Row, episodes, pretrain_cache, random_rows
from tests.imports.test_round_trips import read

LLMC = {"<u2": (20240520, 1), "<u4": (20240801, 7)}


def ids_in(dataset: Path, split: str = "train") -> list[list[int]]:
    return [ids for ids, _ in read(dataset, split)]


def write(path: Path, ids: list[int], dtype: str = "<u2", *, header: bool = False) -> Path:
    """A file of ids alone, or one of llm.c."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.array(ids, dtype)
    head = [*LLMC[dtype], len(ids), *[0] * 253] if header else []
    path.write_bytes(np.array(head, "<i4").tobytes() + values.tobytes())
    return path


@pytest.fixture
def stream(tmp_path: Path) -> tuple[list[int], list[Row]]:
    """A stream of ids, and its documents."""
    _, rows = pretrain_cache(tmp_path / "cache")
    return [token for row in rows for token in row.ids], rows


def test_raw_ids_of_each_dtype(
    tmp_path: Path, stream: tuple[list[int], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_gpt.inputs.arrays.PORTION_TOKENS", 7)
    ids, rows = stream
    for dtype in DTYPES:
        kind, most = np.dtype(dtype).newbyteorder("<").str, np.iinfo(dtype).max
        write(tmp_path / "in" / "train.bin", [min(token, most) for token in ids], kind)
        write(tmp_path / "in" / "val.bin", [5, EOT], kind)
        import_episodes(tmp_path / "in", "tokens", tmp_path / "back", eos_id=EOT, dtype=dtype, overwrite=True)
        assert ids_in(tmp_path / "back") == [[min(token, most) for token in row.ids] for row in rows]
        assert ids_in(tmp_path / "back", "val") == [[5, EOT]]


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_the_header_of_llmc_names_the_dtype(dtype: str, tmp_path: Path, stream: tuple[list[int], list[Row]]) -> None:
    ids, rows = stream
    write(tmp_path / "in" / "fineweb_train_000001.bin", ids, dtype, header=True)
    import_episodes(tmp_path / "in", "tokens", tmp_path / "back", eos_id=EOT)
    assert ids_in(tmp_path / "back") == [row.ids for row in rows]
    same = np.dtype(dtype).name
    other = {"uint16": "uint32", "uint32": "uint16"}[same]
    import_episodes(tmp_path / "in", "tokens", tmp_path / "again", eos_id=EOT, dtype=same)
    with pytest.raises(UsageError, match=f"000001.bin: its header says {same}, and dtype {other} was passed"):
        import_episodes(tmp_path / "in", "tokens", tmp_path / "no", eos_id=EOT, dtype=other)
    file = next((tmp_path / "in").iterdir())
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"000001\.bin: .* its header announces .* it is cut"):
        import_episodes(tmp_path / "in", "tokens", tmp_path / "no", eos_id=EOT)


@pytest.mark.parametrize("dtype", ["<u2", ">u2", "<i4", "<i8"])
def test_arrays_of_rows_and_of_one_stream(dtype: str, tmp_path: Path) -> None:
    for name, array in (("rows", np.arange(12).reshape(3, 4)), ("stream", np.array([5, 6, 1, 7, 1, 8]))):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "train.npy", array.astype(dtype))
    import_episodes(tmp_path / "rows", "tokens", tmp_path / "a")
    assert ids_in(tmp_path / "a") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    import_episodes(tmp_path / "stream" / "train.npy", "tokens", tmp_path / "b", eos_id=1, dtype=np.dtype(dtype).name)
    assert ids_in(tmp_path / "b") == [[5, 6, 1], [7, 1], [8]]
    with pytest.raises(UsageError, match=rf"train\.npy: its header says {np.dtype(dtype).name}, and dtype uint64 was"):
        import_episodes(tmp_path / "rows", "tokens", tmp_path / "c", dtype="uint64")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"PAR1", "a parquet file; pass --from hf"),
        (b"MMIDIDX\0\0", "an index of Megatron; pass --from megatron"),
        (b"\x1f\x8b\x08", "packed by gzip; unpack it"),
        (b"\x80\x04\x95", "a pickle"),
        (b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS"),
    ],
)
def test_other_files_are_no_ids(head: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(head + bytes(1000 - len(head)))
    with pytest.raises(InputError, match=rf"x\.bin: begins as {said}"):
        import_episodes(tmp_path, "tokens", tmp_path / "back", eos_id=0, dtype="uint16")


def megatron_file(path: Path, lengths: list[int], documents: list[int], tokens: int | None = None) -> Path:
    """An index, and ids 0 1 2 ... as uint16."""
    n = sum(lengths) if tokens is None else tokens
    np.arange(n, dtype="<u2").tofile(path.with_suffix(".bin"))
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(documents))
    pointers = 2 * (np.cumsum(lengths, dtype="<i8") - lengths)
    path.write_bytes(
        head + np.array(lengths, "<i4").tobytes() + pointers.tobytes() + np.array(documents, "<i8").tobytes()
    )
    return path


@pytest.mark.parametrize(
    ("lengths", "documents", "found"),
    [
        ([3, 2, 4], [0, 2, 3], [[0, 1, 2, 3, 4], [5, 6, 7, 8]]),
        ([3, 2, 4], [0, 2, 2, 3], [[0, 1, 2, 3, 4], [5, 6, 7, 8]]),
        ([3, 2], [0, 0, 1, 2, 2], [[0, 1, 2], [3, 4]]),
        ([3, 0, 2, 0], [0, 1, 2, 3, 4], [[0, 1, 2], [3, 4]]),
        ([0, 3], [0, 2], [[0, 1, 2]]),
    ],
)
def test_documents_of_megatron_may_be_empty(
    lengths: list[int], documents: list[int], found: list[list[int]], tmp_path: Path
) -> None:
    notes: list[str] = []

    class Noted(Progress):
        def note(self, text: str) -> None:
            notes.append(text)

    megatron_file(tmp_path / "train.idx", lengths, documents)
    import_episodes(tmp_path, "megatron", tmp_path / "back", progress=Noted())
    empty = len(documents) - 1 - len(found)
    assert notes == ([f"{tmp_path / 'train.idx'}: left out {empty} documents without tokens"] if empty else [])
    assert ids_in(tmp_path / "back") == found
    assert diagnose(tmp_path).rows == len(found)


@pytest.mark.parametrize(
    ("lengths", "documents", "tokens", "said"),
    [
        ([], [0], None, "no file contains rows"),
        ([3, 2], [0, 1], None, r"train\.idx: its documents do not cover its 2 sequences"),
        ([3, 2], [0, 2, 1, 2], None, r"train\.idx: its documents do not cover its 2 sequences"),
        ([3, 2], [0, 1, 2], 8, r"train\.idx: ends at token 5, but train\.bin has 8"),
        ([3, 2], [0, 1, 2], 4, r"train\.idx: ends at token 5, but train\.bin has 4"),
    ],
)
def test_files_of_megatron_that_do_not_belong_together(
    lengths: list[int], documents: list[int], tokens: int | None, said: str, tmp_path: Path
) -> None:
    megatron_file(tmp_path / "train.idx", lengths, documents, tokens)
    with pytest.raises(InputError, match=said):
        import_episodes(tmp_path, "megatron", tmp_path / "back")


def test_shards_and_masks_beside_ids_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "lit" / "train" / "chunk-0-0.bin", [1, 2, 1])
    (tmp_path / "lit" / "train" / "index.json").write_text("{}")
    write(tmp_path / "olmo" / "token_ids_part_0000.npy", [1, 2, 1])
    write(tmp_path / "olmo" / "labels_mask_part_0000.npy", [1, 1], "u1")
    np.save(tmp_path / "olmo.npy", np.ones(6, np.uint16))
    write(tmp_path / "both" / "train.bin", [1, 2, 1])
    np.save(tmp_path / "both" / "train.npy", np.ones(6, np.uint16))
    for name, said in (
        ("lit", r"chunk-0-0\.bin: an index\.json lies beside it"),
        ("olmo", r"labels_mask_part_0000\.npy: a mask by its name"),
        ("both", r"both: holds \.bin and \.npy files"),
    ):
        with pytest.raises(InputError, match=said):
            import_episodes(tmp_path / name, "tokens", tmp_path / "back", eos_id=1, dtype="uint16")
    one = tmp_path / "olmo" / "token_ids_part_0000.npy"
    import_episodes(one, "tokens", tmp_path / "back", eos_id=1, dtype="uint16")
    assert ids_in(tmp_path / "back") == [[1], [2, 1]]


@pytest.mark.parametrize(
    ("written", "passed", "looks_like"),
    [
        ("uint32", "uint16", "uint32"),
        ("uint64", "uint32", "uint64"),
        ("int64", "uint16", "uint64"),
        ("uint16", "uint32", "uint16"),
        ("int32", "uint16", "uint32"),
        ("uint16", "uint8", "uint16"),
    ],
)
def test_a_wrong_dtype_is_seen_by_the_first_ids(written: str, passed: str, looks_like: str, tmp_path: Path) -> None:
    most = 150_000 if np.dtype(written).itemsize > 2 else 4000 if passed == "uint8" else 50_000
    ids = np.random.default_rng(0).integers(0, most, 1000).tolist()
    write(tmp_path / "train.bin", ids, written)
    with pytest.raises(InputError, match=rf"train\.bin: as {passed} its first ids are .* look like {looks_like}"):
        import_episodes(tmp_path, "tokens", tmp_path / "back", eos_id=3, dtype=passed)
    import_episodes(tmp_path, "tokens", tmp_path / "back", eos_id=ids[7], dtype=written)
    assert list(chain(*ids_in(tmp_path / "back"))) == ids


def test_an_end_that_never_occurs_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in" / "train_0.bin", [5, 6, 7])
    with pytest.raises(UsageError, match=r"train_0\.bin: 9 is none of its 3 ids, .*--eos-id.*--dtype"):
        import_episodes(tmp_path / "in", "tokens", tmp_path / "back", eos_id=9, dtype="uint16")
    assert not (tmp_path / "back").exists()
    write(tmp_path / "in" / "train_1.bin", [8, 9])
    import_episodes(tmp_path / "in", "tokens", tmp_path / "back", eos_id=9, dtype="uint16")
    assert ids_in(tmp_path / "back") == [[5, 6, 7], [8, 9]]


def test_what_cannot_be_ids_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.bin", [1, 2, 3])
    for options, said in (
        ({"eos_id": 1, "dtype": "uint32"}, "6 bytes are not a whole number of uint32"),
        ({"eos_id": 1, "dtype": "uint16", "vocab_size": 3}, "id 3 is outside the vocabulary of 3"),
        ({"eos_id": 3, "dtype": "uint16", "vocab_size": 3}, "eos_id is 3, outside of the vocabulary of 3"),
        ({"eos_id": 70_000, "dtype": "uint16"}, r"train\.bin: 70000 is no uint16, .*--eos-id"),
        ({"eos_id": 1, "dtype": "float16"}, "dtype is 'float16'; expected one of uint8, uint16"),
        ({"eos_id": 1}, r"train\.bin: begins as no known format, so it holds ids alone; pass their dtype \(--dtype\)"),
        ({"dtype": "uint16"}, r"train\.bin: records not where documents end; .*--eos-id"),
    ):
        with pytest.raises((InputError, UsageError), match=said):
            import_episodes(tmp_path, "tokens", tmp_path / "back", **options)  # type: ignore[arg-type]
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY no array")
    with pytest.raises(InputError, match=r"a\.npy: .*expected an array"):
        import_episodes(tmp_path / "a.npy", "tokens", tmp_path / "back")
    np.save(tmp_path / "a.npy", np.array([0.5]))
    with pytest.raises(InputError, match="expected ids, in rows or not"):
        import_episodes(tmp_path / "a.npy", "tokens", tmp_path / "back")
    (tmp_path / "empty.bin").touch()
    with pytest.raises(InputError, match="no file contains rows"):
        import_episodes(tmp_path / "empty.bin", "tokens", tmp_path / "back", eos_id=1)
    assert not (tmp_path / "back").exists()


def test_ids_are_never_wrapped(tmp_path: Path) -> None:
    """2**32 + 5 as uint32 is 5, a token of every vocabulary."""
    large = np.array([3, 2**32 + 5, 7])
    for dtype in ("<i8", "<u8"):
        np.save(tmp_path / "train.npy", large.astype(dtype))
        for eos_id in (7, NO_ID):
            files = FORMATS["tokens"].open(tmp_path, TokenOptions(eos_id))["train"]
            with pytest.raises(InputError, match=r"train\.npy: id 4294967301; expected ids from 0 to 2\*\*32 - 1"):
                list(files.read())
    large.tofile(tmp_path / "train.bin")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 5, 1, 2)
    (tmp_path / "train.idx").write_bytes(head + struct.pack("<iqqq", 3, 0, 0, 1))
    with pytest.raises(InputError, match=r"train\.idx: id 4294967301; expected ids from 0 to 2\*\*32 - 1"):
        import_episodes(tmp_path, "megatron", tmp_path / "back")


def test_the_command_line(tmp_path: Path) -> None:
    write(tmp_path / "owt" / "train.bin", [5, 6, 1, 7])
    said = run_cli(
        "import", tmp_path / "owt", "--from", "tokens", "--dtype", "uint16", "--eos-id", 1, "--out", tmp_path / "back"
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert ids_in(tmp_path / "back") == [[5, 6, 1], [7]]
    wrong = run_cli("import", tmp_path / "owt", "--from", "tokens", "--dtype", "unit16", "--out", tmp_path / "no")
    assert (wrong.returncode, "did you mean 'uint16'" in wrong.stderr) == (2, True)


def test_every_file_that_is_read_is_an_input(tmp_path: Path) -> None:
    """The manifest names what a dataset was made of: the tokens and masks, not the index alone."""
    export(episodes(tmp_path / "in", random_rows(5), random_rows(3)), "megatron", tmp_path / "out")
    manifest = import_episodes(tmp_path / "out", "megatron", tmp_path / "back")
    listed = [each["name"] for files in manifest["dataset_config"]["inputs"].values() for each in files]
    read_files = {file.name for file in (tmp_path / "out").rglob("*") if file.suffix in (".bin", ".idx")}
    assert sorted(set(listed)) == sorted(read_files)
