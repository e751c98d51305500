"""Families that are rendered through their own chat template: which parsers read them, and what is proven of them.

No grammar is written for these models. Where the attribution of their template is proven, it is what a grammar would
give; `proven` counts where. A build refuses to train a conversation that is not proven, and names the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class TemplateFamily:
    """A family without a grammar.

    Attributes:
        title: its name in tables and help.
        models: exact hub names, for which "auto" chooses the template with these parsers.
        options: fields of a `DefaultRendererConfig`: the parsers that read what the model writes.
        template: the path of the judged template in the test assets; "": the tests have no copy of it.
        proven: of the probe conversations that the template renders, those that are proven: with calls, else with
            reasoning, else with tools declared, else texts. `tests/renderers/test_template_families.py` counts them.
        stops: what ends the model's turns; "": the opener of the next turn, or ordinary text.
        notes: limits of the template, in a sentence or two.
    """

    title: str
    models: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    template: str = ""
    proven: str = "not judged: no copy of the template is at hand"
    stops: tuple[str, ...] = ()
    notes: str = ""


_ALL: Final = "texts 34 of 34, reasoning 8 of 8, tools 34 of 34, calls 56 of 56"
_PHI: Final = "The template writes no tools, no calls and no results."
_OLMO: Final[dict[str, Any]] = {
    "options": {"tool_parser": "olmo-3"},
    "stops": ("<|im_end|>", "<|endoftext|>"),
    "notes": "The last answer of a conversation ends in <|endoftext|>, those before it in <|im_end|>. Arguments as "
    "JSON text make it fail; pass objects.",
}

TEMPLATE_FAMILIES: dict[str, TemplateFamily] = {
    "gemma-4": TemplateFamily(
        "Gemma 4",
        ("google/gemma-4-E2B-it", "google/gemma-4-E4B-it", "google/gemma-4-26B-A4B-it", "google/gemma-4-31B-it"),
        {"tool_parser": "gemma-4", "reasoning_parser": "gemma-4"},
        template="templates_wild/gemma4fix--google-chat_template",
        proven="texts 34 of 34, reasoning 8 of 8, tools 34 of 34, calls 44 of 56",
        stops=("<turn|>", "<|tool_response>"),
        notes="Texts only. A text beside a call is written after the call's result, so such turns are not proven. "
        "With enable_thinking=true the model reasons.",
    ),
    "command-a": TemplateFamily(
        "Command A and Command R7B",
        ("CohereLabs/c4ai-command-a-03-2025", "CohereLabs/c4ai-command-r7b-12-2024"),
        {"tool_parser": "command-a", "reasoning_parser": "command-a"},
        template="templates_wild/axolotl--command_a_tool_use",
        proven=_ALL,
        stops=("<|END_OF_TURN_TOKEN|>",),
        notes="The repositories hold several templates; the one for tools was judged. It reads reasoning before calls "
        "from tool_plan.",
    ),
    "hunyuan": TemplateFamily(
        "Hunyuan A13B",
        ("tencent/Hunyuan-A13B-Instruct",),
        {"tool_parser": "hunyuan", "reasoning_parser": "think"},
        template="templates_wild/vllm--tool_chat_template_hunyuan_a13b",
        proven="texts 32 of 32, reasoning 8 of 8, tools 31 of 34, calls 56 of 56",
        stops=("<|eos|>", ""),
        notes="The template with which vLLM serves it was judged. With tools it writes the date: give --date.",
    ),
    "seed-oss": TemplateFamily(
        "Seed-OSS",
        ("ByteDance-Seed/Seed-OSS-36B-Instruct",),
        {"tool_parser": "seed-oss", "reasoning_parser": "seed-oss"},
        template="templates_wild/ik--ByteDance-Seed-OSS",
        proven="texts 28 of 30, reasoning 8 of 8, tools 28 of 30, calls 48 of 48",
        stops=("<seed:eos>", ""),
        notes="An empty answer has no end: give --renderer-option final_stop='<seed:eos>'.",
    ),
    "ernie-4.5": TemplateFamily(
        "ERNIE 4.5",
        ("baidu/ERNIE-4.5-21B-A3B-Thinking", "baidu/ERNIE-4.5-21B-A3B-PT", "baidu/ERNIE-4.5-0.3B-PT"),
        {"tool_parser": "hermes", "reasoning_parser": "think"},
        notes="Run niels-gpt doctor template MODEL before you train; the parsers are for the Thinking model.",
    ),
    "apertus": TemplateFamily(
        "Apertus",
        ("swiss-ai/Apertus-8B-Instruct-2509", "swiss-ai/Apertus-70B-Instruct-2509"),
        {"tool_parser": "apertus", "reasoning_parser": "apertus"},
        template="templates_wild/ik--Apertus-8B-Instruct",
        proven="texts 4 of 25, reasoning 0 of 8, tools 4 of 25, calls 8 of 56",
        stops=("", "<|tools_suffix|>", "<|assistant_end|>"),
        notes="The template ends an answer when it writes the next turn, so the last answer has no stop: give "
        "--renderer-option final_stop='<|assistant_end|>', with which all but 4 probes are proven. It writes the "
        "date: give --date.",
    ),
    "lfm2": TemplateFamily(
        "LFM2",
        tuple(f"LiquidAI/LFM2-{size}" for size in ("350M", "700M", "1.2B", "2.6B", "8B-A1B")),
        {"tool_parser": "lfm2"},
        template="templates/trl-lfm2",
        proven=_ALL,
        stops=("<|im_end|>",),
        notes="The template writes no tool_calls: put calls into the content, as <|tool_call_start|>[f(a='b')]"
        "<|tool_call_end|>. Builds refuse rows that lose calls.",
    ),
    "exaone-4": TemplateFamily(
        "EXAONE 4",
        ("LGAI-EXAONE/EXAONE-4.0-1.2B", "LGAI-EXAONE/EXAONE-4.0-32B"),
        {"tool_parser": "hermes", "reasoning_parser": "think"},
        template="templates_wild/axolotl--exaone4",
        proven=_ALL,
        stops=("[|endofturn|]",),
        notes="Reasoning is written in the last answer alone, and only with skip_think=false.",
    ),
    "llama-4": TemplateFamily(
        "Llama 4 Scout and Maverick",
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"),
        {"tool_parser": "llama-4"},
        template="templates_wild/axolotl--llama4",
        proven="texts 34 of 34, reasoning 8 of 8, tools 32 of 34, calls 56 of 56",
        stops=("<|eot|>",),
        notes="Texts only. Beside calls the text, be it empty, is between <|python_start|> and <|python_end|>. "
        "Arguments as JSON text are written as a JSON string; pass objects.",
    ),
    "granite-4": TemplateFamily(
        "Granite 4.0",
        tuple(f"ibm-granite/granite-4.0-{size}" for size in ("micro", "h-micro", "h-tiny", "h-small")),
        {"tool_parser": "hermes"},
        stops=("<|end_of_text|>",),
        notes="There is always a system turn: without a text of yours it holds the tools or a default.",
    ),
    "olmo-3": TemplateFamily(
        "OLMo 3 Instruct",
        ("allenai/Olmo-3-7B-Instruct-SFT", "allenai/Olmo-3-7B-Instruct-DPO", "allenai/Olmo-3-7B-Instruct"),
        **_OLMO,
    ),
    "olmo-3.1": TemplateFamily("OLMo 3.1 Instruct", ("allenai/Olmo-3.1-32B-Instruct",), **_OLMO),
    "smollm3": TemplateFamily(
        "SmolLM3",
        ("HuggingFaceTB/SmolLM3-3B",),
        {"tool_parser": "hermes", "reasoning_parser": "think"},
        template="templates_wild/ik--HuggingFaceTB-SmolLM3-3B",
        proven=_ALL,
        stops=("<|im_end|>",),
        notes="The template writes no tool_calls and no reasoning_content: put both into the content, as <think> and "
        "<tool_call> blocks. Tools are its variable xml_tools, and a late system message is left out. It writes the "
        "date: give --date.",
    ),
    "phi-3": TemplateFamily("Phi-3", template="templates/trl-phi3", proven=_ALL, stops=("<|end|>",), notes=_PHI),
    "phi-3.5": TemplateFamily("Phi-3.5", template="templates/trl-phi3_5", proven=_ALL, stops=("<|end|>",), notes=_PHI),
    "phi-4": TemplateFamily("Phi-4", ("microsoft/phi-4",), stops=("<|im_end|>",), notes=_PHI),
    "phi-4-mini": TemplateFamily(
        "Phi-4-mini",
        ("microsoft/Phi-4-mini-instruct",),
        stops=("<|end|>",),
        notes="Tools are a text beside the first system message.",
    ),
    "phi-4-reasoning": TemplateFamily(
        "Phi-4-reasoning and -plus",
        ("microsoft/Phi-4-reasoning", "microsoft/Phi-4-reasoning-plus"),
        {"reasoning_parser": "think"},
        stops=("<|im_end|>",),
        notes="The template writes its own system text in the place of yours, and no reasoning_content: put it into "
        "the content, as a <think> block. No tools.",
    ),
}

# Exact hub name -> its family above.
TEMPLATE_MODELS: dict[str, str] = {model: name for name, family in TEMPLATE_FAMILIES.items() for model in family.models}
