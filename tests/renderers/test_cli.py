"""`niels-gpt show`, and episodes built through a chat template, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import run_cli

pytest.importorskip("tokenizers")
from niels_gpt.errors import DataError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.test_template import CHATML
from tests.renderers.tiny_families import folder_of
from tests.tokenizer import tiny

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello world"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer directory with a chat template, as a hub has them."""
    folder = tmp_path_factory.mktemp("model")
    return tiny.save(tiny.byte_level(), folder / "model", eos_token=tiny.END, chat_template=CHATML)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": CHAT}) + "\n" for _ in range(5)) + '{"messages": []}\n')
    return file


def test_render_in_colour_and_as_json(model: Path, chats: Path) -> None:
    shown = json.loads(run_cli("show", chats, 1, "--tokenizer", model, "--json").stdout)
    sampled = "".join(token["text"] for token in shown["tokens"] if token["kind"] == "trained")
    assert sampled == "hello world<|im_end|>"
    assert "attribution full" in shown["title"]
    flowing = run_cli("show", chats, 1, "--tokenizer", model)
    assert "<|im_start|>assistant" in flowing.stdout
    for number, code, said in ((5, 3, "messages is empty"), (6, 2, "no conversation 6; it has 6, counted from 0")):
        refused = run_cli("show", chats, number, "--tokenizer", model)
        assert (refused.returncode, "Traceback" in refused.stderr) == (code, False)
        assert said in refused.stderr
    assert run_cli("show", chats, 1, "--tokenizer", model, "--date", "tomorrow").returncode == 2


@pytest.mark.parametrize(("family", "told"), [("gpt-oss", "Current date: 2026-01-31"), ("llama-3", "31 Jan 2026")])
def test_families_that_tell_the_day(chats: Path, family: str, told: str) -> None:
    arguments = ("show", chats, 1, "--tokenizer", folder_of(family), "--renderer", family, "--json")
    for date, found in ((("--date", "2026-01-31"), True), ((), False)):
        shown = json.loads(run_cli(*arguments, *date).stdout)
        assert (told in "".join(token["text"] for token in shown["tokens"])) is found
    refused = run_cli(*arguments, "--date", "31 Jan")
    assert refused.returncode == 2
    assert "expected a day like 2026-01-31" in refused.stderr


def test_episodes_of_a_chat_template(model: Path, chats: Path, tmp_path: Path) -> None:
    out = tmp_path / "episodes"
    arguments = ("build", chats, "--tokenizer", model, "--out", out, "--val-frac", "0")
    built = run_cli(*arguments, "--max-bad-rows", 1)
    assert built.returncode == 0, built.stderr
    manifest = json.loads((out / "episodes.json").read_text())
    assert len(manifest["template_sha256"]) == len(manifest["tokenizer_sha256"]) == 64
    records = np.fromfile(out / "train" / "episodes.idx", dtype="<u8").reshape(-1, 2)
    assert len(records) == 5
    shown = json.loads(run_cli("show", out, 2, "--tokenizer", model, "--json").stdout)
    trained = "".join(token["target_text"] for token in shown["tokens"] if token["target_trained"])
    assert trained == "hello world<|im_end|>"
    assert "already built" in run_cli(*arguments, "--max-bad-rows", 1).stderr
    other = tmp_path / "other.jinja"
    other.write_text(CHATML.replace("\n", " "))
    refused = run_cli(*arguments, "--template", other, "--max-bad-rows", 1)
    assert refused.returncode == 2
    assert "template_sha256" in refused.stderr


@pytest.mark.parametrize(
    ("template", "code", "told"),
    [
        (b"{{ messages }} \xff", 3, "chat_template.jinja: line 1 is no UTF-8 (byte 0xff at byte 15)"),
        (b"{{ " + b"9" * 10_000 + b" }}", 3, "cannot be compiled"),
        (b"{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", 3, "without end"),
    ],
)
def test_templates_that_cannot_be_used(template: bytes, code: int, told: str, chats: Path, tmp_path: Path) -> None:
    """One clear line of standard error, on the command line as in the library."""
    folder = tiny.save(tiny.byte_level(), tmp_path / "model", eos_token=tiny.END)
    (folder / "chat_template.jinja").write_bytes(template)
    refused = run_cli("show", chats, 1, "--tokenizer", folder)
    assert (refused.returncode, "Traceback" in refused.stderr) == (code, False)
    assert told in " ".join(refused.stderr.split())
    with pytest.raises(DataError) as caught:
        TemplateRenderer(folder).render(CHAT)
    assert told in str(caught.value)
    if template.startswith(b"{"):
        file = tmp_path / "template.jinja"
        file.write_bytes(template)
        refused = run_cli("show", chats, 1, "--tokenizer", folder_of("qwen3"), "--template", file)
        assert (refused.returncode, "Traceback" in refused.stderr) == (code, False)
