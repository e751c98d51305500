"""The prompt's length taken as the place where the answer begins."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import chats, report_on
from tests.museum.exhibit import row, tokenizer_of
from tests.renderers.tiny_families import renderer_of


def naive(tokenizer: Tokenizer, prompt: str, answer: str) -> tuple[list[int], list[bool]]:
    begins = len(tokenizer.encode(prompt).ids)  # this one has a <bos>
    ids = tokenizer.encode(prompt + answer, add_special_tokens=False).ids  # and this one has not
    return ids, [place >= begins for place in range(len(ids))]


def tokenizer_with_bos() -> Tokenizer:
    tokenizer = tokenizer_of("qwen2.5")
    bos = "<|endoftext|>"
    processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])
    tokenizer.post_processor = processor
    return tokenizer


def test_naive() -> None:
    rows = []
    for question, answer in chats(turns=1):
        prompt = f"<|im_start|>user\n{question['content']}<|im_end|>\n<|im_start|>assistant\n"
        rows.append(row(*naive(tokenizer_with_bos(), prompt, answer["content"] + "<|im_end|>")))
    assert report_on("qwen2.5", rows).rules() == ["mask-shifted"]


def test_ours() -> None:
    rows = [row(*build_training_sample(renderer_of("qwen2.5"), messages)) for messages in chats(turns=1)]
    assert report_on("qwen2.5", rows).rules() == []
