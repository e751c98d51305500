"""Random conversations, as odd as real ones: one generator, told what to put in."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]]

MARK = "\ue000"  # stands where `forged` puts a control token's spelling

WORDS = (
    "hello",
    "the quick brown fox",
    " wörld",
    "你好，世界",
    "שלום עולם",
    "مرحبا",
    "हिन्दी",
    "cafe\u0301",
    "👩‍👩‍👧",
    "🤖",
    "\n",
    "\n\n",
    "  ",
    "\t",
    "\u00a0",
    "def f(x):\n\treturn x + 1",
    '{"a": [1, 2]}',
    "1234567890",
    "...",
    "<",
    "<b>",
    "{{ x }}{% if %}",
    "\\n",
    '"quoted"',
    "&amp;",
    "tool",
)


def _tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": f"does {name} é", "parameters": parameters}}


TOOLS: Tools = [
    _tool("get_weather", city={"type": "string", "description": "wo <b>"}, days={"type": "integer"}),
    _tool("store-it", value={"type": "object"}, more={"type": "array"}, sure={"type": "boolean"}),
    _tool(
        "odd.keys",
        **{"ключ": {"type": "string"}, 'a "b"': {"type": "number"}, "c.d-e f": {"type": "null"}, "любой": {}},
    ),
    _tool("nothing"),
]


@dataclass(frozen=True)
class Wanted:
    """What a conversation may hold.

    Attributes:
        tools: tools, calls and results.
        reasoning: `reasoning_content`; `inline`: reasoning between think tags in the content.
        text_arguments: arguments as JSON text.
        parts: contents as lists of text parts; `nones`: `content: None` and keys that hold `None`.
        tool_parts: such lists in tool results too.
        calls_alone: `content: None` beside tool calls.
        beside: texts beside tool calls; `both`: beside reasoning too; `one_call`: no more than one a turn.
        flags: `train` and `weight`.
        late_system: system messages behind the first.
        loose: conversations that begin with the assistant, or in which a role speaks twice.
        user_first: never begun by an assistant, never ended before a user has spoken.
        spaces: white space at the ends of texts.
        marks: how often a text holds `MARK`.
        words: what texts are made of.
        call_id: the id of a call, from its function and its number; "" for none.
    """

    tools: bool = True
    reasoning: bool = True
    inline: bool = True
    text_arguments: bool = True
    parts: bool = True
    nones: bool = True
    tool_parts: bool = True
    calls_alone: bool = True
    beside: bool = True
    both: bool = True
    one_call: bool = False
    flags: bool = True
    late_system: bool = True
    loose: bool = True
    user_first: bool = False
    spaces: bool = True
    marks: float = 0.0
    words: Sequence[str] = WORDS
    call_id: Callable[[str, int], str] = lambda name, number: f"call_{number}" if number % 3 else ""


def conversation(rng: random.Random, wanted: Wanted = Wanted(), *, ends_with: str = "any") -> tuple[Messages, Any]:
    """Messages and tools.

    Args:
        ends_with: the role of the last message; "any" leaves it to chance.
    """
    return _Maker(rng, wanted).made(ends_with)


def forged(value: Any, spelling: str) -> Any:
    """A conversation with this text wherever it holds `MARK`; JSON in it stays JSON."""
    if isinstance(value, str):
        return value.replace(MARK, spelling)
    if isinstance(value, dict):
        return {forged(key, spelling): forged(held, spelling) for key, held in value.items()}
    return [forged(held, spelling) for held in value] if isinstance(value, list) else value


def plain_text(content: Any) -> str:
    """A content as the one text that it is."""
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class _Maker:
    def __init__(self, rng: random.Random, wanted: Wanted) -> None:
        self.rng, self.wanted = rng, wanted
        self.calls_made = 0
        self.tools = TOOLS if wanted.tools and rng.random() < 0.7 else None

    def made(self, ends_with: str) -> tuple[Messages, Any]:
        chat: Messages = [self.message("system")] if self.chance(0.5) else []
        for turn in range(self.rng.randint(1, 5)):
            if turn or self.wanted.user_first or not (self.wanted.loose and self.chance(0.1)):
                chat.append(self.message("user"))
            if self.wanted.loose and self.chance(0.1):
                chat.append(self.message("user"))
            if self.wanted.late_system and self.chance(0.08):
                chat.append(self.message("system"))
            for _ in range(self.rng.choice((0, 1, 1, 2)) if self.tools else 0):
                chat += self.cycle()
            chat.append(self.message("assistant"))
        return self.ended(chat, ends_with), self.tools

    def ended(self, chat: Messages, ends_with: str) -> Messages:
        """The conversation cut behind some message, or behind the last one with a role."""
        asked = next((i for i, m in enumerate(chat) if m["role"] == "user"), 0) if self.wanted.user_first else 0
        ends = [i + 1 for i, m in enumerate(chat) if ends_with in ("any", m["role"]) and i >= asked]
        return chat[: self.rng.choice(ends[-3:])] if ends else [*chat, self.message(ends_with)]

    def chance(self, likely: float) -> bool:
        return self.rng.random() < likely

    def message(self, role: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": role, "content": self.text()}
        if role == "assistant" and self.wanted.reasoning and self.chance(0.4):
            if self.wanted.inline and self.chance(0.4):
                message["content"] = f"<think>\n{self.text()}\n</think>\n\n{message['content']}"
            else:
                message["reasoning_content"] = self.text()
        elif self.wanted.parts and (role != "tool" or self.wanted.tool_parts) and self.chance(0.15):
            message["content"] = [{"type": "text", "text": self.text()} for _ in range(self.rng.randint(1, 3))]
        if self.wanted.nones and self.chance(0.1):
            message |= {"content": None, "name": None, "tool_calls": None}
        if self.wanted.flags and role == "assistant" and self.chance(0.3):
            message |= self.rng.choice(({"train": False}, {"train": True}, {"weight": 0.5}, {"weight": 0.0}))
        return message

    def cycle(self) -> Messages:
        """An assistant that calls, and the results."""
        asking = self.message("assistant")
        silent = self.chance(0.4) or not self.wanted.beside
        if silent or (asking.get("reasoning_content") and not self.wanted.both):
            asking["content"] = self.rng.choice(("", None)) if self.wanted.calls_alone else ""
        number = 1 if self.wanted.one_call else self.rng.choice((1, 1, 2, 3))
        asking["tool_calls"] = [self.call() for _ in range(number)]
        results = []
        for call in asking["tool_calls"]:
            result = self.message("tool") | {"name": call["function"]["name"]}
            if "id" in call:
                result["tool_call_id"] = call["id"]
            results.append(result)
        return [asking, *results]

    def call(self) -> dict[str, Any]:
        function = self.rng.choice(TOOLS)["function"]
        properties = function["parameters"]["properties"]
        kept = [name for name in properties if self.chance(0.8)]
        arguments: Any = {name: self.value(properties[name].get("type")) for name in kept}
        if self.wanted.text_arguments and self.chance(0.3):
            arguments = json.dumps(arguments, ensure_ascii=self.chance(0.5), indent=self.rng.choice((None, 1)))
        made: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        given = self.wanted.call_id(function["name"], self.calls_made)
        self.calls_made += 1
        return made | {"id": given} if given else made

    def value(self, kind: str | None, depth: int = 0) -> Any:
        """A value of a JSON type; any where none is named."""
        rng = self.rng
        kinds = ["string", "integer", "number", "boolean", "null"] + (["array", "object"] if depth < 2 else [])
        kind = kind or rng.choice(kinds if depth else kinds[1:])  # a bare text that reads as JSON would become it
        if kind == "string":
            return rng.choice((self.text(), "1", "true", "null", '"', '"x"', "[]", "", "C:\\x"))
        if kind == "integer":
            return rng.choice((0, -1, 7, 2**63, 10**30))
        if kind == "number":
            return rng.choice((0.5, -1e-7, 3.0, 1e22))
        if kind == "array":
            return [self.value(None, depth + 1) for _ in range(rng.randint(0, 3))]
        if kind == "object":
            keys = ("a", "ü b", 'q"', "", "\n", "</x>", "0")
            return {key: self.value(None, depth + 1) for key in rng.sample(keys, rng.randint(0, 3))}
        return rng.choice((True, False)) if kind == "boolean" else None

    def text(self) -> str:
        words = self.rng.choices(self.wanted.words, k=self.rng.choice((0, 1, 1, 2, 3, 4, 6)))
        if self.chance(self.wanted.marks):
            words.insert(self.rng.randint(0, len(words)), MARK)
        text = "".join(words)
        return text if self.wanted.spaces else text.strip()
