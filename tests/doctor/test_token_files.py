"""The doctor reads the token files of other programs, and finds what was planted in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("pyarrow")

from niels_gpt.doctor import diagnose
from niels_gpt.errors import InputError, UsageError
from niels_gpt.export import export
from niels_gpt.inputs.token_files import TokenFiles
from tests.conftest import run_cli
from tests.doctor import planted_tokens
from tests.doctor.made import Sample, chats, rows, samples
from tests.export.sources import Row, episodes
from tests.renderers.tiny_families import folder_of, renderer_of

FAMILY = "qwen2.5"
WITH_MASKS = ("megatron", "hf", "trl")


@pytest.fixture(autouse=True)
def _vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.export.sources.VOCABULARY", 600)


def made(folder: Path, *, wrong: bool = False) -> Path:
    """Episodes of conversations; planted: the end-of-turn is not trained."""
    given = samples(FAMILY)
    for sample in given if wrong else ():
        for stop in sample.stops:
            sample.trained[stop] = False
    rows = [Row(sample.ids, [int(trained) for trained in sample.trained]) for sample in given]
    return episodes(folder, rows, rows[:2])


def judged(path: Path, **more: Any) -> Any:
    return diagnose(path, renderer=renderer_of(FAMILY), **more)


@pytest.mark.parametrize("form", WITH_MASKS)
def test_masks_are_judged(form: str, tmp_path: Path) -> None:
    for name, wrong in (("good", False), ("bad", True)):
        export(made(tmp_path / name, wrong=wrong), form, tmp_path / f"{name}-out")
    clean, found = judged(tmp_path / "good-out"), judged(tmp_path / "bad-out")
    # The rows of validation are copies of two rows; files of one directory have no splits to compare.
    assert clean.rules("error") == []
    assert found.rules("error") == ["eot-not-trained"]
    assert found.finding("eot-not-trained").rows == found.rows == 10
    assert judged(tmp_path / "bad-out", workers=2).to_json() == found.to_json()
    assert judged(tmp_path / "bad-out", sample=3).rows == 3


@pytest.mark.parametrize("name", ["train.bin", "llmc.bin", "train.npy"])
def test_streams_are_cut_at_the_end_of_text(name: str, tmp_path: Path) -> None:
    eos = renderer_of(FAMILY).encoder.added_ids["<|im_end|>"]
    ids = np.array([token for sample in samples(FAMILY) for token in sample.ids], dtype="<u2")
    if name == "train.npy":
        np.save(tmp_path / name, ids)
    else:
        header = [20240520, 1, len(ids)] + [0] * 253 if name == "llmc.bin" else []
        (tmp_path / name).write_bytes(np.array(header, dtype="<i4").tobytes() + ids.tobytes())
    report = judged(tmp_path / name)
    ends = sum(sample.ids.count(eos) for sample in samples(FAMILY))
    # The tiny tokenizer's eos is the end-of-turn, so each turn is a document.
    assert report.rows >= ends
    assert report.tokens == len(ids)
    assert report.source["form"] == "tokens"
    assert "mask-missing" in report.rules()
    assert diagnose(tmp_path).rows == 1


def test_masks_beside_ids_are_not_taken_for_ids(tmp_path: Path) -> None:
    ids = np.arange(70_000, 70_040, dtype="<u4")
    ids.tofile(tmp_path / "token_ids_part_0000.npy")
    np.ones(len(ids), dtype=np.bool_).tofile(tmp_path / "labels_mask_part_0000.npy")
    with pytest.raises(InputError, match=r"labels_mask_part_0000\.npy: a mask by its name"):
        judged(tmp_path)
    files = TokenFiles(tmp_path / "token_ids_part_0000.npy", "tokens")
    (read,) = (part for split in files.splits().values() for part in split.read())
    assert read.ids.tolist() == ids.tolist()


def test_arrays_of_rows(tmp_path: Path) -> None:
    width = min(len(sample.ids) for sample in samples(FAMILY))
    np.save(tmp_path / "rows.npy", np.array([sample.ids[:width] for sample in samples(FAMILY)], dtype=np.uint16))
    report = judged(tmp_path / "rows.npy")
    assert (report.rows, report.source["form"]) == (8, "tokens")
    np.save(tmp_path / "rows.npy", np.full((2, 5), 60_000, dtype=np.uint16))
    assert "id-out-of-range" in judged(tmp_path / "rows.npy").rules("error")


def test_splits_and_faults(tmp_path: Path) -> None:
    export(made(tmp_path / "in"), "megatron", tmp_path / "out")
    assert judged(tmp_path / "out", split="val").rows == 2
    with pytest.raises(UsageError, match="no split 'test'"):
        judged(tmp_path / "out", split="test")
    with pytest.raises(UsageError, match="build this dataset again"):
        judged(tmp_path / "out", fix=tmp_path / "x.jsonl")
    index = next((tmp_path / "out").glob("*.idx"))
    index.write_bytes(index.read_bytes()[:50])
    with pytest.raises(InputError, match="it is cut"):
        judged(tmp_path / "out")


def test_the_command_reads_them(tmp_path: Path) -> None:
    export(made(tmp_path / "in", wrong=True), "megatron", tmp_path / "out")
    done = run_cli("doctor", tmp_path / "out", "--tokenizer", folder_of(FAMILY), "--renderer", FAMILY)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"{tmp_path / 'out'} train row 0" in done.stdout


def stream(end: int, dtype: str) -> np.ndarray[Any, Any]:
    ids = [token for sample in samples(FAMILY) for token in (*sample.ids, end)]
    return np.array(ids).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("name", ["train.bin", "part-0-00000.npy"])
def test_ids_without_a_header_are_read_by_their_first_ids(name: str, dtype: str, tmp_path: Path) -> None:
    """Whatever the vocabulary: it may be larger than what the file can hold, which is a finding of its own."""
    ids = stream(renderer_of(FAMILY).encoder.added_ids["<|endoftext|>"], dtype)
    ids = ids[: len(ids) // 2 * 2]  # both dtypes have a multiple of four bytes
    ids.tofile(tmp_path / name)
    for path in (tmp_path, tmp_path / name):
        report = judged(path)
        assert (report.rows, report.tokens, report.source["form"]) == (8, len(ids), "tokens")
        assert "id-out-of-range" not in report.rules()


def test_documents_end_at_the_end_of_text_where_eos_ends_turns(tmp_path: Path) -> None:
    encoder = renderer_of(FAMILY).encoder
    assert encoder.special_tokens["eos_token"] == "<|im_end|>"
    np.save(tmp_path / "rows.npy", stream(encoder.added_ids["<|endoftext|>"], "uint32"))
    assert judged(tmp_path / "rows.npy").rows == 8


def planted_stream(plant: Any, n: int, each: int, target: Path) -> Path:
    """A stream of texts without masks, the bug in each so many of them."""
    given = samples(FAMILY, chats(n))
    end = renderer_of(FAMILY).encoder.added_ids["<|endoftext|>"]
    ids = [
        token
        for number, sample in enumerate(given)
        for row in (plant(FAMILY, [sample]) if number % each == 0 else [sample.row()])
        for token in (*row["input_ids"], end)
    ]
    np.array(ids, dtype="<u2").tofile(target)
    return target


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (planted_tokens.cut, "truncated-mid-turn"),
        (planted_tokens.cut_in_front, "begins-mid-turn"),
        (planted_tokens.header_without_white_space, "header-drift"),
        (planted_tokens.forged, "special-tokens-in-content"),
        (planted_tokens.of_another_format, "other-format"),
    ],
)
@pytest.mark.parametrize("each", [10, 50])
def test_bugs_in_a_part_of_a_stream_without_masks(plant: Any, rule: str, each: int, tmp_path: Path) -> None:
    report = judged(planted_stream(plant, 2 * each, each, tmp_path / "train.bin"))
    assert report.rules("warning") == [rule, *(["duplicate-row"] if rule == "other-format" else []), "mask-missing"]
    assert report.finding(rule).rows == 2


def test_a_separator_instead_of_every_end_of_turn_is_a_wrong_end(tmp_path: Path) -> None:
    def replaced(family: str, given: list[Sample]) -> Any:
        for sample in given:
            del sample.ids[sample.stops[-1] :], sample.trained[sample.stops[-1] :]
        return rows(given)

    assert "wrong-end-of-turn" in judged(planted_stream(replaced, 20, 1, tmp_path / "train.bin")).rules("error")


def test_plain_text_among_conversations_of_a_stream_is_in_order(tmp_path: Path) -> None:
    encoder = renderer_of(FAMILY).encoder

    def text(family: str, given: list[Sample]) -> Any:
        ids, _ = encoder.encode_pieces([f"The lamp number {len(given[0].ids)} hangs low."], [False])
        return [{"input_ids": [int(token) for token in ids]}]

    report = judged(planted_stream(text, 20, 10, tmp_path / "train.bin"))
    assert "other-format" not in report.rules()


def test_megatrons_files_may_be_named_without_their_suffixes(tmp_path: Path) -> None:
    export(made(tmp_path / "in", wrong=True), "megatron", tmp_path / "out")
    index = next(file for file in sorted((tmp_path / "out").glob("*.idx")) if not file.stem.endswith("_mask"))
    done = run_cli("doctor", index.with_suffix(""), "--tokenizer", folder_of(FAMILY), "--renderer", FAMILY)
    assert done.returncode == 1
    assert "eot-not-trained" in done.stdout


def test_a_stream_without_ends_is_read_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a tokenizer nothing says where documents end; windows are cut alike whatever the portions."""
    np.arange(20_000).astype("uint16").tofile(tmp_path / "train.bin")
    whole = diagnose(tmp_path).to_json()
    monkeypatch.setattr("niels_gpt.inputs.arrays.PORTION_TOKENS", 8192)
    files = TokenFiles(tmp_path / "train.bin", "tokens").splits()["train"]
    assert max(len(rows.ids) for rows in files.read()) == 8192
    assert diagnose(tmp_path).to_json() == whole
    assert whole["rows"] == 5
