"""Typed options of renderers: what they refuse, and how they live in a user's settings."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

pytest.importorskip("tokenizers")
from niels_gpt.errors import TokenizerError, UsageError
from niels_gpt.renderers.base import MODEL_RENDERER_MAP, MULTIMODAL_MODELS, create_renderer
from niels_gpt.renderers.configs import AutoRendererConfig, DefaultRendererConfig, RendererConfig
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from niels_gpt.renderers.registry import FAMILIES, config_from_name, config_of
from tests.renderers.tiny_families import folder_of

NAMES = ("auto", "default", "template", *FAMILIES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"name": "qwen3", "enable_thinkin": True},
            "renderer qwen3: no option 'enable_thinkin'; .*did you mean 'enable_th",
        ),
        (
            {"name": "kimi-k2", "enable_thinking": True},
            "renderer kimi-k2: no option 'enable_thinking'; expected one of pres",
        ),
        ({"name": "qwen3", "enable_thinking": "maybe"}, "renderer qwen3: enable_thinking is 'maybe': .*valid boolean"),
        (
            {"name": "glm-5", "special_tokens_in_content": "drop"},
            "special_tokens_in_content is 'drop': .*'text', 'error'",
        ),
        ({"name": "template", "preserve_all_thinking": True}, "preserve_all_thinking is an option of families"),
        (
            {"name": "default", "special_tokens_in_content": "error"},
            "special_tokens_in_content is an option of families",
        ),
        ({"name": "template", "messages": []}, "messages cannot be a variable of the template"),
        ({"enable_thinking": True}, "no renderer None; expected one of auto"),
        ({}, "no renderer None"),
    ],
)
def test_fields_that_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        config_of(fields)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=message):
        create_renderer(folder_of("qwen3"), fields)


def test_names_and_classes_agree() -> None:
    assert set(MODEL_RENDERER_MAP.values()) | {"ngpt"} <= set(FAMILIES)
    for name, family in FAMILIES.items():
        assert family.name == name == config_from_name(name).name
        assert type(config_from_name(name)) is family.config_class
    assert set(MULTIMODAL_MODELS) <= set(MODEL_RENDERER_MAP)
    for name in MODEL_RENDERER_MAP:
        assert name.count("/") == 1
        assert name == name.strip()
    assert type(config_from_name("auto")) is AutoRendererConfig
    assert type(config_from_name("default")) is type(config_from_name("template")) is DefaultRendererConfig


class Job(BaseModel):
    """A user's own settings."""

    renderer: RendererConfig = AutoRendererConfig()


@pytest.mark.parametrize("name", NAMES)
def test_configs_in_a_users_settings(name: str) -> None:
    for config in (config_from_name(name), turned(config_from_name(name))):
        again = Job.model_validate_json(Job(renderer=config).model_dump_json()).renderer
        assert again == config
        assert type(again) is type(config)
        assert type(config).model_validate_json(config.model_dump_json()) == config
        assert Job.model_validate({"renderer": config.model_dump()}).renderer == config
        assert hash(config) == hash(again)
        with pytest.raises(ValidationError):
            config.name = "other"
    if name not in ("default", "template"):
        with pytest.raises(ValidationError):
            Job.model_validate({"renderer": {"name": name, "unknown": 1}})


def another(config: Any, name: str) -> Any:
    """A value of an option that is not the one it has: one of those it names, a number or a text."""
    held = get_args(type(config).model_fields[name].annotation)
    choices = [choice for each in held for choice in (each, *get_args(each)) if isinstance(choice, str)]
    value = getattr(config, name)
    number = {float: 0.5, int: 512}.get(type(value), "think")
    return next((choice for choice in choices if choice != value), number)


def turned(config: Any) -> Any:
    """The config with every switch turned and every text changed."""
    texts = {
        "special_tokens_in_content": "error",
        "text_before_calls": "commentary",
        "ultra": False,
    }
    held = {
        name: not value
        if isinstance(value, bool) or name == "enable_thinking"
        else texts.get(name, another(config, name))
        for name, value in config
        if name != "name"
    }
    return type(config).model_validate({"name": config.name, **held})


def test_another_familys_config_is_refused() -> None:
    config: Any = config_from_name("glm-5")
    with pytest.raises(UsageError, match="Qwen3Renderer was given a config of 'glm-5'; expected one of 'qwen3'"):
        Qwen3Renderer(folder_of("qwen3"), config)
    with pytest.raises(TokenizerError, match=r"no '.*', which glm-5 writes; expected a tokenizer of that family"):
        create_renderer(folder_of("qwen3"), config)
