"""What "auto" means for a tokenizer, and the models whose format a family writes, by their names on the hub."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from niels_gpt.renderers.families.all_families import FAMILIES
from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES, TEMPLATE_MODELS
from niels_gpt.store.files import read_file
from niels_gpt.tokenizer.hf import MODEL_CONFIG_NAME, TOKENIZER_NAME, parsed
from niels_gpt.tokenizer.load import is_sentencepiece

# Family -> the `model_type`s of config.json, then the models. Exact names only: a model of the same architecture may
# have another template, and a fine-tune often does. A local directory that has the name of a known model and another
# model_type is another model, so its own chat template is used.
_KNOWN: Final[dict[str, tuple[str, str]]] = {
    "qwen2.5": ("qwen2", "Qwen/Qwen2.5-0.5B-Instruct Qwen/Qwen2.5-7B-Instruct"),
    "qwen3": (
        "qwen3 qwen3_moe",
        "Qwen/Qwen3-0.6B Qwen/Qwen3-1.7B Qwen/Qwen3-4B Qwen/Qwen3-8B Qwen/Qwen3-14B Qwen/Qwen3-32B "
        "Qwen/Qwen3-30B-A3B Qwen/Qwen3-235B-A22B",
    ),
    "qwen3-vl": (
        "qwen3_vl qwen3_vl_moe",
        "Qwen/Qwen3-VL-4B-Instruct Qwen/Qwen3-VL-8B-Instruct Qwen/Qwen3-VL-30B-A3B-Instruct",
    ),
    "qwen3.5": (
        "qwen3_5 qwen3_5_moe",
        "Qwen/Qwen3.5-0.8B Qwen/Qwen3.5-2B Qwen/Qwen3.5-4B Qwen/Qwen3.5-9B Qwen/Qwen3.5-27B Qwen/Qwen3.5-35B-A3B "
        "Qwen/Qwen3.5-122B-A10B Qwen/Qwen3.5-397B-A17B",
    ),
    "qwen3.6": ("qwen3_5 qwen3_5_moe qwen3_6 qwen3_6_moe", "Qwen/Qwen3.6-35B-A3B"),
    "qwen3.8": (
        "qwen3_5 qwen3_5_moe qwen4_exp",
        "Qwen/Qwen3.8-27B Qwen/Qwen3.8-27B-FP8 Qwen/Qwen3.8-Flash-Next Qwen/Qwen3.8-Flash-Next-FP8",
    ),
    "deepseek-v3": (
        "deepseek_v3",
        "deepseek-ai/DeepSeek-V3 deepseek-ai/DeepSeek-V3-Base deepseek-ai/DeepSeek-V3-0324",
    ),
    "deepseek-r1": ("deepseek_v3", "deepseek-ai/DeepSeek-R1"),
    "deepseek-r1-0528": ("deepseek_v3", "deepseek-ai/DeepSeek-R1-0528"),
    # On Llama's vocabulary with DeepSeek's control tokens the format is the same as on Qwen's.
    "deepseek-r1-distill": (
        "llama qwen2",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B deepseek-ai/DeepSeek-R1-Distill-Qwen-7B "
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B deepseek-ai/DeepSeek-R1-Distill-Qwen-32B "
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
    ),
    "deepseek-v3.1": ("deepseek_v3", "deepseek-ai/DeepSeek-V3.1"),
    "deepseek-v4-preview": ("deepseek_v4", "deepseek-ai/DeepSeek-V4-Flash deepseek-ai/DeepSeek-V4-Pro"),
    "deepseek-v4": ("deepseek_v4", "deepseek-ai/DeepSeek-V4-Flash-0731 deepseek-ai/DeepSeek-V4-Pro-0813"),
    "deepseek-v4.1": ("deepseek_v41", "deepseek-ai/DeepSeek-V4.1-Flash"),
    "glm-4.5": ("glm4_moe", "zai-org/GLM-4.5-Air THUDM/GLM-4.5-Air"),
    # The template of GLM-4.7-Flash differs from GLM-5's only in white space that Jinja cuts.
    "glm-5": ("glm4_moe_lite glm_moe_dsa", "zai-org/GLM-5 zai-org/GLM-5-FP8 zai-org/GLM-4.7-Flash"),
    "glm-5.1": ("glm_moe_dsa", "zai-org/GLM-5.1"),
    "glm-5.2": ("glm_moe_dsa", "zai-org/GLM-5.2 zai-org/GLM-5.2-FP8"),
    "glm-5.3": (
        "glm5_next glm_moe_dsa",
        "zai-org/GLM-5.3 zai-org/GLM-5.3-BF16 zai-org/GLM-5.3-Flash zai-org/GLM-5.3-Flash-BF16",
    ),
    "kimi-k2": ("deepseek_v3 kimi_k2", "moonshotai/Kimi-K2-Instruct"),
    "kimi-k2-thinking": ("deepseek_v3 kimi_k2", "moonshotai/Kimi-K2-Thinking"),
    # K2.6's template has a `preserve_thinking`, here the option `preserve_all_thinking`, and is otherwise K2.5's.
    "kimi-k2.5": ("kimi_k25", "moonshotai/Kimi-K2.5 moonshotai/Kimi-K2.6"),
    "llama-3": ("llama", "meta-llama/Llama-3.1-8B-Instruct meta-llama/Meta-Llama-3.1-8B-Instruct"),
    "gemma": (
        "gemma2 gemma3 gemma3_text gemma3n gemma3n_text",
        "google/gemma-3-1b-it google/gemma-3n-E2B-it google/gemma-3n-E4B-it",
    ),
    "mistral": ("mistral", "mistralai/Mistral-Nemo-Instruct-2407"),
    "mistral-v7": (
        "mistral mistral3",
        "mistralai/Mistral-Small-24B-Instruct-2501 mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    ),
    "mistral-v11": ("mistral3", "mistralai/Mistral-Small-3.2-24B-Instruct-2506"),
    "mistral-v13": (
        "ministral3 mistral mistral3",
        "mistralai/Devstral-Small-2507 mistralai/Magistral-Small-2507 mistralai/Magistral-Small-2509 "
        "mistralai/Ministral-3-3B-Instruct-2512 mistralai/Ministral-3-3B-Reasoning-2512 "
        "mistralai/Ministral-3-8B-Instruct-2512 mistralai/Ministral-3-8B-Reasoning-2512 "
        "mistralai/Ministral-3-14B-Instruct-2512 mistralai/Ministral-3-14B-Reasoning-2512 "
        "mistralai/Mistral-Large-3-675B-Instruct-2512",
    ),
    "laguna-xs.2": ("laguna", "poolside/Laguna-XS.2"),
    "gpt-oss": ("gpt_oss", "openai/gpt-oss-20b openai/gpt-oss-120b"),
    "inkling": ("inkling_mm_model", "thinkingmachines/Inkling thinkingmachines/Inkling-Small"),
    "minimax-m2": (
        "minimax minimax_m2",
        "MiniMaxAI/MiniMax-M2 MiniMaxAI/MiniMax-M2.1 MiniMaxAI/MiniMax-M2.5 MiniMaxAI/MiniMax-M2.7",
    ),
    "nemotron-3": (
        "nemotron_h",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
    ),
    "nemotron-3-ultra": (
        "nemotron_h",
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16 nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8",
    ),
}
MODEL_RENDERER_MAP: dict[str, str] = {
    model: family for family, (_, models) in _KNOWN.items() for model in models.split()
}
MODEL_TYPES: dict[str, frozenset[str]] = {family: frozenset(types.split()) for family, (types, _) in _KNOWN.items()}
# "qwen3-8b" -> "Qwen/Qwen3-8B": a directory with a copy of a model usually has the model's name without its owner.
_HUB_NAMES = {name.partition("/")[2].casefold(): name for name in (*MODEL_RENDERER_MAP, *TEMPLATE_MODELS)}


@dataclass(frozen=True)
class AutomaticRenderer:
    """The renderer that "auto" chooses for one tokenizer.

    Attributes:
        renderer: the name of a family, or "template".
        reason: the evidence, as a phrase for one line of output.
        options: for the template of a known family, the parsers that read it.
    """

    renderer: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)


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
            return AutomaticRenderer(family, f"the hub name {tokenizer} is registered for it")
        if str(tokenizer) in TEMPLATE_MODELS:
            return _known_template(str(tokenizer), f"the hub name {tokenizer}")
        return AutomaticRenderer("template", f"no family is registered for {tokenizer}")
    # From here on a local directory, for which a name proves nothing.
    folder = path.parent if path.is_file() else path
    if is_sentencepiece(path):
        return AutomaticRenderer("ngpt", f"{tokenizer} is a SentencePiece model with our sentinels")
    model = _model_of(folder)
    if model is None:
        return AutomaticRenderer(
            "template", f"the directory's name, {folder.name or folder}, is not that of a known model"
        )
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
    # The tokens without which the family's renderer would refuse the tokenizer.
    controls = [*FAMILIES[family].controls, *FAMILIES[family].stops[:1]]
    missing = [text for text in controls if text not in added]
    if missing:
        return AutomaticRenderer("template", f"named like {model}, but its tokenizer has no {missing[0]}")
    evidence = f"named like {model}, model_type {model_type}, all control tokens of {family}"
    return AutomaticRenderer(family, evidence)


def _known_template(model: str, evidence: str) -> AutomaticRenderer:
    """A model's own template, with the parsers of its family."""
    family = TEMPLATE_FAMILIES[TEMPLATE_MODELS[model]]
    parsers = ", ".join(f"{name} {value}" for name, value in family.options.items())
    reason = f"{evidence} is registered for its chat template ({family.title}{', ' if parsers else ''}{parsers})"
    return AutomaticRenderer("template", reason, family.options)


def _model_of(folder: Path) -> str | None:
    """The known model whose name a directory has: its own name, or that of a snapshot in the hub's cache."""
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots":  # models--Qwen--Qwen3-8B/snapshots/<commit>
        name = resolved.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        return name if name in MODEL_RENDERER_MAP or name in TEMPLATE_MODELS else None
    return _HUB_NAMES.get(resolved.name.casefold())


def _model_type(folder: Path) -> str | None:
    file = folder / MODEL_CONFIG_NAME
    value = parsed(read_file(file), str(file)).get("model_type") if file.is_file() else None
    return value if isinstance(value, str) else None


_HEAD_BYTES = 1 << 20  # 5,000 added tokens; Llama 3 has 256


def _added_tokens(file: Path) -> set[str]:
    """The spellings of a tokenizer.json's added tokens.

    `tokenizers` writes them before the vocabulary, which is some hundred times as long, so the head is enough.
    """
    if not file.is_file():
        return set()
    with file.open("rb") as opened:
        head = opened.read(_HEAD_BYTES).decode("utf-8", "ignore")
    try:
        tokens, _ = json.JSONDecoder().raw_decode(head, head.index("[", head.index('"added_tokens"')))
    except (ValueError, RecursionError):  # not in the head, or cut there
        tokens = parsed(read_file(file), str(file)).get("added_tokens")
    if not isinstance(tokens, list):
        return set()
    return {str(token.get("content")) for token in tokens if isinstance(token, dict)}
