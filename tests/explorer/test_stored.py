"""Caches and episodes in the explorer: built for real, seen as a training step sees them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.errors import InputError
from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.explorer.token_columns import HALF
from niels_gpt.samples import chats_file, notes_dir
from tests.conftest import run_cli
from tests.explorer.conftest import client_of


@pytest.fixture(scope="module")
def built(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with an SFT cache, a pretrain cache and episodes of the samples."""
    place = tmp_path_factory.mktemp("built")
    chats, notes = chats_file(), notes_dir()
    for kind, given, out in (
        (("build",), chats, "episodes"),
        (("build", "--kind", "sft"), chats, "sft"),
        (("build", "--kind", "pretrain"), notes, "pretrain"),
    ):
        done = run_cli(*kind, given, "--tokenizer", tokenizer_dir, "--out", place / out)
        assert done.returncode == 0, done.stderr
    return place


def seen(built: Path, tokenizer_dir: Path | None, kind: str) -> Any:
    """A client of a server on one of them."""
    renderers = RendererList([] if tokenizer_dir is None else [str(tokenizer_dir)])
    return client_of(Explorer(renderers, open_dataset(built / kind, renderers)))


@pytest.mark.parametrize("kind", ["sft", "episodes"])
def test_rows_of_examples(built: Path, tokenizer_dir: Path, kind: str) -> None:
    with seen(built, tokenizer_dir, kind) as client:
        about = client.session()["dataset"]
        assert about["kind"] == kind
        assert about["splits"] == ["train", "val"]
        rows = client.ask("/api/rows", {"limit": 200})["page"]["rows"]
        assert len(rows) == about["rows"]
        detail = client.ask("/api/row", {"row": 3})["table"]
        real = detail["counts"]["total"]
        assert real == rows[3]["size"]
        assert detail["modes"][0]["count"] == rows[3]["trained"]
        assert {group["role"] for group in detail["groups"]} >= {"user", "assistant"}
        assert rows[3]["preview"][:40] in "".join(detail["texts"])
        assert "there is no row" in client.ask("/api/row", {"row": 10_000}, 404)["error"]
        assert "expected one of train, val" in client.ask("/api/rows", {"split": "test"}, 400)["error"]
        val = client.ask("/api/rows", {"split": "val"})["page"]["rows"]
        assert 0 < len(val) < len(rows)


@pytest.mark.parametrize("kind", ["sft", "episodes", "pretrain"])
def test_search_and_sizes(built: Path, tokenizer_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_gpt.explorer.dataset.SCAN_SECONDS", 600)  # one page, however busy the machine is
    with seen(built, tokenizer_dir, kind) as client:
        found = client.ask("/api/rows", {"text": "WATER", "limit": 200})["page"]
        everything = client.ask("/api/rows", {"limit": 200})["page"]["rows"]
        assert found["next"] is None
        texts = ["".join(client.ask("/api/row", {"row": row["row"]})["table"]["texts"]) for row in everything]
        held = [at for at, text in enumerate(texts) if "water" in text.replace("▁", " ").lower()]
        assert {row["row"] for row in found["rows"]} <= set(held)
        assert held
        sizes = [row["size"] for row in everything]
        middle = int(np.median(sizes))
        short = client.ask("/api/rows", {"max_size": middle, "limit": 200})["page"]["rows"]
        assert [row["row"] for row in short] == [at for at, size in enumerate(sizes) if size <= middle]


def test_ids_without_a_tokenizer(built: Path, tmp_path: Path) -> None:
    with seen(built, None, "episodes") as client:
        table = client.ask("/api/row", {"row": 0})["table"]
        assert table["texts"] == [str(token) for token in table["ids"]]
        assert "No tokenizer" in table["note"]
        assert "searching needs text" in client.ask("/api/rows", {"text": "a"}, 400)["error"]


def test_as_trained_is_what_the_loader_gives(built: Path, tokenizer_dir: Path) -> None:
    from niels_gpt.config import TrainingConfig
    from niels_gpt.episodes import GPTEpisodeDataLoader

    with seen(built, tokenizer_dir, "episodes") as client:
        asked = {"block_size": 512, "packed": True, "row": 2, "too_long": "drop_partial_turn"}
        told = client.ask("/api/training", asked)
        loader = GPTEpisodeDataLoader(
            TrainingConfig(batch_size=1, block_size=512),
            dataset_dir=built / "episodes",
            pad_token_id=0,
            epoch_shuffle=False,
            epoch_drop_last=False,
            packing=True,
            too_long="drop_partial_turn",
        )
        batch = list(loader.batches("train"))[2]
        assert told["fitted"]["rows"] == loader.steps_per_epoch("train")
        table = told["table"]
        n = min(batch.num_tokens, 512)
        assert table["ids"][:n] == batch.x[0, :n].tolist()
        assert table["modes"][0]["count"] == batch.num_trained_tokens
        parts = told["fitted"]["shown"][2]["parts"]
        assert [part["episode"] for part in parts] == batch.episodes.tolist()
        assert [group["label"] for group in table["groups"]] == [f"episode {part['episode']}" for part in parts]
        assert sum(part["length"] for part in parts) + told["fitted"]["shown"][2]["room"] == 513
        cut = client.ask("/api/training", {"block_size": 64, "packed": False})["fitted"]
        assert cut["cut"] > 0
        assert cut["lost"] == sum(part["cut"] for row in _all(client, cut["rows"]) for part in row["parts"])
        skipped = client.ask("/api/training", {"block_size": 64, "too_long": "skip"})["fitted"]
        assert skipped["left_out"] == cut["cut"]
        assert "expected one of head" in client.ask("/api/training", {"block_size": 64, "too_long": "x"}, 400)["error"]
        assert "expected 1 to" in client.ask("/api/training", {"block_size": 0}, 400)["error"]


def _all(client: Any, rows: int) -> list[Any]:
    asked = {"block_size": 64, "packed": False, "limit": 200}
    return [
        row
        for at in range(0, rows, 200)
        for row in client.ask("/api/training", {**asked, "start": at})["fitted"]["shown"]
    ]


def test_a_cache_of_examples_as_trained(built: Path, tokenizer_dir: Path) -> None:
    """Not packed, a row is what the cache's own loader gives: the beginning of an example, and padding."""
    index = np.load(built / "sft" / "train_idx.npy")
    ids = np.fromfile(built / "sft" / "train_tokens.bin", "<u2")
    with seen(built, tokenizer_dir, "sft") as client:
        told = client.ask("/api/training", {"block_size": 64, "packed": False, "row": 3, "start": 3})
        assert told["fitted"]["rows"] == len(index)
        length = min(64, int(index[4] - index[3]))
        assert told["table"]["ids"][:length] == ids[index[3] : index[3] + length].tolist()
        assert [part["episode"] for part in told["fitted"]["shown"][0]["parts"]] == [3]
        packed = client.ask("/api/training", {"block_size": 512, "packed": True})["fitted"]
        assert packed["rows"] < packed["episodes"] == len(index)


def test_a_stream_has_no_rows_to_pack(built: Path, tokenizer_dir: Path) -> None:
    with seen(built, tokenizer_dir, "pretrain") as client:
        assert "one stream of text" in client.ask("/api/training", {"block_size": 64}, 400)["error"]


def test_chats_as_trained_are_built_first(tokenizer_dir: Path) -> None:
    renderers = RendererList([str(tokenizer_dir)])
    with client_of(Explorer(renderers, open_dataset(chats_file(), renderers))) as client:
        assert "build one of this file" in client.ask("/api/training", {"block_size": 64}, 400)["error"]


def test_a_directory_that_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file there ends in .jsonl"):
        open_dataset(tmp_path, RendererList())


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _no_ids(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize(("kind", "file"), [("sft", "train_tokens.bin"), ("episodes", "train/tokens.bin")])
@pytest.mark.parametrize("harm", [_cut, _no_ids, Path.unlink])
def test_data_that_is_damaged_while_it_is_shown(
    built: Path, tokenizer_dir: Path, tmp_path: Path, kind: str, file: str, harm: Callable[[Path], None]
) -> None:
    """The page says what is wrong; reading a mapped file past its end would kill the server."""
    shutil.copytree(built / kind, tmp_path / kind)
    with seen(tmp_path, tokenizer_dir, kind) as client:
        client.ask("/api/rows", {"limit": 3})
        harm(tmp_path / kind / file)
        answers = [client.http.post(f"/api/{path}", json=body) for path, body in (("rows", {}), ("row", {"row": 80}))]
        for answer in answers:
            if harm is _no_ids:  # as long as it was
                assert re.search("not in the vocabulary|outside the vocabulary", answer.text), answer.text
            else:
                assert (answer.status_code, "when it was opened" in answer.text) == (400, True), answer.text


def test_a_chat_file_that_is_gone(tokenizer_dir: Path, tmp_path: Path) -> None:
    shutil.copy(chats_file(), tmp_path / "chats.jsonl")
    renderers = RendererList([str(tokenizer_dir)])
    with client_of(Explorer(renderers, open_dataset(tmp_path / "chats.jsonl", renderers))) as client:
        (tmp_path / "chats.jsonl").unlink()
        told = client.ask("/api/rows", {"limit": 50, "text": "sourdough"}, 400)
        assert "chats.jsonl: reading failed: No such file or directory" in told["error"]


def test_text_whose_characters_are_several_tokens(tmp_path: Path) -> None:
    """It is found and shown whole; each token of such a character is shown by its bytes."""
    pytest.importorskip("tokenizers")
    from examples.practice_model import write_model

    write_model(tmp_path / "model")
    chats = tmp_path / "chats.jsonl"
    chats.write_text(
        '{"messages": [{"role": "user", "content": "Où écrire 🦄?"}, {"role": "assistant", "content": "Là."}]}\n'
    )
    options = ("--tokenizer", tmp_path / "model", "--out", tmp_path / "built", "--val-frac", "0")
    done = run_cli("build", chats, *options)
    assert done.returncode == 0, done.stderr
    renderers = RendererList([str(tmp_path / "model")])
    with client_of(Explorer(renderers, open_dataset(tmp_path / "built", renderers))) as client:
        (row,) = client.ask("/api/rows", {"text": "écrire 🦄"})["page"]["rows"]
        assert "Où écrire 🦄?" in row["preview"]
        table = client.ask("/api/row", {"row": 0})["table"]
        halves = [text for text, (_, facts) in zip(table["texts"], flat(table["runs"]), strict=True) if facts & HALF]
        assert " \\xf0\\x9f" in halves
        assert "�" not in "".join(table["texts"])


def flat(runs: list[list[int]]) -> list[tuple[int, int]]:
    """Group and facts of each token: runs [2, 0, 4] [3, 1, 4] give (0, 4) (0, 4) (1, 4)."""
    found: list[tuple[int, int]] = []
    for stop, group, facts in runs:
        found += [(group, facts)] * (stop - len(found))
    return found
