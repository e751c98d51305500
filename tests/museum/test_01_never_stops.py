"""The model never stops: the token that ends a turn is in the data and not in the loss."""

from __future__ import annotations

from tokenizers import Tokenizer

from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import chats, report_on
from tests.museum.exhibit import Exhibit, row, tokenizer_of
from tests.renderers.tiny_families import renderer_of

EXHIBIT = Exhibit(
    number=1,
    title="The model never stops",
    happened="A fine-tuned model answers well and then continues: it repeats itself, or writes the next question "
    "too. The mask covered the text of each answer and left out the end-of-turn token after it, so the model was "
    "never trained to stop.",
    hidden="One token of each answer is missing from an average over hundreds. The loss is even slightly lower "
    "without it, and evaluations by likelihood never ask the model to stop.",
    caught="For every token a renderer records whether the model samples it; the end of its turn is such a token. "
    "The doctor finds the token that closes each turn in the ids and checks that it is trained.",
    rules=("eot-not-trained",),
    threads=("huggingface/trl#1623", "unslothai/unsloth#416", "modelscope/ms-swift#3113"),
)


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
