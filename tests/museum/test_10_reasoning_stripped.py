"""Masks by prefix lengths, under a template that takes reasoning out of history."""

from __future__ import annotations

from typing import Any

from niels_gpt.renderers.base import build_training_samples
from tests.doctor.made import as_rows, chats, report_on
from tests.museum.exhibit import row
from tests.renderers.tiny_families import renderer_of


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
