"""Conversations -> ids and masks: by grammar, by template, and as others do it; and where our time goes. One core.

The corpus has the shape that DESIGN 6 names: about 700 tokens, 1 to 8 turns, a fifth with tools. Qwen3's own tokenizer
and template are needed (`tests/assets.py` says where they are looked for); without them there is nothing to compare.

`python -m benchmarks.renderers` tells how the rates of our own ways are spread over many rounds, for machines whose
speed changes while they run.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.pairs import Result, measure
from niels_gpt.messages import normalise
from niels_gpt.renderers.loss import LossOn, batch_weights
from niels_gpt.renderers.qwen3 import Qwen3Renderer
from niels_gpt.renderers.template import TemplateRenderer
from tests.assets import ASSETS

MODEL = ASSETS / "qwen3-8b"
CONVERSATIONS = 2000
ROUNDS = 40  # of what takes a tenth of a second
LONG_ROUNDS = 3  # of what takes many seconds
SPREAD_ROUNDS = 150
AIMS = (30_000, 30_000, 10_000, 0)  # of `_ours`, in conversations a second
TEXT = (
    "the quick brown fox jumps over lazy dog while model answers carefully about data loaders and exact masks for "
    "training runs in Berlin weather temperature function return value list of numbers"
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Get the weather for a city", "parameters": CITY}}
    for name in ("get_weather", "search")
]
Chats = list[tuple[list[dict[str, Any]], Any]]


def corpus(n: int, seed: int = 0, *, tools: float = 0.2, call_id: str = "c") -> Chats:
    """Conversations with their tools, which so many of them have."""
    rng = random.Random(seed)

    words = TEXT.split()

    def text(mean: float) -> str:
        return " ".join(rng.choices(words, k=max(1, int(rng.expovariate(1 / mean)))))

    def turns(calls: bool) -> list[dict[str, Any]]:
        made = [{"role": "user", "content": text(43)}]
        if calls and rng.random() < 0.5:
            call = {"name": "get_weather", "arguments": {"city": text(2), "days": 3}}
            made.append({"role": "assistant", "content": "", "tool_calls": [{"id": call_id, "function": call}]})
            made.append({"role": "tool", "tool_call_id": call_id, "content": text(30)})
        return [*made, {"role": "assistant", "content": text(86)}]

    chats: Chats = []
    for _ in range(n):
        chat = [{"role": "system", "content": text(20)}] if rng.random() < 0.5 else []
        own = TOOLS if rng.random() < tools else None
        for _ in range(rng.randint(1, 8)):
            chat += turns(own is not None)
        chats.append((chat, own))
    return chats


def run(folder: Path) -> list[Result]:
    """Both renderers in batches and one by one, beside Transformers; then the parts."""
    del folder
    if not MODEL.is_dir():
        print(f"renderers: no tokenizer in {MODEL} (set NGPT_ASSETS); left out")
        return []
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        return _whole(MODEL) + _parts(MODEL)
    finally:
        os.sched_setaffinity(0, cores)


def _each(render: Callable[..., Any], data: Chats) -> None:
    for chat, own in data:
        render(chat, tools=own)


def _ours(grammar: Qwen3Renderer, data: Chats) -> dict[str, Callable[[], Any]]:
    """What a grammar does that has met all kinds, and bare gigatoken."""
    chats, tools = [chat for chat, _ in data], [own for _, own in data]
    for _ in range(2):  # a kind of conversation is written once when it comes the second time
        grammar.render_many(chats, tools=tools)
    return {
        "qwen3, render_many: ids and mask": lambda: grammar.render_many(chats, tools=tools).sampled,
        "qwen3, render_many and weights": partial(_masked, grammar, data),
        "qwen3, render one by one": partial(_each, grammar.render, data),
        "bare gigatoken on the joined texts": _bare_gigatoken(grammar, data),
    }


def _masked(renderer: Any, data: Chats) -> None:
    chats, tools = [chat for chat, _ in data], [own for _, own in data]
    batch_weights(renderer.render_many(chats, tools=tools), LossOn())


def _whole(model: Path) -> list[Result]:
    data = corpus(CONVERSATIONS)
    grammar, template, theirs = Qwen3Renderer(model), TemplateRenderer(model), _official(model)
    ours = _ours(grammar, data)
    ours["a renderer that is new, and weights"] = lambda: _masked(Qwen3Renderer(grammar.encoder), data)
    tokens = grammar.render_many([chat for chat, _ in data], tools=[own for _, own in data]).ids.size
    options = {"return_dict": True, "return_assistant_tokens_mask": True}
    case = f"{CONVERSATIONS:,} conversations of {tokens / CONVERSATIONS:.0f} tokens"
    amounts = {"conversations": CONVERSATIONS}
    return measure("renderers", case, ours, amounts=amounts, rounds=ROUNDS) + measure(
        "renderers",
        "the same, beside others",
        {
            "qwen3, render_many and weights": partial(_masked, grammar, data),
            "qwen3, render one by one": partial(_each, grammar.render, data),
            "template, render_many and weights": partial(_masked, template, data),
            "template, render one by one": partial(_each, template.render, data),
            "apply_chat_template with mask": partial(_each, partial(theirs.apply_chat_template, **options), data),
            "render each prefix (document 004)": partial(_each, partial(by_prefixes, theirs), data),
        },
        amounts=amounts,
        rounds=LONG_ROUNDS,
    )


def _bare_gigatoken(grammar: Qwen3Renderer, data: Chats) -> Callable[[], Any]:
    """What encodes the whole texts and does nothing else."""
    import gigatoken

    engine = gigatoken.Tokenizer.from_json(grammar.encoder.parts.json_bytes)  # type: ignore[attr-defined]
    texts = [grammar.text(chat, tools=own).encode() for chat, own in data]
    return lambda: engine.encode_batch(texts, parallel=False)


def by_prefixes(tokenizer: Any, chat: list[dict[str, Any]], tools: Any = None) -> list[int]:
    """Labels as document 004 makes them: every prefix is rendered and encoded to find where its last turn ends."""
    text = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)
    labels = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    start = 0
    for index, message in enumerate(chat):
        prefix = tokenizer.apply_chat_template(chat[: index + 1], tools=tools, tokenize=False)
        end = len(tokenizer(prefix, add_special_tokens=False)["input_ids"])
        if message["role"] != "assistant":
            labels[start:end] = [-100] * (end - start)
        start = end
    return labels


def _parts(model: Path) -> list[Result]:
    """What the time goes into, by grammar and by template, beside bare Jinja and bare gigatoken."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    data = corpus(CONVERSATIONS)
    grammar, template = Qwen3Renderer(model), TemplateRenderer(model)
    bare = _compile_jinja_template(template.source)
    normal = [(normalise(chat), own) for chat, own in data]
    chats, tools = [chat for chat, _ in data], [own for _, own in data]
    for _ in range(2):
        grammar.render_many(chats, tools=tools)
    scripts = [grammar._script(chat, own)[0] for chat, own in normal]
    pieces = [(out.texts, out.scaffold) for out in scripts]
    return measure(
        "renderers",
        "where the time goes",
        {
            "grammar: kinds and values": lambda: grammar._shapes.of(chats, tools),
            "grammar: normalise": lambda: [normalise(chat) for chat, _ in data],
            "grammar: pieces": lambda: [grammar._script(chat, own) for chat, own in normal],
            "encode and attribute": lambda: grammar.encoder.encode_many(pieces),
            "bare gigatoken on the joined texts": _bare_gigatoken(grammar, data),
            "template: pieces": lambda: [template._written(chat, own) for chat, own in normal],
            "bare Jinja": lambda: [bare.render(messages=chat, tools=own) for chat, own in data],
        },
        amounts={"conversations": CONVERSATIONS},
        rounds=LONG_ROUNDS,
    )


def _official(model: Path) -> Any:
    from transformers import AutoTokenizer

    warnings.simplefilter("ignore")
    tokenizer = AutoTokenizer.from_pretrained(model)
    # What its users do to get a mask at all: mark what the assistant generates.
    said = "+ '\\n' + content }}"
    assert said in tokenizer.chat_template
    marked = "+ '\\n' }}{%- generation %}{{- content }}{%- endgeneration %}"
    tokenizer.chat_template = tokenizer.chat_template.replace(said, marked)
    return tokenizer


def main() -> None:
    """Print the quartiles of conversations a second, and the share of the rounds that reach the aim."""
    if not MODEL.is_dir():
        raise SystemExit(f"no tokenizer in {MODEL}; set NGPT_ASSETS")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    ways = _ours(Qwen3Renderer(MODEL), corpus(CONVERSATIONS))
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(SPREAD_ROUNDS):
        for way, call in ways.items():
            started = time.perf_counter()
            call()
            rates[way].append(CONVERSATIONS / (time.perf_counter() - started))
    print("| way | lower quarter | median | upper quarter | best | rounds at the aim |\n|---|---:|---:|---:|---:|---:|")
    for way, aim in zip(ways, AIMS, strict=True):
        low, middle, high = quantiles(rates[way], n=4)
        told = " | ".join(f"{rate:,.0f}" for rate in (low, middle, high, max(rates[way])))
        print(f"| {way} | {told} | {sum(rate >= aim for rate in rates[way]) / SPREAD_ROUNDS:.0%} |")


if __name__ == "__main__":
    main()
