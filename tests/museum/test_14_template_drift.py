"""A server's own copy of the format, without one newline."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.doctor import diagnose
from tests.doctor.made import CHATML, by_template, chats, model, template_of


def naive(messages: list[dict[str, str]]) -> str:
    turns = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>" for message in messages)
    return turns + "<|im_start|>assistant\n"


SERVED = CHATML.replace("STOP + '\n'", "STOP")  # the same as a template


def test_naive(tmp_path: Path) -> None:
    trained, served = by_template("qwen2.5"), by_template("qwen2.5", SERVED)
    for messages in chats():
        prompt = naive(messages[:-1])
        assert prompt == served.text(messages[:-1], add_generation_prompt=True)
        assert prompt != trained.text(messages[:-1], add_generation_prompt=True)
    one = model(tmp_path / "one", "qwen2.5", template=template_of("qwen2.5"))
    two = model(tmp_path / "two", "qwen2.5", template=template_of("qwen2.5", SERVED))
    assert diagnose(one, two).rules() == ["template-drift"]


def test_ours(tmp_path: Path) -> None:
    """The same template twice is the same; the fingerprints that caches record tell the two apart."""
    one = model(tmp_path / "one", "qwen2.5", template=template_of("qwen2.5"))
    two = model(tmp_path / "two", "qwen2.5", template=template_of("qwen2.5"))
    assert diagnose(one, two).rules() == []
    prints = [by_template("qwen2.5", text).fingerprints["template_sha256"] for text in (CHATML, SERVED)]
    assert prints[0] != prints[1]
