"""The models whose format a family writes, by their names on the hub."""

from __future__ import annotations

from typing import Final

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
