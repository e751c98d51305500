"""The model never stops: the token that ends a turn is in the data and not in the loss."""

from __future__ import annotations

from tokenizers import Tokenizer

from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import chats, report_on
from tests.museum.exhibit import row, tokenizer_of
from tests.renderers.tiny_families import renderer_of


def naive(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> tuple[list[int], list[bool]]:
    ids: list[int] = []
    mask: list[bool] = []
    for message in messages:
        is_answer = message["role"] == "assistant"
        parts = (f"<|im_start|>{message['role']}\n", False), (message["content"], is_answer), ("<|im_end|>\n", False)
        for text, trained in parts:
            tokens = tokenizer.encode(text).ids
            ids += tokens
            mask += [trained] * len(tokens)
    return ids, mask


def test_naive() -> None:
    rows = [row(*naive(tokenizer_of("chatml"), messages)) for messages in chats()]
    assert report_on("chatml", rows).rules() == ["eot-not-trained"]


def test_ours() -> None:
    rows = [row(*build_training_sample(renderer_of("chatml"), messages)) for messages in chats()]
    assert report_on("chatml", rows).rules() == []
    assert [one["input_ids"] for one in rows] == [naive(tokenizer_of("chatml"), messages)[0] for messages in chats()]
