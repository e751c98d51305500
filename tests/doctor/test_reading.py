"""Every kind of input, the same rows in each; slices, samples, workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("pyarrow")

from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.doctor import diagnose
from niels_gpt.doctor import examine as pool
from niels_gpt.episodes import build_episodes
from niels_gpt.errors import InputError, UsageError
from niels_gpt.export import export
from niels_gpt.inputs.opened import open_input
from niels_gpt.inputs.parts import SLICE_ROWS
from niels_gpt.samples import chats_file
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.doctor.made import Row, as_rows, chats, rows, samples
from tests.renderers.tiny_families import folder_of, renderer_of


def broken_rows() -> list[Row]:
    """Rows of ids with a few things wrong."""
    made = rows(samples("chatml", chats(40)))
    made[3]["labels"] = [-100] * len(made[3]["labels"])
    made[7]["input_ids"][5] = 10_000
    made[20]["labels"] = made[20]["labels"][:-1]
    made[30] = {"input_ids": [], "labels": []}
    made.append(made[5])
    return made


def as_jsonl(made: list[Row], folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def as_json(made: list[Row], folder: Path) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps(made))
    return path


def as_parquet(made: list[Row], folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet

    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(made), path, row_group_size=7)
    return path


def as_tensors(made: list[Row], _: Path) -> list[dict[str, Any]]:
    """As a dataset with `with_format("torch")` gives them."""
    torch = pytest.importorskip("torch")
    return [{name: torch.tensor(values) for name, values in row.items()} for row in made]


FORMS: tuple[Callable[[list[Row], Path], Any], ...] = (as_jsonl, as_json, as_parquet, as_tensors, lambda made, _: made)


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_ids_are_judged_alike_however_they_are_stored(
    form: Callable[[list[Row], Path], Any], tmp_path: Path
) -> None:
    report = diagnose(form(broken_rows(), tmp_path), renderer=renderer_of("chatml"))
    found = {finding.rule: [evidence.row for evidence in finding.evidence] for finding in report.findings}
    assert found == {
        "mask-all-zero": [3],
        "id-out-of-range": [7],
        "unusable-row": [20],
        "empty-row": [30],
        "duplicate-row": [40],
    }
    assert report.rows == 41
    assert report.source["kind"] == "tokens"


@pytest.mark.parametrize("form", [as_jsonl, as_parquet])
def test_rows_without_a_mask_are_found_alone_and_in_whole_slices(
    form: Callable[[list[Row], Path], Any], tmp_path: Path
) -> None:
    made = rows(samples("chatml", chats(600)))
    for row in (made[3], *made[200:580]):
        row["labels"] = None
    report = diagnose(form(made, tmp_path), renderer=renderer_of("chatml"), fix=tmp_path / "out.jsonl")
    assert report.rules("warning") == ["mask-missing"]
    found = report.finding("mask-missing")
    assert found is not None
    assert found.rows == 381
    assert [evidence.row for evidence in found.evidence] == [3, 200, 201, 202, 203]
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == rows(samples("chatml", chats(600)))


def test_files_that_are_passed_over_are_in_the_report(tmp_path: Path) -> None:
    path = as_jsonl(as_rows(chats(2)), tmp_path)
    (tmp_path / ".hidden.jsonl").write_bytes(path.read_bytes())
    (tmp_path / "copy.jsonl").hardlink_to(path)
    (tmp_path / "empty.jsonl").touch()
    report = diagnose(tmp_path)
    assert report.rows == 2
    assert report.to_json()["source"]["passed_over"] == {"hidden": 1, "the same file": 1, "empty": 1}


@pytest.mark.parametrize(
    "form", [as_jsonl, as_json, as_parquet, lambda made, _: made, lambda made, _: [row["messages"] for row in made]]
)
def test_conversations_are_judged_alike_however_they_are_stored(form: Any, tmp_path: Path) -> None:
    made = as_rows(chats(12))
    made[4]["messages"][1]["content"] = ""
    report = diagnose(form(made, tmp_path), renderer=renderer_of("chatml"))
    finding = report.finding("empty-answer")
    assert finding is not None
    assert [(evidence.row, evidence.message) for evidence in finding.evidence] == [(4, 1)]
    assert report.rules("warning") == ["empty-answer"]


def test_a_cache_of_plain_text_is_refused(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    limits: dict[str, Any] = {"max_train_tokens": 1 << 20, "max_val_tokens": 0, "shard_bytes": 1 << 20}
    cache = str(tmp_path / "cache")
    build_pretrain_cache(["the fox"], cache, tokenizer=tokenizer, seed=1, shuffle_buffer=None, **limits)
    with pytest.raises(InputError, match="neither turns nor masks to examine; `niels-gpt verify` checks"):
        diagnose(cache)


@pytest.mark.parametrize("kind", ["chats", "tokens"])
def test_the_report_is_the_same_whatever_the_number_of_workers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SECONDS_BEFORE_WORKERS", 0.0)
    n = 2 * SLICE_ROWS + 50
    made = as_rows(chats(n)) if kind == "chats" else rows(samples("chatml", chats(n)))
    for number in range(0, n, 37):
        if kind == "chats":
            made[number]["messages"][1]["content"] = ""
        else:
            made[number]["labels"] = made[number]["input_ids"]
    made += made[:3]
    path = (as_jsonl if kind == "chats" else as_parquet)(made, tmp_path)
    one, two = (diagnose(path, tokenizer=folder_of("chatml"), renderer="chatml", workers=w) for w in (1, 2))
    assert json.dumps(one.to_json()) == json.dumps(two.to_json())
    assert {"duplicate-row", "empty-answer" if kind == "chats" else "mask-all-one"} <= set(one.rules())


def test_labels_of_every_kind_are_told_apart(tmp_path: Path) -> None:
    """No numbers are unusable, none are a missing mask, and a column that no row fills is no mask."""
    made = rows(samples("chatml", chats(20)))
    made[3]["labels"] = "none"
    del made[4]["labels"]
    report = diagnose(made, renderer=renderer_of("chatml"))
    found = {finding.rule: [evidence.row for evidence in finding.evidence] for finding in report.findings}
    assert found == {"unusable-row": [3], "mask-missing": [4]}
    bare = [row | {"labels": []} for row in rows(samples("chatml"))]
    assert diagnose(as_parquet(bare, tmp_path), renderer=renderer_of("chatml")).rules("warning") == ["mask-missing"]


@pytest.mark.parametrize("kind", ["chats", "tokens"])
def test_a_broken_line_is_one_finding_with_its_line(kind: str, tmp_path: Path) -> None:
    path = as_jsonl(as_rows(chats(3)) if kind == "chats" else rows(samples("chatml", chats(3))), tmp_path)
    path.write_text(path.read_text() + "\n{broken\n")
    report = diagnose(path, renderer=renderer_of("chatml"))
    finding = report.finding("unusable-row")
    assert finding is not None
    assert (finding.count, finding.evidence[0].row, finding.evidence[0].where) == (1, 3, f"{path}:5")
    assert report.rules("warning") == ["unusable-row"]


@pytest.mark.parametrize("form", [as_jsonl, as_json, as_parquet, lambda made, _: made])
def test_a_sample_is_drawn_by_its_seed_and_keeps_row_numbers(form: Any, tmp_path: Path) -> None:
    source = form(broken_rows(), tmp_path)
    drawn = [np.concatenate([part for part, _ in open_input(source).slices(10, seed)]).tolist() for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] == sorted(drawn[0]) != drawn[2]
    report = diagnose(source, renderer=renderer_of("chatml"), sample=30, seed=3)
    assert report.rows == 30
    wrong = {"mask-all-zero": 3, "id-out-of-range": 7, "unusable-row": 20, "empty-row": 30}
    for finding in report.findings:
        assert all(evidence.row == wrong.get(finding.rule, evidence.row) for evidence in finding.evidence)
    with pytest.raises(UsageError, match="at least 1"):
        diagnose(source, sample=0)


def test_datasets_of_ours_and_their_exports_are_clean(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Examples need no tokenizer, episodes their renderer; what an export writes beside its data is no data."""
    given = list(chat_files([chats_file()]).iterate())
    build_sft_cache(given, str(tmp_path / "cache"), tokenizer=tokenizer, val_frac=0.1, seed=1)
    renderer = renderer_of("qwen2.5")
    build_episodes(given, tmp_path / "episodes", encoder=as_encoder(renderer), val_frac=0.0)
    export(tmp_path / "episodes", "trl", tmp_path / "out")
    for path, options in (("cache", {"max_length": 40}), ("episodes", {"renderer": renderer}), ("out", {})):
        report = diagnose(tmp_path / path, **options)  # type: ignore[arg-type]
        assert (report.rules("error"), report.rows) == ([], 100)
        assert report.finding("format-not-understood") is None
        if path == "cache":
            finding = report.finding("over-long")
            assert finding is not None
            assert set(finding.details["policies"]) == {"head", "tail", "drop_partial_turn", "skip"}
