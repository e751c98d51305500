"""Small conversations, and the renderers of `tiny_families` by name."""

from __future__ import annotations

import random
from typing import Any

from niels_gpt.messages import normalise
from niels_gpt.renderers.base import LossOn, RenderedTokens, extract_message_tool_names
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.tiny_families import TOKENS, folder_of, renderer_of

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PRESETS: Any = ("all_assistant_turns", "last_assistant_turn", "last_message", "all_tokens")
Messages = list[dict[str, Any]]
Sample = tuple[list[int], list[bool]]
# Those that call tools, several at once and with a text beside.
FAMILIES = tuple(
    name
    for name, tokens in TOKENS.items()
    if "call_id" not in tokens.holds and all(tokens.holds.get(what, True) for what in ("tools", "beside", "both"))
)


def family(name: str, **options: Any) -> Any:
    """A renderer of a family; "template" is ChatML by Qwen's tokenizer."""
    if name == "template":
        return TemplateRenderer(folder_of("qwen3"), template=CHATML, **options)
    return renderer_of(name, *options.items())


def made(source: str, **options: Any) -> TemplateRenderer:
    """A renderer of a small template, by Qwen's tokenizer; answers end in `<|im_end|>`."""
    return TemplateRenderer(folder_of("qwen3"), template=source, **{"stops": ("<|im_end|>",), **options})


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def assistant(text: str = "hello world", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(name: str = "get", number: int = 0) -> dict[str, Any]:
    arguments = {"city": "x"}
    return {"id": f"functions.{name}:{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(name: str = "get", number: int = 0, text: str = "the fox", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": f"functions.{name}:{number}", **more}


def conversation(rng: random.Random, *, thinks: float = 0.7, flags: float = 0.0) -> list[dict[str, Any]]:
    """Some turns, some of them with calls, reasoning, `train` and `weight`; users and assistants take turns."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "be brief"}] if rng.random() < 0.5 else []
    number = 0

    def spoken(**more: Any) -> dict[str, Any]:
        message = assistant(rng.choice(["", "hello", "x + 1", "naïve 🤖"]), **more)
        if rng.random() < thinks:
            message["reasoning_content"] = rng.choice(["the lazy dog", "return x\n\nx"])
        return message

    for _ in range(rng.randint(1, 4)):
        messages.append(user(rng.choice(["hello", "jumps over", "Größe"])))
        for _ in range(rng.choice([0, 0, 1, 2])):
            names = rng.choices(["get", "put"], k=rng.randint(1, 2))
            calls = [call(name, number + at) for at, name in enumerate(names)]
            messages.append(spoken(tool_calls=calls))
            messages += [result(name, number + at) for at, name in enumerate(names)]
            number += len(names)
        messages.append(spoken())
    for message in messages:
        if rng.random() < flags:
            message.update(
                rng.choice([{"train": False}, {"train": True}, {"weight": 0.25}, {"weight": 0}, {"weight": 2}])
            )
    return messages


def weight(message: dict[str, Any]) -> float:
    return 0.0 if message.get("train") is False else float(message.get("weight", 1.0))


def counts(messages: Messages, index: int, preset: str) -> bool:
    """What an assistant says in this message counts."""
    if preset == "last_message":
        return index == len(messages) - 1
    if preset == "last_assistant_turn":
        return all(message["role"] != "user" for message in messages[index:])
    return True


def weights_reference(rendered: RenderedTokens, messages: Messages, on: LossOn) -> list[float]:
    """The weights, one token at a time, as the docstrings of `LossOn` say it."""
    names = extract_message_tool_names(normalise(messages))
    weights = []
    for owner, sampled, body in zip(rendered.message_indices, rendered.sampled_mask, rendered.is_content, strict=True):
        found = 0.0
        if on.preset == "all_tokens":
            found = 1.0 if owner < 0 else weight(messages[owner])
        elif sampled:
            speaker = owner if messages[owner]["role"] == "assistant" else owner - 1
            assert messages[speaker]["role"] == "assistant"
            found = weight(messages[speaker]) if counts(messages, speaker, on.preset) else 0.0
        elif body and (messages[owner]["role"] in on.bodies_of_roles or names[owner] in on.bodies_of_tools):
            found = weight(messages[owner])
        weights.append(found)
    return weights


def told(renderer: Any, sample: Sample) -> str:
    """A sample's text, what is trained in brackets."""
    text, before = "", False
    for token, trained in zip(*sample, strict=True):
        text += "[" * (trained and not before) + "]" * (before and not trained) + renderer.encoder.decode([token])
        before = trained
    return text + "]" * before
