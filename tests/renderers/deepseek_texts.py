"""What DeepSeek's official templates make of random conversations, kept where the templates themselves cannot be.

``python -m tests.renderers.deepseek_texts DIRECTORY`` renders conversations with the templates of `SOURCES` in that
directory and writes `FILE`. `test_deepseek.py` compares.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.renderers.chats import Messages, Wanted, conversation, plain_text

FILE = Path(__file__).with_name("deepseek_texts.jsonl")
ASSISTANT = "<｜Assistant｜>"


@dataclass(frozen=True)
class Source:
    """A template.

    Attributes:
        family: ours of the model; model: where the template is from.
        held: what the conversations do not hold, since the template writes it in another way.
        flags: the options that the template knows.
        heads_users: it writes the assistant's header behind every user, with and without generation prompt.
    """

    family: str
    model: str
    held: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[dict[str, Any], ...] = ({},)
    heads_users: bool = False


SOURCES = {
    "deepseek-r1": Source("deepseek-r1", "deepseek-ai/DeepSeek-R1 of 2025-02-09 (2575 characters)", {"tools": False}),
    "deepseek-r1-distill": Source(
        "deepseek-r1-distill", "deepseek-ai/DeepSeek-R1-Distill-*, all six (2090 characters)", {"tools": False}
    ),
    "deepseek-v3-0324": Source(
        "deepseek-v3",
        "deepseek-ai/DeepSeek-V3-0324 (2862 characters)",
        {"loose": False, "inline": False},
        heads_users=True,
    ),
    "deepseek-r1-0528": Source(
        "deepseek-r1-0528", "deepseek-ai/DeepSeek-R1-0528 (2937 characters)", {"loose": False}, heads_users=True
    ),
    "deepseek-v3.1": Source(
        "deepseek-v3.1", "deepseek-ai/DeepSeek-V3.1 (2779 characters)", {"inline": False}, ({}, {"thinking": True})
    ),
}


def conversations(name: str, number: int) -> list[Messages]:
    """Conversations whose last message has no reasoning: the templates leave it out."""
    rng = random.Random(f"official {name}")
    held = {"nones": False, "late_system": False, "parts": False, "flags": False, **SOURCES[name].held}
    made = [conversation(rng, Wanted(**held))[0] for _ in range(4 * number)]
    return [messages for messages in made if not reasons(messages[-1])][:number]


def reasons(message: Mapping[str, Any]) -> bool:
    return bool(message.get("reasoning_content")) or "</think>" in plain_text(message["content"])


def as_templates_take(message: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as text, and contents that are there."""
    shown = {key: value for key, value in message.items() if value is not None} | {"content": message["content"] or ""}
    if "tool_calls" in shown:
        shown["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": as_text(call["function"]["arguments"])}}
            for call in shown["tool_calls"]
        ]
    return shown


def as_text(arguments: Any) -> str:
    """Arguments in the family's spelling, as the templates write text as it is."""
    return json.dumps(json.loads(arguments) if isinstance(arguments, str) else arguments, ensure_ascii=False)


def main() -> None:
    """Write the file."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    lines = []
    for name, source in SOURCES.items():
        template: Any = _compile_jinja_template((Path(sys.argv[1]) / f"{name}.jinja").read_text(encoding="utf-8"))
        for number, messages in enumerate(conversations(name, 14)):
            flags, gen = source.flags[number // 2 % len(source.flags)], bool(number % 2)
            shown = [as_templates_take(message) for message in messages]
            official = template.render(
                messages=shown, add_generation_prompt=gen, bos_token="<｜begin▁of▁sentence｜>", **flags
            )
            if source.heads_users and not gen and messages[-1]["role"] == "user":
                official = official.removesuffix(ASSISTANT)
            lines.append(json.dumps([name, messages, flags, gen, official], ensure_ascii=False))
    FILE.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
