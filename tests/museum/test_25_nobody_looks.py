"""A marker that is searched in ids and never found."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer

from niels_gpt.display.rows import TRAINED
from niels_gpt.display.table import example_text
from niels_gpt.doctor import diagnose
from niels_gpt.explorer.example_view import view_rendered
from niels_gpt.messages import Conversation
from niels_gpt.renderers.template.renderer import DefaultRenderer
from tests.doctor.made import chats
from tests.museum.exhibit import row, tokenizer_of
from tests.renderers.tiny_families import folder_of


def naive(tokenizer: Tokenizer, text: str, marker: str) -> tuple[list[int], list[bool]]:
    ids, wanted = tokenizer.encode(text).ids, tokenizer.encode(marker).ids
    found = [at for at in range(len(ids)) if ids[at : at + len(wanted)] == wanted]
    begins = found[-1] + len(wanted) if found else len(ids)
    return ids, [at >= begins for at in range(len(ids))]


TEMPLATE = (
    "{% for m in messages %}{{ '### ' + (m.role | capitalize) + ':\n' + m.content }}"
    "{{ '<|im_end|>' if m.role == 'assistant' else '' }}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}"
)


def test_naive() -> None:
    rows = []
    for question, answer in chats(turns=1):
        text = f"### User:\n{question['content']}\n\n### Assistant:\n{answer['content']}<|im_end|>"
        rows.append(row(*naive(tokenizer_of("qwen2.5", split=False), text, "\n### Assistant:")))
    assert "mask-all-zero" in diagnose(rows).rules("error")


def test_ours() -> None:
    """The same format by its template, and a look at it."""
    renderer = DefaultRenderer(str(folder_of("qwen2.5", split=False)), template=TEMPLATE)
    for messages in chats(turns=1):
        view = view_rendered(renderer, Conversation(messages, "chat"))
        trained = "".join(np.array(view.raw_texts)[view.colours == TRAINED])
        assert trained == messages[1]["content"] + "<|im_end|>"
        assert trained in example_text(view, colour=False)
