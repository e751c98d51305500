"""What users of the known `renderers` package rely on: names, signatures, and results like theirs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("tokenizers")
import niels_gpt.renderers as package
from niels_gpt.errors import UsageError
from niels_gpt.renderers import configs
from niels_gpt.renderers.base import Renderer, create_renderer, create_renderer_pool
from niels_gpt.renderers.pool import RendererPool
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.template.renderer import DefaultRenderer
from tests.renderers.small import CHATML, assistant, call, result, user
from tests.renderers.tiny_families import folder_of, renderer_of

# Public names of the package at version 0.1.8.dev28, by module.
NAMES = {
    "renderers.base": (
        "Content ContentPart FASTOKENS_INCOMPATIBLE ImagePart MODEL_RENDERER_MAP MULTIMODAL_MODELS Message "
        "MultiModalData "
        "MultimodalRenderer ParsedResponse ParsedToolCall PlaceholderRange RENDERER_REGISTRY RenderedConversation "
        "RenderedTokens Renderer RendererPool TRUSTED_REVISIONS TextPart ThinkingPart ToolCall ToolCallFunction "
        "ToolCallParseStatus ToolSpec VideoPart attribute_text_segments build_training_sample build_trajectory_step "
        "create_renderer create_renderer_pool extract_message_tool_names is_multimodal load_tokenizer "
        "reject_assistant_in_extension should_preserve_past_thinking trim_to_turn_close"
    ),
    "renderers.client": "OverlongPromptError generate",
    "renderers.configs": (
        "AutoRendererConfig BaseRendererConfig DeepSeekV3RendererConfig DefaultRendererConfig GLM45RendererConfig "
        "GLM51RendererConfig GLM5RendererConfig GptOssRendererConfig KimiK25RendererConfig KimiK2RendererConfig "
        "LagunaXS2RendererConfig MiniMaxM2RendererConfig Nemotron3RendererConfig Nemotron3UltraRendererConfig "
        "Qwen35RendererConfig Qwen36RendererConfig Qwen3RendererConfig Qwen3VLRendererConfig RendererConfig "
        "config_from_name"
    ),
    "renderers.parsers": (
        "DeepSeekV3ToolParser GlmToolParser Qwen35ToolParser Qwen3ToolParser REASONING_PARSERS ReasoningParser "
        "TOOL_PARSERS ThinkTextReasoningParser ToolParser get_reasoning_parser get_tool_parser"
    ),
    "renderers.default": "DefaultRenderer",
    "renderers": (
        "DeepSeekV3Renderer GLM45Renderer GLM51Renderer GLM5Renderer GptOssRenderer KimiK2Renderer KimiK25Renderer "
        "LagunaXS2Renderer MiniMaxM2Renderer Nemotron3Renderer Nemotron3UltraRenderer Qwen3Renderer Qwen35Renderer "
        "Qwen36Renderer Qwen3VLRenderer"
    ),
}

# ---- names


@pytest.mark.parametrize("module", NAMES)
def test_names_stand_where_they_stood(module: str) -> None:
    held = importlib.import_module(f"niels_gpt.{module}")
    assert [name for name in NAMES[module].split() if not hasattr(held, name)] == []


@pytest.mark.parametrize("module", NAMES)
def test_names_come_from_the_package_too(module: str) -> None:
    """Those that the known package exports at its top; all of `base` and `configs` among them."""
    held = importlib.import_module(f"niels_gpt.{module}")
    for name in NAMES[module].split():
        if module != "renderers.parsers":
            assert getattr(package, name) is getattr(held, name)


def test_nothing_is_imported_before_a_name_is_asked_for() -> None:
    told = (
        "import sys, niels_gpt.renderers, niels_gpt.renderers.client; print('niels_gpt.renderers.base' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_family_is_imported_when_it_is_asked_for() -> None:
    told = (
        "import sys, niels_gpt.renderers.base as base; from niels_gpt.renderers import registry, Qwen3RendererConfig;"
        "registry.automatic_renderer('openai/gpt-oss-20b'); list(registry.RENDERER_REGISTRY);"
        "print(*(name.rpartition('.')[2] for name in sys.modules if name.startswith('niels_gpt.renderers.families.')))"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"all_families", "chatml", "qwen3"}


# ---- how renderers are made


def test_create_renderer_takes_a_config_by_either_name() -> None:
    folder, config = folder_of("qwen3"), configs.config_from_name("qwen3")
    for made in (
        create_renderer(folder, config),
        create_renderer(folder, config=config),
        create_renderer(folder, renderer="qwen3"),
        create_renderer(folder, config="qwen3"),
        package.Qwen3Renderer(folder),
    ):
        assert type(made) is package.Qwen3Renderer
        assert made.config == config
    for empty in ({}, {"config": None}, {"renderer": None}):
        with pytest.raises(Exception, match="no chat template"):  # "auto", for a name that no family has
            create_renderer(folder, **empty)
    with pytest.raises(UsageError, match="found renderer and config; expected one of both"):
        create_renderer(folder, "qwen3", config=config)
    pool = create_renderer_pool(str(folder), config=config, size=2)
    assert (type(pool), pool.size, pool.supports_tools) == (RendererPool, 2, True)
    assert create_renderer_pool(str(folder), config, size=1).render_ids([user()]) == pool.render_ids([user()])


OPTIONS: dict[str, dict[str, Any]] = {
    "qwen3": {"enable_thinking": False},
    "qwen3.5": {"enable_thinking": False, "add_vision_id": True},
    "qwen3.6": {"enable_thinking": False, "preserve_thinking": True},
    "qwen3-vl": {"add_vision_id": True, "preserve_all_thinking": True},
    "glm-4.5": {"enable_thinking": False, "preserve_all_thinking": True},
    "glm-5": {"enable_thinking": False, "clear_thinking": False},
    "glm-5.1": {"preserve_thinking_between_tool_calls": True},
    "kimi-k2": {"preserve_all_thinking": True},
    "kimi-k2.5": {"thinking": False},
    "minimax-m2": {"model_identity": "You are x."},
    "deepseek-v3": {"preserve_all_thinking": True},
    "nemotron-3": {"enable_thinking": False, "truncate_history_thinking": False},
    "laguna-xs.2": {"enable_thinking": True, "render_assistant_messages_raw": True},
    "gpt-oss": {"reasoning_effort": "low", "conversation_start_date": "2026-01-31"},
    "raw": {"separator": "\n"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_keywords_of_constructors(name: str) -> None:
    kind, options = FAMILIES[name], OPTIONS[name]
    chat, encoder = [user(), assistant()], renderer_of(name).encoder
    made = kind(encoder, **options)
    assert {key: getattr(made.config, key) for key in options} == options
    expected = create_renderer(encoder, {"name": name, **options})
    assert made.config == expected.config
    assert made.render_ids(chat, add_generation_prompt=True) == expected.render_ids(chat, add_generation_prompt=True)
    first, *rest = options
    half = create_renderer(encoder, {"name": name, first: options[first]}).config
    assert isinstance(half, configs.FamilyConfig)
    assert kind(encoder, half, **{key: options[key] for key in rest}).config == expected.config
    with pytest.raises(UsageError, match=f"renderer {name}: no option 'enable_thinkin'; expected one of"):
        kind(encoder, enable_thinkin=True)
    with pytest.raises(UsageError, match="preserve_all_thinking is 'maybe'"):
        kind(encoder, preserve_all_thinking="maybe")


def test_who_supports_tools() -> None:
    assert {name for name, kind in FAMILIES.items() if not renderer_of(name).supports_tools} == {
        *("llama-3.0", "gemma", "chatml", "raw", "ngpt", "deepseek-r1-distill"),
    }
    for parser in (None, "qwen3"):
        by_template = DefaultRenderer(folder_of("qwen3"), template=CHATML, tool_parser=parser)
        assert by_template.supports_tools is (parser is not None)
        assert isinstance(by_template, Renderer)
        assert RendererPool(lambda one=by_template: one, 1).supports_tools is by_template.supports_tools  # type: ignore[misc]


CHATS: list[list[dict[str, Any]]] = [
    [user()],
    [user(), assistant("x", reasoning_content="hm"), user("y")],
    [user(), assistant(" x ", reasoning_content="hm", tool_calls=[call()]), result(), assistant("z")],
    [user(), assistant("<think>a</think> b"), user("c"), assistant("d", reasoning_content="e")],
]


def test_ultra_is_an_option_of_nemotron() -> None:
    encoder = renderer_of("nemotron-3-ultra").encoder
    ultra, nano = package.Nemotron3UltraRenderer(encoder), package.Nemotron3Renderer(encoder)
    assert nano.config.ultra is False  # told apart by the tokenizer's name, which is a folder's here
    differ = 0
    for made in (
        package.Nemotron3Renderer(encoder, ultra=True),
        create_renderer(encoder, {"name": "nemotron-3", "ultra": True}),
    ):
        assert type(made) is package.Nemotron3Renderer
        for chat in CHATS:
            assert made.render(chat, add_generation_prompt=True) == ultra.render(chat, add_generation_prompt=True)
            differ += made.render_ids(chat) != nano.render_ids(chat)
    assert differ
    with pytest.raises(UsageError, match="low_effort is Super's; expected nemotron-3-ultra with medium_effort"):
        package.Nemotron3Renderer(encoder, ultra=True, low_effort=True)
