"""What goes wrong: killed exports, damaged sources, calls that cannot work. Nothing half-written remains."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.errors import CacheError, MissingExtra, OutputExists, UsageError
from niels_gpt.export import FORMATS, export
from niels_gpt.export.preferences import PREFERENCE_FORMATS
from niels_gpt.export.registry import format_named
from niels_gpt.export.run import recorded_choices
from niels_gpt.progress import Progress
from tests.conftest import REPOSITORY, run_cli
from tests.episodes.made import write_shard
from tests.export.sources import Row, as_written, episodes, pretrain_cache, random_rows, sft_cache


def test_a_damaged_source_is_named(tmp_path: Path) -> None:
    """With a limit the checksums are not compared, and the rows that are read are checked."""
    source = episodes(tmp_path / "in", [Row([1, 2, 3], [0, 1, 1]), Row([4, 5], [0, 1])], gap=0)
    np.array([1, 2, 3, 4, 999], dtype="<u4").tofile(source / "train" / "tokens.bin")
    with pytest.raises(CacheError, match=r"record 1: id 999 is outside the vocabulary of 300"):
        export(source, "hf", tmp_path / "out", limit=2)
    np.array([1, 2, 3, 4, 5], dtype="<u4").tofile(source / "train" / "tokens.bin")
    (source / "train" / "mask.bin").write_bytes(b"\0\1\1\0\7")
    with pytest.raises(CacheError, match=r"record 1: mask 7; expected 0 or 1"):
        export(source, "hf", tmp_path / "out", limit=2)
    assert not (tmp_path / "out").exists()


def test_a_changed_byte_of_the_source_is_found(tmp_path: Path) -> None:
    """The export has checksums of its own, with which the damaged ids looked as they were written."""
    source, _ = sft_cache(tmp_path / "in")
    tokens = source / "train_tokens.bin"
    data = bytearray(tokens.read_bytes())
    data[-2] ^= 1
    tokens.write_bytes(data)
    with pytest.raises(CacheError, match=r"train_tokens\.bin: damaged: its sha256 is"):
        export(source, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export(source, "hf", tmp_path / "out", limit=1)  # reads the beginning alone, so the bytes are not compared


def test_masks_of_two_kinds(tmp_path: Path) -> None:
    """Read together as float32, a 7 in the mask of 0 and 1 would be a weight."""
    write_shard(tmp_path / "train" / "shard_00000", [1, 2], [(0, 2)], mask=[0, 7])
    write_shard(tmp_path / "train" / "shard_00001", [3, 4], [(0, 2)], mask=[0, 0.5], mask_dtype="<f4")
    with pytest.raises(CacheError, match="7"):
        export(tmp_path, "hf", tmp_path / "out")


def test_nothing_is_left(tmp_path: Path) -> None:
    source = episodes(tmp_path / "in", [Row([1, 2, 3], [0, 1, 1])])
    for packing in (False, True):
        with pytest.raises(UsageError, match="no row of train is left"):
            export(source, "hf", tmp_path / "out", max_length=2, too_long="skip", packing=packing)


def test_calls_that_cannot_work(tmp_path: Path) -> None:
    source, _ = sft_cache(tmp_path / "in")
    for arguments, message in (
        ({"to": "megatron-brige"}, "did you mean 'megatron-bridge'"),
        ({"to": "hf", "assistant_mask": True}, "did you mean 'assistant_masks'"),
        ({"to": "hf", "packing": True}, "packing without max_length"),
        ({"to": "hf", "limit": 0}, "limit is 0"),
        ({"to": "hf", "too_long": "heads"}, "did you mean 'head'"),
        ({"to": "hf", "split": "test"}, "split is 'test'"),
        ({"to": "hf", "assistant_masks": "no"}, "assistant_masks is 'no'; expected true or false"),
        ({"to": "trl-dpo", "pairs": "worst"}, "pairs is 'worst'; expected one of best_worst"),
    ):
        with pytest.raises(UsageError, match=message):
            export(source, out=tmp_path / "out", **arguments)  # type: ignore[arg-type]
    with pytest.raises(CacheError, match="no finished cache and no episodes"):
        export(tmp_path, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Unused(Progress):
    """Fails at the first step of any work."""

    def begin(self, what: str, *, total: int | None = None, unit: str = "") -> None:
        raise AssertionError(what)


@pytest.mark.parametrize("name", [*FORMATS, *PREFERENCE_FORMATS])
def test_a_missing_library_is_found_before_any_work(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`recorded_choices` is what a recipe calls before it builds."""
    source, _ = sft_cache(tmp_path / "in")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    if format_named(name).library is None:
        export(source, name, tmp_path / "out")
        return
    for call in (lambda: export(source, name, tmp_path / "out", progress=Unused()), lambda: recorded_choices(name)):
        with pytest.raises(MissingExtra, match=r"needs pyarrow.*pip install 'niels-gpt\[hub\]'"):
            call()
    assert not (tmp_path / "out").exists()


def test_what_can_be_refused_early_is_refused_before_any_work(tmp_path: Path) -> None:
    """The val split is written last, perhaps after hours; the source's bytes are compared first, which takes long."""
    short, long = Row([1, 2], [0, 1]), Row([1, 2, 3, 4], [0, 1, 1, 1])
    source, out = episodes(tmp_path / "in", [short], [long]), tmp_path / "out"
    for options, message in (
        ({"max_length": 3}, "row 0 of val has 4 tokens"),
        ({"max_length": 3, "too_long": "skip"}, "no row of val is left"),
        ({"to": "megatron-bridge", "pad_multiple": 2, "pad_id": 300}, "pad_id is 300"),
    ):
        with pytest.raises(UsageError, match=message):
            export(source, out=out, progress=Unused(), **{"to": "hf", **options})  # type: ignore[arg-type]
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(OutputExists):
        export(source, "megatron", out, progress=Unused())
    cache, _ = pretrain_cache(tmp_path / "cache")
    with pytest.raises(UsageError, match="exported document by document"):
        export(cache, "hf", tmp_path / "other", max_length=4, progress=Unused())


def test_packing_where_a_format_has_no_texts_in_rows(tmp_path: Path) -> None:
    source, _ = sft_cache(tmp_path / "in")
    with pytest.raises(UsageError, match="megatron has no rows of several texts"):
        export(source, "megatron", tmp_path / "out", packing=True, max_length=64)


def test_the_command_line(tmp_path: Path) -> None:
    source = episodes(tmp_path / "in", random_rows(40))
    done = run_cli("export", source, "--to", "trl", "--packing", "--sequence-length", 64, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "padding_free=True" in done.stdout
    assert "SFTConfig" in (tmp_path / "out" / "README.md").read_text()
    told = run_cli("export", source, "--to", "megatron", "--limit", 3, "--json", "--out", tmp_path / "megatron")
    assert json.loads(told.stdout)["splits"]["train"]["rows"] == 3
    back = run_cli("import", tmp_path / "megatron", "--from", "megatron", "--out", tmp_path / "back", "--json")
    assert json.loads(back.stdout)["splits"]["train"]["episodes"] == 3
    wrong = run_cli("export", source, "--to", "hff", "--out", tmp_path / "no")
    assert wrong.returncode == 2
    assert "did you mean 'hf'?" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_the_page_on_adding_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs" / "add_an_export.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)[0], "docs/add_an_export.md", "exec"), names)
    monkeypatch.setitem(FORMATS, "ndjson", names["NDJSON"])
    rows = random_rows(30, weighted=True)
    manifest = export(episodes(tmp_path / "in", rows, mask_dtype="<f4"), "ndjson", tmp_path / "out")
    found = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert [(row["input_ids"], row["loss_weights"]) for row in found] == as_written(rows)
    assert (manifest["mask"], manifest["use"]) == ("weights", ["loss_weights are aligned with input_ids, not shifted."])
