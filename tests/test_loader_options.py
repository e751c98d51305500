"""Options of all loaders: each is refused by one line of ours, whatever kind of dataset the loader reads."""

from __future__ import annotations

import json
import re
import shutil
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
import niels_gpt as ng
from niels_gpt.config import TrainingConfig, read_training_config
from niels_gpt.doctor.options import DiagnoseOptions
from niels_gpt.doctor.run import diagnose
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.episodes.stream import make_data_loader
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.export.run import export
from niels_gpt.preferences import PreferenceLoader
from niels_gpt.store.verify import verify_dataset
from tests.episodes.made import write_dataset
from tests.export.sources import episodes, random_rows
from tests.preferences.made import built, pairs


def test_directories_from_a_generator(tmp_path: Path) -> None:
    """Finding out what kind of dataset there is took the first two of them."""
    for name in "abc":
        write_dataset(tmp_path / name, [6] * 4)
    found = ng.loader(sorted(tmp_path.iterdir()), batch_size=12, sequence_length=5, pad_token_id=0)
    assert len(next(iter(found)).episodes) == 12
    found = ng.loader((path for path in sorted(tmp_path.iterdir())), batch_size=12, sequence_length=5, pad_token_id=0)  # type: ignore[arg-type]
    assert len(next(iter(found)).episodes) == 12
    for path in (3, b"abc"):
        with pytest.raises(UsageError, match="expected a directory, several, or a mapping"):
            ng.loader(path, batch_size=2, sequence_length=5)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("datasets")
    return {
        "preferences": built(folder / "pairs", pairs(20)),
        "episodes": write_dataset(folder / "episodes"),
    }


def test_the_default_seed_is_42_at_every_door(datasets: dict[str, Path], tmp_path: Path) -> None:
    """Only a file of document 002 that names no seed has another one, the document's."""
    for kind, path in datasets.items():
        shape = {"batch_size": 2, "sequence_length": 128, "pad_token_id": 0}
        assert ng.loader(path, **shape).state_dict()["seed"] == 42, kind
    classes = (PreferenceLoader, Sampling, DiagnoseOptions, diagnose)
    assert {signature(one).parameters["seed"].default for one in classes} == {42}
    assert TrainingConfig().epoch_seed == 42
    file = tmp_path / "training.xml"
    file.write_text("<training><batch_size>2</batch_size></training>")
    assert read_training_config(file).epoch_seed == 1337
    assert read_training_config(file, epoch_seed=7).epoch_seed == 7


def test_what_pads_is_the_manifests_eos(datasets: dict[str, Path], tmp_path: Path) -> None:
    """Of several manifests, too; where none records an eos, or two differ, every loader asks for an id."""
    shape = {"batch_size": 2, "sequence_length": 128}
    copied = shutil.copytree(datasets["preferences"], tmp_path / "preferences")
    with_eos(copied, {})
    for path in datasets["episodes"], copied:
        with pytest.raises(UsageError, match="no eos in the dataset's manifest; pass pad_token_id="):
            ng.loader(path, **shape)
    with_eos(copied, {"eot": 5})
    assert PreferenceLoader(copied, **shape).pad_token_id == 5
    assert PreferenceLoader(copied, **shape, pad_token_id=0).pad_token_id == 0
    rows = [episodes(tmp_path / name, random_rows(8, seed=seed)) for seed, name in enumerate("ab")]
    with_eos(rows[0], {"eos": 7, "eot": 5})
    with_eos(rows[1], {"eos": 7})
    config = {"batch_size": 2, "block_size": 128}
    assert make_data_loader(config, None, rows, dataset_mode="sft_episode").pad_token_id == 7
    batch = next(iter(ng.loader(rows[0], **shape)))
    assert batch.x[0, -1].item() == 7
    with_eos(rows[1], {"eos": 8})
    with pytest.raises(UsageError, match="pass pad_token_id="):
        ng.loader(rows, **shape)


def with_eos(dataset: Path, special: dict[str, int]) -> None:
    """Record special ids in a manifest."""
    manifest = json.loads((dataset / "episodes.json").read_text()) | {"special_token_ids": special}
    manifest.pop("manifest_sha256", None)
    (dataset / "episodes.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("kind", ["preferences", "episodes"])
@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("seed", -1, "seed is -1; expected"),
        ("shuffle", "no", "shuffle is 'no'; expected"),
        ("pad_token_id", -1, "pad_token_id is -1; expected"),
        ("num_workers", -1, "num_workers is -1; expected 0 or more"),
    ],
)
def test_an_option_of_another_kind_or_out_of_range(
    datasets: dict[str, Path], kind: str, option: str, value: Any, expected: str
) -> None:
    options = {"batch_size": 2, "sequence_length": 128, "pad_token_id": 0, option: value}
    with pytest.raises(UsageError, match=re.escape(expected)):
        ng.loader(datasets[kind], **options)


def test_preferences_without_a_manifest_are_refused_at_every_door(datasets: dict[str, Path], tmp_path: Path) -> None:
    """As plain episodes, answers that must not be imitated would be trained."""
    copied = shutil.copytree(datasets["preferences"], tmp_path / "copied")
    (copied / "episodes.json").unlink()
    doors = (
        lambda: ng.loader(copied, batch_size=2, sequence_length=128),
        lambda: PreferenceLoader(copied, batch_size=2, sequence_length=128),
        lambda: export(copied, "trl", tmp_path / "exported"),
        lambda: list(verify_dataset(copied)),
    )
    for door in doors:
        with pytest.raises(CacheError, match=r"no such file, beside .*; expected the manifest of a dataset of pref"):
            door()


@pytest.mark.parametrize("field", ["dataset_name", "tokenizer_sha256"])
def test_an_edited_manifest_is_refused(datasets: dict[str, Path], field: str, tmp_path: Path) -> None:
    path = shutil.copytree(datasets["preferences"], tmp_path / "copied") / "episodes.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, field: "other"}))
    with pytest.raises(CacheError, match="manifest_sha256 is"):
        ng.loader(path.parent, batch_size=2, sequence_length=128)
