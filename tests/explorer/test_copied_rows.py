"""The explorer opens what the doctor reads, and names its rows alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("pyarrow")

from niels_gpt.datasets import open_dataset as open_stored
from niels_gpt.doctor import diagnose
from niels_gpt.doctor.columns import token_parts
from niels_gpt.doctor.open_input import open_input
from niels_gpt.errors import InputError, UsageError
from niels_gpt.explorer import copied_rows
from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.copied_rows import CopiedRows
from niels_gpt.explorer.dataset import Filter
from niels_gpt.explorer.example_view import view_example
from niels_gpt.explorer.findings import Findings
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.explorer.requests import Browse, Open, Train
from niels_gpt.explorer.token_columns import with_last_target
from niels_gpt.export import export
from tests.conftest import EOT
from tests.export.sources import Row, episodes, pretrain_cache, random_rows
from tests.renderers.tiny_families import folder_of

FORMS = ("megatron", "hf", "trl")


def opened(path: Path | str, *tokenizers: str) -> tuple[Explorer, Any]:
    renderers = RendererList(tokenizers)
    dataset = open_dataset(path, renderers)
    return Explorer(renderers, dataset), dataset


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_other_programs_are_the_doctors(form: str, tmp_path: Path) -> None:
    export(episodes(tmp_path / "in", random_rows(9), random_rows(3, seed=1)), form, tmp_path / "out")
    explorer, rows = opened(tmp_path / "out")
    assert isinstance(rows, CopiedRows)
    number = 0
    for own, payload in open_input(tmp_path / "out").slices():
        (part,), misfits = token_parts(own, payload)
        assert not misfits
        for at, (start, stop) in enumerate(zip(part.starts, part.starts[1:], strict=False)):
            held = rows.tokens("train", number)
            assert held.ids.tolist() == part.ids[start:stop].tolist()
            if part.trained is not None:
                assert held.trained.tolist() == part.trained[start:stop].tolist()
            found = explorer.row(Open(row=number))
            assert found["where"] == part.wheres[at]
            assert len(found["table"]["ids"]) == stop - start
            number += 1
    assert explorer.about()["rows"] == number == diagnose(tmp_path / "out").rows
    assert explorer.training(Train(block_size=16, row=0))["fitted"]["episodes"] == number
    explorer.close()


def test_a_tokenizer_gives_texts_and_documents(tmp_path: Path) -> None:
    """Also for ids that it does not have, which a larger tokenizer wrote."""
    folder = str(folder_of("qwen2.5"))
    encoder = RendererList([folder]).encoder(Path(folder).name)
    ids = [*encoder.encode_pieces(["hello<|im_end|>"], [True])[0], 60_000, encoder.added_ids["<|im_end|>"], 7]
    assert len(ids) % 2, "an odd number of 16 bits is no file of 32 bits"
    np.array(ids, dtype="<u2").tofile(tmp_path / "train.bin")
    explorer, rows = opened(tmp_path / "train.bin", folder)
    texts = ["".join(explorer.row(Open(row=row))["table"]["texts"]) for row in range(3)]
    assert texts[0] == "hello<|im_end|>"
    assert texts[1].startswith("<60000?>")
    assert rows.page("train", 0, 9, Filter(text="HELLO")).rows[0].row == 0
    explorer.close()
    (tmp_path / "none.jsonl").write_text('{"input_ids": []}\n')
    with pytest.raises(InputError, match="no row has ids"):
        opened(tmp_path / "none.jsonl")


def test_rows_that_cannot_be_read_keep_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    made = [
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
        {"input_ids": [4], "labels": [4, 4]},
        "no row",
        {"input_ids": [5, 6]},
        {"input_ids": [7, 8, 9, 10], "labels": [-100, 8, -100, 10], "seq_lengths": [2, 2]},
    ]
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in made) + "\n")
    explorer, _ = opened(path)
    listed = explorer.rows(Browse())["page"]["rows"]
    assert [(row["row"], row["size"], bool(row["problem"])) for row in listed] == [
        (0, 3, False),
        (1, 0, True),
        (2, 0, True),
        (3, 2, False),
        (4, 4, False),
    ]
    assert listed[3]["where"] == f"{path}:4"
    assert explorer.row(Open(row=3))["table"]["ids"] == [5, 6]
    assert [group["label"] for group in explorer.row(Open(row=4))["table"]["groups"]] == ["episode 0", "episode 1"]
    assert f"{path}:3" in explorer.row(Open(row=2))["problem"]
    fitted = explorer.training(Train(block_size=8, packed=False))["fitted"]
    assert sorted(part["episode"] for row in fitted["shown"] for part in row["parts"]) == [0, 3, 4]
    explorer.close()
    monkeypatch.setattr(copied_rows, "MOST_TOKENS", 2)
    monkeypatch.setattr("niels_gpt.doctor.slices.SLICE_ROWS", 1)
    path.write_text('{"input_ids": [1, 2]}\n' * 3)
    explorer, _ = opened(path)
    assert explorer.about()["rows"] == 1
    assert "first rows only" in explorer.about()["facts"]["shown"]
    explorer.close()


def test_ids_that_no_file_can_hold_are_problems_of_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    given = [[1, 2], [3, 1 << 40, -1], [4, -5], [5, 6], [1 << 32], [(1 << 32) - 1]]
    path.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in given))
    explorer, _ = opened(path)
    listed = explorer.rows(Browse())["page"]["rows"]
    assert [row["size"] for row in listed] == [2, 0, 0, 2, 0, 1]
    assert listed[1]["problem"] == f"{path}:2: token 1 has the id {1 << 40}; expected 0 to 2**32 - 1"
    assert "token 1 has the id -5" in explorer.row(Open(row=2))["problem"]
    assert explorer.row(Open(row=3))["table"]["ids"] == [5, 6]
    assert explorer.training(Train(block_size=8, packed=False))["fitted"]["episodes"] == 3
    explorer.close()
    path.write_text('{"input_ids": [1, -5]}\n')
    with pytest.raises(InputError, match="no row has ids that can be shown"):
        opened(path)


def test_findings_open_in_their_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor counts through both splits, and of a pretraining cache documents; the page has rows of one split."""

    def placed(path: Path, row: int) -> tuple[str, int]:
        evidence = [{"row": row}, {"row": -1}]
        finding = {"rule": "x", "severity": "error", "title": "x", "evidence": evidence}
        report = Findings.model_validate({"version": 1, "findings": [finding]})
        renderers = RendererList(())
        explorer = Explorer(renderers, open_dataset(path, renderers), report)
        assert explorer.findings is not None
        place = explorer.findings.findings[0].evidence[0]
        assert explorer.rows(Browse(split=place.split, finding=0))["page"]["rows"][0]["row"] == place.row
        other = "val" if place.split == "train" else "train"
        assert explorer.rows(Browse(split=other, finding=0))["page"]["rows"] == []
        explorer.close()
        return place.split, place.row

    train, val = [Row([token, 1], [0, 1]) for token in range(5)], [Row([9, 2], [0, 1])] * 3
    path = episodes(tmp_path / "episodes", train, val)
    assert [placed(path, row) for row in (0, 4, 5, 7)] == [("train", 0), ("train", 4), ("val", 0), ("val", 2)]
    cache = pretrain_cache(tmp_path / "cache", n=2000, shard_bytes=700)[0]
    documents = open_stored(cache).split("train")
    monkeypatch.setattr("niels_gpt.explorer.stored.WINDOW", 64)
    at = 150
    split, window = placed(cache, at)
    # Of each document its first token, by what the windows hold, in which each document ends with `EOT`.
    windows = [documents.windows(64).row(number).ids[:-1].tolist() for number in range(len(documents.windows(64)))]
    ends = [number for number, ids in enumerate(windows) for token in ids if token == EOT]
    assert (split, window) == ("train", ends[at - 1])


def test_empty_episodes_have_the_doctors_numbers(tmp_path: Path) -> None:
    made = [Row([1, 2], [0, 1]), Row([], []), Row([3, 4, 5, 6], [0, 1, 1, 1]), Row([], []), Row([7, 8], [0, 1])]
    path = episodes(tmp_path / "episodes", made)
    found = diagnose(path).finding("empty-row")
    assert found is not None
    explorer, _ = opened(path)
    listed = explorer.rows(Browse())["page"]["rows"]
    assert [row["size"] for row in listed] == [2, 0, 4, 0, 2]
    assert [row["row"] for row in listed if row["problem"]] == [place.row for place in found.evidence] == [1, 3]
    assert [explorer.row(Open(row=row))["table"]["ids"] for row in (0, 2, 4)] == [[1, 2], [3, 4, 5, 6], [7, 8]]
    assert "no tokens" in explorer.row(Open(row=3))["problem"]
    fitted = explorer.training(Train(block_size=8, packed=False, row=2))
    assert [part["episode"] for row in fitted["fitted"]["shown"] for part in row["parts"]] == [0, 2, 4]
    assert fitted["table"]["ids"][:2] == [7, 8]
    explorer.close()
    shown = view_example(path, 4)
    assert [token.id for token in with_last_target(shown)] == [7, 8]
    assert "episode 4 of 5" in shown.title
    with pytest.raises(UsageError, match="episode 1 of train has no tokens"):
        view_example(path, 1)
    with pytest.raises(UsageError, match="episodes 0 to 4; no 5"):
        view_example(path, 5)


def test_a_folder_of_several_formats_names_its_rows_alike(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "a \ufffd"}, {"role": "assistant", "content": "b"}]}
    line = json.dumps(chat)
    (tmp_path / "a.jsonl").write_text(f"{line}\n\n{line}\n")
    (tmp_path / "b.json").write_text(f"[{line}, {line}]")
    (tmp_path / "c.json").write_text(f"{line}\n{line}\n")
    found = diagnose(tmp_path).finding("text-damaged")
    assert found is not None
    explorer, rows = opened(tmp_path)
    assert isinstance(rows, ChatRows)
    assert rows.lines.wait(60)
    assert len(found.evidence) > 4
    assert [rows.lines.where(place.row) for place in found.evidence] == [place.where for place in found.evidence]
    assert rows.lines.where(1) == f"{tmp_path}/a.jsonl:3"
    explorer.close()
