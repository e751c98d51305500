"""Conversations of distinct real text, as training data has them: no two share a sentence while the texts last.

::

    texts.pools --> Corpus(seed) --take(1000)--> 1 000 conversations with their tools
                                 --take(1000)--> 1 000 others

Encoders remember the words that they have seen, and renderers may remember texts, so a corpus that repeats itself
measures their memory. Here every text is handed out once; `laps` says how often a pool had to begin again.

A conversation has 695 tokens of Qwen3's vocabulary on average: one to eight turns, a system message in 30 of 100,
tools with descriptions of their own and calls in 20, code in 18, reasoning in 15, emoji in 10, and another script or
language in 8.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from benchmarks.texts import pools

Message = dict[str, Any]
ConversationView = tuple[list[Message], list[dict[str, Any]] | None]  # messages, and the tools that they may call
Chats = list[ConversationView]

MEDIAN = 1230  # characters of all turns together, without system message, tools, calls, reasoning and code
SPREAD = 0.85  # of their logarithm
EMOJI = ("🙂", "🎈", "🚲", "👋🏽", "👩‍🔬", "🇳🇴", "☀️", "🧭", "🐘", "✨")
VERBS = ("get", "find", "list", "create", "update", "count", "compare", "send", "read", "plan")
NOUNS = ("order", "flight", "file", "invoice", "recipe", "sensor", "meeting", "article", "route", "ticket", "user")
FIELDS = ("name", "place", "day", "limit", "text", "format", "address", "kind", "page", "sort_by", "key", "since")
KINDS = ("string", "string", "integer", "boolean")
SIGNS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"


class Pool:
    """Texts, each of which is handed out once before any is handed out again.

    Attributes:
        laps: how often all have been handed out.
    """

    def __init__(self, spans: list[str], rng: random.Random) -> None:
        self._spans, self._rng = spans, rng
        self._next, self._rest = 0, ""
        self.laps = 0

    def span(self) -> str:
        """A whole text."""
        if self._next == len(self._spans):
            self._rng.shuffle(self._spans)
            self._next = 0
            self.laps += 1
        self._next += 1
        return self._spans[self._next - 1]

    def text(self, characters: float) -> str:
        """Texts of so many characters together. What is left of the last, cut at a word, comes first the next time."""
        wanted, parts = max(4, int(characters)), []
        while wanted > 0:
            span = self._rest or self.span()
            self._rest = ""
            if len(span) > wanted + 20:
                space = span.rfind(" ", 1, wanted + 1)
                cut = space if space > 0 else wanted
                span, self._rest = span[:cut], span[cut:].lstrip()
            parts.append(span)
            wanted -= len(span) + 2
        return "\n\n".join(parts)


class Corpus:
    """A stream of conversations. The same seed on the same machine gives the same ones.

    Args:
        texts: spans of "prose", "foreign" and "code"; default: what this machine has.
    """

    def __init__(self, seed: int = 0, texts: dict[str, list[str]] | None = None) -> None:
        self._rng = random.Random(seed)
        texts_of = pools(self._rng) if texts is None else texts
        self._prose = Pool(texts_of["prose"], self._rng)
        self._foreign = Pool(texts_of["foreign"], self._rng) if texts_of["foreign"] else self._prose
        self._code = Pool(texts_of["code"], self._rng)

    @property
    def laps(self) -> dict[str, int]:
        """How often all texts of a pool have been handed out; 0: no conversation has shared a text with another."""
        return {"prose": self._prose.laps, "foreign": self._foreign.laps, "code": self._code.laps}

    def take(
        self, n: int, *, tools: float = 0.2, reasoning: float = 0.15, parallel: float = 0.25, as_text: bool = True
    ) -> Chats:
        """The next conversations.

        Args:
            tools, reasoning: shares of the conversations that have some. parallel: of the calls, those of two at once.
            as_text: the arguments of calls are JSON texts, as servers send them; otherwise objects.
        """
        return [self._chat(tools, reasoning, parallel, as_text) for _ in range(n)]

    def of_turns(self, n: int, turns: int) -> Chats:
        """Conversations of so many turns of a user and the model, and nothing else."""
        return [(self._turns(turns), None) for _ in range(n)]

    def _turns(self, turns: int) -> list[Message]:
        messages: list[Message] = []
        for _ in range(turns):
            messages.append({"role": "user", "content": self._prose.text(self._rng.uniform(30, 250))})
            messages.append({"role": "assistant", "content": self._prose.text(self._rng.uniform(60, 700))})
        return messages

    def _chat(self, tools: float, reasoning: float, parallel: float, as_text: bool) -> ConversationView:
        rng = self._rng
        words = self._foreign if rng.random() < 0.08 else self._prose
        own = self._tools() if rng.random() < tools else None
        thinks, codes, smiles = rng.random() < reasoning, rng.random() < 0.18, rng.random() < 0.1
        # Other scripts take more tokens for as many characters.
        size = min(30_000.0, rng.lognormvariate(0, SPREAD) * MEDIAN) * (0.6 if words is self._foreign else 1)
        # A turn has some 150 characters at least, so a short conversation has few.
        turns = max(1, min(8, 1 + int(rng.expovariate(0.55)), int(size / 150)))
        calling = rng.randrange(turns) if own else -1  # this turn calls a tool in any case, the others sometimes
        messages: list[Message] = []
        if rng.random() < 0.3:
            messages.append({"role": "system", "content": self._prose.text(rng.uniform(40, 400))})
        for turn in range(turns):
            share = size / turns * rng.uniform(0.5, 1.5)
            asked = words.text(share * rng.uniform(0.1, 0.4))
            messages.append({"role": "user", "content": asked + (f" {rng.choice(EMOJI)}" if smiles else "")})
            if own and (turn == calling or rng.random() < 0.3):
                for _ in range(rng.choice((1, 1, 1, 2))):
                    messages += self._calls(own, 2 if rng.random() < parallel else 1, thinks, as_text)
            answer = words.text(share * 0.75)
            if codes:
                answer += f"\n\n```python\n{self._code.span()}\n```\n\n{words.text(rng.uniform(30, 250))}"
            if smiles:
                answer += f" {rng.choice(EMOJI)}"
            messages.append({"role": "assistant", "content": answer} | self._thought(thinks))
        return messages, own

    def _thought(self, thinks: bool) -> Message:
        return {"reasoning_content": self._prose.text(self._rng.uniform(60, 900))} if thinks else {}

    def _tools(self) -> list[dict[str, Any]]:
        rng, made = self._rng, []
        for verb, noun in zip(rng.sample(VERBS, rng.randint(1, 4)), rng.sample(NOUNS, 4), strict=False):
            fields = rng.sample(FIELDS, rng.randint(1, 4))
            properties = {
                field: {"type": rng.choice(KINDS), "description": self._line(rng.uniform(25, 90))} for field in fields
            }
            parameters = {"type": "object", "properties": properties, "required": fields[:1]}
            function = {"name": f"{verb}_{noun}", "description": self._line(rng.uniform(40, 160))}
            made.append({"type": "function", "function": function | {"parameters": parameters}})
        return made

    def _calls(self, own: list[dict[str, Any]], n: int, thinks: bool, as_text: bool) -> list[Message]:
        """An assistant's calls, and the results."""
        rng, calls, results = self._rng, [], []
        for _ in range(n):
            function = rng.choice(own)["function"]
            values: dict[str, Callable[[], Any]] = {
                "string": lambda: self._line(rng.uniform(6, 60)),
                "integer": lambda: rng.randrange(10_000),
                "boolean": lambda: rng.random() < 0.5,
            }
            properties = function["parameters"]["properties"]
            call_values = {key: values[schema["type"]]() for key, schema in properties.items()}
            name, called = function["name"], "".join(rng.choices(SIGNS, k=9))
            arguments = json.dumps(call_values, ensure_ascii=False) if as_text else call_values
            calls.append({"id": called, "type": "function", "function": {"name": name, "arguments": arguments}})
            found = {"found": [self._line(rng.uniform(20, 200)) for _ in range(rng.randint(1, 4))]}
            result = json.dumps(found, ensure_ascii=False) if rng.random() < 0.7 else self._prose.text(250)
            results.append({"role": "tool", "tool_call_id": called, "name": name, "content": result})
        content = self._prose.text(rng.uniform(20, 120)) if rng.random() < 0.4 else ""
        return [{"role": "assistant", "content": content, "tool_calls": calls} | self._thought(thinks), *results]

    def _line(self, characters: float) -> str:
        return self._prose.text(characters).replace("\n", " ")
