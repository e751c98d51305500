"""The one list of all model families: two imports and a line of `FAMILIES` for each.

`renderers` takes its public classes from it, and `renderers/configs.py` the union of all configs. The imports have the
form `X as X`: type checkers then know that X is public here, and wherever `import *` takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_gpt.renderers.families.chatml import ChatMLRenderer as ChatMLRenderer
from niels_gpt.renderers.families.chatml import ChatMLRendererConfig as ChatMLRendererConfig
from niels_gpt.renderers.families.deepseek_r1 import DeepSeekR1DistillRenderer as DeepSeekR1DistillRenderer
from niels_gpt.renderers.families.deepseek_r1 import DeepSeekR1DistillRendererConfig as DeepSeekR1DistillRendererConfig
from niels_gpt.renderers.families.deepseek_r1 import DeepSeekR1Renderer as DeepSeekR1Renderer
from niels_gpt.renderers.families.deepseek_r1 import DeepSeekR1RendererConfig as DeepSeekR1RendererConfig
from niels_gpt.renderers.families.deepseek_r1 import DeepSeekR10528Renderer as DeepSeekR10528Renderer
from niels_gpt.renderers.families.deepseek_r1 import DeepSeekR10528RendererConfig as DeepSeekR10528RendererConfig
from niels_gpt.renderers.families.deepseek_v3 import DeepSeekV3Renderer as DeepSeekV3Renderer
from niels_gpt.renderers.families.deepseek_v3 import DeepSeekV3RendererConfig as DeepSeekV3RendererConfig
from niels_gpt.renderers.families.deepseek_v4 import DeepSeekV4PreviewRenderer as DeepSeekV4PreviewRenderer
from niels_gpt.renderers.families.deepseek_v4 import DeepSeekV4PreviewRendererConfig as DeepSeekV4PreviewRendererConfig
from niels_gpt.renderers.families.deepseek_v4 import DeepSeekV4Renderer as DeepSeekV4Renderer
from niels_gpt.renderers.families.deepseek_v4 import DeepSeekV4RendererConfig as DeepSeekV4RendererConfig
from niels_gpt.renderers.families.deepseek_v4 import DeepSeekV41Renderer as DeepSeekV41Renderer
from niels_gpt.renderers.families.deepseek_v4 import DeepSeekV41RendererConfig as DeepSeekV41RendererConfig
from niels_gpt.renderers.families.deepseek_v31 import DeepSeekV31Renderer as DeepSeekV31Renderer
from niels_gpt.renderers.families.deepseek_v31 import DeepSeekV31RendererConfig as DeepSeekV31RendererConfig
from niels_gpt.renderers.families.gemma import GemmaRenderer as GemmaRenderer
from niels_gpt.renderers.families.gemma import GemmaRendererConfig as GemmaRendererConfig
from niels_gpt.renderers.families.glm5 import GLM5Renderer as GLM5Renderer
from niels_gpt.renderers.families.glm5 import GLM5RendererConfig as GLM5RendererConfig
from niels_gpt.renderers.families.glm5 import GLM51Renderer as GLM51Renderer
from niels_gpt.renderers.families.glm5 import GLM51RendererConfig as GLM51RendererConfig
from niels_gpt.renderers.families.glm45 import GLM45Renderer as GLM45Renderer
from niels_gpt.renderers.families.glm45 import GLM45RendererConfig as GLM45RendererConfig
from niels_gpt.renderers.families.glm52 import GLM52Renderer as GLM52Renderer
from niels_gpt.renderers.families.glm52 import GLM52RendererConfig as GLM52RendererConfig
from niels_gpt.renderers.families.glm52 import GLM53Renderer as GLM53Renderer
from niels_gpt.renderers.families.glm52 import GLM53RendererConfig as GLM53RendererConfig
from niels_gpt.renderers.families.gpt_oss import GptOssRenderer as GptOssRenderer
from niels_gpt.renderers.families.gpt_oss import GptOssRendererConfig as GptOssRendererConfig
from niels_gpt.renderers.families.inkling import InklingRenderer as InklingRenderer
from niels_gpt.renderers.families.inkling import InklingRendererConfig as InklingRendererConfig
from niels_gpt.renderers.families.kimi_k2 import KimiK2Renderer as KimiK2Renderer
from niels_gpt.renderers.families.kimi_k2 import KimiK2RendererConfig as KimiK2RendererConfig
from niels_gpt.renderers.families.kimi_k2 import KimiK2ThinkingRenderer as KimiK2ThinkingRenderer
from niels_gpt.renderers.families.kimi_k2 import KimiK2ThinkingRendererConfig as KimiK2ThinkingRendererConfig
from niels_gpt.renderers.families.kimi_k25 import KimiK25Renderer as KimiK25Renderer
from niels_gpt.renderers.families.kimi_k25 import KimiK25RendererConfig as KimiK25RendererConfig
from niels_gpt.renderers.families.laguna_xs2 import LagunaXS2Renderer as LagunaXS2Renderer
from niels_gpt.renderers.families.laguna_xs2 import LagunaXS2RendererConfig as LagunaXS2RendererConfig
from niels_gpt.renderers.families.llama3 import Llama3Renderer as Llama3Renderer
from niels_gpt.renderers.families.llama3 import Llama3RendererConfig as Llama3RendererConfig
from niels_gpt.renderers.families.llama3 import Llama30Renderer as Llama30Renderer
from niels_gpt.renderers.families.llama3 import Llama30RendererConfig as Llama30RendererConfig
from niels_gpt.renderers.families.minimax_m2 import MiniMaxM2Renderer as MiniMaxM2Renderer
from niels_gpt.renderers.families.minimax_m2 import MiniMaxM2RendererConfig as MiniMaxM2RendererConfig
from niels_gpt.renderers.families.mistral import MistralRenderer as MistralRenderer
from niels_gpt.renderers.families.mistral import MistralRendererConfig as MistralRendererConfig
from niels_gpt.renderers.families.mistral_tekken import MistralV7Renderer as MistralV7Renderer
from niels_gpt.renderers.families.mistral_tekken import MistralV7RendererConfig as MistralV7RendererConfig
from niels_gpt.renderers.families.mistral_tekken import MistralV11Renderer as MistralV11Renderer
from niels_gpt.renderers.families.mistral_tekken import MistralV11RendererConfig as MistralV11RendererConfig
from niels_gpt.renderers.families.mistral_tekken import MistralV13Renderer as MistralV13Renderer
from niels_gpt.renderers.families.mistral_tekken import MistralV13RendererConfig as MistralV13RendererConfig
from niels_gpt.renderers.families.nemotron3 import Nemotron3Renderer as Nemotron3Renderer
from niels_gpt.renderers.families.nemotron3 import Nemotron3RendererConfig as Nemotron3RendererConfig
from niels_gpt.renderers.families.nemotron3 import Nemotron3UltraRenderer as Nemotron3UltraRenderer
from niels_gpt.renderers.families.nemotron3 import Nemotron3UltraRendererConfig as Nemotron3UltraRendererConfig
from niels_gpt.renderers.families.ngpt import NgptRenderer as NgptRenderer
from niels_gpt.renderers.families.ngpt import NgptRendererConfig as NgptRendererConfig
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer as Qwen3Renderer
from niels_gpt.renderers.families.qwen3 import Qwen3RendererConfig as Qwen3RendererConfig
from niels_gpt.renderers.families.qwen3_vl import Qwen3VLRenderer as Qwen3VLRenderer
from niels_gpt.renderers.families.qwen3_vl import Qwen3VLRendererConfig as Qwen3VLRendererConfig
from niels_gpt.renderers.families.qwen25 import Qwen25Renderer as Qwen25Renderer
from niels_gpt.renderers.families.qwen25 import Qwen25RendererConfig as Qwen25RendererConfig
from niels_gpt.renderers.families.qwen35 import Qwen35Renderer as Qwen35Renderer
from niels_gpt.renderers.families.qwen35 import Qwen35RendererConfig as Qwen35RendererConfig
from niels_gpt.renderers.families.qwen36 import Qwen36Renderer as Qwen36Renderer
from niels_gpt.renderers.families.qwen36 import Qwen36RendererConfig as Qwen36RendererConfig
from niels_gpt.renderers.families.qwen38 import Qwen38Renderer as Qwen38Renderer
from niels_gpt.renderers.families.qwen38 import Qwen38RendererConfig as Qwen38RendererConfig
from niels_gpt.renderers.families.raw import RawRenderer as RawRenderer
from niels_gpt.renderers.families.raw import RawRendererConfig as RawRendererConfig
from niels_gpt.renderers.family import Family

# Renderer name -> class; the class names its config. The order is that of lists in help texts and errors.
FAMILIES: dict[str, type[Family]] = {
    "qwen2.5": Qwen25Renderer,
    "qwen3": Qwen3Renderer,
    "qwen3-vl": Qwen3VLRenderer,
    "qwen3.5": Qwen35Renderer,
    "qwen3.6": Qwen36Renderer,
    "qwen3.8": Qwen38Renderer,
    "deepseek-v3": DeepSeekV3Renderer,
    "deepseek-r1": DeepSeekR1Renderer,
    "deepseek-r1-0528": DeepSeekR10528Renderer,
    "deepseek-r1-distill": DeepSeekR1DistillRenderer,
    "deepseek-v3.1": DeepSeekV31Renderer,
    "deepseek-v4": DeepSeekV4Renderer,
    "deepseek-v4-preview": DeepSeekV4PreviewRenderer,
    "deepseek-v4.1": DeepSeekV41Renderer,
    "glm-4.5": GLM45Renderer,
    "glm-5": GLM5Renderer,
    "glm-5.1": GLM51Renderer,
    "glm-5.2": GLM52Renderer,
    "glm-5.3": GLM53Renderer,
    "kimi-k2": KimiK2Renderer,
    "kimi-k2-thinking": KimiK2ThinkingRenderer,
    "kimi-k2.5": KimiK25Renderer,
    "llama-3": Llama3Renderer,
    "llama-3.0": Llama30Renderer,
    "gemma": GemmaRenderer,
    "mistral": MistralRenderer,
    "laguna-xs.2": LagunaXS2Renderer,
    "gpt-oss": GptOssRenderer,
    "inkling": InklingRenderer,
    "minimax-m2": MiniMaxM2Renderer,
    "nemotron-3": Nemotron3Renderer,
    "nemotron-3-ultra": Nemotron3UltraRenderer,
    "mistral-v7": MistralV7Renderer,
    "mistral-v11": MistralV11Renderer,
    "mistral-v13": MistralV13Renderer,
    "chatml": ChatMLRenderer,
    "raw": RawRenderer,
    "ngpt": NgptRenderer,
}

if not TYPE_CHECKING:  # type checkers cannot read a computed list; they go by the imports above
    __all__ = [
        "FAMILIES",
        *(family.__name__ for family in FAMILIES.values()),
        *(family.config_class.__name__ for family in FAMILIES.values()),
    ]
