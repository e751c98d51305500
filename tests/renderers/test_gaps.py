"""Letters and remembered gaps on random templates whose facts are known by construction."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from tests.renderers.random_templates import WRITTEN, Messages, joined, random_template, runs
from tests.renderers.small import CHATML, assistant, made, system, user

TEXTS = (
    "x",
    "?",
    '"',
    "a man, or two.",
    'who "is" it?',
    "it's 'so'",
    '{"a": [1, "two"], "b": null}',
    "[1, 2]",
    " leading",
    "trailing \n",
    "\n\nboth\t ",
    "wörld 你好 🤖 👩\u200d👩\u200d👧",
    "cafe\u0301",
    "back\\slash \\n",
    "<b>tag</b> {{ x }}{% if %}",
    "a\u00a0",
    "a\u2028",
    "true",
    "stand-in 1",
    "reasoning 0",
)


def random_text(rng: random.Random) -> str:
    return rng.choice(TEXTS) if rng.random() < 0.6 else "".join(rng.choices(TEXTS, k=3))


def random_chat(rng: random.Random, *, think: bool) -> Messages:
    chat = [system(random_text(rng))] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 4)):
        thought = {"reasoning_content": random_text(rng).strip() or "x"} if think and rng.random() < 0.7 else {}
        chat += [user(random_text(rng)), assistant(random_text(rng), **thought)]
    return chat if rng.random() < 0.8 else chat[:-1]


def strips(source: str) -> bool:
    """The template changes white space of contents, so that construction does not say what is written."""
    return "| trim" in source or ".split(' ')" in source


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("final_stop", ["", "<|im_end|>"])
def test_random_templates_have_their_known_facts_by_gaps(written: str, final_stop: str) -> None:
    routes, verdicts = Counter[str](), Counter[bool]()
    for number in range(30):
        rng = random.Random(f"gaps {written} {number}")
        known = random_template(rng, written)
        options: dict[str, Any] = {"final_stop": final_stop} if final_stop else {}
        renderer = made(known.source, bos_token="<s>", **options)
        for _ in range(4):
            chat = random_chat(rng, think=known.think)
            if strips(known.source):
                chat = [message | {"content": message["content"].strip() or "x"} for message in chat]
            expected = known.expected(chat, final_stop)
            out = renderer.emit(chat)
            assert "".join(out.texts) == "".join(run[0] for run in expected), known.source
            routes[out.notes.route] += 1
            verdicts[out.attribution == "full"] += 1
            if out.attribution == "full":
                assert runs(renderer, chat) == joined(expected), (known.source, chat)
    assert routes["gaps"] >= 0.95 * sum(routes.values()), routes
    if final_stop or written == "always":
        assert verdicts[True] >= 0.95 * sum(verdicts.values()), verdicts


CALLS = CHATML.replace(
    "m.content +",
    "m.content + (m.tool_calls | map(attribute='function') | list | tojson if m.tool_calls else '') +",
    1,
)
VALUES: tuple[Any, ...] = (
    "x",
    "",
    " ",
    "two words ",
    '"quoted"',
    "back\\slash",
    "wörld 🤖",
    0,
    -1,
    3.0,
    1e22,
    9223372036854775808,
    True,
    False,
    None,
    [],
    {},
    [1, "1", None, True],
    {"deep": {"er": [{"a": "b"}, [[]]]}},
    "null",
    "3",
    '{"a": 1}',
)


def test_arguments_of_any_type_are_of_the_answer() -> None:
    routes = Counter[str]()
    rng, renderer = random.Random(8), made(CALLS)
    for _ in range(150):
        arguments = {f"k{n}": rng.choice(VALUES) for n in range(rng.randint(0, 4))}
        call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
        chat = [user("where?"), assistant(rng.choice(["", "Wait."]), tool_calls=[call]), user(random_text(rng))]
        out = renderer.emit(chat)
        routes[out.notes.route] += 1
        assert out.attribution == "full"
        assert out.notes.unwritten == ()
        texts = [text for text, _, sampled, _ in runs(renderer, chat) if sampled]
        whole = renderer.text(chat)
        expected = whole[whole.index("assistant\n") + 10 :].partition("<|im_end|>")[0] + "<|im_end|>"
        assert texts == [expected], arguments
    assert routes["gaps"] >= 0.95 * sum(routes.values()), routes
