"""Options as one value: the same result as with keywords, and an error that names what is passed twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import niels_gpt as ng
from niels_gpt.builds.build import BuildFields, BuildOptions
from niels_gpt.doctor import DiagnoseOptions, diagnose
from niels_gpt.episodes import Sampling, build_episodes
from niels_gpt.errors import UsageError
from niels_gpt.export import Arrangement, export
from niels_gpt.tokenizer import train_tokenizer
from niels_gpt.tokenizer.training import TrainingOptions
from niels_gpt.values import merged
from tests.renderers.small import assistant, user
from tests.renderers.tiny_families import folder_of

CHATS = [[user(f"question {i}"), assistant(f"answer {i} " * (1 + i % 3))] for i in range(12)]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in CHATS))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(folder_of("qwen3"), tmp_path_factory.mktemp("tokenizer") / "qwen3")


@pytest.fixture(scope="module")
def episodes(tokenizer: Path, chats: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "episodes"
    ng.build(chats, out, ng.renderer(tokenizer, "qwen3"), val_frac=0.0)
    return out


@pytest.mark.parametrize(
    ("function", "value", "without"),
    [
        (diagnose, DiagnoseOptions, set()),
        (export, Arrangement, {"pad_multiple"}),  # an option of one format
        (train_tokenizer, TrainingOptions, set()),
    ],
)
def test_every_field_is_a_keyword_with_the_same_default(
    function: Callable[..., Any], value: type[Any], without: set[str]
) -> None:
    parameters = signature(function).parameters
    defaults = value()
    for field in fields(value):
        if field.name not in without:
            # The default of a mapping is `None` among the keywords, because a keyword's default must not change.
            assert parameters[field.name].default in (getattr(defaults, field.name), None), field.name


def test_keywords_of_builds_are_the_fields_of_their_options() -> None:
    assert get_type_hints(BuildFields) == get_type_hints(BuildOptions)
    with pytest.raises(UsageError, match=r"'max_bad_row' is not an option of .*; did you mean 'max_bad_rows'"):
        build_episodes([], "out", encoder=None, max_bad_row=1)  # type: ignore[call-arg]


def test_what_is_passed_twice_is_named() -> None:
    assert merged(DiagnoseOptions(), None, {"sample": 3}) == DiagnoseOptions(sample=3)
    assert merged(DiagnoseOptions(), DiagnoseOptions(seed=1), {"sample": 3}) == DiagnoseOptions(seed=1, sample=3)
    for function, arguments in (
        (diagnose, ([], DiagnoseOptions(sample=2), {"sample": 3})),
        (train_tokenizer, (("x", "y"), TrainingOptions(seed=1), {"seed": 2})),
    ):
        positional, options, keywords = arguments
        with pytest.raises(UsageError, match=rf"{next(iter(keywords))} is passed as a keyword and in "):
            function(*(positional or [[]]), options=options, **keywords)


def test_diagnose_with_a_value_is_diagnose_with_keywords(chats: Path, tokenizer: Path) -> None:
    common = {"tokenizer": str(tokenizer), "renderer": "qwen3"}
    one = ng.diagnose(chats, **common, sample=5, seed=3, max_length=8, evidence=1)
    other = ng.diagnose(chats, **common, options=DiagnoseOptions(sample=5, seed=3, max_length=8, evidence=1))
    assert one.to_json() == other.to_json()
    assert (one.rows, one.source["seed"]) == (5, 3)
    assert one.finding("over-long") is not None
    with pytest.raises(UsageError, match="without a reason"):
        ng.diagnose(chats, options=DiagnoseOptions(silence={"over-long": " "}))


def test_export_with_an_arrangement_writes_the_same_bytes(episodes: Path, tmp_path: Path) -> None:
    export(episodes, "hf", tmp_path / "keywords", max_length=64, packing=True, limit=2)
    export(episodes, "hf", tmp_path / "value", arrangement=Arrangement(max_length=64, packing=True, limit=2))
    export(episodes, "hf", tmp_path / "both", arrangement=Arrangement(max_length=64), packing=True, limit=2)
    written = [
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("keywords", "value", "both")
    ]
    assert written[0] == written[1] == written[2]
    assert len(written[0]) > 2
    with pytest.raises(UsageError, match="max_length is passed as a keyword and in Arrangement"):
        export(episodes, "hf", tmp_path / "twice", arrangement=Arrangement(max_length=64), max_length=32)


def test_loader_takes_a_sampling(episodes: Path) -> None:
    def ids(**options: Any) -> list[list[list[int]]]:
        return [
            batch.x.tolist()
            for batch in ng.loader(episodes, batch_size=3, sequence_length=63, pad_token_id=0, **options)
        ]

    assert ids(sampling=Sampling(seed=5)) == ids(seed=5)
    assert ids(sampling=Sampling(shuffle=False)) == ids(shuffle=False) != ids()
    for beside in ({"seed": 1}, {"shuffle": False}):
        with pytest.raises(UsageError, match="found sampling and seed or shuffle"):
            ids(sampling=Sampling(), **beside)


def test_build_takes_a_renderer_and_build_options(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    named = {"renderer_name": "qwen3", "renderer_options": {"enable_thinking": False}}
    ng.build(chats, tmp_path / "named", tokenizer, **named, val_frac=0.0)
    made = ng.renderer(tokenizer, "qwen3", enable_thinking=False)
    ng.build(chats, tmp_path / "made", made, val_frac=0.0, options=BuildOptions(max_bad_rows=0))
    one, other = (ng.open(tmp_path / name).splits["train"] for name in ("named", "made"))
    assert one.fingerprint == other.fingerprint
    for beside in ({"renderer_name": "qwen3"}, {"renderer_options": {"enable_thinking": False}}):
        with pytest.raises(UsageError, match="options are set where a renderer is made"):
            ng.build(chats, tmp_path / "twice", made, **beside)
    assert not (tmp_path / "twice").exists()


def test_training_with_a_value_is_training_with_keywords(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three four five six seven eight nine ten\n" * 40)
    train_tokenizer([tmp_path / "text.txt"], tmp_path / "keywords", vocab_size=300, model_type="bpe")
    options = TrainingOptions(vocab_size=300, model_type="bpe")
    train_tokenizer([tmp_path / "text.txt"], tmp_path / "value", options=options)
    one, other = ((tmp_path / name / "spm.model").read_bytes() for name in ("keywords", "value"))
    assert one == other
