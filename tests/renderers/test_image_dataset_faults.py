"""Images in datasets, where something is wrong: files that change between runs, damaged indexes, odd rows, ways out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("PIL")
import niels_gpt as ng
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.episodes import GPTEpisodeDataLoader
from niels_gpt.episodes.build import build_episodes
from niels_gpt.errors import CacheError, DataError, Mismatch, UsageError
from niels_gpt.preferences.build import build_preferences
from niels_gpt.renderers.images.stored import StoredImages
from niels_gpt.renderers.loss import LossOn
from niels_gpt.store.schema import IMAGE
from niels_gpt.store.split import IndexedSplit
from niels_gpt.store.verify import verify_dataset
from niels_gpt.trainers.fields import CONVENTIONS, fields
from tests.renderers.test_image_datasets import built, photos, read, rows_of, tree, write_rows
from tests.renderers.tiny_images import picture, processor_of, seeing

FAMILY = "qwen3-vl"


def build_again(folder: Path, **options: Any) -> None:
    """As the command builds `data` from `chats.jsonl`: what is there already counts, finished units too."""
    source = write_rows(folder / "chats.jsonl", options.pop("rows"))
    settings = {"source_name": source.name, "source_config": source.config(), "val_frac": 0.0} | options
    encoder = as_encoder(seeing(FAMILY), images=folder / "photos")
    build_episodes(source, folder / "data", encoder=encoder, **settings)


def source_of(folder: Path) -> StoredImages:
    return StoredImages(folder / "photos", processor_of(FAMILY))


def placeholder() -> int:
    return next(token for token, kind in seeing(FAMILY).mm_token_type_id_map.items() if kind == 1)


def test_a_finished_dataset_counts_while_its_images_are_the_same(tmp_path: Path) -> None:
    names = photos(tmp_path / "photos")
    rows = rows_of(names, 12)
    build_again(tmp_path, rows=rows)
    made = tree(tmp_path / "data")
    build_again(tmp_path, rows=rows)
    assert tree(tmp_path / "data") == made
    used = IndexedSplit([tmp_path / "data"], "train").images_of(np.arange(12))[-1].path
    picture(50, 30, 99).save(tmp_path / "photos" / used)
    with pytest.raises(Mismatch, match=r"built with another .*bild-ä"):
        build_again(tmp_path, rows=rows)
    assert tree(tmp_path / "data") == made
    build_again(tmp_path, rows=rows, overwrite=True)
    assert read(tmp_path / "data", source_of(tmp_path))
    (tmp_path / "photos" / used).unlink()
    with pytest.raises(Mismatch, match="built with another"):
        build_again(tmp_path, rows=rows)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupted_build_goes_on_with_the_images_of_now(tmp_path: Path, workers: int) -> None:
    """Units whose images changed, or whose rows were rejected for an image, are built again; the others stay.

    A worker takes seconds to import transformers; `tests/renderers/test_image_datasets.py` has two in every run.
    """
    names = photos(tmp_path / "photos")
    rows = rows_of(names, 40, seed=1) + rows_of(["later.png"], 1, seed=5)
    assert "later.png" in json.dumps(rows)
    executor = UnitExecutor(LocalRunner(workers), slice_bytes=1500)
    with pytest.raises(DataError, match=r"later\.png: No such file"):
        build_again(tmp_path, rows=rows, executor=executor)
    units = sorted((tmp_path / ".data.units").glob("*/unit_*"))
    assert len(units) > 3
    picture(60, 44, 99).save(tmp_path / "photos" / names[0])
    picture().save(tmp_path / "photos" / "later.png")

    notes: list[str] = []

    class Noting(type(ng.progress.SILENT)):  # type: ignore[misc, name-defined]
        def note(self, message: str) -> None:
            notes.append(message)

    build_again(tmp_path, rows=rows, executor=executor, progress=Noting())
    again = [note for note in notes if "made with other files" in note]
    assert 0 < len(again) <= len(units)
    resumed = tree(tmp_path / "data")
    build_again(tmp_path, rows=rows, overwrite=True)
    assert resumed == tree(tmp_path / "data")
    assert read(tmp_path / "data", source_of(tmp_path))


def test_units_stay_where_no_image_changed(tmp_path: Path) -> None:
    names = photos(tmp_path / "photos")
    rows = rows_of(names, 40, seed=1) + rows_of(["later.png"], 1, seed=5)
    executor = UnitExecutor(LocalRunner(), slice_bytes=1500)
    before: dict[Path, int] = {}
    for _ in range(2):
        with pytest.raises(DataError, match=r"later\.png"):
            build_again(tmp_path, rows=rows, executor=executor)
        units = sorted((tmp_path / ".data.units").glob("*/unit_*"))
        inodes = {unit: unit.stat().st_ino for unit in units}
        assert not before or [unit for unit in units if inodes[unit] != before[unit]] in ([], units[-1:])
        before = inodes


@pytest.mark.parametrize("on", [LossOn("all_tokens"), LossOn(bodies_of_roles=frozenset({"user"}))])
def test_placeholders_are_never_trained(tmp_path: Path, on: LossOn) -> None:
    rows = rows_of(photos(tmp_path / "photos"), 12)
    encoder = as_encoder(seeing(FAMILY), on, images=tmp_path / "photos")
    build_episodes(write_rows(tmp_path / "chats.jsonl", rows), tmp_path / "data", encoder=encoder, val_frac=0.0)
    shard = IndexedSplit([tmp_path / "data"], "train").shards[0]
    assert shard.mask is not None
    held = np.asarray(shard.tokens) == placeholder()
    assert held.any()
    assert not shard.mask[held].any()
    user_text = ~held & (np.asarray(shard.mask) > 0)
    assert user_text.sum() > 12


@pytest.mark.parametrize(
    "name", ["a\0b.png", "\ud800.png", "x" * 5000, ".", "file://[::1", "~/x.png", "a/../../x.png"], ids=range(7)
)
def test_odd_paths_are_bad_rows(tmp_path: Path, name: str) -> None:
    (good,) = photos(tmp_path / "photos", 1)
    rows = [
        [
            {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": "yes"},
        ]
        for image in (good, name)
    ]
    dataset = built(tmp_path, FAMILY, rows, max_bad_rows=1)
    (line,) = (dataset / "rejected.jsonl").read_text().splitlines()
    assert "chats.jsonl:2" in json.loads(line)["where"]
    assert len(IndexedSplit([dataset], "train").images_of(np.arange(1))) == 1


def test_pictures_in_memory_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    content = [{"type": "image", "image": picture()}, {"type": "text", "text": "?"}]
    row = [{"role": "user", "content": content}, {"role": "assistant", "content": "yes"}]
    with pytest.raises(DataError, match=r"is a Image, and a dataset names files; .*decode=False"):
        build_episodes([row], tmp_path / "data", encoder=as_encoder(seeing(FAMILY), images=tmp_path / "photos"))


@pytest.mark.parametrize("path", ["../" * 30, "/" + "a" * 89, "\0" * 90], ids=["above", "absolute", "nul"])
def test_paths_of_others_are_not_followed(tmp_path: Path, path: str) -> None:
    name = "a" * 86 + ".png"
    (tmp_path / "photos").mkdir()
    picture().save(tmp_path / "photos" / name)
    dataset = built(tmp_path, FAMILY, rows_of([name], 8))
    (dataset / "episodes.json").unlink()
    paths = dataset / "train" / "image_paths.bin"
    paths.write_bytes(path.encode() + paths.read_bytes()[90:])
    with pytest.raises(CacheError, match=r"images.idx: record 0: .*does not lie in a folder of images"):
        read(dataset, source_of(tmp_path))


def test_verify_finds_what_the_index_lacks(tmp_path: Path) -> None:
    """A missing record, a place that holds another id (of one token, too), a path beyond the file."""
    (tmp_path / "photos").mkdir()
    picture(3, 3).save(tmp_path / "photos" / "small.png")
    dataset = built(tmp_path, FAMILY, rows_of(["small.png"], 12))
    path = dataset / "train" / "images.idx"
    records = np.fromfile(path, IMAGE)
    (dataset / "episodes.json").unlink()
    assert list(verify_dataset(dataset)) == []
    records[1:].tofile(path)
    assert any("expected an image for each" in line for line in verify_dataset(dataset))
    moved = records.copy()
    moved[-1]["start"] += moved[-1]["tokens"]
    moved.tofile(path)
    assert any(
        f"record {len(moved) - 1}" in line and "of the images before" in line for line in verify_dataset(dataset)
    )
    far = records.copy()
    far[1]["path_start"] = 1 << 40
    far.tofile(path)
    assert any("record 1: its path is not in" in line for line in verify_dataset(dataset))


def test_earlier_versions_refuse_images(tmp_path: Path) -> None:
    """They would train placeholders; a build without images stays readable for them."""
    dataset = built(tmp_path, FAMILY, rows_of(photos(tmp_path / "photos"), 12))
    assert json.loads((dataset / "episodes.json").read_text())["format_version"] == 2
    plain = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]] * 4
    build_episodes(plain, tmp_path / "plain", encoder=seeing(FAMILY))
    assert json.loads((tmp_path / "plain" / "episodes.json").read_text())["format_version"] == 1


def test_a_dataset_built_for_images_without_any_needs_none(tmp_path: Path) -> None:
    photos(tmp_path / "photos", 1)
    dataset = built(tmp_path, FAMILY, [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]] * 4)
    assert list(ng.loader(dataset, batch_size=2, sequence_length=50, pad_token_id=0))
    assert list(verify_dataset(dataset)) == []


def test_nothing_drops_images_silently(tmp_path: Path) -> None:
    dataset = built(tmp_path, FAMILY, rows_of(photos(tmp_path / "photos"), 12))
    config = {"batch_size": 3, "block_size": 400, "device": "cpu"}
    loader = GPTEpisodeDataLoader(config, None, dataset, pad_token_id=0, images=source_of(tmp_path))
    with pytest.raises(UsageError, match="use next_batch"):
        loader.get_batch("train")
    batch = loader.next_batch("train")
    for convention in set(CONVENTIONS) - {"hf"}:
        with pytest.raises(UsageError, match="the batch has images"):
            fields(batch, convention)
    encoder = as_encoder(seeing(FAMILY), images=tmp_path / "photos")
    with pytest.raises(UsageError, match="preferences hold no images"):
        build_preferences([], tmp_path / "out", encoder=encoder)
