"""A dataset that is rebuilt in the same place is read anew, in the same process."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

import niels_gpt
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.doctor import diagnose
from niels_gpt.episodes import build_episodes
from niels_gpt.messages import Conversation
from niels_gpt.renderers.base import attribute_text_segments
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.doctor.made import chats, model
from tests.renderers.tiny_families import renderer_of


def conversations(n: int) -> list[Conversation]:
    return [Conversation(messages) for messages in chats(n)]  # type: ignore[arg-type]


def examples(folder: Path, n: int, tokenizer: SentencePieceTokenizer) -> Path:
    build_sft_cache(conversations(n), str(folder), tokenizer=tokenizer, val_frac=0.0, seed=1)
    return folder


def episodes(folder: Path, n: int, _: SentencePieceTokenizer) -> Path:
    build_episodes(conversations(n), folder, encoder=as_encoder(renderer_of("ngpt")))
    return folder


@pytest.mark.parametrize("build", [examples, episodes])
def test_a_dataset_that_was_rebuilt_between_two_diagnoses_is_read_anew(
    build: Callable[..., Path], tmp_path: Path, tokenizer: SentencePieceTokenizer
) -> None:
    path = build(tmp_path / "data", 7, tokenizer)
    first = diagnose(path)
    shutil.rmtree(tmp_path / "data")
    assert build(tmp_path / "data", 3, tokenizer) == path
    second = diagnose(path)
    assert (first.rows, second.rows) == (7, 3)
    assert second.tokens < first.tokens
    shutil.rmtree(tmp_path / "data")
    again = diagnose(build(tmp_path / "data", 7, tokenizer))
    assert (again.rows, again.tokens) == (7, first.tokens)


def test_segments_are_encoded_by_the_tokenizer_that_lies_there_now(tmp_path: Path) -> None:
    place = tmp_path / "model"
    made = []
    for family in ("qwen2.5", "llama-3"):
        shutil.rmtree(place, ignore_errors=True)
        model(place, family)
        made.append(attribute_text_segments(str(place), [("the quick brown fox", True)]))
        assert made[-1] == attribute_text_segments(renderer_of(family).encoder, [("the quick brown fox", True)])
    assert made[0] != made[1]


# Functions whose results are kept for the whole process, and what their arguments are: none is a path.
KEPT = {
    "format/packing.py:_counted": "a number",
    "episodes/order/schedule.py:_block": "numbers",
    "episodes/order/schedule.py:_windows_of": "a schedule, whose arrays are in memory, and a number",
    "scale/process_pool.py:unpickled_job": "a pickled task of a worker process, which lives as long as one build",
    "renderers/encode.py:_encoder_of": "a tokenizer object",
    "explorer/byte_pattern.py:_one_of": "a character",
}


def kept_by(tree: ast.Module) -> set[str]:
    """Functions at a module's top level that take something and keep what they returned for it."""
    found = set()
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef)
            and node.args.args
            and any("cache" in ast.unparse(one) for one in node.decorator_list)
        ):
            found.add(node.name)
        if isinstance(node, ast.Assign) and any(name in ast.unparse(node.value) for name in ("cache(", "lru_cache(")):
            found.update(ast.unparse(target) for target in node.targets)
    return found


def test_no_function_keeps_what_it_read_under_a_path_for_the_whole_process() -> None:
    package = Path(niels_gpt.__file__).parent
    kept: dict[str, Any] = {}
    for file in sorted(package.rglob("*.py")):
        name = str(file.relative_to(package))
        if name.startswith("renderers/") and name != "renderers/encode.py":
            continue  # tools, texts and templates by value: no function there is given a path
        kept |= {f"{name}:{function}": None for function in kept_by(ast.parse(file.read_text(encoding="utf-8")))}
    assert set(kept) <= set(KEPT), "does it take a path? then keep the result in an object that ends with its use"
