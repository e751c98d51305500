"""Character offsets that belong to no token, and an `or` that hides it."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import ByteLevel

from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import chats, report_on
from tests.museum.exhibit import row, tokenizer_of
from tests.renderers.tiny_families import renderer_of


def naive(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> tuple[list[int], list[bool]]:
    text, spans = "", []
    for message in messages:
        text += f"<|im_start|>{message['role']}\n"
        if message["role"] == "assistant":
            spans.append((len(text), len(text) + len(message["content"])))
        text += message["content"] + "<|im_end|>\n"
    found = tokenizer.encode(text)
    mask = [False] * len(found.ids)
    for start, end in spans:
        first = found.char_to_token(start)
        last = found.char_to_token(end - 1) or len(mask) - 2  # `None` where the character was trimmed
        mask[first : last + 2] = [True] * (last + 2 - first)  # with the end-of-turn
    return found.ids, mask


def talk() -> list[list[dict[str, Any]]]:
    """Conversations whose first answer ends in a space."""
    made = chats()
    for messages in made:
        messages[1]["content"] += " "
    return made


def trimming() -> Tokenizer:
    tokenizer = tokenizer_of("chatml")
    tokenizer.post_processor = ByteLevel(trim_offsets=True)  # what GPT-2 and Llama 3 have
    return tokenizer


def test_naive() -> None:
    rows = [row(*naive(trimming(), messages)) for messages in talk()]
    report = report_on("chatml", rows)
    assert "user-tokens-trained" in report.rules("error")
    fine = [row(*naive(trimming(), messages)) for messages in chats()]
    assert report_on("chatml", fine).rules() == []  # without the space the naive way works


def test_ours() -> None:
    rows = [row(*build_training_sample(renderer_of("chatml"), messages)) for messages in talk()]
    assert report_on("chatml", rows).rules() == []
