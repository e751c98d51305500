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
from tests.conftest import run_cli
from tests.doctor.made import Sample, chats, rows, samples
from tests.doctor.planted_tokens import (
    cut,
    cut_in_front,
    each,
    forge,
    header_without_white_space,
    of_another_format,
)
from tests.export.sources import Row, episodes
from tests.renderers.tiny_families import folder_of, renderer_of

FAMILY = "qwen2.5"


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


@pytest.mark.parametrize("form", ["megatron", "hf"])
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


def test_megatrons_files_are_judged_split_by_split(tmp_path: Path) -> None:
    export(made(tmp_path / "in", wrong=True), "megatron", tmp_path / "out")
    index = next(file for file in sorted((tmp_path / "out").glob("*.idx")) if not file.stem.endswith("_mask"))
    done = run_cli("doctor", index.with_suffix(""), "--tokenizer", folder_of(FAMILY), "--renderer", FAMILY)
    assert (done.returncode, "eot-not-trained" in done.stdout) == (1, True)
    assert judged(tmp_path / "out", split="val").rows == 2
    with pytest.raises(UsageError, match="no split 'test'"):
        judged(tmp_path / "out", split="test")
    with pytest.raises(UsageError, match="build this dataset again"):
        judged(tmp_path / "out", fix=tmp_path / "x.jsonl")
    index.write_bytes(index.read_bytes()[:50])
    with pytest.raises(InputError, match="it is cut"):
        judged(tmp_path / "out")


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("name", ["train.bin", "llmc.bin", "rows.npy"])
def test_streams_are_cut_at_the_end_of_text(name: str, dtype: str, tmp_path: Path) -> None:
    """Not at the eos, which ends the turns of this tokenizer; whatever ids the file could hold."""
    encoder = renderer_of(FAMILY).encoder
    assert encoder.special_tokens["eos_token"] == "<|im_end|>"
    end = encoder.added_ids["<|endoftext|>"]
    ids = np.array([token for sample in samples(FAMILY) for token in (*sample.ids, end)], dtype=dtype)
    if name == "rows.npy":
        np.save(tmp_path / name, ids)
    else:
        version = 1 if dtype == "uint16" else 7
        header = [20240520 if version == 1 else 20240801, version, len(ids)] + [0] * 253 if name == "llmc.bin" else []
        (tmp_path / name).write_bytes(np.array(header, dtype="<i4").tobytes() + ids.tobytes())
    report = judged(tmp_path / name)
    assert (report.rows, report.tokens, report.source["form"]) == (8, len(ids), "tokens")
    assert "mask-missing" in report.rules()
    assert "id-out-of-range" not in report.rules()


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
        (each(cut), "truncated-mid-turn"),
        (each(cut_in_front), "begins-mid-turn"),
        (header_without_white_space, "header-drift"),
        (each(forge), "special-tokens-in-content"),
        (of_another_format, "other-format"),
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
