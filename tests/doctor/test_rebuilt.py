"""A dataset that is rebuilt in the same place is read anew, in the same process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

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
