"""The judge of template renderings: it finds each kind of damage, and no silent error in a sample of all renderings."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import needs_assets
from tests.renderers.every_template import SOURCES, VARIABLES, renderer_of
from tests.renderers.frozen_chats import Chat, other_chats, probe_chats
from tests.renderers.small import CHATML, assistant, user
from tests.renderers.template_judge import Case, judge
from tests.renderers.tiny_families import folder_of

THINKS = CHATML.replace(
    "m.content", "('<think>' + m.reasoning_content + '</think>' if m.reasoning_content else '') + m.content"
)
CHAT = [
    user("Is <|im_end|> a stop?"),
    {**assistant("So it is."), "reasoning_content": "Consider it."},
    user("Thanks"),
    assistant("Bye."),
]


@dataclass(frozen=True)
class Part:
    """A piece as the judge reads one."""

    text: str
    msg: int
    sampled: bool
    content: bool
    scaffold: bool
    kind: Kind


@dataclass(frozen=True)
class Kind:
    name: str


def part(text: str, msg: int, kind: str) -> Part:
    sampled, content = kind in ("REPLY", "REASONING", "MARKUP", "STOP"), kind not in ("TEMPLATE", "LABEL")
    return Part(text, msg, sampled, content, kind in ("TEMPLATE", "MARKUP", "STOP"), Kind(kind))


RIGHT = [
    part("<|im_start|>user\n", 0, "TEMPLATE"),
    part("Is <|im_end|> a stop?", 0, "CONTEXT"),
    part("<|im_end|>\n", 0, "TEMPLATE"),
    part("<|im_start|>assistant\n", 1, "TEMPLATE"),
    part("<think>", 1, "MARKUP"),
    part("Consider it.", 1, "REASONING"),
    part("</think>", 1, "MARKUP"),
    part("So it is.", 1, "REPLY"),
    part("<|im_end|>", 1, "STOP"),
    part("\n", 1, "TEMPLATE"),
    part("<|im_start|>user\n", 2, "TEMPLATE"),
    part("Thanks", 2, "CONTEXT"),
    part("<|im_end|>\n", 2, "TEMPLATE"),
    part("<|im_start|>assistant\n", 3, "TEMPLATE"),
    part("Bye.", 3, "REPLY"),
    part("<|im_end|>", 3, "STOP"),
    part("\n", 3, "TEMPLATE"),
]
DAMAGE: dict[str, Callable[[list[Part]], list[Part]]] = {
    "the text differs": lambda parts: parts[:-1],
    "'<|im_end|>' of the caller (content of 0) is a control token": lambda parts: changed(parts, 1, scaffold=True),
    "'<|im_end|>' of the template stays text": lambda parts: changed(parts, 8, scaffold=False),
    "message 1 is sampled over data of message 2": lambda parts: changed(parts, 11, msg=1, sampled=True),
    "content of 0": lambda parts: changed(parts, 1, content=False),
    "content of 2": lambda parts: changed(parts, 11, msg=3),
    "content of 1": lambda parts: changed(parts, 7, kind=Kind("REASONING")),
    "reasoning of 1": lambda parts: changed(parts, 5, kind=Kind("REPLY")),
    "message 2 is user and sampled": lambda parts: changed(parts, 10, sampled=True),
    "the header before": lambda parts: changed(parts, 10, msg=1),
    "the stop of message 1, '<|im_end|>', is not sampled": lambda parts: changed(parts, 8, sampled=False),
    "the stop of message 1, '<|im_end|>', is MARKUP": lambda parts: changed(parts, 8, kind=Kind("MARKUP")),
    "a stop of message 1 is not at its end": lambda parts: changed(parts, 6, kind=Kind("STOP")),
    "message 3 is sampled from": lambda parts: changed(parts, 13, sampled=True),
    "nothing of message 3 is sampled": lambda parts: changed(changed(parts, 14, sampled=False), 15, sampled=False),
    "the sampled span of message 1 has holes": lambda parts: changed(parts, 6, sampled=False),
}


def changed(parts: list[Part], number: int, **facts: Any) -> list[Part]:
    return [replace(part, **facts) if at == number else part for at, part in enumerate(parts)]


class Rendering:
    """What `emit` returns."""

    def __init__(self, parts: list[Part], attribution: str = "full") -> None:
        self.parts, self.attribution = parts, attribution

    def pieces(self) -> list[Part]:
        return self.parts


def found(parts: list[Part], attribution: str = "full") -> tuple[str, ...]:
    renderer = TemplateRenderer(folder_of("qwen3"), template=THINKS, stops=("<|im_end|>",))
    renderer.emit = lambda messages, **options: Rendering(parts, attribution)  # type: ignore[method-assign, assignment, return-value]
    verdict = judge(Case(renderer, CHAT))
    assert verdict.seen
    return verdict.faults


def test_right_facts_have_no_fault() -> None:
    assert found(RIGHT) == ()


@pytest.mark.parametrize("fault", DAMAGE)
def test_the_judge_finds(fault: str) -> None:
    assert any(one.startswith(fault) for one in found(DAMAGE[fault](RIGHT)))


# ---- all templates

# Faults that stay: of an id longer than nine signs, as forged ones are, this template writes the last nine. No letter
# shows where these begin, so that they count as markup of the call, and not as its text.
EXPECTED = ("vllm--tool_chat_template_mistral3", "label of -2 at ")


def forged(chats: Sequence[Chat], renderer: TemplateRenderer) -> Iterator[Chat]:
    """Each fifth conversation with a control token in all that the caller writes: the template's own and others."""
    spellings = sorted(renderer.encoder.control_ids)
    written = [spelling for spelling in spellings if spelling in renderer.source] or spellings
    for chat in chats[::5]:
        rng = random.Random(chat.name)
        spelling = rng.choice(written if rng.random() < 0.8 else spellings)
        messages = [_forged(message, spelling) for message in chat.messages]
        tools = [_forged(tool, spelling) for tool in chat.tools] if chat.tools else None
        yield replace(chat, name=f"{chat.name}, forged {spelling}", messages=messages, tools=tools)


_FORGED_KEYS = ("content", "text", "reasoning_content", "name", "id", "tool_call_id", "description")


def _forged(value: Any, spelling: str) -> Any:
    """A message or declaration with a spelling in its texts, names and ids, and in the values of arguments."""
    made = copy.copy(value)
    for key, held in value.items():
        if key == "arguments" and isinstance(held, dict):
            made[key] = {name: f"{one}{spelling}" if isinstance(one, str) else one for name, one in held.items()}
        elif key in _FORGED_KEYS and isinstance(held, str):
            made[key] = f"{held}{spelling}"
        elif isinstance(held, dict):
            made[key] = _forged(held, spelling)
        elif isinstance(held, list):
            made[key] = [_forged(one, spelling) if isinstance(one, dict) else one for one in held]
    return made


@needs_assets
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))])
@pytest.mark.parametrize("final_stop", ["", "<|im_end|>"])
def test_no_template_has_a_silent_error_in_a_sample(part: int, final_stop: str) -> None:
    """A few conversations of each template, which differ from one template to the next, and one that is forged."""
    all_chats, full = [*probe_chats(), *other_chats()], 0
    for name in sorted(SOURCES)[part::4]:
        renderer = renderer_of(name).with_final_stop(final_stop) if final_stop else renderer_of(name)
        chats = random.Random(name).sample(all_chats, 5 if not final_stop else 3)
        for chat in [*chats, *forged(chats, renderer)]:
            verdict = judge(Case(renderer, chat.messages, chat.tools, chat.prompt, VARIABLES, final_stop))
            faults = [one for one in verdict.faults if EXPECTED[0] not in name or not one.startswith(EXPECTED[1])]
            assert not faults, (name, chat.name, faults[:3])
            full += verdict.outcome == "full"
    assert full > 50
