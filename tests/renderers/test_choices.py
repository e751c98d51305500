"""Conversations whose ids or masks lack something: refused or counted, in builds and training samples, never silent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.builds.renderer_encoder import RendererEncoder
from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.episodes.build import build_episodes
from niels_gpt.errors import DataError, MessageError
from niels_gpt.progress import Progress
from niels_gpt.renderers.base import build_training_sample, build_training_samples, build_trajectory_step
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.conftest import run_cli
from tests.renderers.small import CHATML, assistant, call, family, result, user
from tests.renderers.tiny_families import folder_of

# Answers begin as another role than the generation prompt says: where the model's part begins is not known.
PARTIAL = CHATML.replace("{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>model\n' }}")
PLAIN = [user("a"), assistant("b")]
THOUGHT = [user("a"), assistant("b", reasoning_content="why")]


def partial() -> Any:
    return TemplateRenderer(folder_of("qwen3"), template=PARTIAL)


class OneByOne:
    """A renderer without batches."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def render(self, messages: Any, *, tools: Any = None) -> Any:
        return self._inner.render(messages, tools=tools)


class Noted(Progress):
    """A progress that keeps what is noted."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def note(self, text: str) -> None:
        self.notes.append(text)


def manifest_of(folder: Path) -> dict[str, Any]:
    name = next(name for name in ("episodes.json", "meta.json") if (folder / name).is_file())
    held: dict[str, Any] = json.loads((folder / name).read_text())
    return held


# ---- partial attribution


def test_training_samples_refuse_partial_attribution() -> None:
    renderer = partial()
    assert renderer.render(PLAIN).attribution.startswith("partial")
    for build in (build_training_sample, build_training_samples):
        with pytest.raises(MessageError, match=r"attribution is 'partial: .*allow_partial=True") as found:
            build(renderer, PLAIN)
        assert found.value.reason == "partial_attribution"
        assert build(renderer, PLAIN, allow_partial=True)
    with pytest.raises(MessageError, match="allow_partial=True"):
        build_trajectory_step(renderer, PLAIN[:1], PLAIN[1:])
    assert build_trajectory_step(renderer, PLAIN[:1], PLAIN[1:], allow_partial=True)["completion_ids"]


def test_builds_leave_partial_rows_out_or_count_them(tmp_path: Path) -> None:
    class Mixed(OneByOne):
        """Every conversation of three messages is attributed in part."""

        def render(self, messages: Any, *, tools: Any = None) -> Any:
            made = super().render(messages, tools=tools)
            return made if len(messages) != 3 else replace(made, attribution="partial: for this test")

    rows = [PLAIN, [*PLAIN, user("c")], PLAIN]
    mixed = Mixed(family("qwen3"))
    build_episodes(rows, tmp_path / "left", encoder=mixed, val_frac=0, max_bad_rows=1)
    build_episodes(rows, tmp_path / "all", encoder=mixed, val_frac=0, allow_partial=True)
    left, everything = manifest_of(tmp_path / "left"), manifest_of(tmp_path / "all")
    assert (left["dropped"], left.get("changed")) == ({"partial_attribution": 1}, None)
    assert (everything["dropped"], everything["changed"]) == ({}, {"partial_attribution": 1})
    assert everything["allow_partial"] is True
    assert "allow_partial" not in left  # what was built before is still "already built" with the same options
    assert (left["train_episodes"], everything["train_episodes"]) == (2, 3)


@pytest.mark.parametrize("samples", ["per-conversation", "auto"])
def test_builds_count_conversations_that_are_attributed_by_the_oracle(tmp_path: Path, samples: Any) -> None:
    """A text with much white space around it has to be; other manifests do not name it."""
    renderer = TemplateRenderer(folder_of("qwen3"), template=CHATML)
    lettered, notes = [user(" " * 80 + "a"), assistant("b")], list[str]()
    assert [renderer.render(chat).attribution_route for chat in (PLAIN, lettered)] == ["gaps", "oracle"]
    given: dict[str, Any] = {
        "encoder": RendererEncoder(renderer, samples=samples),
        "val_frac": 0,
        "progress": Noted(notes),
    }
    build_episodes([PLAIN, lettered, PLAIN], tmp_path / "some", **given)
    assert manifest_of(tmp_path / "some")["changed"] == {"attributed_by_oracle": 1}
    assert any("1 rows: attributed each by itself" in note for note in notes)
    build_episodes([PLAIN], tmp_path / "none", **given)
    assert "changed" not in manifest_of(tmp_path / "none")


# ---- fields that the format has no place for


@pytest.mark.parametrize("name", ["llama-3", "kimi-k2"])
def test_reasoning_without_a_place_is_counted(name: str, tmp_path: Path) -> None:
    rows = [THOUGHT, PLAIN, THOUGHT]
    build_episodes(rows, tmp_path / "e", encoder=family(name), val_frac=0)
    build_episodes([PLAIN] * 3, tmp_path / "plain", encoder=family(name), val_frac=0)

    manifest = manifest_of(tmp_path / "e")
    assert manifest["changed"] == {"reasoning_content_not_written": 2}
    assert manifest["train_episodes"] == 3
    made = [(tmp_path / which / "train" / "tokens.bin").read_bytes() for which in ("e", "plain")]
    assert made[0] == made[1]


def test_calls_and_tools_that_a_template_ignores_are_counted_by_row(tmp_path: Path) -> None:
    template = CHATML.replace("m.role + ", "('tool' if m.role == 'tool' else m.role) + ")
    renderer = TemplateRenderer(folder_of("qwen3"), template=template)
    chat = [user(), assistant("", tool_calls=[call(), call("put", 1)]), result(), result("put", 1), assistant("b")]
    given: dict[str, Any] = {"tokenizer": renderer, "val_frac": 0, "seed": 1}
    with pytest.raises(DataError, match="example 0: message 1: tool_calls is not written"):
        build_sft_cache([chat, PLAIN], str(tmp_path / "c"), **given)
    build_sft_cache([chat, PLAIN], str(tmp_path / "c"), **given, on_unwritten="drop")
    assert manifest_of(tmp_path / "c")["changed"] == {"tool_calls_not_written": 1}


# ---- however a build is run


def test_the_commands_tell_and_take_the_options(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in [THOUGHT, PLAIN]))
    template = tmp_path / "chat.jinja"
    template.write_text(PARTIAL)
    given: tuple[Any, ...] = (chats, "--tokenizer", folder_of("llama-3"), "--renderer", "llama-3", "--val-frac", 0)
    for number, command in enumerate([("build",), ("build", "--kind", "sft")]):
        built = run_cli(*command, *given, "--out", tmp_path / f"told{number}")
        assert built.returncode == 0, built.stderr
        assert "1 rows: reasoning_content is not written" in " ".join((built.stdout + built.stderr).split())
        assert "used, but reasoning_content_not_written" in " ".join(built.stdout.split())
        refused = run_cli(*command, *given, "--out", tmp_path / f"no{number}", "--on-unwritten", "error")
        assert refused.returncode == 3
        assert f"{chats}:1: message 1: reasoning_content is not written" in " ".join(refused.stderr.split())
    given = (chats, "--tokenizer", folder_of("qwen3"), "--template", template, "--val-frac", 0, "--json")
    refused = run_cli("build", *given, "--out", tmp_path / "partial")
    assert refused.returncode == 3
    assert "--allow-partial" in refused.stderr
    allowed = run_cli("build", *given, "--out", tmp_path / "partial", "--allow-partial")
    assert allowed.returncode == 0, allowed.stderr
    assert json.loads(allowed.stdout)["changed"] == {"partial_attribution": 2, "reasoning_content_not_written": 1}
