"""All that follows the header is trained, and the prompt supplies more than the header."""

from __future__ import annotations

from typing import Any

from niels_gpt.doctor import diagnose
from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import chats, report_on
from tests.museum.exhibit import row
from tests.renderers.tiny_families import renderer_of


def naive(renderer: Any, messages: list[dict[str, Any]]) -> tuple[list[int], list[bool]]:
    ids = renderer.render_ids(messages)
    header = renderer.encoder.encode_pieces(["assistant\n"], [False])[0].tolist()
    begins = next(at for at in range(len(ids)) if ids[at : at + len(header)] == header) + len(header)
    stop = len(ids) - 1 - ids[::-1].index(renderer.get_stop_token_ids()[0])
    return ids, [begins <= at <= stop for at in range(len(ids))]


def test_naive() -> None:
    for family, reasons, named in (
        ("qwen3.5", True, ["header-trained"]),  # <think> and the newline behind it
        ("qwen3", False, ["empty-think-trained"]),
    ):
        made = chats(turns=1, reasons=reasons)
        rows = [row(*naive(renderer_of(family), messages)) for messages in made]
        assert report_on(family, rows).rules() == named


def test_ours() -> None:
    for family, reasons, options in (("qwen3.5", True, ()), ("qwen3", False, (("enable_thinking", False),))):
        renderer = renderer_of(family, *options)
        rows = [row(*build_training_sample(renderer, messages)) for messages in chats(turns=1, reasons=reasons)]
        assert diagnose(rows, renderer=renderer).rules() == []
