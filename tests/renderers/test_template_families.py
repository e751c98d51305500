"""Families that are rendered through their chat template: what they get, what is proven, how they are read."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import UsageError
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.parsers import REASONING_PARSERS, TOOL_PARSERS
from niels_gpt.renderers.registry import (
    FAMILIES,
    MODEL_RENDERER_MAP,
    RendererOptions,
    automatic_renderer,
    config_from_name,
    create_renderer,
)
from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES, TEMPLATE_MODELS
from niels_gpt.renderers.template.proofs.probes import Probe
from niels_gpt.renderers.template.renderer import DefaultRenderer, DefaultRendererConfig, TemplateRenderer
from tests.assets import ASSETS, needs_assets
from tests.memory import shared
from tests.renderers.small import CHATML
from tests.renderers.tiny_families import Tokens, byte_level

JUDGED = [name for name, family in TEMPLATE_FAMILIES.items() if family.template]
SLOW = ("gemma-4", "command-a", "apertus", "exaone-4", "seed-oss")  # their proofs take seconds
TAGS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>"),
    *("<|END_THINKING|>", "<tool_calls>", "</tool_calls>", "<seed:tool_call>", "</seed:tool_call>", "<seed:think>"),
    *("</seed:think>", "<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>"),
    *("<|tool_call_start|>", "<|tool_call_end|>", "<function_calls>", "</function_calls>", "<|tool_call>"),
    *("<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|python_start|>", "<|python_end|>"),
)


@shared
def tokenizer() -> Any:
    """A tiny tokenizer whose added tokens are the tags that these families write."""
    return byte_level(Tokens(controls=("<|im_end|>", "<|im_start|>"), added=TAGS))


# Family -> its parsers of calls and of reasoning. They stay where a family is rendered by a grammar later on.
PARSERS: dict[str, tuple[str, str | None]] = {
    "command-a": ("command-a", "command-a"),
    "hunyuan": ("hunyuan", "think"),
    "seed-oss": ("seed-oss", "seed-oss"),
    "apertus": ("apertus", "apertus"),
    "lfm2": ("lfm2", None),
    "gemma-4": ("gemma-4", "gemma-4"),
    "exaone-4": ("hermes", "think"),
    "llama-4": ("llama-4", None),
    "olmo-3": ("olmo-3", None),
    "smollm3": ("hermes", "think"),
}


def read_by(name: str) -> tuple[str | None, str | None]:
    options = TEMPLATE_FAMILIES[name].options
    return options.get("tool_parser"), options.get("reasoning_parser")


def reader(name: str) -> TemplateRenderer:
    """A renderer that reads as a family does; its template does not matter."""
    calls, reasoning = PARSERS[name]
    options = {"tool_parser": calls} | ({"reasoning_parser": reasoning} if reasoning else {})
    return TemplateRenderer(tokenizer(), template=CHATML, stops=("<|im_end|>",), **options)


def ids_of(renderer: TemplateRenderer, text: str) -> list[int]:
    return list(map(int, renderer.encoder.encode_pieces([text], [True])[0]))


# ---- the table


def test_names_are_known_and_models_are_of_one_family() -> None:
    models = [model for family in TEMPLATE_FAMILIES.values() for model in family.models]
    assert len(models) == len(set(models)) == len(TEMPLATE_MODELS)
    assert not set(models) & set(MODEL_RENDERER_MAP)
    told = {}
    for name, family in TEMPLATE_FAMILIES.items():
        told[name] = read_by(name)
        assert told[name][0] in (None, *TOOL_PARSERS)
        assert told[name][1] in (None, *REASONING_PARSERS)
        assert family.proven.startswith("texts") == bool(family.template)
    assert {name: told[name] for name in PARSERS} == PARSERS
    assert not set(TEMPLATE_FAMILIES) & set(FAMILIES)


def kind_of(probe: Probe) -> str:
    if any(message.get("tool_calls") for message in probe.messages):
        return "calls"
    if any(message.get("reasoning_content") for message in probe.messages):
        return "reasoning"
    return "tools" if probe.tools else "texts"


def by_stored_template(name: str) -> TemplateRenderer:
    """The stored template over a tiny tokenizer with all that templates write."""
    from docs.templates import encoder_with, stops_of
    from tests.renderers.every_template import source_of

    family = TEMPLATE_FAMILIES[name]
    if not (ASSETS / f"{family.template}.jinja").is_file():
        pytest.skip(f"no {family.template}.jinja in {ASSETS}")
    stops = stops_of(family.template)
    return TemplateRenderer(
        encoder_with(stops),
        template=source_of(family.template),
        clock=datetime.datetime(2026, 1, 1).strftime,
        bos_token="<s>",
        eos_token=stops[0],
        **family.options,
    )


@needs_assets
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in JUDGED])
def test_the_table_says_what_is_proven(name: str) -> None:
    from niels_gpt.renderers.template.probe_results import report_on

    report = report_on(by_stored_template(name), name)
    counted = {kind: Counter[str]() for kind in ("texts", "reasoning", "tools", "calls")}
    for result in report.results:
        # Which strings it searches contents for is of the template, and not of a kind of conversation.
        if not result.probe.name.startswith("contents with"):
            counted[kind_of(result.probe)][result.status] += 1
    found = [f"{kind} {one['proven']} of {one['proven'] + one['partial']}" for kind, one in counted.items()]
    assert TEMPLATE_FAMILIES[name].proven == ", ".join(found)
    assert TEMPLATE_FAMILIES[name].stops == tuple(report.stops)


# ---- which renderer a model gets


def test_auto_takes_the_template_with_the_parsers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "tokenizer.json"
    tokenizer().save(str(file))
    for model, name in TEMPLATE_MODELS.items():
        family = TEMPLATE_FAMILIES[name]
        found = automatic_renderer(model)
        assert (found.renderer, dict(found.options)) == ("template", family.options)
        assert family.title in found.reason
        named = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(file), name_or_path=model, eos_token="<|im_end|>", chat_template=CHATML
        )
        renderer = create_renderer(named)
        assert isinstance(renderer, DefaultRenderer)
        assert (renderer.config.tool_parser, renderer.config.reasoning_parser) == read_by(name)
    assert automatic_renderer("LiquidAI/LFM2-1.2B-Tuned").options == {}


def test_a_directory_with_the_name_of_a_model(tmp_path: Path) -> None:
    name = next(name for name in TEMPLATE_FAMILIES if read_by(name)[0] != "hermes")
    folder = tmp_path / TEMPLATE_FAMILIES[name].models[0].partition("/")[2]
    folder.mkdir()
    tokenizer().save(str(folder / "tokenizer.json"))
    told = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    renderer = RendererOptions().open(folder)
    assert isinstance(renderer, DefaultRenderer)
    assert renderer.config.tool_parser == read_by(name)[0]
    other = RendererOptions(options={"tool_parser": "hermes"}).open(folder)
    assert isinstance(other, DefaultRenderer)
    assert (other.config.tool_parser, other.config.reasoning_parser) == ("hermes", read_by(name)[1])
    named = RendererOptions("template").open(folder)
    assert isinstance(named, DefaultRenderer)
    assert named.config.tool_parser is None  # who names the template gets it as it is


def test_a_family_is_the_template_with_its_parsers_whatever_the_tokenizer_is_called(tmp_path: Path) -> None:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    told = {"eos_token": "<|im_end|>", "chat_template": "{{ style }}" + CHATML}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    for name, family in TEMPLATE_FAMILIES.items():
        for made in (create_renderer(tmp_path, name), RendererOptions(name).open(tmp_path)):
            assert isinstance(made, DefaultRenderer)
            assert made.config == config_from_name(name) == DefaultRendererConfig(**family.options)
    for made in (
        create_renderer(tmp_path, {"name": "olmo-3", "style": "x", "tool_parser": "lfm2"}),
        RendererOptions("olmo-3", options={"style": "x", "tool_parser": "lfm2"}).open(tmp_path),
    ):
        assert made.config == DefaultRendererConfig(tool_parser="lfm2", style="x")
    for wrong in ("olmo3", "phi4"):
        with pytest.raises(UsageError, match=f"no renderer '{wrong}'.*did you mean '{wrong[:-1]}-{wrong[-1]}'"):
            create_renderer(tmp_path, wrong)
    with pytest.raises(UsageError, match="preserve_all_thinking is an option of families"):
        create_renderer(tmp_path, {"name": "phi-4", "preserve_all_thinking": True})


# ---- completions


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text().map("k".__add__) | st.integers() | st.booleans(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(LITERALS, st.booleans())
def test_python_and_json_are_read_as_their_own_readers_do(value: Any, as_json: bool) -> None:
    """A value as Python prints it, or as JSON, is that value."""
    expected = json.loads(json.dumps(value))
    renderer, spelled = reader("lfm2"), json.dumps(value) if as_json else repr(value)
    text = f"<|tool_call_start|>[f(a={spelled}, b=1), g()]<|tool_call_end|>"
    found = renderer.parse_response(ids_of(renderer, text)).tool_calls
    assert [(one.name, one.arguments) for one in found] == [("f", {"a": expected, "b": 1}), ("g", {})]


PLACES = {"type": "object", "properties": {"at": {"type": "string"}, "times": {"type": "integer"}}, "required": ["at"]}


WITHOUT_CALLS = ("lfm2", "apertus", "smollm3", "phi-3", "phi-3.5")  # Apertus' template ends no turn, others write none


@needs_assets
@pytest.mark.parametrize("name", [name for name in JUDGED if name not in WITHOUT_CALLS])
def test_what_a_template_writes_is_read_back(name: str) -> None:
    renderer = by_stored_template(name)
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": {"at": "a map", "times": 2}}}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PLACES}}
    rendered = renderer.render([{"role": "user", "content": "Where?"}, asked], tools=[tool])
    facts = zip(rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True)
    said = [token for token, owner, sampled in facts if owner == 1 and sampled]
    (found,) = renderer.parse_response(said).tool_calls
    expected = {"at": "a map", "times": 2}
    assert (found.name, found.arguments, found.status) == ("look", expected, Status.OK)
