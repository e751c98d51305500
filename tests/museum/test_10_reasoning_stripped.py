"""Masks by prefix lengths, under a template that takes reasoning out of history."""

from __future__ import annotations

from typing import Any

from niels_gpt.renderers.base import build_training_samples
from tests.doctor.made import as_rows, chats, report_on
from tests.museum.exhibit import Exhibit, row
from tests.renderers.tiny_families import renderer_of

EXHIBIT = Exhibit(
    number=10,
    title="Reasoning is dropped from history, so prefixes do not match",
    happened="Templates of reasoning models write the reasoning of the last answer, and leave it out once the user "
    "has written again. The conversation up to a turn is then not a prefix of the whole conversation: masks computed "
    "from prefixes cover the wrong tokens, and most of the collected reasoning is never trained.",
    hidden="A part of each answer is still trained, and a part of each question. The rows differ from what serving "
    "shows the model, which no loss measures.",
    caught="`build_training_samples` makes one sample for each turn whose text changes once it is history, so that "
    "every answer is trained as the model produces it. The doctor counts the tokens that are lost otherwise.",
    rules=("history-thinking-stripped", "user-tokens-trained"),
    threads=("thinking-machines-lab/tinker-cookbook#142", "modelscope/ms-swift#4939", "OpenPipe/ART#726"),
)


def naive(renderer: Any, messages: list[dict[str, Any]]) -> tuple[list[int], list[bool]]:
    ids = renderer.render_ids(messages)
    mask = [False] * len(ids)
    for turn in range(1, len(messages), 2):
        begins = len(renderer.render_ids(messages[:turn], add_generation_prompt=True))
        ends = len(renderer.render_ids(messages[: turn + 1]))
        mask = [trained or begins <= at < ends for at, trained in enumerate(mask)]
    return ids, mask


def test_naive() -> None:
    made = chats(reasons=True)
    assert "history-thinking-stripped" in report_on("qwen3", as_rows(made)).rules("warning")
    rows = [row(*naive(renderer_of("qwen3"), messages)) for messages in made]
    assert "user-tokens-trained" in report_on("qwen3", rows).rules("error")


def test_ours() -> None:
    """A sample for each turn; the reasoning of every turn is trained in one of them."""
    renderer = renderer_of("qwen3")
    for messages in chats(reasons=True):
        samples = list(build_training_samples(renderer, messages))
        assert len(samples) == 2
        for (ids, mask), answer in zip(samples, messages[1::2], strict=True):
            text = renderer.encoder.decode([token for token, trained in zip(ids, mask, strict=True) if trained])
            assert answer["reasoning_content"] in text
        assert report_on("qwen3", [row(*sample) for sample in samples]).rules("error") == []
