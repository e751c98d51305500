"""The config classes that the `renderers` package names here, and `RendererConfig`, the union of all.

A family's config class is defined beside its grammar; this module imports all families, so nothing here imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from niels_gpt.renderers.families.all_families import FAMILIES
from niels_gpt.renderers.families.deepseek_v3 import DeepSeekV3RendererConfig
from niels_gpt.renderers.families.glm5 import GLM5RendererConfig, GLM51RendererConfig
from niels_gpt.renderers.families.glm45 import GLM45RendererConfig
from niels_gpt.renderers.families.gpt_oss import GptOssRendererConfig
from niels_gpt.renderers.families.kimi_k2 import KimiK2RendererConfig
from niels_gpt.renderers.families.kimi_k25 import KimiK25RendererConfig
from niels_gpt.renderers.families.laguna_xs2 import LagunaXS2RendererConfig
from niels_gpt.renderers.families.minimax_m2 import MiniMaxM2RendererConfig
from niels_gpt.renderers.families.nemotron3 import Nemotron3RendererConfig, Nemotron3UltraRendererConfig
from niels_gpt.renderers.families.qwen3 import Qwen3RendererConfig
from niels_gpt.renderers.families.qwen3_vl import Qwen3VLRendererConfig
from niels_gpt.renderers.families.qwen35 import Qwen35RendererConfig
from niels_gpt.renderers.families.qwen36 import Qwen36RendererConfig
from niels_gpt.renderers.options import FamilyConfig, with_options
from niels_gpt.renderers.registry import AutoRendererConfig, DefaultRendererConfig, config_from_name, config_of

__all__ = [
    "AutoRendererConfig",
    "BaseRendererConfig",
    "DeepSeekV3RendererConfig",
    "DefaultRendererConfig",
    "FamilyConfig",
    "GLM5RendererConfig",
    "GLM45RendererConfig",
    "GLM51RendererConfig",
    "GptOssRendererConfig",
    "KimiK2RendererConfig",
    "KimiK25RendererConfig",
    "LagunaXS2RendererConfig",
    "MiniMaxM2RendererConfig",
    "Nemotron3RendererConfig",
    "Nemotron3UltraRendererConfig",
    "Qwen3RendererConfig",
    "Qwen3VLRendererConfig",
    "Qwen35RendererConfig",
    "Qwen36RendererConfig",
    "RendererConfig",
    "config_from_name",
    "config_of",
    "with_options",
]

# A discriminated union, for the fields of a user's own pydantic models.
if TYPE_CHECKING:
    RendererConfig = FamilyConfig | DefaultRendererConfig
else:
    _CLASSES = (AutoRendererConfig, DefaultRendererConfig, *(family.config_class for family in FAMILIES.values()))
    RendererConfig = Annotated[Union[_CLASSES], Field(discriminator="name")]  # noqa: UP007  # computed

BaseRendererConfig = FamilyConfig  # the name in the known package
