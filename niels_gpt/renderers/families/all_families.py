"""The one list of all model families: a line of `PLACES` for each. A family is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from niels_gpt.renderers.family import Family

Class = TypeVar("Class", bound=type)

# Renderer name -> its module here, and its class, which names its config; in the order of lists in help and errors.
PLACES: Final = {
    "qwen2.5": ("qwen25", "Qwen25Renderer"),
    "qwen3": ("qwen3", "Qwen3Renderer"),
    "qwen3-vl": ("qwen3_vl", "Qwen3VLRenderer"),
    "qwen3.5": ("qwen35", "Qwen35Renderer"),
    "qwen3.6": ("qwen36", "Qwen36Renderer"),
    "qwen3.8": ("qwen38", "Qwen38Renderer"),
    "deepseek-v3": ("deepseek_v3", "DeepSeekV3Renderer"),
    "deepseek-r1": ("deepseek_r1", "DeepSeekR1Renderer"),
    "deepseek-r1-0528": ("deepseek_r1", "DeepSeekR10528Renderer"),
    "deepseek-r1-distill": ("deepseek_r1", "DeepSeekR1DistillRenderer"),
    "deepseek-v3.1": ("deepseek_v31", "DeepSeekV31Renderer"),
    "deepseek-v4": ("deepseek_v4", "DeepSeekV4Renderer"),
    "deepseek-v4-preview": ("deepseek_v4", "DeepSeekV4PreviewRenderer"),
    "deepseek-v4.1": ("deepseek_v4", "DeepSeekV41Renderer"),
    "glm-4.5": ("glm45", "GLM45Renderer"),
    "glm-5": ("glm5", "GLM5Renderer"),
    "glm-5.1": ("glm5", "GLM51Renderer"),
    "glm-5.2": ("glm52", "GLM52Renderer"),
    "glm-5.3": ("glm52", "GLM53Renderer"),
    "kimi-k2": ("kimi_k2", "KimiK2Renderer"),
    "kimi-k2-thinking": ("kimi_k2", "KimiK2ThinkingRenderer"),
    "kimi-k2.5": ("kimi_k25", "KimiK25Renderer"),
    "llama-3": ("llama3", "Llama3Renderer"),
    "llama-3.0": ("llama3", "Llama30Renderer"),
    "gemma": ("gemma", "GemmaRenderer"),
    "mistral": ("mistral", "MistralRenderer"),
    "laguna-xs.2": ("laguna_xs2", "LagunaXS2Renderer"),
    "gpt-oss": ("gpt_oss", "GptOssRenderer"),
    "inkling": ("inkling", "InklingRenderer"),
    "minimax-m2": ("minimax_m2", "MiniMaxM2Renderer"),
    "nemotron-3": ("nemotron3", "Nemotron3Renderer"),
    "nemotron-3-ultra": ("nemotron3", "Nemotron3UltraRenderer"),
    "mistral-v7": ("mistral_tekken", "MistralV7Renderer"),
    "mistral-v11": ("mistral_tekken", "MistralV11Renderer"),
    "mistral-v13": ("mistral_tekken", "MistralV13Renderer"),
    "chatml": ("chatml", "ChatMLRenderer"),
    "raw": ("raw", "RawRenderer"),
    "ngpt": ("ngpt", "NgptRenderer"),
}
# Those that take images: subclasses of `TakesImages`.
WITH_IMAGES: Final = ("qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8", "kimi-k2.5")


class ClassesByName(Mapping[str, Class]):
    """Classes by a name; the module of one is imported when its class is asked for, and not for its name.

    Args:
        places: name -> the full name of the module, and the name of the class.
    """

    def __init__(self, places: Mapping[str, tuple[str, str]]) -> None:
        self.places = dict(places)

    def __getitem__(self, name: str) -> Class:
        """The class; `KeyError` where there is no such name."""
        module, kind = self.places[name]
        found: Class = getattr(import_module(module), kind)
        return found

    def __contains__(self, name: object) -> bool:  # the mapping's own would import
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


_FOLDER = "niels_gpt.renderers.families"
FAMILIES: ClassesByName[type[Family]] = ClassesByName(
    {name: (f"{_FOLDER}.{module}", kind) for name, (module, kind) in PLACES.items()}
)


def class_named(name: str) -> Any:
    """The class of a family or its config, as `Qwen3Renderer` and `Qwen3RendererConfig`; `None` if there is none."""
    for module, kind in PLACES.values():
        if name in (kind, f"{kind}Config"):
            return getattr(import_module(f"{_FOLDER}.{module}"), name, None)
    return None
