"""Conversations for judging templates: the probes, and other conversations of the same kinds.

The others have the shapes of the probes and some more shapes, and texts as odd as real ones. A chat's texts depend on
its name alone: they are the same in every process and version.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from niels_gpt.renderers.template.proofs.probes import probes

TWICE = 2  # other conversations of each shape
_PLAIN = """
the of and to in is that it for was on are as with they at be this have from or one had by word but not river mill
bridge weather Tuesday 3.14 42 0 1,000 e.g. C++ naïve café Zürich données größer 你好 世界，
שלום مرحبا हिन्दी 👩‍👩‍👧 🤖 — …
"""
_WORDS = (*_PLAIN.split(), "cafe\u0301", "\u00a0")
_BLOCKS = (
    '{"name": "look_up", "arguments": {"place": "Oxbow", "deep": [1, {"a": null}]}}',
    "```python\ndef f(x):\n\treturn {x: [1, 2]}\n```",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "1. first\n2. second\n\n3. third",
    "<b>bold</b> & <i>not</i> &amp; <br/>",
    "\"quoted\" \\n \\u00e9 'single'",
    "{{ messages }} {% if x %} {# no #}",
    "None",
    "user: hello\nassistant: hi",
)
# Which a template may look for, or a tokenizer knows.
_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[INST]", "[/INST]", "<<SYS>>", "<image>", "###", "<")
_FORGED = (
    *("<|im_end|>", "<|im_start|>assistant\n", "</s>", "<s>", "<|eot_id|>", "<end_of_turn>", "<｜end▁of▁sentence｜>"),
    *("<|end|>", "<|return|>", "<|user|>", "<|endoftext|>", "<|START_OF_TURN_TOKEN|>"),
)


@dataclass(frozen=True)
class Chat:
    """A conversation with its name; `prompt` asks for the generation prompt."""

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    prompt: bool

    @property
    def fingerprint(self) -> str:
        """Six hexadecimal digits of everything in it."""
        parts = json.dumps([self.messages, self.tools, self.prompt], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()[:6]


def probe_chats() -> Iterator[Chat]:
    """Every probe, with and without the generation prompt."""
    for probe in probes():
        tools = list(probe.tools) if probe.tools else None
        for prompt in (False, True):
            yield Chat(probe.name + ", prompt" * prompt, list(probe.messages), tools, prompt)


def other_chats() -> Iterator[Chat]:
    """Conversations of the probes' shapes and of others, with other texts: `two turns, tools #1`."""
    shapes = {probe.name: (list(probe.messages), bool(probe.tools)) for probe in probes()}
    shapes |= {name: (messages, "tools" in name) for name, messages in _more_shapes().items()}
    for shape, (messages, has_tools) in shapes.items():
        for number in range(1, TWICE + 1):
            name = f"{shape} #{number}"
            texts = _Texts(random.Random(name))  # a text as a seed is hashed by its characters
            tools = texts.tools() if has_tools else None
            yield Chat(name, texts.rewritten(messages, tools), tools, texts.rng.random() < 0.5)


class _Texts:
    """Random texts, tools and calls."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def text(self) -> str:
        """A text of one to some forty words; one in three is odd."""
        rng = self.rng
        text = self.words(rng.choice((1, 3, 8, 20, 40)))
        odd = rng.randrange(15)
        if odd == 0:
            text = rng.choice((" ", "\n", "\n\n ", "\t")) + text + rng.choice(("", " ", "\n", "\n\n"))
        elif odd == 1:
            text = rng.choice(_MARKS) + text
        elif odd == 2:
            text = f"{text}{rng.choice(_FORGED)}{self.words(2)}"
        elif odd == 3:
            text = f"{text} {rng.choice(_MARKS)} {self.words(3)}{rng.choice(_MARKS)}"
        elif odd in (4, 5):
            text = f"{text}\n\n{rng.choice(_BLOCKS)}" if odd == 4 else rng.choice(_BLOCKS)
        return text

    def words(self, count: int) -> str:
        return " ".join(self.rng.choice(_WORDS) for _ in range(count))

    def tools(self) -> list[dict[str, Any]]:
        """One to three declarations; the first is called `look_up`, as the probes call it, in one of two."""
        names = ["look_up" if self.rng.random() < 0.5 else "find.place-2", "store_it", "nothing"]
        return [self._tool(name) for name in names[: self.rng.randint(1, 3)]]

    def _tool(self, name: str) -> dict[str, Any]:
        rng = self.rng
        kinds = (
            {"type": "string", "description": self.words(3)},
            {"type": "string", "enum": ["a", 'b "c"', self.words(1)]},
            {"type": "array", "items": {"type": "integer"}},
            {"type": "object", "properties": {"inner": {"type": "number", "description": self.text()}}},
            {"type": ["string", "null"], "default": None},
        )
        properties = {key: rng.choice(kinds) for key in rng.sample(("place", "days", "größe", "a_b", "near"), 3)}
        parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
        return {"type": "function", "function": {"name": name, "description": self.text(), "parameters": parameters}}

    def arguments(self) -> dict[str, Any]:
        """Arguments of a call, nested ones among them."""
        rng = self.rng
        values = (
            lambda: self.text(),
            lambda: rng.randrange(1000),
            lambda: rng.choice((True, False, None, 1.5, "", "true", "7")),
            lambda: [self.words(1), rng.randrange(9), {"deep": self.words(2)}],
            lambda: {"inner": {"list": [1, 2], "text": self.text()}, "more": None},
        )
        return {key: rng.choice(values)() for key in rng.sample(("place", "days", "near", "größe"), rng.randint(0, 3))}

    def rewritten(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """The messages with other texts, and calls of the tools with ids that their results repeat."""
        names = [tool["function"]["name"] for tool in tools or []] or ["look_up"]
        open_calls: list[tuple[str, str]] = []  # id and name
        found = []
        for message in copy.deepcopy(messages):
            for call in message.get("tool_calls", ()):
                name, arguments = self.rng.choice(names), self.arguments()
                call["id"] = "".join(self.rng.choice("abcdefghijkXYZ0123456789") for _ in range(9))
                is_text = isinstance(call["function"]["arguments"], str)
                call["function"] = {"name": name, "arguments": json.dumps(arguments) if is_text else arguments}
                open_calls.append((call["id"], name))
            if message["role"] == "tool" and open_calls:
                message["tool_call_id"], message["name"] = open_calls.pop(0)
            if message.get("content"):
                message["content"] = self._content(message["content"])
            if "reasoning_content" in message:
                message["reasoning_content"] = self.text()
            found.append(message)
        return found

    def _content(self, content: Any) -> Any:
        if isinstance(content, str):
            return self.text()
        return [{"type": "text", "text": self.text()} for _ in content]


# ---- shapes that the probes do not have; the texts in them are replaced


def _said(role: str, text: str = "x", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **fields}


def _calling(count: int, text: str = "", *, as_text: bool = False) -> dict[str, Any]:
    arguments: Any = "{}" if as_text else {}
    calls = [{"type": "function", "id": "", "function": {"name": "", "arguments": arguments}} for _ in range(count)]
    return _said("assistant", text, tool_calls=[copy.deepcopy(call) for call in calls])


def _parts(role: str, count: int) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": "x"}] * count}


def _more_shapes() -> dict[str, list[dict[str, Any]]]:
    """Name -> messages; those whose name says so get tools."""
    system, user, answer, result = _said("system"), _said("user"), _said("assistant"), _said("tool")
    developer, thought = _said("developer"), _said("assistant", reasoning_content="x")
    turn = [user, answer]
    called = [user, _calling(1), result, answer]
    return {
        "six turns": turn * 6,
        "six turns and a system message": [system, *turn * 6],
        "six turns with calls, tools": [system, *(called + turn) * 3],
        "six thoughts": [user, thought] * 6,
        "a developer": [developer, *turn],
        "a developer, tools": [developer, *called],
        "a system message and a developer": [system, developer, *turn],
        "a developer in the middle": [*turn, developer, *turn],
        "a system message in the middle, tools": [*turn, system, *called],
        "two system messages": [system, system, *turn],
        "an assistant first, tools": [answer, *called],
        "an assistant first, then a system message": [answer, system, *turn],
        "an assistant alone": [answer],
        "a system message alone": [system],
        "three calls, tools": [user, _calling(3), result, result, result, answer],
        "three calls and a text, tools": [user, _calling(3, "x"), result, result, result, answer, *turn],
        "calls as text, tools": [user, _calling(2, as_text=True), result, result, answer],
        "call, call, call, tools": [user, *[_calling(1), result] * 3, answer],
        "thought, call, thought, tools": [user, {**_calling(1), "reasoning_content": "x"}, result, thought, user],
        "no content beside a call, tools": [user, {**_calling(1), "content": None}, result, answer],
        "more parts": [_parts("system", 2), _parts("user", 3), _parts("assistant", 2), _parts("user", 1)],
        "parts of results, tools": [user, _calling(1), _parts("tool", 2), answer],
        "parts beside texts": [user, _parts("assistant", 1), _parts("user", 2), answer],
        "no parts": [{"role": "user", "content": []}, answer],
        "empty texts": [_said("system", ""), _said("user", ""), _said("assistant", "")],
        "empty texts and a turn": [_said("user", ""), _said("assistant", ""), *turn],
        "white space alone": [_said("user", " \n"), answer, user, _said("assistant", " ")],
        "names": [_said("user", name="Ann"), _said("assistant", name="Bo"), user],
        "two results of one call, tools": [user, _calling(1), result, result, answer],
        "a result without a call": [user, result, answer],
        "ends with two questions": [*turn, user, user],
        "three answers": [user, answer, answer, answer],
    }
