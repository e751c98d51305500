"""Images in datasets: names, hashes and places at build; the model's own arrays at load; nothing lost in between."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("PIL")
import niels_gpt as ng
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.build import build_episodes, pack_episodes
from niels_gpt.errors import CacheError, DataError, Mismatch, UsageError
from niels_gpt.export.registry import FORMATS
from niels_gpt.export.run import export
from niels_gpt.renderers.images.stored import StoredImages
from niels_gpt.renderers.loss import LossOn
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.store.schema import IMAGE
from niels_gpt.store.split import IndexedSplit
from niels_gpt.store.verify import verify_dataset
from niels_gpt.trainers.fields import CONVENTIONS, fields
from tests.conftest import cli_here
from tests.renderers.tiny_images import WITH_IMAGES, picture, png, processor_of, seeing

Rows = list[list[dict[str, Any]]]
EXPORT_OPTIONS: dict[str, dict[str, Any]] = {
    name: {"packing": True, "max_length": 400} for name in ("megatron-bridge",)
}
families = pytest.mark.parametrize("family", WITH_IMAGES)


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def photos(folder: Path, n: int = 5) -> list[str]:
    """Images of several sizes in folders; their names."""
    names = []
    for seed in range(n):
        path = folder / f"album {seed % 2}" / f"bild-ä{seed}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(12 + 9 * seed, 20, seed).save(path)
        names.append(path.relative_to(folder).as_posix())
    return names


def rows_of(names: list[str], n: int, *, images: int = 2, seed: int = 0) -> Rows:
    """Conversations with none, one or several images, in several forms."""
    rng = random.Random(seed)
    made = []
    for number in range(n):
        parts: list[dict[str, Any]] = []
        for _ in range(rng.randint(0, images)):
            name = rng.choice(names)
            form = rng.choice([{"image": name}, {"image_url": {"url": name}}])
            parts += [{"type": next(iter(form)), **form}, {"type": "text", "text": rng.choice(["this", "and that"])}]
        parts.append({"type": "text", "text": f"question {number}"})
        made.append([{"role": "user", "content": parts}, {"role": "assistant", "content": f"answer {number}"}])
    return made


def absolute(row: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The row with paths from the root, as a renderer needs it."""
    question, *rest = row
    parts = []
    for part in question["content"]:
        source = part.get("image") or part.get("image_url", {}).get("url")
        parts.append({"type": "image", "image": str(folder / source)} if source else part)
    return [{**question, "content": parts}, *rest]


def write_rows(path: Path, rows: Rows) -> ChatFiles:
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return chat_files([path])


def built(folder: Path, family: str, rows: Rows, **options: Any) -> Path:
    """A dataset `data` of rows whose images are in `photos`."""
    source = write_rows(folder / "chats.jsonl", rows)
    encoder = as_encoder(seeing(family), images=folder / "photos")
    build_episodes(source, folder / "data", encoder=encoder, **({"val_frac": 0.0} | options))
    return folder / "data"


def read(dataset: Path, images: StoredImages, **options: Any) -> list[Batch]:
    settings = {"batch_size": 3, "sequence_length": 400, "shuffle": False, "epoch_drop_last": False, "pad_token_id": 0}
    return list(ng.loader(dataset, images=images, **(settings | options)))


@families
@pytest.mark.parametrize("packing", [False, True])
def test_a_loader_gives_what_the_renderer_gives(family: str, packing: bool, tmp_path: Path) -> None:
    """Ids, and the arrays of every image in the order of the placeholders, row by row."""
    names = photos(tmp_path / "photos")
    rows = rows_of(names, 20)
    dataset = built(tmp_path, family, rows)
    assert list(verify_dataset(dataset)) == []
    renderer = seeing(family)
    rendered = [renderer.render(absolute(row, tmp_path / "photos")) for row in rows]
    opened = IndexedSplit([dataset], "train")
    tokens = opened.shards[0].tokens
    for number, one in enumerate(rendered):
        (start,), (length,) = opened.shards[0].index.spans(np.array([number]))
        assert tokens[start : start + length].tolist() == one.token_ids
        media = one.multi_modal_data
        wanted = [] if media is None else [(p.offset, p.length) for p in media.mm_placeholders["image"]]
        assert [(image.start, image.tokens) for image in opened.images_of(np.array([number]))] == wanted
    counts = json.loads((dataset / "episodes.json").read_text())["splits"]["train"]
    placeholder = next(token for token, kind in renderer.mm_token_type_id_map.items() if kind == 1)
    assert counts["image_tokens"] == np.count_nonzero(tokens == placeholder) > 0
    for batch in read(dataset, StoredImages(tmp_path / "photos", processor_of(family)), packing=packing):
        items = [
            item
            for number in batch.episodes.tolist()
            if (media := rendered[number].multi_modal_data)
            for item in media.mm_items["image"]
        ]
        assert batch.media is not None
        assert set(batch.media) == {name for item in items for name in item}
        for name, values in batch.media.items():
            np.testing.assert_array_equal(values.numpy(), np.concatenate([item[name] for item in items]))
        # As many placeholders in the batch as the arrays are for, and none of them is trained.
        held = sum(int(np.prod(item.get("image_grid_thw", item.get("grid_thws")))) // 4 for item in items)
        assert int((batch.x == placeholder).sum()) == held
        assert not batch.mask[batch.y == placeholder].any()


def test_the_bytes_depend_on_nothing_else(tmp_path: Path) -> None:
    """Neither on workers nor on where the folder lies; shards hold their own images."""
    made = []
    for number, executor in enumerate((None, UnitExecutor(LocalRunner(2), slice_bytes=1500))):
        folder = tmp_path / str(number)
        names = photos(folder / "photos")
        options = {} if executor is None else {"executor": executor}
        dataset = built(folder, "qwen3-vl", rows_of(names, 30), val_frac=0.3, shard_bytes=2000, **options)
        assert list(verify_dataset(dataset)) == []
        made.append({name: data for name, data in tree(dataset).items() if name != "episodes.json"})
        batches = read(dataset, StoredImages(folder / "photos", processor_of("qwen3-vl")))
        made[-1]["media"] = b"".join(
            values.numpy().tobytes() for batch in batches for _, values in sorted((batch.media or {}).items())
        )
    assert made[0] == made[1]
    assert sum(name.endswith("images.idx") for name in made[0]) == 3


def test_images_inside_of_rows_are_written_to_the_folder(tmp_path: Path) -> None:
    """Data URIs, base64 and bytes; each once, by its hash."""
    (tmp_path / "photos").mkdir()
    data = png(picture())
    text = base64.b64encode(data).decode()
    forms = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}},
        {"type": "image", "base64": text},
        {"type": "image", "image": {"bytes": data, "path": None}},
    ]
    rows = [
        [{"role": "user", "content": [form, {"type": "text", "text": "?"}]}, {"role": "assistant", "content": "yes"}]
        for form in forms
    ]
    encoder = as_encoder(seeing("qwen3-vl"), images=tmp_path / "photos")
    build_episodes(rows, tmp_path / "data", encoder=encoder, val_frac=0)
    (stored,) = (tmp_path / "photos" / "inline").iterdir()
    assert stored.read_bytes() == data
    images = IndexedSplit([tmp_path / "data"], "train").images_of(np.arange(3))
    assert [image.path for image in images] == [f"inline/{stored.name}"] * 3
    assert {(image.width, image.height) for image in images} == {(20, 12)}


@pytest.mark.parametrize(
    ("source", "reason", "said"),
    [
        ("missing.png", "broken_image", "No such file"),
        ("../secret.png", "image_outside", "does not lie in"),
        ("/etc/hostname", "image_outside", "does not lie in"),
        ("notes.txt", "broken_image", "no image that Pillow can read"),
        ("https://example.com/x.png", "image_on_network", "nothing is fetched"),
    ],
)
def test_images_that_cannot_be_stored_are_bad_rows(tmp_path: Path, source: str, reason: str, said: str) -> None:
    (name,) = photos(tmp_path / "photos", 1)
    picture().save(tmp_path / "secret.png")
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    rows = rows_of([name], 3, images=1) + rows_of([source], 8, images=1)
    dataset = built(tmp_path, "qwen3-vl", rows, max_bad_rows="all")
    rejected = [json.loads(line) for line in (dataset / "rejected.jsonl").read_text().splitlines()]
    assert {line["reason"] for line in rejected} == {reason}
    assert all(said in line["detail"] for line in rejected)
    encoder = as_encoder(seeing("qwen3-vl"), images=tmp_path / "photos")
    with pytest.raises(DataError, match=reason):
        build_episodes(chat_files([tmp_path / "chats.jsonl"]), tmp_path / "again", encoder=encoder)
    assert not (tmp_path / "again").exists()


def test_files_that_changed_are_found_at_load(tmp_path: Path) -> None:
    names = photos(tmp_path / "photos")
    dataset = built(tmp_path, "qwen3-vl", rows_of(names, 12, seed=3))
    path = tmp_path / "photos" / names[0]
    data = path.read_bytes()
    images = StoredImages(tmp_path / "photos", processor_of("qwen3-vl"))
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CacheError, match=r"bild-ä0.png: sha256 .* expected .*images.idx: record \d"):
        read(dataset, images)
    path.unlink()
    with pytest.raises(CacheError, match=r"bild-ä0.png: No such file or directory; .*images.idx: record \d"):
        read(dataset, images)
    path.write_bytes(data)
    assert read(dataset, images)
    other = processor_of("qwen3-vl").__class__(patch_size=8, merge_size=2, temporal_patch_size=2)
    with pytest.raises(CacheError, match="expected the processor with which it was built"):
        read(dataset, StoredImages(tmp_path / "photos", other))


def test_a_damaged_index_is_found(tmp_path: Path) -> None:
    dataset = built(tmp_path, "qwen3-vl", rows_of(photos(tmp_path / "photos"), 12))
    path = dataset / "train" / "images.idx"
    records = np.fromfile(path, IMAGE)
    (dataset / "episodes.json").unlink()
    for name, value, said in (
        ("start", 5000, "are no place for it"),
        ("tokens", 0, "are no place for it"),
        ("start", 0, "expected one placeholder id"),
    ):
        wrong = records.copy()
        wrong[1][name] = value
        wrong.tofile(path)
        assert any(said in line and "images.idx" in line for line in verify_dataset(dataset)), name
    records[:-1].tofile(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CacheError, match="records of 68 bytes"):
        IndexedSplit([dataset], "train")


def test_what_images_cannot_do(tmp_path: Path) -> None:
    """Every way out of the dataset either carries them or refuses."""
    names = photos(tmp_path / "photos")
    dataset = built(tmp_path, "qwen3-vl", rows_of(names, 12))
    images = StoredImages(tmp_path / "photos", processor_of("qwen3-vl"))
    with pytest.raises(UsageError, match="pass images="):
        ng.loader(dataset, batch_size=2, sequence_length=400)
    with pytest.raises(UsageError, match="may cut through an image"):
        read(dataset, images, too_long="head")
    with pytest.raises(CacheError, match="do not fit into rows of 9"):
        read(dataset, images, sequence_length=8)
    with pytest.raises(UsageError, match="packed rows on disk have no place for them"):
        pack_episodes(dataset, tmp_path / "packed", block_size=400)
    for name in FORMATS:
        with pytest.raises(UsageError, match="cannot carry pixels"):
            export(dataset, name, tmp_path / "out", **EXPORT_OPTIONS.get(name, {}))
    plain, packed = (read(dataset, images, packing=packing)[0] for packing in (False, True))
    assert set(plain.media or ()) <= set(fields(plain, "hf"))
    for convention in CONVENTIONS:
        with pytest.raises(UsageError, match="the batch has images"):
            fields(packed, convention)
    with pytest.raises(UsageError, match="has no image processor"):
        as_encoder(seeing("qwen3-vl").__class__(seeing("qwen3-vl").encoder), images=tmp_path / "photos")
    with pytest.raises(UsageError, match="conversations with images make one sample"):
        as_encoder(seeing("qwen3-vl"), images=tmp_path / "photos", samples="auto")
    with pytest.raises(UsageError, match="expected the folder of the conversations' images"):
        as_encoder(seeing("qwen3-vl"), images=tmp_path / "nowhere")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the official processor of the assets, if they are here."""
    from tests.assets import ASSETS

    model = ASSETS / "qwen3-vl-4b-instruct"
    if not model.is_dir():
        pytest.skip(f"no {model}")
    names = photos(tmp_path / "photos")
    write_rows(tmp_path / "chats.jsonl", rows_of(names, 6))
    monkeypatch.chdir(tmp_path)
    run = cli_here(capsys, monkeypatch)  # three processes would import transformers, for seconds each
    command = ("build", "chats.jsonl", "--tokenizer", model, "--renderer", "qwen3-vl", "--val-frac", 0)
    done = run(*command, "--out", "data", "--images", "photos")
    assert done.returncode == 0, done.stderr
    counts = json.loads((tmp_path / "data" / "episodes.json").read_text())["splits"]["train"]
    assert f"{counts['images']}           {counts['image_tokens']}" in done.stdout
    (tmp_path / "recipe.toml").write_text(
        f"""out = "made"
[tokenizer]
path = "{model}"
[renderer]
name = "qwen3-vl"
images = "photos"
[split]
val_frac = 0.0
[[sources]]
name = "chats"
files = ["chats.jsonl"]
"""
    )
    assert run("build", "recipe.toml").returncode == 0
    (made,) = (tmp_path / "made").rglob("train/images.idx")
    assert made.read_bytes() == (tmp_path / "data" / "train" / "images.idx").read_bytes()
    refused = run(*command, "--out", "other")
    assert refused.returncode != 0
    assert "--images" in refused.stderr
    verified = run("verify", "data")
    assert verified.returncode == 0, verified.stdout


# ---- files that change, and ways out

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
