"""Which renderer for which model: by exact hub name, by the name of a renderer, by a typed config (document 003)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from niels_gpt.errors import TokenizerError, UsageError
from niels_gpt.extras import check_library
from niels_gpt.renderers.chatml import ChatMLRenderer
from niels_gpt.renderers.configs import (
    AutoRendererConfig,
    DefaultRendererConfig,
    FamilyConfig,
    config_from_name,
    config_of,
)
from niels_gpt.renderers.deepseek_v3 import DeepSeekV3Renderer
from niels_gpt.renderers.default import DefaultRenderer
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.gemma import GemmaRenderer
from niels_gpt.renderers.glm5 import GLM5Renderer, GLM51Renderer
from niels_gpt.renderers.glm45 import GLM45Renderer
from niels_gpt.renderers.gpt_oss import GptOssRenderer
from niels_gpt.renderers.kimi_k2 import KimiK2Renderer
from niels_gpt.renderers.kimi_k25 import KimiK25Renderer
from niels_gpt.renderers.laguna_xs2 import LagunaXS2Renderer
from niels_gpt.renderers.llama3 import Llama3Renderer, Llama30Renderer
from niels_gpt.renderers.minimax_m2 import MiniMaxM2Renderer
from niels_gpt.renderers.mistral import MistralRenderer
from niels_gpt.renderers.nemotron3 import Nemotron3Renderer, Nemotron3UltraRenderer
from niels_gpt.renderers.ngpt import NgptRenderer
from niels_gpt.renderers.phi import Phi3Renderer, Phi4MiniRenderer, Phi4Renderer, Phi35Renderer
from niels_gpt.renderers.pool import RendererPool
from niels_gpt.renderers.processors import CACHE_MOST, Images
from niels_gpt.renderers.protocol import Renderer
from niels_gpt.renderers.qwen3 import Qwen3Renderer
from niels_gpt.renderers.qwen3_vl import Qwen3VLRenderer
from niels_gpt.renderers.qwen25 import Qwen25Renderer
from niels_gpt.renderers.qwen35 import Qwen35Renderer
from niels_gpt.renderers.qwen36 import Qwen36Renderer
from niels_gpt.renderers.raw import RawRenderer
from niels_gpt.renderers.vision import TakesImages
from niels_gpt.tokenizer.hub import load_tokenizer
from niels_gpt.tokenizer.opening import open_encoder
from niels_gpt.tokenizer.protocol import PieceEncoder

__all__ = [
    "FAMILIES",
    "MODEL_RENDERER_MAP",
    "MULTIMODAL_MODELS",
    "RENDERER_REGISTRY",
    "ChatMLRenderer",
    "DeepSeekV3Renderer",
    "DefaultRenderer",
    "GLM5Renderer",
    "GLM45Renderer",
    "GLM51Renderer",
    "GemmaRenderer",
    "GptOssRenderer",
    "KimiK2Renderer",
    "KimiK25Renderer",
    "LagunaXS2Renderer",
    "Llama3Renderer",
    "Llama30Renderer",
    "MiniMaxM2Renderer",
    "MistralRenderer",
    "Nemotron3Renderer",
    "Nemotron3UltraRenderer",
    "NgptRenderer",
    "Phi3Renderer",
    "Phi4MiniRenderer",
    "Phi4Renderer",
    "Phi35Renderer",
    "Qwen3Renderer",
    "Qwen3VLRenderer",
    "Qwen25Renderer",
    "Qwen35Renderer",
    "Qwen36Renderer",
    "RawRenderer",
    "RendererChoice",
    "config_from_name",
    "config_of",
    "create_renderer",
    "create_renderer_pool",
    "takes_images",
]

FAMILIES: dict[str, type[Family]] = {
    "qwen2.5": Qwen25Renderer,
    "qwen3": Qwen3Renderer,
    "qwen3-vl": Qwen3VLRenderer,
    "qwen3.5": Qwen35Renderer,
    "qwen3.6": Qwen36Renderer,
    "deepseek-v3": DeepSeekV3Renderer,
    "glm-4.5": GLM45Renderer,
    "glm-5": GLM5Renderer,
    "glm-5.1": GLM51Renderer,
    "kimi-k2": KimiK2Renderer,
    "kimi-k2.5": KimiK25Renderer,
    "llama-3": Llama3Renderer,
    "llama-3.0": Llama30Renderer,
    "gemma": GemmaRenderer,
    "mistral": MistralRenderer,
    "phi-3": Phi3Renderer,
    "phi-3.5": Phi35Renderer,
    "phi-4": Phi4Renderer,
    "phi-4-mini": Phi4MiniRenderer,
    "laguna-xs.2": LagunaXS2Renderer,
    "gpt-oss": GptOssRenderer,
    "minimax-m2": MiniMaxM2Renderer,
    "nemotron-3": Nemotron3Renderer,
    "nemotron-3-ultra": Nemotron3UltraRenderer,
    "chatml": ChatMLRenderer,
    "raw": RawRenderer,
    "ngpt": NgptRenderer,
}

# The name in the known package: every renderer that can be asked for by name.
RENDERER_REGISTRY: Mapping[str, type[Family | DefaultRenderer]] = MappingProxyType(
    {**FAMILIES, "default": DefaultRenderer, "template": DefaultRenderer}
)

# What says which renderer: a name, a config, or a config's fields.
RendererChoice = str | Mapping[str, Any] | FamilyConfig | DefaultRendererConfig

# Exact names only: a model of the same architecture may have another template, and a fine-tune often does.
MODEL_RENDERER_MAP: dict[str, str] = {
    "Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5",
    "Qwen/Qwen3-0.6B": "qwen3",
    "Qwen/Qwen3-1.7B": "qwen3",
    "Qwen/Qwen3-4B": "qwen3",
    "Qwen/Qwen3-8B": "qwen3",
    "Qwen/Qwen3-14B": "qwen3",
    "Qwen/Qwen3-32B": "qwen3",
    "Qwen/Qwen3-30B-A3B": "qwen3",
    "Qwen/Qwen3-235B-A22B": "qwen3",
    "Qwen/Qwen3-VL-4B-Instruct": "qwen3-vl",
    "Qwen/Qwen3-VL-8B-Instruct": "qwen3-vl",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "qwen3-vl",
    "Qwen/Qwen3.5-0.8B": "qwen3.5",
    "Qwen/Qwen3.5-2B": "qwen3.5",
    "Qwen/Qwen3.5-4B": "qwen3.5",
    "Qwen/Qwen3.5-9B": "qwen3.5",
    "Qwen/Qwen3.5-27B": "qwen3.5",
    "Qwen/Qwen3.5-35B-A3B": "qwen3.5",
    "Qwen/Qwen3.5-122B-A10B": "qwen3.5",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5",
    "Qwen/Qwen3.6-35B-A3B": "qwen3.6",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3-Base": "deepseek-v3",
    "zai-org/GLM-4.5-Air": "glm-4.5",
    "THUDM/GLM-4.5-Air": "glm-4.5",
    "zai-org/GLM-5": "glm-5",
    "zai-org/GLM-5-FP8": "glm-5",
    "zai-org/GLM-4.7-Flash": "glm-5",
    "zai-org/GLM-5.1": "glm-5.1",
    "moonshotai/Kimi-K2-Instruct": "kimi-k2",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "moonshotai/Kimi-K2.6": "kimi-k2.5",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama-3",
    "google/gemma-3-1b-it": "gemma",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral",
    "microsoft/phi-4": "phi-4",
    "microsoft/Phi-4-mini-instruct": "phi-4-mini",
    "poolside/Laguna-XS.2": "laguna-xs.2",
    "openai/gpt-oss-20b": "gpt-oss",
    "openai/gpt-oss-120b": "gpt-oss",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron-3",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": "nemotron-3",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "nemotron-3-ultra",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": "nemotron-3-ultra",
}

# Models with images that a family here takes, by modality.
MULTIMODAL_MODELS: dict[str, frozenset[str]] = {
    name: frozenset({"image"})
    for name, family in MODEL_RENDERER_MAP.items()
    if issubclass(FAMILIES[family], TakesImages)
}

# What a model's config.json has if it takes images.
_VISION_KEYS = ("vision_config", "vision_tower", "image_token_id", "image_token_index")


def create_renderer(
    tokenizer: Any,
    renderer: RendererChoice | None = None,
    *,
    config: RendererChoice | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    preserve_all_thinking: bool = False,
    preserve_thinking_between_tool_calls: bool = False,
    processor: Any = None,
) -> Family | DefaultRenderer:
    """A renderer for a tokenizer (document 003).

    Args:
        tokenizer: whatever `open_encoder` takes: a hub name, a directory, a tokenizer object, an encoder.
        renderer: "auto": the family of the tokenizer's exact hub name, else its own chat template; the name of a
            family; "template" (or "default"); or a config, or its fields. `None` is "auto".
        config: the same under the name that the known package gives it.
        tool_parser, reasoning_parser: how completions are read, for renderers by template.
        preserve_all_thinking, preserve_thinking_between_tool_calls: see `FamilyConfig`.
        processor: of families with images, see `TakesImages`; or an `Images`, which says how many it keeps.

    Raises:
        UsageError: no such renderer; options that the renderer does not have; a model with images and no renderer for
            them; a processor for a renderer that takes no images. TokenizerError, TemplateError: the
            tokenizer cannot be used.
    """
    config = _config(_one_of(renderer, config))
    encoder = open_encoder(tokenizer)
    kept = {
        "preserve_all_thinking": preserve_all_thinking,
        "preserve_thinking_between_tool_calls": preserve_thinking_between_tool_calls,
    }
    asked = {name: True for name, wanted in kept.items() if wanted}
    if isinstance(config, AutoRendererConfig):
        config = _resolved(config, encoder)
    if processor is not None and not (config.name in FAMILIES and issubclass(FAMILIES[config.name], TakesImages)):
        with_images = ", ".join(name for name, family in FAMILIES.items() if issubclass(family, TakesImages))
        raise UsageError(
            f"{config.name} takes no images, so no processor; expected one of {with_images}, or leave it out"
        )
    if isinstance(config, DefaultRendererConfig):
        if asked:
            raise UsageError(
                f"{next(iter(asked))} needs a renderer by family; a chat template keeps what it keeps. Name a family "
                f"({', '.join(FAMILIES)}) if the model is one"
            )
        parsers = {"tool_parser": tool_parser, "reasoning_parser": reasoning_parser}
        given = {name: parser for name, parser in parsers.items() if parser is not None}
        return DefaultRenderer(encoder, config.model_copy(update=given))
    if tool_parser or reasoning_parser:
        raise UsageError(f"{config.name} reads completions itself; tool_parser and reasoning_parser are for templates")
    family, made = FAMILIES[config.name], config.model_copy(update=asked)
    return family(encoder, made, processor=processor) if issubclass(family, TakesImages) else family(encoder, made)


def _one_of(renderer: RendererChoice | None, config: RendererChoice | None) -> RendererChoice:
    """What a caller gave under one of two names; "auto" for nothing.

    Raises:
        UsageError: both are given.
    """
    if renderer is not None and config is not None:
        raise UsageError("found renderer and config; expected one of both: they are two names of one argument")
    given = config if renderer is None else renderer
    return "auto" if given is None else given


def _config(renderer: object) -> FamilyConfig | DefaultRendererConfig:
    """The config that a caller named, gave, or spelled out.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(renderer, str):
        return config_from_name(renderer)
    if isinstance(renderer, Mapping):
        return config_of(renderer)
    if isinstance(renderer, AutoRendererConfig | DefaultRendererConfig):
        return renderer
    if isinstance(renderer, FamilyConfig) and renderer.name in FAMILIES:
        return renderer
    raise UsageError(f"renderer is {renderer!r}; expected a name ({', '.join(FAMILIES)}, auto, template) or a config")


def _resolved(auto: AutoRendererConfig, encoder: PieceEncoder) -> FamilyConfig | DefaultRendererConfig:
    """The config that "auto" stands for.

    Raises:
        UsageError: the model takes images, which its chat template alone cannot render.
    """
    name = "ngpt" if encoder.engine == "sentencepiece" else MODEL_RENDERER_MAP.get(encoder.name)
    if name != "ngpt" and Path(encoder.name).exists():
        name = None  # a local directory that is called like a model may hold another template
    fields = auto.model_dump(exclude={"name"}, exclude_defaults=True)
    if name is not None:
        return config_of({"name": name, **fields})
    if fields:
        raise UsageError(
            f"{encoder.name}: no family is registered for this name, and a chat template has no {next(iter(fields))}; "
            "name a family"
        )
    if takes_images(encoder.name):
        raise UsageError(
            f"{encoder.name} takes images, and no renderer is registered for it; its template alone would lose them. "
            "Name a family that fits, or renderer='template' for conversations without images"
        )
    return DefaultRendererConfig()


def takes_images(name: str) -> bool:
    """A model's config.json says that it takes images; a name that is neither a path nor on the hub does not.

    Raises:
        UsageError: the name is on the hub, and its config cannot be read.
    """
    path = Path(name)
    folder = path.parent if path.is_file() else path
    if not folder.is_dir():
        return _takes_images_on_hub(name)
    file = folder / "config.json"
    return file.is_file() and _says_vision(file)


def _says_vision(file: Path) -> bool:
    try:
        held = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{file}: not JSON ({error}); download the file again") from error
    return isinstance(held, dict) and any(held.get(key) is not None for key in _VISION_KEYS)


def _takes_images_on_hub(name: str) -> bool:
    if name.count("/") != 1 or name.startswith(("/", ".")):
        return False  # an object without a name, or one that was made in this process
    check_library("huggingface_hub")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return _says_vision(Path(hf_hub_download(name, "config.json")))
    except EntryNotFoundError:
        return False
    except Exception as error:  # whatever the network does: httpx, requests and OS errors alike
        raise UsageError(
            f"{name}: whether this model takes images cannot be told ({type(error).__name__}: {error}); name the "
            "renderer: a family, or 'template' for conversations without images"
        ) from error


def create_renderer_pool(
    name_or_path: str,
    renderer: RendererChoice | None = None,
    size: int = 16,
    *,
    config: RendererChoice | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    preserve_all_thinking: bool = False,
    preserve_thinking_between_tool_calls: bool = False,
    processor: Any = None,
) -> RendererPool:
    """`size` renderers behind one, each with a tokenizer of its own; see `create_renderer`.

    They share the processor, and what it made of the last images.
    """
    chosen = _one_of(renderer, config)
    shared = None if processor is None else Images.of(processor, CACHE_MOST)

    def factory() -> Renderer:
        source: Any = name_or_path if Path(name_or_path).exists() else load_tokenizer(name_or_path)
        return create_renderer(
            source,
            chosen,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            preserve_all_thinking=preserve_all_thinking,
            preserve_thinking_between_tool_calls=preserve_thinking_between_tool_calls,
            processor=shared,
        )

    return RendererPool(factory, size)
