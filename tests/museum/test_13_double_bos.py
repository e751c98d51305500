"""Rendered text encoded once more with the tokenizer's own beginning."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from niels_gpt.doctor import diagnose
from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import CHATML, chats, model, report_on, template_of
from tests.museum.exhibit import row, tokenizer_of
from tests.renderers.tiny_families import renderer_of


def naive(tokenizer: Tokenizer, rendered: str) -> list[int]:
    return tokenizer.encode(rendered).ids  # add_special_tokens is True unless one says otherwise


def beginning(tokenizer: Tokenizer) -> None:
    """What Llama 3's tokenizer does to every text."""
    bos = "<|begin_of_text|>"
    processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])
    tokenizer.post_processor = processor


def test_naive(tmp_path: Path) -> None:
    tokenizer, renderer = tokenizer_of("llama-3"), renderer_of("llama-3")
    beginning(tokenizer)
    rows = []
    for messages in chats():
        ids, mask = build_training_sample(renderer, messages)
        twice = naive(tokenizer, renderer.text(messages))
        assert twice == [*ids[:1], *ids]
        rows.append(row(twice, [False, *mask]))
    assert report_on("llama-3", rows).rules() == ["double-bos"]
    template = "{{ bos_token }}" + template_of("llama-3", CHATML)
    folder = model(tmp_path / "m", "llama-3", template=template, bos_token="<|begin_of_text|>", processor=beginning)
    assert "bos-added-twice" in diagnose(folder).rules("warning")


def test_ours() -> None:
    rows = [row(*build_training_sample(renderer_of("llama-3"), messages)) for messages in chats()]
    assert report_on("llama-3", rows).rules() == []
