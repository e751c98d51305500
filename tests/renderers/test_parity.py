"""Families against the official templates and tokenizers, and against `TemplateRenderer`; what differs is listed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.adapting import named_ids
from niels_gpt.renderers.dialects.typescript import declare_tools
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP, config_of
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.tokenizer.pieces import PieceEncoder
from tests.assets import FOLDERS, LONE_TEMPLATES, encoder_at, family_encoder, needs_assets, with_lone_template
from tests.memory import shared
from tests.renderers.chats import TOOLS, Messages, Wanted, conversation, plain_text
from tests.renderers.one_path import by_general_path, same, writable
from tests.renderers.sweeps import kimi_id
from tests.renderers.test_template import dated, official
from tests.renderers.tiny_families import TOKENS

Flags = dict[str, Any]


def family_of(folder: Path) -> str | None:
    """The family of the models that a folder stands for."""
    names = json.loads((folder / "family.json").read_text(encoding="utf-8"))["hub_names"]
    return next((MODEL_RENDERER_MAP[name] for name in names if name in MODEL_RENDERER_MAP), None)


@dataclass(frozen=True)
class Difference:
    """One way in which a family and its official template part, on purpose; docs/deviations.md says why.

    Attributes:
        families: whose.
        messages, tools, flags: the smallest conversation that shows it.
        gen: with the generation prompt.
        refused: the official template fails on it; `refused_by`: that of some of the families does.
    """

    families: tuple[str, ...]
    messages: Messages
    tools: Any = None
    flags: Flags = field(default_factory=dict)
    gen: bool = False
    refused: bool = False
    refused_by: tuple[str, ...] = ()


def said(role: str, content: Any = "b", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def calling(arguments: Any, **more: Any) -> dict[str, Any]:
    return said("assistant", "", tool_calls=[{"function": {"name": "f", "arguments": arguments}, "id": "i"} | more])


ASKED, PARTS, GLM = (
    said("user", "a"),
    [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
    ("glm-4.5", "glm-5", "glm-5.1", "glm-5.2", "glm-5.3"),
)
QWEN35, NEMOTRON = ("qwen3.5", "qwen3.6"), ("nemotron-3", "nemotron-3-ultra")
OPTIONS = (  # what templates know
    *("enable_thinking", "clear_thinking", "preserve_thinking", "truncate_history_thinking", "low_effort"),
    *("medium_effort", "render_assistant_messages_raw", "thinking", "tools_in_user_message"),
)
TEXTS = {"reasoning_effort": "high", "model_identity": "You are N."}  # those that are texts, with another
DAY = "2026-01-01"  # `dated` puts it into official texts
TWO_CALLS = said("assistant", "", tool_calls=[calling({}, id=f"12345678{n}")["tool_calls"][0] for n in "12"])
BARE_TOOL = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
FLAT = [{"name": "f", "description": "d", "parameters": {}}]
# Those that refuse what their templates drop or write as something else.
_STRICT = ("qwen3", "deepseek-v3", *GLM, "kimi-k2", "laguna-xs.2", "qwen2.5", "qwen3-vl", *NEMOTRON)
STRICT = (*_STRICT, "gemma", "kimi-k2.5", "llama-3")
DIFFERENCES: dict[str, Difference] = {
    "parts": Difference(
        ("qwen3", "deepseek-v3", "laguna-xs.2", "qwen2.5", *NEMOTRON, "llama-3", "mistral", "gpt-oss"),
        [said("user", PARTS)],
        refused_by=("deepseek-v3", "qwen2.5", "mistral", "gpt-oss"),
    ),
    "parts of the first system message": Difference(
        ("qwen3", "deepseek-v3", "laguna-xs.2", "qwen2.5", *NEMOTRON, "gemma", "llama-3", "mistral", "gpt-oss"),
        [said("system", PARTS), ASKED],
        refused_by=("deepseek-v3", "qwen3", "laguna-xs.2", "qwen2.5", *NEMOTRON, "mistral"),
    ),
    "parts of tool results": Difference(
        ("qwen3", "glm-4.5", "glm-5", "laguna-xs.2", "minimax-m2", "qwen2.5", *NEMOTRON, "llama-3", "gpt-oss"),
        [ASKED, calling({}), said("tool", PARTS, tool_call_id="i")],
    ),
    "no content of a user": Difference(
        ("qwen3", "deepseek-v3", "qwen2.5", "mistral", "gpt-oss"),
        [ASKED, said("assistant", reasoning_content="r"), said("user", None)],
        refused_by=("deepseek-v3", "qwen2.5", "mistral", "gpt-oss"),
    ),
    "no content of the first system message": Difference(
        ("qwen3", "deepseek-v3", "qwen2.5", *NEMOTRON, "gemma", "mistral"),
        [said("system", None), ASKED],
        refused_by=("deepseek-v3", "qwen2.5", "qwen3", "gemma"),
    ),
    "no content of a tool result": Difference(
        ("glm-4.5", "glm-5", "minimax-m2", "llama-3", "gpt-oss"),
        [ASKED, calling({}), said("tool", None, tool_call_id="i")],
        refused_by=("llama-3", "gpt-oss"),
    ),
    "arguments as JSON text": Difference(
        (*GLM, "laguna-xs.2", "minimax-m2", "qwen2.5", *QWEN35, *NEMOTRON, "llama-3", "mistral", "gpt-oss"),
        [ASKED, calling('{"k": 1}', id="123456789")],
        refused_by=(*GLM, "laguna-xs.2", "minimax-m2", *QWEN35, *NEMOTRON),
    ),
    "tools written flat": Difference(
        (
            "qwen3",
            "glm-4.5",
            "glm-5",
            "kimi-k2",
            "laguna-xs.2",
            "minimax-m2",
            "qwen2.5",
            "qwen3-vl",
            *QWEN35,
            "kimi-k2.5",
            "llama-3",
            "mistral",
            "gpt-oss",
        ),
        [ASKED],
        FLAT,
        refused_by=("minimax-m2", "kimi-k2.5", "mistral", "gpt-oss"),
    ),
    "roles that the format does not know": Difference((*STRICT, "minimax-m2", "gpt-oss"), [ASKED, said("critic")]),
    "no query": Difference(("qwen3.5", "qwen3.6"), [said("assistant")], refused=True),
    "late system messages": Difference(
        ("deepseek-v3", "minimax-m2", "gemma", "qwen3-vl", "gpt-oss"),
        [ASKED, said("system")],
    ),
    "results that nobody asked for": Difference((*STRICT, *QWEN35), [ASKED, said("tool", tool_call_id="i")]),
    "calls": Difference(
        ("deepseek-v3",),
        [ASKED, calling({}, id="123456789")],
    ),
    "several calls in a turn": Difference(("llama-3",), [ASKED, TWO_CALLS], refused=True),
    "tools without descriptions": Difference(
        ("gpt-oss",),
        [ASKED],
        BARE_TOOL,
        refused_by=("gpt-oss",),
    ),
    "an answer that spells a channel": Difference(
        ("gpt-oss",),
        [ASKED, said("assistant", "<|channel|>final<|message|>b")],
        refused=True,
    ),
    "calls of a user": Difference(
        (*STRICT, "minimax-m2", *QWEN35, "mistral", "gpt-oss"),
        [ASKED | {"tool_calls": calling({})["tool_calls"]}],
    ),
    "tools, and no user speaks first": Difference(
        ("llama-3",),
        [said("assistant"), ASKED],
        TOOLS,
    ),
    "a system message alone": Difference(
        ("gemma", "mistral", *QWEN35),
        [said("system")],
        refused_by=QWEN35,
    ),
    "a system message, and an answer is last": Difference(
        ("mistral",),
        [said("system"), ASKED, said("assistant")],
    ),
    "tools, and a user who repeats himself": Difference(
        ("mistral",),
        [ASKED, said("assistant"), ASKED],
        TOOLS,
    ),
    "ids that are not letters and digits": Difference(("mistral",), [ASKED, calling({}, id="a-b-c-d-e")]),
    "arguments before a name": Difference(
        ("mistral",),
        [ASKED, said("assistant", "", tool_calls=[{"function": {"arguments": {}, "name": "f"}, "id": "123456789"}])],
    ),
}
# Where `TemplateRenderer` cannot know what the family knows: case -> families, messages, tools.
FACTS: dict[str, Difference] = {
    "an empty system message before tools": Difference(
        ("minimax-m2", "gpt-oss", "laguna-xs.2"),
        [said("system", ""), ASKED],
        TOOLS,
    ),
    "a system message": Difference(("laguna-xs.2",), [said("system"), ASKED]),
    "tools behind a system message": Difference(
        ("laguna-xs.2",),
        [said("system"), ASKED],
        TOOLS,
    ),
    "an empty first system message": Difference(
        ("minimax-m2", "gpt-oss"),
        [said("system", ""), ASKED],
    ),
}


def swept(family: str, parts: bool) -> Wanted:
    """Conversations without what `DIFFERENCES` lists for a family."""
    listed = {name for name, difference in DIFFERENCES.items() if family in difference.families}
    held = {name: value for name, value in TOKENS[family].holds.items() if name not in ("parts", "inline")}
    return Wanted(
        **{"call_id": kimi_id, "late_system": TOKENS[family].late_system, **held}
        | {
            **({"tools": False} if "calls" in listed else {}),
            "parts": parts and "parts" not in listed,
            "tool_parts": "parts of tool results" not in listed,
            "nones": False,
            "text_arguments": False,  # they are decoded; templates write them as they are spelled
        }
    )


def calls_differ(family: str, messages: Messages) -> bool:
    """There are calls of an assistant, which the family writes otherwise than its template."""
    own = any(message["role"] == "assistant" and message.get("tool_calls") for message in messages)
    return own and family in DIFFERENCES["calls"].families


def differs(family: str, messages: Messages, tools: Any) -> bool:
    """The conversation is one of those that `DIFFERENCES` lists, and that `swept` cannot leave out."""
    first, users = messages[0], [message for message in messages if message["role"] == "user"]
    if family in DIFFERENCES["no query"].families and not users:
        return True
    if family == "gemma":
        return first["role"] == "system" and not isinstance(first["content"], str)
    if family == "mistral":
        left_out = first["role"] == "system" and messages[-1]["role"] != "user"
        return left_out or bool(tools and users[-1] in users[:-1])
    return False


def said_in(message: Any) -> str:
    """The text of a message, or of its parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def in_facts(family: str, messages: Messages, tools: Any, flags: Flags) -> bool:
    """The conversation is one of those that `FACTS` lists."""
    # Llama writes results in the quotes of JSON, and no letter shows whose those of an empty one or of a role are.
    if family == "llama-3" and any(
        message["role"] == "tool" and said_in(message).strip() in ("", "tool") for message in messages
    ):
        return True
    first = messages[0]
    if family == "llama-3":
        texts = [plain_text(message["content"]).strip() for message in messages]
        given, in_user = first["role"] == "system", tools and flags.get("tools_in_user_message", True)
        first_texts = texts[:1] if given or in_user else ["-"]
        return bool(given and in_user) or "" in first_texts
    if family in ("gemma", "mistral"):
        return False
    text = plain_text(first["content"])
    empty = not (text.strip() if family in QWEN35 else text)
    return first["role"] == "system" and (family == "laguna-xs.2" or empty)


def facts(rendered: RenderedTokens) -> tuple[list[int], list[int], list[bool], list[bool]]:
    return rendered.token_ids, rendered.message_indices, rendered.sampled_mask, rendered.is_content


def apart_from_bos(rendered: RenderedTokens) -> tuple[list[int], list[int], list[bool], list[bool]]:
    """All facts but the index of bos, which is -1 or 0 (docs/attribution.md)."""
    ids, indices, sampled, content = facts(rendered)
    return ids, indices[1:], sampled, content


JUDGES = [*FOLDERS, *(folder for name in LONE_TEMPLATES if (folder := with_lone_template(name)) is not None)]
PAIRS = [(folder, name) for folder in JUDGES if (name := family_of(folder)) is not None]
pairs = pytest.mark.parametrize(("folder", "family"), PAIRS, ids=[f"{folder.name}" for folder, _ in PAIRS])


@shared
def encoder_of(folder: Path) -> PieceEncoder:
    return encoder_at(folder)


@shared
def template_encoder(folder: Path, stops: tuple[str, ...]) -> PieceEncoder:
    """The encoder with the control tokens of a template that is told at what the model stops."""
    return TemplateRenderer(encoder_of(folder), stops=stops).encoder


def renderer_of(folder: Path, family: str, flags: Flags) -> Family:
    day = {TOKENS[family].day: DAY} if TOKENS[family].day else {}
    config = config_of({"name": family, **day, **flags})
    renderer: Family = FAMILIES[family](family_encoder(folder, family), config)  # type: ignore[arg-type]
    return renderer.lists_unwritten()


def template_of(folder: Path, family: str, flags: Flags) -> TemplateRenderer:
    """The official template, told at what the model stops where the tokenizer does not say."""
    return _template_of(folder, family, tuple(flags.items()))


@partial(shared, most=2)
def _template_of(folder: Path, family: str, options: tuple[tuple[str, Any], ...]) -> TemplateRenderer:
    """Once for all tests of a folder: judging what a template does takes longer than what they render."""
    flags = dict(options)
    stops = FAMILIES[family].stops[:1] if FAMILIES[family].end_turn[0] else ()
    declared = declared_by(family, TOOLS) if family == "kimi-k2.5" else {}
    encoder = template_encoder(folder, stops)
    given = {**flags, **declared}
    return TemplateRenderer(encoder, clock=lambda form: DAY, stops=stops, on_unwritten="drop", **given)


def flags_of(folder: Path, family: str) -> list[Flags]:
    """The options that the official template knows, one by one and together; those left open (`None`) both ways."""
    fields, known = FAMILIES[family].config_class.model_fields, encoder_of(folder).template or ""
    own = {name: not fields[name].default for name in OPTIONS if name in fields and name in known}
    own |= {name: text for name, text in TEXTS.items() if name in fields and name in known}
    still = [{name: False} for name in own if name in OPTIONS and fields[name].default is None]
    return [{}, *({name: value} for name, value in own.items()), *still, *([own] if len(own) > 1 else [])]


def sorted_for(family: str, tools: Any) -> Any:
    """Kimi's tokenizer sorts tools before its template sees them; who uses the template alone must do so."""
    return json.loads(json.dumps(tools, sort_keys=True)) if family.startswith("kimi") else tools


def declared_by(family: str, tools: Any) -> dict[str, Any]:
    """What Kimi K2.5's tokenizer hands to its template beside the tools."""
    return {"tools_ts_str": declare_tools(tools)} if tools and family == "kimi-k2.5" else {}


def official_text(folder: Path, family: str, messages: Messages, tools: Any, flags: Flags, gen: bool = False) -> str:
    if family.startswith("kimi"):  # other ids are renamed, see test_adapting.py
        messages = [dict(message) for message in named_ids(normalise(messages))[0]]
    text: str = official(folder).apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=gen, **flags, **declared_by(family, tools)
    )
    return dated(text) if TOKENS[family].day else text


def check_same_facts(by_template: RenderedTokens, rendered: RenderedTokens, messages: Messages) -> None:
    """All facts are equal; around blank contents, nobody can tell whose the scaffold is."""
    if facts(by_template) == facts(rendered):
        return
    assert any(not str(message.get("content") or "").strip() for message in messages)
    ids, owners, sampled, content = map(np.array, facts(rendered))
    their_ids, their_owners, their_sampled, their_content = map(np.array, facts(by_template))
    assert (ids == their_ids).all()
    assert (sampled == their_sampled).all()
    assert (content == their_content).all()
    assert (owners == their_owners)[sampled | content].all()


def sweep(folder: Path, family: str, number: int, seed: int, *, parts: bool = False, all_facts: bool = True) -> None:
    """Text, ids and all three facts of random conversations, under every option.

    `all_facts=False`: facts are compared where no option is given and where all are, text and ids everywhere.
    """
    every = flags_of(folder, family)
    for flags in every:
        judged = all_facts or flags in (every[0], max(every, key=len))
        renderer = renderer_of(folder, family, flags)
        template = template_of(folder, family, flags) if judged else None
        rng = random.Random(f"{family} {seed}")
        for _ in range(number):
            messages, tools = conversation(rng, swept(family, parts))
            if differs(family, messages, tools):
                continue
            for gen in (False, True):
                expected = official_text(folder, family, messages, tools, flags, gen)
                rendered = renderer.render(messages, tools=tools, add_generation_prompt=gen)
                assert renderer.text(messages, tools=tools, add_generation_prompt=gen) == expected
                assert rendered.token_ids == official(folder)(expected, add_special_tokens=False)["input_ids"]
                if template is not None and not in_facts(family, messages, tools, flags):
                    given = sorted_for(family, tools)
                    by_template = template.render(messages, tools=given, add_generation_prompt=gen)
                    if by_template.attribution == "full":
                        check_same_facts(by_template, rendered, messages)


@needs_assets
@pairs
def test_random_conversations(folder: Path, family: str) -> None:
    sweep(folder, family, 2, seed=1, all_facts=False)
    sweep(folder, family, 1, seed=3, parts=True, all_facts=False)


_BESIDE = "/x //a/b 's 'LL 1/2 12345 ... 中文 かな \u0301e é 🤖 ½ {1} \"q\" (x) ] = \x00a \u200bz _ # -1 </p> ’s Ünï $"
BESIDE = (*_BESIDE.split(" "), "'s fine", "?!\n\nyes", "a \n/b", "a\n/")


@needs_assets
@pytest.mark.parametrize("number", [5, pytest.param(40, marks=pytest.mark.slow)])
@pairs
def test_texts_beside_whatever_is_written_around_them(folder: Path, family: str, number: int) -> None:
    """Texts that are encoded alone: what the official tokenizer makes of the whole."""
    renderer = renderer_of(folder, family, {})
    rng = random.Random(family)

    def text() -> str:
        return rng.choice(BESIDE) + rng.choice(("", " and ", "\n", " \n", ".")) + rng.choice(BESIDE)

    call = {"id": "abcdefgh1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    chats: list[tuple[Messages, Any]] = []
    for _ in range(number):
        chats.append(([said(role, text()) for role in ("user", "assistant", "user", "assistant")], None))
        arguments = {"city": text(), "days": 3}
        calling_: Any = call | {"function": {"name": "get_weather", "arguments": arguments}}
        asked = said("assistant", rng.choice(("", text())), tool_calls=[calling_])
        answer: Any = {"role": "tool", "tool_call_id": "abcdefgh1", "content": text()}
        chats.append(([said("user", text()), asked, answer, said("assistant", text())], [TOOLS[0]]))
    chats = [(messages, tools) for messages, tools in chats if writable(renderer, messages, tools)]
    given, tools = [messages for messages, _ in chats], [own for _, own in chats]
    batch = renderer.render_many(given, tools=tools)
    for (messages, own), rendered in zip(chats, batch, strict=True):
        expected = official(folder)(renderer.text(messages, tools=own), add_special_tokens=False)["input_ids"]
        assert rendered.token_ids == expected
    same(batch, by_general_path(renderer, given, tools))


@pytest.mark.slow
@needs_assets
@pairs
def test_many_more_random_conversations(folder: Path, family: str) -> None:
    sweep(folder, family, 3000, seed=2)
    sweep(folder, family, 40, seed=1)
    sweep(folder, family, 15, seed=3, parts=True)


@needs_assets
@pytest.mark.parametrize("case", DIFFERENCES)
@pairs
def test_listed_differences_from_the_official_template(folder: Path, family: str, case: str) -> None:
    """A listed difference occurs for the families that it names, and for no other."""
    listed = DIFFERENCES[case]
    if case != "calls" and calls_differ(family, listed.messages):
        pytest.skip("calls differ anyhow")
    try:
        theirs: str | None = official_text(folder, family, listed.messages, listed.tools, listed.flags)
    except Exception:  # whatever the template fails with
        theirs = None
    try:
        ours: str | None = renderer_of(folder, family, listed.flags).text(listed.messages, tools=listed.tools)
    except MessageError:
        ours = None
    assert (theirs != ours) == (family in listed.families)
    if family in listed.families:
        assert (theirs is None) == (listed.refused or family in listed.refused_by)


@needs_assets
@pytest.mark.parametrize("case", FACTS)
@pairs
def test_listed_differences_in_facts(folder: Path, family: str, case: str) -> None:
    listed = FACTS[case]
    if calls_differ(family, listed.messages):
        pytest.skip("calls differ anyhow")
    gen, tools = listed.gen, listed.tools
    try:
        ours = renderer_of(folder, family, {}).render(listed.messages, tools=tools, add_generation_prompt=gen)
    except MessageError:
        assert family not in listed.families
        return
    template = template_of(folder, family, {})
    by_template = template.render(listed.messages, tools=sorted_for(family, tools), add_generation_prompt=gen)
    assert ours.token_ids == by_template.token_ids
    assert (apart_from_bos(ours) == apart_from_bos(by_template)) == (family not in listed.families)
