"""Every renderer, and the functions that make one.

::

    FAMILIES              renderer name -> class              a new family is one line here
    MODEL_RENDERER_MAP    exact hub name -> renderer name (`known_models.py`)
    TEMPLATE_FAMILIES     families that are rendered through their chat template (`template/known.py`)
    create_renderer       a renderer by name, by config, or by the tokenizer's hub name ("auto")
    automatic_renderer    what "auto" means for a tokenizer: the only place where that is decided
    open_renderer         a renderer from the options of a command line (`RendererOptions`)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from niels_gpt.errors import UsageError
from niels_gpt.renderers.configs import (
    AutoRendererConfig,
    DefaultRendererConfig,
    FamilyConfig,
    config_from_name,
    config_of,
    with_options,
)
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.families.chatml import ChatMLRenderer
from niels_gpt.renderers.families.deepseek_r1 import (
    DeepSeekR1DistillRenderer,
    DeepSeekR1Renderer,
    DeepSeekR10528Renderer,
)
from niels_gpt.renderers.families.deepseek_v3 import DeepSeekV3Renderer
from niels_gpt.renderers.families.deepseek_v4 import (
    DeepSeekV4PreviewRenderer,
    DeepSeekV4Renderer,
    DeepSeekV41Renderer,
)
from niels_gpt.renderers.families.deepseek_v31 import DeepSeekV31Renderer
from niels_gpt.renderers.families.gemma import GemmaRenderer
from niels_gpt.renderers.families.glm5 import GLM5Renderer, GLM51Renderer
from niels_gpt.renderers.families.glm45 import GLM45Renderer
from niels_gpt.renderers.families.glm52 import GLM52Renderer, GLM53Renderer
from niels_gpt.renderers.families.gpt_oss import GptOssRenderer
from niels_gpt.renderers.families.granite4 import Granite4Renderer
from niels_gpt.renderers.families.inkling import InklingRenderer
from niels_gpt.renderers.families.kimi_k2 import KimiK2Renderer, KimiK2ThinkingRenderer
from niels_gpt.renderers.families.kimi_k25 import KimiK25Renderer
from niels_gpt.renderers.families.laguna_xs2 import LagunaXS2Renderer
from niels_gpt.renderers.families.llama3 import Llama3Renderer, Llama30Renderer
from niels_gpt.renderers.families.llama4 import Llama4Renderer
from niels_gpt.renderers.families.minimax_m2 import MiniMaxM2Renderer
from niels_gpt.renderers.families.mistral import MistralRenderer
from niels_gpt.renderers.families.mistral_tekken import MistralV7Renderer, MistralV11Renderer, MistralV13Renderer
from niels_gpt.renderers.families.nemotron3 import Nemotron3Renderer, Nemotron3UltraRenderer
from niels_gpt.renderers.families.ngpt import NgptRenderer
from niels_gpt.renderers.families.olmo3 import Olmo3Renderer, Olmo31Renderer
from niels_gpt.renderers.families.phi import (
    Phi3Renderer,
    Phi4MiniRenderer,
    Phi4ReasoningRenderer,
    Phi4Renderer,
    Phi35Renderer,
)
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from niels_gpt.renderers.families.qwen3_vl import Qwen3VLRenderer
from niels_gpt.renderers.families.qwen25 import Qwen25Renderer
from niels_gpt.renderers.families.qwen35 import Qwen35Renderer
from niels_gpt.renderers.families.qwen36 import Qwen36Renderer
from niels_gpt.renderers.families.qwen38 import Qwen38Renderer
from niels_gpt.renderers.families.raw import RawRenderer
from niels_gpt.renderers.families.smollm3 import SmolLM3Renderer
from niels_gpt.renderers.image_family import TakesImages, takes_images
from niels_gpt.renderers.images.processors import CACHE_SIZE, Images
from niels_gpt.renderers.known_models import MODEL_RENDERER_MAP, MODEL_TYPES
from niels_gpt.renderers.pool import RendererPool
from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES, TEMPLATE_MODELS
from niels_gpt.renderers.template.renderer import DefaultRenderer
from niels_gpt.renderers.types import Renderer
from niels_gpt.storage.regular import is_regular, open_regular, read_regular
from niels_gpt.tokenizer.hf import MODEL_CONFIG_NAME, TOKENIZER_NAME, parsed
from niels_gpt.tokenizer.hub import load_hf_tokenizer
from niels_gpt.tokenizer.load import is_sentencepiece, open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder

__all__ = [
    "FAMILIES",
    "MODEL_RENDERER_MAP",
    "MULTIMODAL_MODELS",
    "RENDERER_REGISTRY",
    "ChatMLRenderer",
    "DeepSeekR1DistillRenderer",
    "DeepSeekR1Renderer",
    "DeepSeekR10528Renderer",
    "DeepSeekV3Renderer",
    "DeepSeekV4PreviewRenderer",
    "DeepSeekV4Renderer",
    "DeepSeekV31Renderer",
    "DeepSeekV41Renderer",
    "DefaultRenderer",
    "GLM5Renderer",
    "GLM45Renderer",
    "GLM51Renderer",
    "GLM52Renderer",
    "GLM53Renderer",
    "GemmaRenderer",
    "GptOssRenderer",
    "Granite4Renderer",
    "InklingRenderer",
    "KimiK2Renderer",
    "KimiK2ThinkingRenderer",
    "KimiK25Renderer",
    "LagunaXS2Renderer",
    "Llama3Renderer",
    "Llama4Renderer",
    "Llama30Renderer",
    "MiniMaxM2Renderer",
    "MistralRenderer",
    "MistralV7Renderer",
    "MistralV11Renderer",
    "MistralV13Renderer",
    "Nemotron3Renderer",
    "Nemotron3UltraRenderer",
    "NgptRenderer",
    "Olmo3Renderer",
    "Olmo31Renderer",
    "Phi3Renderer",
    "Phi4MiniRenderer",
    "Phi4ReasoningRenderer",
    "Phi4Renderer",
    "Phi35Renderer",
    "Qwen3Renderer",
    "Qwen3VLRenderer",
    "Qwen25Renderer",
    "Qwen35Renderer",
    "Qwen36Renderer",
    "Qwen38Renderer",
    "RawRenderer",
    "RendererChoice",
    "SmolLM3Renderer",
    "automatic_renderer",
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
    "phi-3": Phi3Renderer,
    "phi-3.5": Phi35Renderer,
    "phi-4": Phi4Renderer,
    "phi-4-mini": Phi4MiniRenderer,
    "laguna-xs.2": LagunaXS2Renderer,
    "gpt-oss": GptOssRenderer,
    "inkling": InklingRenderer,
    "minimax-m2": MiniMaxM2Renderer,
    "nemotron-3": Nemotron3Renderer,
    "nemotron-3-ultra": Nemotron3UltraRenderer,
    "mistral-v7": MistralV7Renderer,
    "mistral-v11": MistralV11Renderer,
    "mistral-v13": MistralV13Renderer,
    "granite-4": Granite4Renderer,
    "olmo-3": Olmo3Renderer,
    "olmo-3.1": Olmo31Renderer,
    "smollm3": SmolLM3Renderer,
    "phi-4-reasoning": Phi4ReasoningRenderer,
    "llama-4": Llama4Renderer,
    "chatml": ChatMLRenderer,
    "raw": RawRenderer,
    "ngpt": NgptRenderer,
}

# Every renderer that can be named; `RENDERER_REGISTRY` is its name in the `renderers` package.
RENDERER_REGISTRY: Mapping[str, type[Family | DefaultRenderer]] = MappingProxyType(
    {**FAMILIES, "default": DefaultRenderer, "template": DefaultRenderer}
)

# How a renderer can be named: by its name, by a config, or by a config's fields.
RendererChoice = str | Mapping[str, Any] | FamilyConfig | DefaultRendererConfig

# "qwen3-8b" -> "Qwen/Qwen3-8B": a directory with a copy of a model usually has the model's name without its owner.
_HUB_NAMES = {name.partition("/")[2].casefold(): name for name in (*MODEL_RENDERER_MAP, *TEMPLATE_MODELS)}

# Models whose images a family can render, by modality.
MULTIMODAL_MODELS: dict[str, frozenset[str]] = {
    name: frozenset({"image"})
    for name, family in MODEL_RENDERER_MAP.items()
    if issubclass(FAMILIES[family], TakesImages)
}


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
    """A renderer for a tokenizer.

    Args:
        tokenizer: whatever `open_encoder` takes: a hub name, a directory, a tokenizer object, an encoder.
        renderer: "auto": the family of the tokenizer's exact hub name, else its own chat template; the name of a
            family; "template" (or "default"); or a config, or its fields. `None` is "auto".
        config: the same argument under its name in the `renderers` package.
        tool_parser, reasoning_parser: how completions are read, for renderers by template.
        preserve_all_thinking, preserve_thinking_between_tool_calls: see `FamilyConfig`.
        processor: the image processor of families with images, see `TakesImages`; or an `Images`, which sets the size
            of its cache.

    Raises:
        UsageError: no such renderer; options that the renderer does not have; a model with images and no renderer for
            them; a processor for a renderer that takes no images.
        TokenizerError, TemplateError: the tokenizer cannot be used.
    """
    config = _config(_one_of(renderer, config))
    encoder = open_encoder(tokenizer)
    preserve = {
        "preserve_all_thinking": preserve_all_thinking,
        "preserve_thinking_between_tool_calls": preserve_thinking_between_tool_calls,
    }
    preserve_options = {name: True for name, wanted in preserve.items() if wanted}
    if isinstance(config, AutoRendererConfig):
        config = _resolve_auto(config, encoder)
    if processor is not None and not (config.name in FAMILIES and issubclass(FAMILIES[config.name], TakesImages)):
        with_images = ", ".join(name for name, family in FAMILIES.items() if issubclass(family, TakesImages))
        raise UsageError(
            f"{config.name} takes no images, so no processor; expected one of {with_images}, or leave it out"
        )
    if isinstance(config, DefaultRendererConfig):
        if preserve_options:
            raise UsageError(
                f"{next(iter(preserve_options))} needs a renderer by family; a chat template itself decides what it "
                f"keeps. Name a family ({', '.join(FAMILIES)}) if the model is one"
            )
        parsers = {"tool_parser": tool_parser, "reasoning_parser": reasoning_parser}
        named = {name: parser for name, parser in parsers.items() if parser is not None}
        return DefaultRenderer(encoder, config.model_copy(update=named))
    if tool_parser or reasoning_parser:
        raise UsageError(f"{config.name} reads completions itself; tool_parser and reasoning_parser are for templates")
    family, config = FAMILIES[config.name], config.model_copy(update=preserve_options)
    return family(encoder, config, processor=processor) if issubclass(family, TakesImages) else family(encoder, config)


def _one_of(renderer: RendererChoice | None, config: RendererChoice | None) -> RendererChoice:
    """The value of an argument with two names; "auto" if neither is set.

    Raises:
        UsageError: both are set.
    """
    if renderer is not None and config is not None:
        raise UsageError("found renderer and config; expected one of both: they are two names of one argument")
    choice = config if renderer is None else renderer
    return "auto" if choice is None else choice


def _config(renderer: object) -> FamilyConfig | DefaultRendererConfig:
    """The config of a name, of a config's fields, or of a config itself.

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


def _resolve_auto(auto: AutoRendererConfig, encoder: PieceEncoder) -> FamilyConfig | DefaultRendererConfig:
    """The config of "auto" for this tokenizer.

    Raises:
        UsageError: the model takes images, which its chat template alone cannot render.
    """
    if encoder.engine == "sentencepiece":
        chosen = AutomaticRenderer("ngpt", "a SentencePiece model")
    else:
        chosen = automatic_renderer(encoder.name, encoder.added_ids)
    name, fields = chosen.renderer, auto.model_dump(exclude={"name"}, exclude_defaults=True)
    if name != "template":
        return config_of({"name": name, **fields})
    if fields:
        raise UsageError(
            f"{encoder.name}: no family is registered for this name, and a chat template has no {next(iter(fields))}; "
            "name a family"
        )
    if not chosen.is_known:
        refuse_unknown_images(encoder.name)
    return with_options(DefaultRendererConfig(), chosen.options)


def refuse_unknown_images(name: str) -> None:
    """Refuse a model with images that has no registered renderer.

    Raises:
        UsageError: the model's config.json says that it takes images.
    """
    if takes_images(name):
        raise UsageError(
            f"{name} takes images, and no renderer is registered for it; its template alone would lose them. "
            "Name a family that fits, or renderer='template' for conversations without images"
        )


@dataclass(frozen=True)
class AutomaticRenderer:
    """The renderer that "auto" chooses for one tokenizer.

    Attributes:
        renderer: the name of a family, or "template".
        reason: the evidence, as a phrase for one line of output.
        options: for the template of a known family, the parsers that read it.
        is_known: the model is registered, for a family or for its template; then the renderer itself refuses images.
    """

    renderer: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_known: bool = False


def automatic_renderer(tokenizer: str | Path, added_tokens: Collection[str] | None = None) -> AutomaticRenderer:
    """The renderer of a tokenizer for which none was named: the only place where this is decided.

    A hub name must be an exact key of `MODEL_RENDERER_MAP`. A local directory must pass three checks, because a
    directory that was copied and changed may hold another format; one that fails any of them is rendered by its own
    chat template::

        ~/models/Qwen3-8B/                     the name of a known model, also as models--Qwen--Qwen3-8B/snapshots/*
            config.json     model_type qwen3   one of MODEL_TYPES["qwen3"]
            tokenizer.json  <|im_start|> ...   has every control token of the family

    Reads config.json and the added tokens of tokenizer.json, nothing else.

    Args:
        tokenizer: a directory, a file in it, or a hub name.
        added_tokens: spellings of the tokenizer's added tokens, where it is loaded already.

    Raises:
        TokenizerError: config.json or tokenizer.json is not JSON.
    """
    path = Path(tokenizer).expanduser()
    if not path.exists():
        family = MODEL_RENDERER_MAP.get(str(tokenizer))
        if family is not None:
            return AutomaticRenderer(family, f"the hub name {tokenizer} is registered for it", is_known=True)
        if str(tokenizer) in TEMPLATE_MODELS:
            return _known_template(str(tokenizer), f"the hub name {tokenizer}")
        return AutomaticRenderer("template", f"no family is registered for {tokenizer}")
    folder = path.parent if path.is_file() else path
    if is_sentencepiece(path):
        return AutomaticRenderer("ngpt", f"{tokenizer} is a SentencePiece model with our sentinels")
    model = _model_of(folder)
    if model is None:
        return AutomaticRenderer("template", f"{folder.name or folder} is not the name of a known model")
    # Without the other checks: the template is read from the directory, and the name chooses only how completions are
    # read.
    if model in TEMPLATE_MODELS:
        return _known_template(model, f"the name of {model}")
    family = MODEL_RENDERER_MAP[model]
    model_type = _model_type(folder)
    if model_type not in MODEL_TYPES[family]:
        found = "no config.json says its model_type" if model_type is None else f"its model_type is {model_type!r}"
        return AutomaticRenderer("template", f"named like {model}, but {found}")
    added = _added_tokens(folder / TOKENIZER_NAME) if added_tokens is None else added_tokens
    controls = [*FAMILIES[family].controls, *FAMILIES[family].stops[:1]]
    missing = [text for text in controls if text not in added]
    if missing:
        return AutomaticRenderer("template", f"named like {model}, but its tokenizer has no {missing[0]}")
    evidence = f"named like {model}, model_type {model_type}, all control tokens of {family}"
    return AutomaticRenderer(family, evidence, is_known=True)


def _known_template(model: str, evidence: str) -> AutomaticRenderer:
    """A model's own template, with the parsers of its family."""
    family = TEMPLATE_FAMILIES[TEMPLATE_MODELS[model]]
    parsers = ", ".join(f"{name} {value}" for name, value in family.options.items())
    reason = f"{evidence} is registered for its chat template ({family.title}{', ' if parsers else ''}{parsers})"
    return AutomaticRenderer("template", reason, family.options, is_known=True)


def _model_of(folder: Path) -> str | None:
    """The known model whose name a directory has: its own name, or that of a snapshot in the hub's cache."""
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots":  # models--Qwen--Qwen3-8B/snapshots/<commit>
        name = resolved.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        return name if name in MODEL_RENDERER_MAP or name in TEMPLATE_MODELS else None
    return _HUB_NAMES.get(resolved.name.casefold())


def _model_type(folder: Path) -> str | None:
    file = folder / MODEL_CONFIG_NAME
    value = parsed(read_regular(file), str(file)).get("model_type") if is_regular(file) else None
    return value if isinstance(value, str) else None


_HEAD_BYTES = 1 << 20


def _added_tokens(file: Path) -> set[str]:
    """The spellings of a tokenizer.json's added tokens.

    `tokenizers` writes them before the vocabulary, which is some hundred times as long, so the head is enough.
    """
    if not is_regular(file):
        return set()
    with open_regular(file) as opened:
        head = opened.read(_HEAD_BYTES).decode("utf-8", "ignore")
    try:
        tokens, _ = json.JSONDecoder().raw_decode(head, head.index("[", head.index('"added_tokens"')))
    except (ValueError, RecursionError):  # not in the head, or cut there
        tokens = parsed(read_regular(file), str(file)).get("added_tokens")
    if not isinstance(tokens, list):
        return set()
    return {str(token.get("content")) for token in tokens if isinstance(token, dict)}


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
    """A pool of `size` renderers, each with its own tokenizer; see `create_renderer`.

    They share the processor and its cache of images.
    """
    chosen = _one_of(renderer, config)
    shared = None if processor is None else Images.of(processor, CACHE_SIZE)

    def factory() -> Renderer:
        source: Any = name_or_path if Path(name_or_path).exists() else load_hf_tokenizer(name_or_path)
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
