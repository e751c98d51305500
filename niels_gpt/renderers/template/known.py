"""Families that are rendered through their own chat template: which parsers read them, and what is proven of them.

No grammar is written for these models. Where their template's facts are proven, they are those that a grammar would
give; `certificate` counts where. A build refuses to train a conversation that is not proven, and names the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Proven(NamedTuple):
    """Of the probe conversations of one kind that a template renders: how many are proven, and how many are not."""

    proven: int
    partial: int = 0


@dataclass(frozen=True)
class TemplateFamily:
    """A family without a grammar.

    Attributes:
        title: its name in tables and help.
        models: exact hub names, for which "auto" chooses the template with these parsers.
        tool_parser, reasoning_parser: names in `TOOL_PARSERS` and `REASONING_PARSERS`; `None`: the format has none.
        template: the path of the judged template in the test assets; "": the tests have no copy of it.
        certificate: kind of conversation -> what is proven: "texts", "reasoning", "tools" (declared), "calls".
        stops: what ends the model's turns; "": the opener of the next turn, or ordinary text.
        notes: limits of the template, in a sentence or two.
    """

    title: str
    models: tuple[str, ...] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    template: str = ""
    certificate: Mapping[str, Proven] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    notes: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The fields of a `DefaultRendererConfig`."""
        parsers = {"tool_parser": self.tool_parser, "reasoning_parser": self.reasoning_parser}
        return {name: parser for name, parser in parsers.items() if parser is not None}

    @property
    def summary(self) -> str:
        """The certificate as a phrase: `texts 34 of 34, calls 44 of 56`."""
        if not self.template:
            return "not judged: no copy of the template is at hand"
        return ", ".join(
            f"{kind} {one.proven} of {one.proven + one.partial}"
            for kind, one in self.certificate.items()
            if one.proven + one.partial
        )


def _certificate(texts: Proven, reasoning: Proven, tools: Proven, calls: Proven) -> dict[str, Proven]:
    return {"texts": texts, "reasoning": reasoning, "tools": tools, "calls": calls}


_ALL = _certificate(Proven(34), Proven(8), Proven(34), Proven(56))

# Counts of all families here: `python -m pytest tests/renderers/test_template_families.py -k certificates` compares.
_PHI_3 = _certificate(Proven(30), Proven(8), Proven(30), Proven(56))
_PHI = "The template writes no tools, no calls and no results."
_OLMO = (
    "The last answer of a conversation ends in <|endoftext|>, those before it in <|im_end|>. Arguments as JSON text "
    "make it fail; pass objects."
)

TEMPLATE_FAMILIES: dict[str, TemplateFamily] = {
    "gemma-4": TemplateFamily(
        "Gemma 4",
        ("google/gemma-4-E2B-it", "google/gemma-4-E4B-it", "google/gemma-4-26B-A4B-it", "google/gemma-4-31B-it"),
        tool_parser="gemma-4",
        reasoning_parser="gemma-4",
        template="templates_wild/gemma4fix--google-chat_template",
        certificate=_certificate(Proven(37), Proven(8), Proven(34), Proven(44, 12)),
        stops=("<turn|>", "<|tool_response>"),
        notes="Texts only. A text beside a call is written after the call's result, so such turns are not proven. "
        "With enable_thinking=true the model reasons.",
    ),
    "command-a": TemplateFamily(
        "Command A and Command R7B",
        ("CohereLabs/c4ai-command-a-03-2025", "CohereLabs/c4ai-command-r7b-12-2024"),
        tool_parser="command-a",
        reasoning_parser="command-a",
        template="templates_wild/axolotl--command_a_tool_use",
        certificate=_ALL,
        stops=("<|END_OF_TURN_TOKEN|>",),
        notes="The repositories hold several templates; the one for tools was judged. It reads reasoning before calls "
        "from tool_plan.",
    ),
    "hunyuan": TemplateFamily(
        "Hunyuan A13B",
        ("tencent/Hunyuan-A13B-Instruct",),
        tool_parser="hunyuan",
        reasoning_parser="think",
        template="templates_wild/vllm--tool_chat_template_hunyuan_a13b",
        certificate=_certificate(Proven(28), Proven(8), Proven(27, 3), Proven(56)),
        stops=("<|eos|>", ""),
        notes="The template with which vLLM serves it was judged. With tools it writes the date: give --date.",
    ),
    "seed-oss": TemplateFamily(
        "Seed-OSS",
        ("ByteDance-Seed/Seed-OSS-36B-Instruct",),
        tool_parser="seed-oss",
        reasoning_parser="seed-oss",
        template="templates_wild/ik--ByteDance-Seed-OSS",
        certificate=_certificate(Proven(28, 2), Proven(8), Proven(28, 2), Proven(48)),
        stops=("<seed:eos>", ""),
        notes="An empty answer has no end, and is not proven.",
    ),
    "ernie-4.5": TemplateFamily(
        "ERNIE 4.5",
        ("baidu/ERNIE-4.5-21B-A3B-Thinking", "baidu/ERNIE-4.5-21B-A3B-PT", "baidu/ERNIE-4.5-0.3B-PT"),
        tool_parser="hermes",
        reasoning_parser="think",
        notes="Run niels-gpt doctor template MODEL before you train; the parsers are for the Thinking model.",
    ),
    "apertus": TemplateFamily(
        "Apertus",
        ("swiss-ai/Apertus-8B-Instruct-2509", "swiss-ai/Apertus-70B-Instruct-2509"),
        tool_parser="apertus",
        reasoning_parser="apertus",
        template="templates_wild/ik--Apertus-8B-Instruct",
        certificate=_certificate(Proven(4, 23), Proven(0, 8), Proven(4, 21), Proven(8, 48)),
        stops=("", "<|tools_suffix|>", "<|assistant_end|>"),
        notes="The template ends an answer when it writes the next turn. The last answer of a conversation has no "
        "stop, so most conversations are not proven. The template writes the date: give --date.",
    ),
    "lfm2": TemplateFamily(
        "LFM2",
        (
            "LiquidAI/LFM2-350M",
            "LiquidAI/LFM2-700M",
            "LiquidAI/LFM2-1.2B",
            "LiquidAI/LFM2-2.6B",
            "LiquidAI/LFM2-8B-A1B",
        ),
        tool_parser="lfm2",
        template="templates/trl-lfm2",
        certificate=_ALL,
        stops=("<|im_end|>",),
        notes="The template writes no tool_calls: put calls into the content, as <|tool_call_start|>[f(a='b')]"
        "<|tool_call_end|>. Builds count what is dropped.",
    ),
    "exaone-4": TemplateFamily(
        "EXAONE 4",
        ("LGAI-EXAONE/EXAONE-4.0-1.2B", "LGAI-EXAONE/EXAONE-4.0-32B"),
        tool_parser="hermes",
        reasoning_parser="think",
        template="templates_wild/axolotl--exaone4",
        certificate=_certificate(Proven(36), Proven(8), Proven(34), Proven(56)),
        stops=("[|endofturn|]",),
        notes="Reasoning is written in the last answer alone, and only with skip_think=false.",
    ),
    "llama-4": TemplateFamily(
        "Llama 4 Scout and Maverick",
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"),
        tool_parser="llama-4",
        template="templates_wild/axolotl--llama4",
        certificate=_certificate(Proven(34), Proven(8), Proven(32, 2), Proven(56)),
        stops=("<|eot|>",),
        notes="Texts only. Beside calls the text, be it empty, is between <|python_start|> and <|python_end|>. "
        "Arguments as JSON text are written as a JSON string; pass objects.",
    ),
    "granite-4": TemplateFamily(
        "Granite 4.0",
        (
            "ibm-granite/granite-4.0-micro",
            "ibm-granite/granite-4.0-h-micro",
            "ibm-granite/granite-4.0-h-tiny",
            "ibm-granite/granite-4.0-h-small",
        ),
        tool_parser="hermes",
        stops=("<|end_of_text|>",),
        notes="There is always a system turn: without a text of yours it holds the tools or a default.",
    ),
    "olmo-3": TemplateFamily(
        "OLMo 3 Instruct",
        ("allenai/Olmo-3-7B-Instruct-SFT", "allenai/Olmo-3-7B-Instruct-DPO", "allenai/Olmo-3-7B-Instruct"),
        tool_parser="olmo-3",
        stops=("<|im_end|>", "<|endoftext|>"),
        notes=_OLMO,
    ),
    "olmo-3.1": TemplateFamily(
        "OLMo 3.1 Instruct",
        ("allenai/Olmo-3.1-32B-Instruct",),
        tool_parser="olmo-3",
        stops=("<|im_end|>", "<|endoftext|>"),
        notes=_OLMO,
    ),
    "smollm3": TemplateFamily(
        "SmolLM3",
        ("HuggingFaceTB/SmolLM3-3B",),
        tool_parser="hermes",
        reasoning_parser="think",
        template="templates_wild/ik--HuggingFaceTB-SmolLM3-3B",
        certificate=_certificate(Proven(36), Proven(8), Proven(34), Proven(56)),
        stops=("<|im_end|>",),
        notes="The template writes no tool_calls and no reasoning_content: put both into the content, as <think> and "
        "<tool_call> blocks. Tools are its variable xml_tools, and a late system message is left out. It writes the "
        "date: give --date.",
    ),
    "phi-3": TemplateFamily(
        "Phi-3",
        template="templates/trl-phi3",
        certificate=_PHI_3,
        stops=("<|end|>",),
        notes=_PHI,
    ),
    "phi-3.5": TemplateFamily(
        "Phi-3.5",
        template="templates/trl-phi3_5",
        certificate=_PHI_3,
        stops=("<|end|>",),
        notes=_PHI,
    ),
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
        reasoning_parser="think",
        stops=("<|im_end|>",),
        notes="The template writes its own system text in the place of yours, and no reasoning_content: put it into "
        "the content, as a <think> block. No tools.",
    ),
}

# Exact hub name -> its family above.
TEMPLATE_MODELS: dict[str, str] = {model: name for name, family in TEMPLATE_FAMILIES.items() for model in family.models}
