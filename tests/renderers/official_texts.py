"""What official templates make of random conversations, kept where the templates themselves cannot be.

``python -m tests.renderers.official_texts DIRECTORY`` renders conversations with the template ``FAMILY.jinja`` of each
family of `SOURCES` in that directory, as transformers does, and writes `FILE`. `test_official_texts.py` compares.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.renderers.chats import TOOLS, Messages, conversation
from tests.renderers.sweeps import kimi_id, wanted

FILE = Path(__file__).with_name("official_texts.jsonl")


@dataclass(frozen=True)
class Source:
    """Where a template is from, and the options that it knows; `name`: the model that the tokenizer is called by."""

    template: str
    flags: tuple[dict[str, Any], ...] = ({},)
    name: str = ""


SOURCES = {
    "glm-5.2": Source(
        "zai-org/GLM-5.2, chat_template.jinja of 2026-06-16 (5075 characters)",
        ({}, {"enable_thinking": False}, {"reasoning_effort": "high"}, {"clear_thinking": False}),
    ),
    "glm-5.3": Source(
        "zai-org/GLM-5.3-Flash, chat_template.jinja, from a public copy, its named changes undone",
        ({}, {"reasoning_effort": "low"}, {"reasoning_effort": "high"}, {"clear_thinking": True}),
    ),
    "qwen3.8": Source(
        "Qwen/Qwen3.8-Flash-Next, chat_template.jinja, as a public engine holds it to recognise the model",
        (
            *({}, {"enable_thinking": False}, {"reasoning_effort": "low"}, {"reasoning_effort": "medium"}),
            *({"preserve_thinking": False}, {"preserve_thinking": False, "enable_thinking": False}),
        ),
    ),
    "kimi-k2-thinking": Source("moonshotai/Kimi-K2-Thinking, chat_template.jinja of 2025-11-08 (3450 characters)"),
    "deepseek-r1": Source("deepseek-ai/DeepSeek-R1 of 2025-02-09 (2575 characters)"),
    "deepseek-r1-distill": Source("deepseek-ai/DeepSeek-R1-Distill-*, all six (2090 characters)"),
    "deepseek-v3": Source("deepseek-ai/DeepSeek-V3-0324 (2862 characters)"),
    "deepseek-r1-0528": Source("deepseek-ai/DeepSeek-R1-0528 (2937 characters)"),
    "deepseek-v3.1": Source("deepseek-ai/DeepSeek-V3.1 (2779 characters)", ({}, {"thinking": True})),
    "minimax-m2": Source(
        "MiniMaxAI/MiniMax-M2, chat_template.jinja of 2025-12-08 (6767 characters)", name="MiniMaxAI/MiniMax-M2"
    ),
}


def conversations(family: str, number: int) -> list[tuple[Messages, Any]]:
    """Conversations that the template takes as they are."""
    rng, ids = random.Random(f"official {family}"), {"call_id": kimi_id} if family.startswith("kimi") else {}
    held = wanted(family, nones=False, text_arguments=False, tool_parts=False, flags=False, **ids)
    made = [conversation(rng, held) for _ in range(number)]
    return [(messages, tools) for messages, tools in made if any(message["role"] == "user" for message in messages)]


def main() -> None:
    """Write the file."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    chats: dict[str, Any] = {}
    for family, source in SOURCES.items():
        text = (Path(sys.argv[1]) / f"{family}.jinja").read_text(encoding="utf-8")
        template: Any = _compile_jinja_template(text)
        rows = []
        for number, (messages, tools) in enumerate(conversations(family, 14)):
            flags, gen = source.flags[number % len(source.flags)], bool(number % 2)
            # Kimi's tokenizer sorts tools before its template sees them.
            given = json.loads(json.dumps(tools, sort_keys=True)) if family.startswith("kimi") else tools
            # transformers drops keys whose value is `None`.
            shown = [{key: value for key, value in message.items() if value is not None} for message in messages]
            official = template.render(messages=shown, tools=given, add_generation_prompt=gen, **flags)
            rows.append([messages, bool(tools), flags, gen, official])
        chats[family] = rows
    lines = [json.dumps([family, *row], ensure_ascii=False) for family, rows in chats.items() for row in rows]
    FILE.write_text("\n".join([json.dumps(TOOLS, ensure_ascii=False), *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
