"""Without `--renderer` every command, the doctor and the explorer take the same renderer for a tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.doctor.context import renderer_for
from niels_gpt.errors import UsageError
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.renderers.automatic import MODEL_TYPES
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from niels_gpt.renderers.registry import (
    FAMILIES,
    MODEL_RENDERER_MAP,
    RendererOptions,
    automatic_renderer,
    create_renderer,
)
from niels_gpt.renderers.template.renderer import DefaultRenderer
from tests.conftest import run_cli
from tests.renderers.small import CHATML
from tests.renderers.tiny_families import folder_of


def model(folder: Path, family: str = "qwen3", model_type: str | None = "qwen3") -> Path:
    """A tokenizer directory of a family, with a chat template and a config.json."""
    shutil.copytree(folder_of(family), folder)
    (folder / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    if model_type is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


def chosen_everywhere(folder: Path) -> set[str]:
    """The renderer by each way in."""
    made: list[Any] = [
        create_renderer(folder),
        RendererOptions().open(folder),
        renderer_for(str(folder), None, None, None)[1],
    ]
    names = {renderer.name if not isinstance(renderer, DefaultRenderer) else "template" for renderer in made}
    return names | {RendererList([str(folder)]).first.renderer}


@pytest.mark.parametrize(
    ("name", "family", "model_type", "renderer", "evidence"),
    [
        ("Qwen3-8B", "qwen3", "qwen3", "qwen3", "named like Qwen/Qwen3-8B, model_type qwen3"),
        ("qwen3-8b", "qwen3", "qwen3_moe", "qwen3", "all control tokens of qwen3"),
        ("Qwen3-8B", "qwen3", None, "template", "no config.json says its model_type"),
        ("models--Qwen--Qwen3-8B/snapshots/0ab1", "qwen3", "qwen3", "qwen3", "named like Qwen/Qwen3-8B"),
        ("models--me--Qwen3-8B/snapshots/0ab1", "qwen3", "qwen3", "template", "is not that of a known model"),
        ("mine", "qwen3", "qwen3", "template", "the directory's name, mine, is not that of a known model"),
        ("Qwen3-8B", "qwen3", "llama", "template", "its model_type is 'llama'"),
        ("Qwen3-8B", "gemma", "qwen3", "template", "its tokenizer has no <|im_start|>"),
    ],
)
def test_a_family_when_name_config_and_control_tokens_prove_it(
    tmp_path: Path, name: str, family: str, model_type: str | None, renderer: str, evidence: str
) -> None:
    folder = model(tmp_path / name, family, model_type)
    automatic = automatic_renderer(folder)
    assert automatic.renderer == renderer
    assert evidence in automatic.reason
    assert chosen_everywhere(folder) == {renderer}


def test_a_family_for_our_own_tokenizer(tokenizer_dir: Path) -> None:
    assert automatic_renderer(tokenizer_dir).renderer == automatic_renderer(tokenizer_dir / "spm.model").renderer
    assert chosen_everywhere(tokenizer_dir) == {"ngpt"}


def test_hub_names_are_exact() -> None:
    assert automatic_renderer("Qwen/Qwen3-8B").renderer == "qwen3"
    assert automatic_renderer("me/Qwen3-8B").renderer == "template"


def test_added_tokens_that_are_not_at_the_head_of_the_file(tmp_path: Path) -> None:
    folder = model(tmp_path / "Qwen3-8B")
    file = folder / "tokenizer.json"
    value = json.loads(file.read_text(encoding="utf-8"))
    added = value.pop("added_tokens")
    file.write_text(json.dumps({"padding_of_the_test": "x" * (1 << 20)} | value | {"added_tokens": added}))
    assert automatic_renderer(folder).renderer == "qwen3"


def test_every_model_has_its_model_type() -> None:
    assert set(MODEL_TYPES) == set(MODEL_RENDERER_MAP.values())
    assert set(MODEL_TYPES) <= set(FAMILIES)


def test_options_by_the_type_of_the_option(tmp_path: Path) -> None:
    folder = model(tmp_path / "Qwen3-8B")
    renderer = RendererOptions(options={"enable_thinking": "false"}).open(folder)
    assert isinstance(renderer, Qwen3Renderer)
    assert renderer.config.enable_thinking is False  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"no option 'enable_thinkin'; .*did you mean 'enable_thinking'"):
        RendererOptions(options={"enable_thinkin": "false"}).open(folder)
    with pytest.raises(UsageError, match="enable_thinking is 'perhaps'"):
        RendererOptions("qwen3", options={"enable_thinking": "perhaps"}).check()
    with pytest.raises(UsageError, match="did you mean 'qwen3'"):
        RendererOptions("quen3").check()


def test_options_of_a_template_are_its_variables(tmp_path: Path) -> None:
    folder = model(tmp_path / "mine")
    (folder / "chat_template.jinja").write_text("{% if not loud %}quiet{% endif %}{{ messages[0].content }}")
    for text, expected in (("true", "hi"), ("false", "quiethi")):
        renderer = RendererOptions(options={"loud": text}).open(folder)
        ids = renderer.render_ids([{"role": "user", "content": "hi"}])
        assert renderer.encoder.decode(ids) == expected
    with pytest.raises(UsageError, match=r"no variable 'loudd'; did you mean 'loud'"):
        RendererOptions(options={"loudd": "true"}).open(folder)


# ---- on the command line


CHAT = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello world"}]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a model whose family is proven, one whose is not, and conversations."""
    model(tmp_path / "Qwen3-8B")
    model(tmp_path / "mine")
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(CHAT) + "\n" for _ in range(4)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(*command: object) -> str:
    """The text that counts in the loss, by a command that prints tokens."""
    shown = json.loads(niels(*command, "--json"))
    return "".join(token["target_text"] for token in shown["tokens"] if token["target_trained"])


def niels(*command: object) -> str:
    done = run_cli(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_renderer_options_decide_what_is_trained(place: Path) -> None:
    """With `enable_thinking=false` the prompt supplies the think block of the last answer, so it is not trained."""
    line = ("show", "chats.jsonl", "--tokenizer", "Qwen3-8B")
    assert trained(*line) == "<think>\n\n</think>\n\nhello world<|im_end|>"
    assert trained(*line, "--renderer-option", "enable_thinking=false") == "hello world<|im_end|>"


@pytest.mark.parametrize("command", ["build", pytest.param("build --kind sft", marks=pytest.mark.slow)])
def test_renderer_options_of_builds(place: Path, command: str) -> None:
    line = (*command.split(), "chats.jsonl", "--tokenizer", "Qwen3-8B", "--val-frac", 0)
    niels(*line, "--out", "one")
    niels(*line, "--out", "two", "--renderer-option", "enable_thinking=false")
    assert trained("show", "one", "--tokenizer", "Qwen3-8B") == "<think>\n\n</think>\n\nhello world<|im_end|>"
    assert trained("show", "two", "--tokenizer", "Qwen3-8B") == "hello world<|im_end|>"


def test_commands_say_which_renderer_and_why(place: Path) -> None:
    lines = [
        ("show", "chats.jsonl"),
        ("doctor", "chats.jsonl"),
        ("build", "chats.jsonl", "--out", "{}"),
        ("build", "--kind", "sft", "chats.jsonl", "--out", "{}"),
    ]
    for number, line in enumerate(lines):
        for folder, told in (
            ("Qwen3-8B", "renderer qwen3: named like Qwen/Qwen3-8B"),
            ("mine", "renderer template: the directory's name, mine"),
        ):
            words = [word.format(f"out{number}{folder}") for word in line]
            done = run_cli(*words, "--tokenizer", folder)
            assert done.returncode == 0, done.stderr
            assert sum(each.startswith(told) for each in done.stderr.splitlines()) == 1, done.stderr
            assert "renderer qwen3:" not in done.stdout
    for quiet in (("--json",), ("--renderer", "template")):
        assert "renderer" not in run_cli("show", "chats.jsonl", "--tokenizer", "mine", *quiet).stderr


def test_show_opens_conversations(place: Path) -> None:
    shown = niels("show", "chats.jsonl", 2)
    assert "── 1 assistant ──\nhello world\n" in shown
    assert json.loads(niels("show", "chats.jsonl", 2, "--json"))["messages"] == CHAT["messages"]
    for line, told in (
        (("show", "chats.jsonl", "--packed"), "are for datasets"),
        (("show", "chats.jsonl", "--renderer", "qwen3"), "pass --tokenizer"),
        (("show", "chats.jsonl", 9), "no conversation 9"),
        (("show", "mine", "--renderer", "qwen3"), "rendered when it was built"),
    ):
        refused = run_cli(*line)
        assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr
