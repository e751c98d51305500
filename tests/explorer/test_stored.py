"""Caches and episodes on the page: built for real, seen as a training step sees them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.config import TrainingConfig
from niels_gpt.doctor import diagnose
from niels_gpt.episodes import GPTEpisodeDataLoader
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.dataset import Filter
from niels_gpt.explorer.example_view import view_example
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.explorer.token_columns import HALF
from niels_gpt.explorer.training_rows import Fit
from niels_gpt.samples import chats_file, notes_dir
from tests.conftest import run_cli
from tests.explorer.conftest import report_of
from tests.export.sources import Row, episodes


@pytest.fixture(scope="module")
def built(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with an SFT cache, a pretrain cache and episodes of the samples."""
    place = tmp_path_factory.mktemp("built")
    for kind, given, out in (
        ((), chats_file(), "episodes"),
        (("--kind", "sft"), chats_file(), "sft"),
        (("--kind", "pretrain"), notes_dir(), "pretrain"),
    ):
        done = run_cli("build", *kind, given, "--tokenizer", tokenizer_dir, "--out", place / out)
        assert done.returncode == 0, done.stderr
    return place


def seen(path: Path, tokenizer: Path | None = None, report: dict[str, Any] | None = None) -> Explorer:
    """The explorer on a dataset."""
    renderers = RendererList([] if tokenizer is None else [str(tokenizer)])
    return Explorer(renderers, open_dataset(path, renderers), report)


@pytest.mark.parametrize("kind", ["sft", "episodes", "pretrain"])
def test_rows_are_listed_found_and_shown_whole(
    built: Path, tokenizer_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_gpt.explorer.dataset.SCAN_SECONDS", 600)  # one page, however busy the machine is
    explorer = seen(built / kind, tokenizer_dir)
    assert explorer.session()["dataset"]["splits"] == ["train", "val"]
    rows = explorer.rows(limit=200)["page"]["rows"]
    tables = [explorer.row(row["row"])["table"] for row in rows]
    window = kind == "pretrain"  # its last token is the first of the next
    assert [table["counts"]["total"] - window for table in tables] == [row["size"] for row in rows]
    texts = ["".join(table["texts"]) for table in tables]
    assert all(row["preview"][:40] in text for row, text in zip(rows, texts, strict=True))
    if not window:
        assert [table["modes"][0]["count"] for table in tables] == [row["trained"] for row in rows]
        assert {group["role"] for group in tables[3]["groups"]} >= {"user", "assistant"}
    found = explorer.rows(wanted=Filter(text="WATER"), limit=200)["page"]
    held = [at for at, text in enumerate(texts) if "water" in text.replace("▁", " ").lower()]
    assert held
    assert {row["row"] for row in found["rows"]} <= set(held)
    middle = int(np.median([row["size"] for row in rows]))
    short = explorer.rows(wanted=Filter(max_size=middle), limit=200)["page"]["rows"]
    assert short == [row for row in rows if row["size"] <= middle]
    with pytest.raises(UsageError, match="there is no row 10,000"):
        explorer.row(10_000)
    with pytest.raises(UsageError, match="expected one of train, val"):
        explorer.rows("test")


def test_without_its_tokenizer_ids_are_shown(built: Path) -> None:
    explorer = seen(built / "episodes")
    table = explorer.row(0)["table"]
    assert table["texts"] == [str(token) for token in table["ids"]]
    assert "No tokenizer" in table["note"]
    with pytest.raises(UsageError, match="searching needs text"):
        explorer.rows(wanted=Filter(text="a"))


@pytest.mark.parametrize("kind", ["sft", "episodes"])
@pytest.mark.parametrize(
    "fit", [Fit(512, "drop_partial_turn"), Fit(64, "tail"), Fit(64, "skip", packed=False), Fit(300, packed=False)]
)
def test_as_trained_is_what_the_loader_gives(built: Path, kind: str, fit: Fit) -> None:
    explorer = seen(built / kind)
    loader = GPTEpisodeDataLoader(
        TrainingConfig(batch_size=1, block_size=fit.block_size),
        dataset_dir=built / kind,
        pad_token_id=0,
        epoch_shuffle=False,
        epoch_drop_last=False,
        episode_min_tokens=1,
        packing=fit.packed,
        too_long=fit.too_long,
    )
    batches = list(loader.batches("train"))
    for row in (0, 2, len(batches) - 1):
        answered = explorer.training(fit, start=row, row=row)
        fitted, table, batch = answered["fitted"], answered["table"], batches[row]
        assert fitted["rows"] == len(batches)
        n = batch.num_tokens
        assert table["ids"][:n] == [*batch.x[0].tolist(), int(batch.y[0, -1])][:n]
        assert table["modes"][0]["count"] == batch.num_trained_tokens
        parts = fitted["shown"][0]["parts"]
        assert [part["episode"] for part in parts] == batch.episodes.tolist()
        assert [group["label"] for group in table["groups"]] == [f"episode {part['episode']}" for part in parts]
        room = fitted["shown"][0]["room"]
        assert sum(part["length"] for part in parts) + room == len(table["ids"]) == fit.block_size + 1
        assert table["counts"]["padding"] == room


def test_what_a_fit_costs_is_counted(built: Path) -> None:
    explorer = seen(built / "episodes")
    cut = explorer.training(Fit(64, packed=False), limit=200)["fitted"]
    assert cut["cut"] > 0
    assert cut["lost"] == sum(part["cut"] for row in cut["shown"] for part in row["parts"])
    assert explorer.training(Fit(64, "skip"))["fitted"]["left_out"] == cut["cut"]
    with pytest.raises(CacheError, match="do not fit into rows of 65"):
        explorer.training(Fit(64, "error"))


@pytest.mark.parametrize(("source", "words"), [("pretrain", "one stream of text"), (None, "build one of this file")])
def test_as_trained_is_there_for_examples_alone(built: Path, source: str | None, words: str) -> None:
    explorer = seen(built / source if source else chats_file())
    with pytest.raises(UsageError, match=words):
        explorer.training(Fit(64))
    explorer.close()


def test_damage_of_a_dataset_is_named(built: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    for kind, file in (("sft", "train_tokens.bin"), ("episodes", "train/tokens.bin")):
        shutil.copytree(built / kind, tmp_path / kind)
        explorer = seen(tmp_path / kind, tokenizer_dir)
        (tmp_path / kind / file).write_bytes(b"\xff" * (tmp_path / kind / file).stat().st_size)
        for ask in (explorer.rows, partial(explorer.row, 80)):
            try:
                answered = str(ask())
            except CacheError as error:
                answered = str(error)
            assert "outside the vocabulary" in answered or "not in the vocabulary" in answered


def test_findings_open_in_their_split(tmp_path: Path) -> None:
    """The doctor counts through both splits; the page has rows of one split."""
    train, val = [Row([token, 1], [0, 1]) for token in range(5)], [Row([9, 2], [0, 1])] * 3
    path = episodes(tmp_path / "episodes", train, val)
    explorer = seen(path, report=report_of([0, 4, 5, 7, -1]))
    assert explorer.findings is not None
    places = [(place["split"], place["row"]) for place in explorer.findings["findings"][0]["evidence"]]
    assert places == [("train", 0), ("train", 4), ("val", 0), ("val", 2), ("", -1)]
    listed = {split: explorer.rows(split, finding=0)["page"]["rows"] for split in ("train", "val")}
    assert {split: [row["row"] for row in rows] for split, rows in listed.items()} == {"train": [0, 4], "val": [0, 2]}
    with pytest.raises(UsageError, match="finding is 1; the report has 1 findings"):
        explorer.rows(finding=1)


def test_empty_episodes_keep_the_doctors_numbers(tmp_path: Path) -> None:
    made = [Row([1, 2], [0, 1]), Row([], []), Row([3, 4, 5, 6], [0, 1, 1, 1]), Row([], []), Row([7, 8], [0, 1])]
    path = episodes(tmp_path / "episodes", made)
    found = diagnose(path).finding("empty-row")
    assert found is not None
    explorer = seen(path)
    listed = explorer.rows()["page"]["rows"]
    assert [row["size"] for row in listed] == [2, 0, 4, 0, 2]
    assert [row["row"] for row in listed if row["problem"]] == [place.row for place in found.evidence] == [1, 3]
    assert [explorer.row(row)["table"]["ids"] for row in (0, 2, 4)] == [[1, 2], [3, 4, 5, 6], [7, 8]]
    assert "no tokens" in explorer.row(3)["problem"]
    fitted = explorer.training(Fit(8, packed=False), row=2)
    assert [part["episode"] for row in fitted["fitted"]["shown"] for part in row["parts"]] == [0, 2, 4]
    assert fitted["table"]["ids"][:2] == [7, 8]
    shown = view_example(path, 4)
    assert shown.ids.tolist() == [7, 8]
    assert "episode 4 of 5" in shown.title
    for number, words in ((1, "episode 1 of train has no tokens"), (5, "episodes 0 to 4; no 5")):
        with pytest.raises(UsageError, match=words):
            view_example(path, number)


def test_characters_of_several_tokens_are_found_whole(tmp_path: Path) -> None:
    """Each token of such a character is shown by its bytes."""
    pytest.importorskip("tokenizers")
    from examples.practice_model import write_model

    write_model(tmp_path / "model")
    (tmp_path / "chats.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "Où écrire 🦄?"}, {"role": "assistant", "content": "Là."}]}\n'
    )
    options = ("--tokenizer", tmp_path / "model", "--out", tmp_path / "built", "--val-frac", "0")
    done = run_cli("build", tmp_path / "chats.jsonl", *options)
    assert done.returncode == 0, done.stderr
    explorer = seen(tmp_path / "built", tmp_path / "model")
    (row,) = explorer.rows(wanted=Filter(text="écrire 🦄"))["page"]["rows"]
    assert "Où écrire 🦄?" in row["preview"]
    table = explorer.row(0)["table"]
    facts: list[int] = []  # of each token
    for stop, _, run in table["runs"]:
        facts += [run] * (stop - len(facts))
    halves = [text for text, of in zip(table["texts"], facts, strict=True) if of & HALF]
    assert " \\xf0\\x9f" in halves
    assert "�" not in "".join(table["texts"])
