"""The config class of every renderer in one place, and configs by a renderer's name or by their fields.

A family's config class is defined beside its grammar, in `families/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.families.chatml import ChatMLRendererConfig
from niels_gpt.renderers.families.deepseek_r1 import (
    DeepSeekR1DistillRendererConfig,
    DeepSeekR1RendererConfig,
    DeepSeekR10528RendererConfig,
)
from niels_gpt.renderers.families.deepseek_v3 import DeepSeekV3RendererConfig
from niels_gpt.renderers.families.deepseek_v4 import (
    DeepSeekV4PreviewRendererConfig,
    DeepSeekV4RendererConfig,
    DeepSeekV41RendererConfig,
)
from niels_gpt.renderers.families.deepseek_v31 import DeepSeekV31RendererConfig
from niels_gpt.renderers.families.gemma import GemmaRendererConfig
from niels_gpt.renderers.families.glm5 import GLM5RendererConfig, GLM51RendererConfig
from niels_gpt.renderers.families.glm45 import GLM45RendererConfig
from niels_gpt.renderers.families.glm52 import GLM52RendererConfig, GLM53RendererConfig
from niels_gpt.renderers.families.gpt_oss import GptOssRendererConfig
from niels_gpt.renderers.families.granite4 import Granite4RendererConfig
from niels_gpt.renderers.families.inkling import InklingRendererConfig
from niels_gpt.renderers.families.kimi_k2 import KimiK2RendererConfig, KimiK2ThinkingRendererConfig
from niels_gpt.renderers.families.kimi_k25 import KimiK25RendererConfig
from niels_gpt.renderers.families.laguna_xs2 import LagunaXS2RendererConfig
from niels_gpt.renderers.families.llama3 import Llama3RendererConfig, Llama30RendererConfig
from niels_gpt.renderers.families.llama4 import Llama4RendererConfig
from niels_gpt.renderers.families.minimax_m2 import MiniMaxM2RendererConfig
from niels_gpt.renderers.families.mistral import MistralRendererConfig
from niels_gpt.renderers.families.mistral_tekken import (
    MistralV7RendererConfig,
    MistralV11RendererConfig,
    MistralV13RendererConfig,
)
from niels_gpt.renderers.families.nemotron3 import Nemotron3RendererConfig, Nemotron3UltraRendererConfig
from niels_gpt.renderers.families.ngpt import NgptRendererConfig
from niels_gpt.renderers.families.olmo3 import Olmo3RendererConfig, Olmo31RendererConfig
from niels_gpt.renderers.families.phi import (
    Phi3RendererConfig,
    Phi4MiniRendererConfig,
    Phi4ReasoningRendererConfig,
    Phi4RendererConfig,
    Phi35RendererConfig,
)
from niels_gpt.renderers.families.qwen3 import Qwen3RendererConfig
from niels_gpt.renderers.families.qwen3_vl import Qwen3VLRendererConfig
from niels_gpt.renderers.families.qwen25 import Qwen25RendererConfig
from niels_gpt.renderers.families.qwen35 import Qwen35RendererConfig
from niels_gpt.renderers.families.qwen36 import Qwen36RendererConfig
from niels_gpt.renderers.families.qwen38 import Qwen38RendererConfig
from niels_gpt.renderers.families.raw import RawRendererConfig
from niels_gpt.renderers.families.smollm3 import SmolLM3RendererConfig
from niels_gpt.renderers.options import FamilyConfig, with_options
from niels_gpt.renderers.template.renderer import DefaultRendererConfig

__all__ = [
    "AutoRendererConfig",
    "BaseRendererConfig",
    "ChatMLRendererConfig",
    "DeepSeekR1DistillRendererConfig",
    "DeepSeekR1RendererConfig",
    "DeepSeekR10528RendererConfig",
    "DeepSeekV3RendererConfig",
    "DeepSeekV4PreviewRendererConfig",
    "DeepSeekV4RendererConfig",
    "DeepSeekV31RendererConfig",
    "DeepSeekV41RendererConfig",
    "DefaultRendererConfig",
    "FamilyConfig",
    "GLM5RendererConfig",
    "GLM45RendererConfig",
    "GLM51RendererConfig",
    "GLM52RendererConfig",
    "GLM53RendererConfig",
    "GemmaRendererConfig",
    "GptOssRendererConfig",
    "Granite4RendererConfig",
    "InklingRendererConfig",
    "KimiK2RendererConfig",
    "KimiK2ThinkingRendererConfig",
    "KimiK25RendererConfig",
    "LagunaXS2RendererConfig",
    "Llama3RendererConfig",
    "Llama4RendererConfig",
    "Llama30RendererConfig",
    "MiniMaxM2RendererConfig",
    "MistralRendererConfig",
    "MistralV7RendererConfig",
    "MistralV11RendererConfig",
    "MistralV13RendererConfig",
    "Nemotron3RendererConfig",
    "Nemotron3UltraRendererConfig",
    "NgptRendererConfig",
    "Olmo3RendererConfig",
    "Olmo31RendererConfig",
    "Phi3RendererConfig",
    "Phi4MiniRendererConfig",
    "Phi4ReasoningRendererConfig",
    "Phi4RendererConfig",
    "Phi35RendererConfig",
    "Qwen3RendererConfig",
    "Qwen3VLRendererConfig",
    "Qwen25RendererConfig",
    "Qwen35RendererConfig",
    "Qwen36RendererConfig",
    "Qwen38RendererConfig",
    "RawRendererConfig",
    "RendererConfig",
    "SmolLM3RendererConfig",
    "config_from_name",
    "config_of",
    "with_options",
]


class AutoRendererConfig(FamilyConfig):
    """The family that `MODEL_RENDERER_MAP` names for the tokenizer, else its own chat template."""

    name: Literal["auto"] = "auto"


RendererConfig = Annotated[
    AutoRendererConfig
    | DefaultRendererConfig
    | Qwen25RendererConfig
    | Qwen3RendererConfig
    | Qwen3VLRendererConfig
    | Qwen35RendererConfig
    | Qwen36RendererConfig
    | Qwen38RendererConfig
    | DeepSeekV3RendererConfig
    | DeepSeekR1RendererConfig
    | DeepSeekR10528RendererConfig
    | DeepSeekR1DistillRendererConfig
    | DeepSeekV31RendererConfig
    | DeepSeekV4RendererConfig
    | DeepSeekV4PreviewRendererConfig
    | DeepSeekV41RendererConfig
    | GLM45RendererConfig
    | GLM5RendererConfig
    | GLM51RendererConfig
    | GLM52RendererConfig
    | GLM53RendererConfig
    | KimiK2RendererConfig
    | KimiK2ThinkingRendererConfig
    | KimiK25RendererConfig
    | Llama3RendererConfig
    | Llama30RendererConfig
    | GemmaRendererConfig
    | MistralRendererConfig
    | Phi3RendererConfig
    | Phi35RendererConfig
    | Phi4RendererConfig
    | Phi4MiniRendererConfig
    | LagunaXS2RendererConfig
    | GptOssRendererConfig
    | InklingRendererConfig
    | MiniMaxM2RendererConfig
    | Nemotron3RendererConfig
    | Nemotron3UltraRendererConfig
    | ChatMLRendererConfig
    | RawRendererConfig
    | MistralV7RendererConfig
    | MistralV11RendererConfig
    | MistralV13RendererConfig
    | Granite4RendererConfig
    | Olmo3RendererConfig
    | Olmo31RendererConfig
    | SmolLM3RendererConfig
    | Phi4ReasoningRendererConfig
    | Llama4RendererConfig
    | NgptRendererConfig,
    Field(discriminator="name"),
]

BaseRendererConfig = FamilyConfig  # the name in the known package


def config_from_name(name: str) -> FamilyConfig | DefaultRendererConfig:
    """The config of a renderer's name, all defaults.

    Raises:
        UsageError: no such renderer.
    """
    return config_of({"name": name})


def config_of(fields: Mapping[str, Any]) -> FamilyConfig | DefaultRendererConfig:
    """A config from its fields; `name` selects the class.

    Raises:
        UsageError: no such renderer, or a field that it does not have.
    """
    name, known = fields.get("name"), [name for kind in _kinds() for name in _names(kind)]
    if name not in known:
        near = did_you_mean(name, known) if isinstance(name, str) else ""
        raise UsageError(f"no renderer {name!r}; expected one of {', '.join(known)}{near}")
    kind: Any = next(kind for kind in _kinds() if name in _names(kind))
    config: FamilyConfig | DefaultRendererConfig = with_options(kind(name=name), fields)
    return config


def _kinds() -> tuple[type[FamilyConfig] | type[DefaultRendererConfig], ...]:
    """The classes of all configs."""
    return get_args(get_args(RendererConfig)[0])


def _names(kind: type[BaseModel]) -> tuple[str, ...]:
    """The names of renderers that a class is the config of."""
    return get_args(kind.model_fields["name"].annotation)
