"""A mask read off template markers that are not there."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from jinja2 import Environment
from tokenizers import Tokenizer

from niels_gpt.doctor import diagnose
from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import by_template, chats, model, template_of
from tests.museum.exhibit import row, tokenizer_of


def naive(tokenizer: Tokenizer, template: str, messages: list[dict[str, str]]) -> tuple[list[int], list[bool]]:
    marked = template.replace("{% generation %}", "\x02").replace("{% endgeneration %}", "\x03")
    text = Environment().from_string(marked).render(messages=messages)
    inside = list(accumulate((mark == "\x02") - (mark == "\x03") for mark in text))
    in_answer = [depth > 0 for depth, mark in zip(inside, text, strict=True) if mark not in "\x02\x03"]
    found = tokenizer.encode(text.replace("\x02", "").replace("\x03", ""))
    return found.ids, [in_answer[start] for start, _ in found.offsets]


def test_naive(tmp_path: Path) -> None:
    template = template_of("qwen2.5")
    rows = [row(*naive(tokenizer_of("qwen2.5"), template, messages)) for messages in chats()]
    assert diagnose(rows, renderer=by_template("qwen2.5")).rules() == ["mask-all-zero"]
    assert diagnose(model(tmp_path / "model", "qwen2.5", template=template)).rules() == ["no-generation-markers"]


def test_naive_with_markers() -> None:
    """Where a template has them, the naive way works."""
    answer = "{% if m.role == 'assistant' %}{% generation %}{{ m.content + STOP }}{% endgeneration %}{{ '\n' }}"
    template = template_of(
        "qwen2.5",
        "{% for m in messages %}{{ START + m.role + '\n' }}" + answer + "{% else %}{{ m.content + STOP + '\n' }}"
        "{% endif %}{% endfor %}",
    )
    rows = [row(*naive(tokenizer_of("qwen2.5"), template, messages)) for messages in chats()]
    assert diagnose(rows, renderer=by_template("qwen2.5")).rules() == []


def test_ours() -> None:
    """The same template, unchanged."""
    renderer = by_template("qwen2.5")
    rows = [row(*build_training_sample(renderer, messages)) for messages in chats()]
    assert diagnose(rows, renderer=renderer).rules() == []
