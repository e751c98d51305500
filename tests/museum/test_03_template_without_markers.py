"""A mask read off template markers that are not there."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from jinja2 import Environment
from tokenizers import Tokenizer

from niels_gpt.doctor import diagnose
from niels_gpt.renderers.base import build_training_sample
from tests.doctor.made import by_template, chats, model, template_of
from tests.museum.exhibit import Exhibit, row, tokenizer_of

EXHIBIT = Exhibit(
    number=3,
    title="The template has no generation markers, so the mask is empty",
    happened="The assistant mask comes from markers that a template may put around answers. The templates of Llama "
    "3.1, Qwen 3, Gemma 3 and gpt-oss have none. Then no token is trained (or, after a fallback, every token), and "
    "training runs without an error.",
    hidden="Rows without a trained token do not count in the average. If some rows have markers, the loss is that "
    "of these rows. If none have, some trainers report a loss of zero, and others a loss over all tokens.",
    caught="`DefaultRenderer` finds whose every character is in the output of any template, without markers. The "
    "doctor finds empty masks in rows, and templates without markers in a tokenizer's directory.",
    rules=("mask-all-zero", "no-generation-markers"),
    threads=("huggingface/transformers#34172", "marin-community/marin#7237", "Liquid4All/liquid-finetune#37"),
)


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
