"""Clean conversations, and rows of ids as another tool would have made them: what bugs are planted in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.doctor import Report, diagnose
from niels_gpt.doctor.layouts.inference import infer_layout
from niels_gpt.messages import normalise
from niels_gpt.renderers.base import RenderedTokens
from niels_gpt.renderers.template.renderer import DefaultRenderer
from tests.renderers.tiny_families import folder_of, renderer_of

Row = dict[str, Any]
WORDS = ("the fox", "a lazy dog", "brown fox jumps", "quick return", "hello world", "over the dog", "x + 1", "def f")
CHATML = (
    "{% for m in messages %}{{ START + m.role + '\n' + m.content + STOP + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ START + 'assistant\n' }}{% endif %}"
)


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> Row:
    return {"role": "assistant", "content": text, **more}


def system(text: str = "You are brief") -> Row:
    return {"role": "system", "content": text}


def chats(n: int = 8, *, turns: int = 2, reasons: bool = False) -> list[list[Row]]:
    """Conversations of a few turns, all different."""
    made = []
    for number in range(n):
        messages: list[Row] = []
        for turn in range(turns):
            first, second = WORDS[number % len(WORDS)], WORDS[(number + turn + 3) % len(WORDS)]
            messages.append(user(f"hello {first} {number} {turn}"))
            more = {"reasoning_content": f"you return {second} {turn}"} if reasons else {}
            messages.append(assistant(f"The {second} jumps over {first} {number + turn} and the world", **more))
        made.append(messages)
    return made


def as_rows(made: Sequence[list[Row]], **more: Any) -> list[Row]:
    return [{"messages": messages, **more} for messages in made]


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}


def tool_chats(arguments: Callable[[int], Any], n: int = 6) -> list[Row]:
    """Conversations with a call, its result and an answer."""
    made = []
    for number in range(n):
        name = "functions.get_weather:0"
        function = {"name": "get_weather", "arguments": arguments(number)}
        call = assistant("", tool_calls=[{"id": name, "type": "function", "function": function}])
        result = {"role": "tool", "tool_call_id": name, "name": "get_weather", "content": f"the fox is {number} world"}
        made.append(
            [user(f"hello {WORDS[number]}"), call, result, assistant(f"hello the quick world {number} jumps " * 6)]
        )
    return as_rows(made, tools=[TOOL])


@dataclass
class Sample:
    """A rendering as lists that bugs can be planted in.

    Attributes:
        ids, trained: one entry per token. stops: places of the assistant's stops. bodies: `(first, stop)` of each
            assistant turn. headers: where its header begins. users: `(first, behind)` of each user's body.
    """

    ids: list[int]
    trained: list[bool]
    stops: list[int]
    bodies: list[tuple[int, int]]
    headers: list[int]
    users: list[tuple[int, int]]
    tools: list[tuple[int, int]] = field(default_factory=list)
    more: Row = field(default_factory=dict)

    def row(self) -> Row:
        labels = [token if trained else -100 for token, trained in zip(self.ids, self.trained, strict=True)]
        return {"input_ids": self.ids, "labels": labels, **self.more}


def sample_of(renderer: Any, messages: list[Row], tools: Any = None) -> Sample:
    made: RenderedTokens = renderer.render(normalise(messages), tools=tools)
    owners, said, body = (np.asarray(x) for x in (made.message_indices, made.sampled_mask, made.is_content))
    bodies, headers, users, results = [], [], [], []
    for index, role in enumerate(made.message_roles):
        own = np.flatnonzero(owners == index)
        inner = own[said[own]] if role == "assistant" else own[body[own]]
        span = (int(inner[0]), int(inner[-1]))
        if role == "assistant":
            bodies.append(span)
            headers.append(int(own[0]))
        elif role == "user":
            users.append((span[0], span[1] + 1))
        elif role == "tool":
            results.append((span[0], span[1] + 1))
    stops = [stop for _, stop in bodies]
    return Sample(list(made.token_ids), said.tolist(), stops, bodies, headers, users, results)


def samples(family: str, made: Sequence[list[Row]] | None = None) -> list[Sample]:
    renderer = renderer_of(family)
    return [sample_of(renderer, messages) for messages in made or chats()]


def rows(given: Sequence[Sample]) -> list[Row]:
    return [sample.row() for sample in given]


def report_on(family: str, given: Any, **more: Any) -> Report:
    return diagnose(given, renderer=renderer_of(family), **more)


def preamble(family: str) -> list[int]:
    return list(infer_layout(renderer_of(family)).preamble)


def padded(given: Sequence[Sample], pad: int, *, extra: int = 4) -> list[Sample]:
    """The samples with padding behind them and attention masks."""
    width = max(len(sample.ids) for sample in given) + extra
    for sample in given:
        n = len(sample.ids)
        sample.more["attention_mask"] = [1] * n + [0] * (width - n)
        sample.ids += [pad] * (width - n)
        sample.trained += [False] * (width - n)
    return list(given)


def packed(given: Sequence[Sample], **columns: Any) -> list[Sample]:
    """Neighbouring samples in one row."""
    joined = []
    for one, two in zip(given[::2], given[1::2], strict=False):
        lengths = [len(one.ids), len(two.ids)]
        positions = [*range(lengths[0]), *range(lengths[1])]
        more: Row = {}
        if columns.get("positions"):
            more["position_ids"] = positions
        if columns.get("lengths"):
            more["seq_lengths"] = lengths
        if columns.get("counting"):  # as LLaMA-Factory's neat packing writes it
            more["attention_mask"] = [1] * lengths[0] + [2] * lengths[1]
        joined.append(Sample(one.ids + two.ids, one.trained + two.trained, [], [], [len(one.ids)], [], [], more))
    return joined


def model(
    target: Path,
    family: str,
    *,
    template: str | None = None,
    generation: dict[str, Any] | None = None,
    processor: Callable[[Any], None] | None = None,
    **config: Any,
) -> Path:
    """A directory like a model's, with the family's tiny tokenizer and what is asked for."""
    shutil.copytree(folder_of(family), target)
    held = json.loads((target / "tokenizer_config.json").read_text()) | config
    (target / "tokenizer_config.json").write_text(json.dumps(held))
    if template is not None:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    if generation is not None:
        (target / "generation_config.json").write_text(json.dumps(generation))
    if processor is not None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
        processor(tokenizer)
        tokenizer.save(str(target / "tokenizer.json"))
    return target


def marks(family: str) -> tuple[str, str]:
    """A spelling that may open turns and one that ends them, of the family's tokenizer."""
    start = {"qwen2.5": "<|im_start|>", "llama-3": "<|start_header_id|>", "gemma": "<start_of_turn>"}[family]
    stop = {"qwen2.5": "<|im_end|>", "llama-3": "<|eot_id|>", "gemma": "<end_of_turn>"}[family]
    return start, stop


def template_of(family: str, text: str = CHATML) -> str:
    """A template in the words of the family's tokenizer."""
    start, stop = marks(family)
    return text.replace("START", f"'{start}'").replace("STOP", f"'{stop}'")


def by_template(family: str, text: str = CHATML) -> DefaultRenderer:
    return DefaultRenderer(str(folder_of(family)), template=template_of(family, text))
