"""The keywords of public functions are the fields of the values beneath, with the same defaults."""

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
from niels_gpt.doctor import diagnose
from niels_gpt.doctor.options import DiagnoseOptions
from niels_gpt.episodes import Sampling, build_episodes
from niels_gpt.errors import UsageError
from niels_gpt.export import export
from niels_gpt.export.arranging import Arrangement
from niels_gpt.renderers.registry import RendererOptions
from niels_gpt.tokenizer import train_tokenizer
from niels_gpt.tokenizer.training import TrainingOptions
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
    with pytest.raises(TypeError, match="max_bad_row"):
        build_episodes([], "out", encoder=None, max_bad_row=1)  # type: ignore[call-arg]


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


def test_build_takes_a_renderer(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    named = RendererOptions("qwen3", options={"enable_thinking": False})
    ng.build(chats, tmp_path / "named", tokenizer, renderer=named, val_frac=0.0)
    made = ng.renderer(tokenizer, "qwen3", enable_thinking=False)
    ng.build(chats, tmp_path / "made", made, val_frac=0.0, max_bad_rows=0)
    one, other = (ng.open(tmp_path / name).splits["train"] for name in ("named", "made"))
    assert one.fingerprint == other.fingerprint
    for beside, said in (
        (RendererOptions("qwen3"), "options are set where a renderer is made"),
        (RendererOptions(options={"enable_thinking": False}), "options are set where a renderer is made"),
        (RendererOptions(date="2026-01-31"), "needs the path of a tokenizer"),
    ):
        with pytest.raises(UsageError, match=said):
            ng.build(chats, tmp_path / "twice", made, renderer=beside)
    assert not (tmp_path / "twice").exists()
