"""Families against the official templates and tokenizers, and against `TemplateRenderer`; what differs is listed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP, config_of
from niels_gpt.renderers.rendered import RenderedTokens
from niels_gpt.renderers.template import TemplateRenderer
from niels_gpt.tokenizer.opening import open_encoder
from niels_gpt.tokenizer.protocol import PieceEncoder
from tests.assets import FOLDERS, needs_assets
from tests.renderers.chats import TOOLS, Messages, Wanted, conversation
from tests.renderers.test_template import official

Flags = dict[str, Any]


def family_of(folder: Path) -> str | None:
    """The family of the models that a folder stands for."""
    names = json.loads((folder / "family.json").read_text(encoding="utf-8"))["hub_names"]
    return next((MODEL_RENDERER_MAP[name] for name in names if name in MODEL_RENDERER_MAP), None)


@dataclass(frozen=True)
class Difference:
    """One way in which a family and its official template part, on purpose.

    Attributes:
        families: whose.
        why: as in docs/deviations.md.
        messages, tools, flags: the smallest conversation that shows it.
        gen: with the generation prompt.
        refused: the official template fails on it.
    """

    families: tuple[str, ...]
    why: str
    messages: Messages
    tools: Any = None
    flags: Flags = field(default_factory=dict)
    gen: bool = False
    refused: bool = False


def said(role: str, content: Any = "b", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def calling(arguments: Any, **more: Any) -> dict[str, Any]:
    return said("assistant", "", tool_calls=[{"function": {"name": "f", "arguments": arguments}, "id": "i"} | more])


ASKED, PARTS, GLM = (
    said("user", "a"),
    [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
    ("glm-4.5", "glm-5", "glm-5.1"),
)
FLAT = [{"name": "f", "description": "d", "parameters": {}}]
DIFFERENCES: dict[str, Difference] = {
    "parts": Difference(("qwen3",), "the template writes nothing of contents in parts", [said("user", PARTS)]),
    "parts of the first system message": Difference(
        ("qwen3",), "the template fails on them", [said("system", PARTS), ASKED], refused=True
    ),
    "parts of tool results": Difference(
        ("qwen3", "glm-4.5", "glm-5"),
        "Qwen3's template writes nothing of parts, GLM-4.5's and GLM-5's writes them as Python prints them",
        [ASKED, calling({}), said("tool", PARTS, tool_call_id="i")],
    ),
    "no content of a user": Difference(
        ("qwen3",),
        "to the template it is no query, so the reasoning before it stays",
        [ASKED, said("assistant", reasoning_content="r"), said("user", None)],
    ),
    "no content of the first system message": Difference(
        ("qwen3",), "the template fails on it", [said("system", None), ASKED], refused=True
    ),
    "no content of a tool result": Difference(
        ("glm-4.5", "glm-5"),
        "the template leaves the result out",
        [ASKED, calling({}), said("tool", None, tool_call_id="i")],
    ),
    "arguments as JSON text": Difference(GLM, "the template fails on them", [ASKED, calling('{"k": 1}')], refused=True),
    "tools written flat": Difference(
        ("qwen3", "glm-4.5", "glm-5", "kimi-k2"),
        "put into OpenAI's shape, as all other templates want them",
        [ASKED],
        FLAT,
    ),
    "calls without ids": Difference(
        ("kimi-k2",), "named functions.NAME:N; the template writes an empty name", [ASKED, calling({"k": 1}, id=None)]
    ),
    "roles that the format does not know": Difference(
        ("qwen3", *GLM, "kimi-k2"),
        "refused; the template drops them, Kimi's makes a system turn",
        [ASKED, said("critic")],
    ),
    "results that nobody asked for": Difference(
        ("qwen3", *GLM, "kimi-k2"), "refused", [ASKED, said("tool", tool_call_id="i")]
    ),
    "calls of a user": Difference(
        ("qwen3", *GLM, "kimi-k2"),
        "refused; the template overlooks them",
        [ASKED | {"tool_calls": calling({})["tool_calls"]}],
    ),
}
# Where `TemplateRenderer` cannot know what the family knows: case -> families, why, messages, tools.
FACTS: dict[str, Difference] = {
    "an empty system message before tools": Difference(
        ("qwen3",), "no text of the message is there to tell whose block it is", [said("system", ""), ASKED], TOOLS
    ),
    "an empty first system message": Difference(
        ("qwen3",), "the template writes it outside of its loop over messages", [said("system", ""), ASKED]
    ),
}


def swept(family: str, parts: bool) -> Wanted:
    """Conversations without what `DIFFERENCES` lists for a family."""
    listed = {name for name, difference in DIFFERENCES.items() if family in difference.families}
    return Wanted(
        parts=parts and "parts" not in listed,
        tool_parts="parts of tool results" not in listed,
        nones=False,
        text_arguments="arguments as JSON text" not in listed,
        call_id=lambda name, number: f"functions.{name}:{number}",
    )


def in_facts(family: str, messages: Messages) -> bool:
    """The conversation is one of those that `FACTS` lists."""
    first = messages[0]
    return first["role"] == "system" and not first["content"]


def facts(rendered: RenderedTokens) -> tuple[list[int], list[int], list[bool], list[bool]]:
    return rendered.token_ids, rendered.message_indices, rendered.sampled_mask, rendered.is_content


PAIRS = [(folder, name) for folder in FOLDERS if (name := family_of(folder)) is not None]
pairs = pytest.mark.parametrize(("folder", "family"), PAIRS, ids=[f"{folder.name}" for folder, _ in PAIRS])


@cache
def encoder_of(folder: Path) -> PieceEncoder:
    return open_encoder(folder)


def renderer_of(folder: Path, family: str, flags: Flags) -> Family:
    return FAMILIES[family](encoder_of(folder), config_of({"name": family, **flags}))  # type: ignore[arg-type]


def template_of(folder: Path, family: str, flags: Flags) -> TemplateRenderer:
    """The official template, told at what the model stops where the tokenizer does not say."""
    stops = FAMILIES[family].stops[:1] if FAMILIES[family].ends_turns else ()
    return TemplateRenderer(encoder_of(folder), clock=lambda form: "2026-01-01", stops=stops, **flags)


def flags_of(family: str) -> list[Flags]:
    """The options that official templates know, one by one and together."""
    fields = FAMILIES[family].config_class.model_fields
    own = {name: not fields[name].default for name in ("enable_thinking", "clear_thinking") if name in fields}
    return [{}, *({name: value} for name, value in own.items()), *([own] if len(own) > 1 else [])]


def sorted_for(family: str, tools: Any) -> Any:
    """Kimi's tokenizer sorts tools before its template sees them; who uses the template alone must do so."""
    return json.loads(json.dumps(tools, sort_keys=True)) if family == "kimi-k2" else tools


def official_text(folder: Path, messages: Messages, tools: Any, flags: Flags, gen: bool = False) -> str:
    text: str = official(folder).apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=gen, **flags
    )
    return text


def sweep(folder: Path, family: str, number: int, seed: int, parts: bool = False) -> None:
    """Text, ids and all three facts of random conversations, under every option."""
    for flags in flags_of(family):
        renderer, template = renderer_of(folder, family, flags), template_of(folder, family, flags)
        rng = random.Random(f"{family} {seed}")
        for _ in range(number):
            messages, tools = conversation(rng, swept(family, parts))
            for gen in (False, True):
                expected = official_text(folder, messages, tools, flags, gen)
                rendered = renderer.render(messages, tools=tools, add_generation_prompt=gen)
                assert renderer.text(messages, tools=tools, add_generation_prompt=gen) == expected
                assert rendered.token_ids == official(folder)(expected, add_special_tokens=False)["input_ids"]
                if not in_facts(family, messages):
                    given = sorted_for(family, tools)
                    by_template = template.render(messages, tools=given, add_generation_prompt=gen)
                    assert facts(by_template) == facts(rendered)


@needs_assets
@pairs
def test_random_conversations(folder: Path, family: str) -> None:
    sweep(folder, family, 150, seed=1)


@needs_assets
@pairs
def test_random_conversations_in_parts(folder: Path, family: str) -> None:
    sweep(folder, family, 60, seed=3, parts=True)


@pytest.mark.slow
@needs_assets
@pairs
def test_many_more_random_conversations(folder: Path, family: str) -> None:
    sweep(folder, family, 3000, seed=2)


@needs_assets
@pytest.mark.parametrize("case", DIFFERENCES)
@pairs
def test_listed_differences_from_the_official_template(folder: Path, family: str, case: str) -> None:
    """A listed difference occurs for the families that it names, and for no other."""
    listed = DIFFERENCES[case]
    try:
        theirs: str | None = official_text(folder, listed.messages, listed.tools, listed.flags)
    except Exception:  # whatever the template fails with
        theirs = None
    try:
        ours: str | None = renderer_of(folder, family, listed.flags).text(listed.messages, tools=listed.tools)
    except MessageError:
        ours = None
    assert (theirs != ours) == (family in listed.families)
    if family in listed.families:
        assert (theirs is None) == listed.refused


@needs_assets
@pytest.mark.parametrize("case", FACTS)
@pairs
def test_listed_differences_in_facts(folder: Path, family: str, case: str) -> None:
    listed = FACTS[case]
    gen, tools = listed.gen, listed.tools
    ours = renderer_of(folder, family, {}).render(listed.messages, tools=tools, add_generation_prompt=gen)
    template = template_of(folder, family, {})
    by_template = template.render(listed.messages, tools=sorted_for(family, tools), add_generation_prompt=gen)
    assert ours.token_ids == by_template.token_ids
    assert (ours == by_template) == (family not in listed.families)
