"""A rendering gives its conversation again, or the message, the field and both texts are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.renderer_encoder import RenderingPolicy
from niels_gpt.episodes.build import build_episodes
from niels_gpt.errors import DataError, MessageError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import needs_assets
from tests.conftest import run_cli
from tests.renderers.every_template import renderer_of as template_of
from tests.renderers.small import assistant, family, user
from tests.renderers.test_choices import manifest_of
from tests.renderers.test_left_out import calls, conversations
from tests.renderers.tiny_families import TOKENS, folder_of, renderer_of

# Their markup is of control tokens, which no text becomes.
BY_CONTROLS = ("mistral", "mistral-v7", "mistral-v11", "mistral-v13", "gpt-oss", "inkling")
BY_CONTROLS_OF_CALLS = (*BY_CONTROLS, "llama-3")  # whose calls are whole answers


def markup_of_call(name: str) -> str:
    """How a family writes a call."""
    renderer = renderer_of(name)
    pieces = renderer.pieces([user(), assistant("", tool_calls=calls(name, "zeta"))])
    stop = renderer.end_turn[0]
    text = "".join(piece.text for piece in pieces if piece.sampled and piece.msg == 1 and piece.text != stop)
    return text.rpartition("</think>")[2].strip()


@pytest.mark.parametrize("name", TOKENS)
def test_ordinary_rows_are_proven(name: str) -> None:
    for case, (messages, tools) in conversations(name).items():
        if case in ("two blocks", "calls"):
            continue
        try:
            trip = renderer_of(name, ("on_unwritten", "drop")).round_trip(messages, tools=tools)
        except MessageError:  # no row of this format
            continue
        assert trip.proven, trip.difference
        assert trip.difference is None


@pytest.mark.parametrize("name", [name for name in TOKENS if renderer_of(name).calls is not None])
def test_an_answer_that_spells_a_call(name: str) -> None:
    text = f"Write {markup_of_call(name)} to call."
    renderer = renderer_of(name)
    trip = renderer.round_trip([user(), assistant("fine"), user(), assistant(text)])
    if trip.proven:
        # Then the model cannot be read as calling.
        assert (
            name in BY_CONTROLS_OF_CALLS
            or not renderer.parse_response(renderer.encoder.encode_pieces([text], [False])[0].tolist()).tool_calls
        )
        return
    assert trip.difference is not None
    assert (trip.difference.message, trip.difference.field, trip.difference.written) == (3, "content", text)


@pytest.mark.parametrize("name", [n for n in TOKENS if TOKENS[n].reasons and not TOKENS[n].empties])
def test_reasoning_that_spells_its_end(name: str) -> None:
    trip = renderer_of(name).round_trip([user(), assistant("so", reasoning_content="I see </think> here")])
    if name in BY_CONTROLS:
        assert trip.proven
        return
    assert trip.difference is not None
    assert (trip.difference.message, trip.difference.field) == (1, "reasoning_content")
    assert trip.difference.written == "I see </think> here"
    assert trip.difference.read == "I see"


@needs_assets
@pytest.mark.parametrize(("name", "parser"), [("qwen3-8b", "qwen3"), ("glm-4.7-flash", "glm"), ("minimax-m2.5", "")])
def test_templates_are_proven(name: str, parser: str) -> None:
    """With parsers as families are; without them, texts are looked up."""
    parsers = {"tool_parser": parser, "reasoning_parser": "think"} if parser else {}
    source = template_of(name)
    renderer = TemplateRenderer(source.encoder, template=source.source, **parsers)
    chat = [user(), assistant("fine"), user("so?"), assistant("yes", reasoning_content="hm")]
    trip = renderer.round_trip(chat)
    assert trip.proven, trip.difference
    if parser:
        bad = renderer.round_trip([user(), assistant("yes", reasoning_content="I see </think> here")])
        assert bad.difference is not None
        assert (bad.difference.message, bad.difference.field) == (1, "reasoning_content")


ROWS = [
    [user(), assistant("fine")],
    [user(), assistant("a", reasoning_content="hm"), user(), assistant("b")],
    [{"role": "developer", "content": "x"}, user(), assistant("fine")],
    [user(), assistant('Use <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> so.')],
    [user(), assistant("b", reasoning_content="I see </think> here")],
]


def test_builds_prove_every_row(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="message 1: content is 'Use <tool_call>"):
        build_episodes(ROWS, tmp_path / "e", encoder=family("qwen3"), val_frac=0, prove=True)
    build_episodes(ROWS, tmp_path / "e", encoder=family("qwen3"), val_frac=0, prove=True, max_bad_rows="all")
    manifest = manifest_of(tmp_path / "e")
    assert manifest["dropped"] == {"not_proven": 2}
    counts = {"round_trip_proven": 3, "round_trip_changed": 1, "round_trip_by_format": 1, "developer_as_system": 1}
    assert manifest["changed"] == counts
    rejected = [json.loads(line) for line in (tmp_path / "e" / "rejected.jsonl").read_text().splitlines()]
    assert [row["reason"] for row in rejected] == ["not_proven"] * 2
    assert "reasoning_content is 'I see </think> here'" in str(rejected[1])
    build_episodes(ROWS[:3], tmp_path / "f", encoder=family("qwen3"), val_frac=0, prove=True)
    assert manifest_of(tmp_path / "f")["changed"] == counts


def test_commands_take_prove(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in ROWS))
    given: tuple[Any, ...] = (chats, "--tokenizer", folder_of("qwen3"), "--renderer", "qwen3", "--val-frac", 0)
    refused = run_cli("build", *given, "--out", tmp_path / "e", "--prove")
    assert refused.returncode == 3
    assert f"{chats}:4: message 1: content is 'Use <tool_call>" in " ".join(refused.stderr.split())
    plain = run_cli("build", *given, "--out", tmp_path / "p")
    assert plain.returncode == 0, plain.stderr
    told = run_cli("build", *given, "--out", tmp_path / "t", "--prove", "--max-bad-rows", "all")
    table = " ".join(told.stdout.split())
    assert "proven 3" in table
    assert "proven, with something written otherwise 1" in table
    assert "used, but round_trip" not in table
    built = run_cli("build", *given, "--out", tmp_path / "e", "--prove", "--max-bad-rows", "all", "--json")
    assert json.loads(built.stdout)["changed"]["round_trip_proven"] == 3


@pytest.mark.parametrize("samples", ["auto", "per-turn"])
def test_samples_are_proven_with_the_reasoning_that_they_train(samples: str, tmp_path: Path) -> None:
    """The whole conversation drops the first answer's reasoning; the sample that trains it spells its end."""
    good = [user(), assistant("a", reasoning_content="hm"), user(), assistant("b")]
    bad = [user(), assistant("a", reasoning_content="I see </think> here"), user(), assistant("b")]
    renderer = family("qwen3")
    assert renderer.round_trip(bad).proven
    encoder = as_encoder(renderer, policy=RenderingPolicy(prove=True), samples=samples)  # type: ignore[arg-type]
    build_episodes([good, bad, good], tmp_path / "e", encoder=encoder, val_frac=0, max_bad_rows="all")
    manifest = manifest_of(tmp_path / "e")
    assert manifest["dropped"] == {"not_proven": 1}
    assert manifest["changed"] == {"round_trip_proven": 2}  # no sample lacks a text
    [rejected] = (tmp_path / "e" / "rejected.jsonl").read_text().splitlines()
    assert "message 1: reasoning_content is 'I see </think> here'" in rejected
