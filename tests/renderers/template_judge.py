"""An independent judge of template renderings: what is wrong with one that claims to be right.

The judge shares no code with the package. It puts letters of its own in the place of the caller's texts, runs
transformers' Jinja environment, and compares what it sees with the pieces of a rendering::

    messages    user "Hi <|im_end|>"               user "㐀㐁 <|㐀㐁_㐂㐃㐄|>"
    text        <|im_start|>user\\nHi <|im_end|>    <|im_start|>user\\n㐀㐁 <|㐀㐁_㐂㐃㐄|>
    so          "Hi" and what is in the second <|im_end|> are content of message 0; <|im_start|> is the template's

Where the other letters lead the template elsewhere, the judge cannot tell, and says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from niels_gpt.errors import NielsError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.served_messages import Messages, rendered, served

FIRST = 0x20000  # printable letters, of which each source of text has eight
NONE, MANY = -1, -2  # owner of the template's text; owner of a label that several messages may have
_TAG = re.compile(r"</?\w+>|\[/?[A-Z_]+\]")  # which templates look for in contents
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"(?!\s*:)')  # a value in JSON text, not a key
_ESCAPED = re.compile(r"\\ud8[4-6][0-9a-f]\\ud[c-f][0-9a-f]{2}")  # one of our letters in JSON of ASCII alone
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")


# ---- letters


@dataclass
class Letters:
    """The caller's texts with other letters, and whose they are.

    Attributes:
        keeps_tags: `<think>` and the like stay, because the template looks for them.
        only_ascii: other letters than those of ASCII stay, because the template writes them as escapes.
        kept: the conversation with other letters, as JSON: a spelling in it may be the caller's.
        sources: `(message, field)` of each text; equal labels are one, so that a template can compare them.
    """

    keeps_tags: bool = False
    only_ascii: bool = False
    kept: str = ""
    sources: list[tuple[int, str]] = field(default_factory=list)
    _labels: dict[str, str] = field(default_factory=dict)

    def text(self, text: str, owner: int, name: str) -> str:
        """A text with other letters in the place of its letters."""
        first = FIRST + 8 * len(self.sources)
        self.sources.append((owner, name))

        def replaced(part: str) -> str:
            letters = ((chr(first + n % 8), c) for n, c in enumerate(part))
            return "".join(new if c.isalpha() and (c.isascii() or not self.only_ascii) else c for new, c in letters)

        if not self.keeps_tags:
            return replaced(text)
        done, at = [], 0
        for tag in _TAG.finditer(text):
            done += [replaced(text[at : tag.start()]), tag.group()]
            at = tag.end()
        return "".join([*done, replaced(text[at:])])

    def label(self, text: str) -> str:
        """A name or id."""
        if text not in self._labels:
            self._labels[text] = self.text(text, MANY, "label")
        return self._labels[text]

    def value(self, value: Any, owner: int, name: str) -> Any:
        """A value with other letters in its texts; keys stay, for templates sort them."""
        if isinstance(value, str):
            return self.text(value, owner, name)
        if isinstance(value, dict):
            return {key: self.value(held, owner, name) for key, held in value.items()}
        return [self.value(held, owner, name) for held in value] if isinstance(value, list) else value

    def json_text(self, text: str, owner: int) -> str:
        """JSON with other letters in its texts, as long as it was."""

        def in_string(found: re.Match[str]) -> str:
            done, at, whole = "", 0, found.group()
            for escape in _ESCAPE.finditer(whole):
                done += self.text(whole[at : escape.start()], owner, "call") + escape.group()
                at = escape.end()
            return done + self.text(whole[at:], owner, "call")

        return _STRING.sub(in_string, text)

    def message(self, message: dict[str, Any], index: int) -> dict[str, Any]:
        """A message: its content, reasoning, calls, name and id."""
        made = {key: value for key, value in message.items() if value is not None}
        for key, value in made.items():
            if key in ("name", "tool_call_id") and isinstance(value, str):
                made[key] = self.label(value)
            elif key == "reasoning_content":
                made[key] = self.value(value, index, "reasoning")
            elif key == "content" and isinstance(value, list):
                made[key] = [{**part, "text": self.text(part["text"], index, "content")} for part in value]
            elif key == "content" and isinstance(value, str):
                made[key] = self.text(value, index, "content")
            elif key == "tool_calls":
                made[key] = [self._call(call, index) for call in value]
        return made

    def _call(self, call: dict[str, Any], index: int) -> dict[str, Any]:
        function = call["function"]
        arguments = function["arguments"]
        written = (
            self.json_text(arguments, index) if isinstance(arguments, str) else self.value(arguments, index, "call")
        )
        made = {**call, "function": {**function, "name": self.label(function["name"]), "arguments": written}}
        return {**made, "id": self.label(call["id"])} if "id" in call else made

    def tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        """A declaration: its name and all descriptions."""
        function = tool["function"]
        return {**tool, "function": {**self._described(function), "name": self.label(function["name"])}}

    def _described(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._described(held) for held in value]
        if not isinstance(value, dict):
            return value
        return {
            key: self.text(held, MANY, "tool")
            if key == "description" and isinstance(held, str)
            else self._described(held)
            for key, held in value.items()
        }

    def source_of(self, character: str) -> tuple[int, str] | None:
        """`(message, field)` of a character of the output; `None` for the template's."""
        number = (ord(character) - FIRST) // 8
        return self.sources[number] if 0 <= number < len(self.sources) else None


# ---- one rendering


@dataclass(frozen=True)
class Fact:
    """What a rendering says of one character."""

    msg: int
    sampled: bool
    content: bool
    control: bool
    kind: str


@dataclass(frozen=True)
class Case:
    """A conversation to judge, and what the judge must know of the renderer.

    Attributes:
        variables: variables of the template besides the tokenizer's special tokens.
        final_stop: the one that the renderer writes where the template writes none.
    """

    renderer: TemplateRenderer
    messages: Messages
    tools: Any = None
    prompt: bool = False
    variables: dict[str, Any] | None = None
    final_stop: str = ""

    @cached_property
    def given(self) -> Messages:
        """The messages as the template gets them."""
        return served(self.renderer, self.messages, self.variables)

    def plainly(self, messages: Messages, *, prompt: bool) -> str | None:
        """What transformers renders of some of `given`, with the case's tools."""
        return rendered(self.renderer, messages, self.tools, prompt, self.variables)

    @property
    def stops(self) -> list[str]:
        """The spellings that end a turn, longest first."""
        encoder = self.renderer.encoder
        found = {text for text, token in encoder.control_ids.items() if token in encoder.stop_ids}
        return sorted({*found, self.final_stop} - {""}, key=len, reverse=True)


@dataclass(frozen=True)
class Verdict:
    """What the judge says.

    Attributes:
        outcome: "refused", "full" or "partial", as the renderer says.
        faults: what is wrong; a rendering that is "partial" may still be.
        seen: whether the judge saw whose each character is.
    """

    outcome: str
    faults: tuple[str, ...] = ()
    seen: bool = True


def judge(case: Case) -> Verdict:
    """Judge the rendering of a conversation."""
    try:
        out = case.renderer.emit(case.messages, tools=case.tools, add_generation_prompt=case.prompt)
    except NielsError:
        return Verdict("refused")
    outcome = "full" if out.attribution == "full" else "partial"
    facts: list[Fact] = []
    for piece in out.pieces():
        facts += [Fact(piece.msg, piece.sampled, piece.content, piece.scaffold, piece.kind.name)] * len(piece.text)
    text = "".join(piece.text for piece in out.pieces())
    expected = case.plainly(case.given, prompt=case.prompt)
    if expected is None:
        return Verdict(outcome, ("transformers refuses it",))
    added = _added_stops(text, expected, case.final_stop)
    if added is None:
        at = next((n for n, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b), 0)
        return Verdict(outcome, (f"the text differs: {text[at:][:60]!r}, transformers {expected[at:][:60]!r}",))
    faults = list(_wrong_added_stops(added, len(case.final_stop), facts)) if outcome == "full" else []
    inserted = {at for start in added for at in range(start, start + len(case.final_stop))}
    facts = [fact for at, fact in enumerate(facts) if at not in inserted]
    stops_at = {start - number * len(case.final_stop) for number, start in enumerate(added)}
    seen, letters = _seen(case, expected)
    if letters is None:
        return Verdict(outcome, tuple(faults), seen=False)
    view = _View(case, expected, (seen, letters), facts, stops_at, out.attribution)
    faults += [*view.always(), *(view.where_full() if outcome == "full" else ())]
    return Verdict(outcome, tuple(faults))


def _added_stops(text: str, expected: str, final_stop: str) -> list[int] | None:
    """Where in the text `final_stop` was added to what transformers renders; `None` if they differ otherwise."""
    added, at, other = [], 0, 0
    while at < len(text):
        is_added = final_stop and text.startswith(final_stop, at) and not expected.startswith(final_stop, other)
        if is_added:
            added.append(at)
            at += len(final_stop)
        elif other < len(expected) and text[at] == expected[other]:
            at, other = at + 1, other + 1
        else:
            return None
    return added if other == len(expected) else None


def _after(text: str, beginning: str) -> range | None:
    """Where a text goes on after this beginning, white space aside; `None` if it begins otherwise."""
    if text.startswith(beginning):
        return range(len(beginning), len(beginning) + 1)
    seen = [at for at, character in enumerate(text) if not character.isspace()]
    count = len("".join(beginning.split()))
    if not count or "".join(text[at] for at in seen[:count]) != "".join(beginning.split()):
        return None
    return range(seen[count - 1] + 1, (seen[count] if count < len(seen) else len(text)) + 1)


def _wrong_added_stops(added: Sequence[int], length: int, facts: Sequence[Fact]) -> Iterator[str]:
    for start in added:
        stop = facts[start : start + length]
        if not all(fact.sampled and fact.control and fact.kind == "STOP" for fact in stop):
            yield f"the added stop at {start} is {stop[0]}"
        # An answer of which the template writes nothing has a stop alone, after another message's text or its header.
        answer = [at for at, fact in enumerate(facts) if fact.sampled and fact.msg == stop[0].msg]
        if answer != list(range(answer[0], start + length)):
            yield f"the added stop at {start} does not end the answer {stop[0].msg}"


def _seen(case: Case, expected: str) -> tuple[str, Letters | None]:
    """The rendering with other letters, if the template does the same as with the caller's."""
    for only_ascii, keeps_tags in product((False, True), repeat=2):
        letters = Letters(keeps_tags, only_ascii)
        messages = [letters.message(message, index) for index, message in enumerate(case.given)]
        tools = [letters.tool(tool) for tool in case.tools] if case.tools else None
        letters.kept = json.dumps([messages, tools], ensure_ascii=False)
        seen = rendered(case.renderer, messages, tools, case.prompt, case.variables)
        if seen is not None and only_ascii:
            seen = _ESCAPED.sub(lambda pair: str(json.loads(f'"{pair.group()}"')), seen)
        if seen is not None and len(seen) == len(expected):
            pairs = zip(seen, expected, strict=True)
            if all(a == b or (letters.source_of(a) is not None and b.isalpha()) for a, b in pairs):
                return seen, letters
    return "", None


class _View:
    """A rendering beside the one with other letters; facts, owners and text are of the same length."""

    def __init__(
        self,
        case: Case,
        text: str,
        lettered: tuple[str, Letters],
        facts: Sequence[Fact],
        stops_at: set[int],
        attribution: str,
    ) -> None:
        seen, letters = lettered
        self.case, self.text, self.seen, self.facts, self.stops_at = case, text, seen, facts, stops_at
        self.sources = [letters.source_of(character) for character in seen]
        self.owners = [source[0] if source else NONE for source in self.sources]
        self.kept, self.attribution = letters.kept, attribution
        self._starts: dict[int, range | None] = {}
        self.roles = [message["role"] for message in case.given]
        spellings = sorted(case.renderer.encoder.control_ids, key=len, reverse=True)
        self._endings = case.stops
        self._stops = re.compile("|".join(map(re.escape, self._endings)) or r"(?!)")
        self._controls = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")

    # ---- what must hold of every rendering

    def always(self) -> Iterator[str]:
        for at, fact in enumerate(self.facts):
            if fact.sampled and self.owners[at] >= 0 and self.owners[at] != fact.msg:
                yield f"message {fact.msg} is sampled over data of message {self.owners[at]} at {self._shown(at)}"
                break
        for found in self._controls.finditer(self.text):
            span = range(*found.span())
            if any(self.sources[at] for at in span) and all(self.facts[at].control for at in span):
                whose = self._field(span)
                yield f"{found.group()!r} of the caller ({whose}) is a control token at {self._shown(span[0])}"
        for found in self._controls.finditer(self.seen):
            span = range(*found.span())
            is_named = repr(found.group()) in self.attribution  # as one that may be of a text
            if found.group() not in self.kept and not is_named and not all(self.facts[at].control for at in span):
                yield f"{found.group()!r} of the template stays text at {self._shown(span[0])}"

    # ---- what must hold of one that claims to be full

    def where_full(self) -> Iterator[str]:
        yield from self._bodies()
        yield from self._headers()
        for index, message in enumerate(self.case.given):
            if message["role"] == "assistant":
                yield from self._answer(index)
            elif any(fact.sampled and fact.msg == index for fact in self.facts):
                yield f"message {index} is {message['role']} and sampled"
        yield from self._prompt()

    def _prompt(self) -> Iterator[str]:
        """What the template writes for `add_generation_prompt`; a stop in it may be that of the last answer."""
        without = self.case.plainly(self.case.given, prompt=False) if self.case.prompt else None
        if without is None or not self.text.startswith(without):
            return
        added = self.text[len(without) :]
        stop = next((token for token in self._endings if added.lstrip().startswith(token)), "")
        for at in range(len(self.text) - len(added.lstrip()) + len(stop), len(self.text)):
            if self.facts[at].sampled or self.facts[at].kind != "TEMPLATE":
                yield f"the generation prompt at {self._shown(at)} is {self.facts[at]}"
                return

    def _bodies(self) -> Iterator[str]:
        """Characters of contents, reasoning and calls."""
        named = set()
        for at, (source, fact) in enumerate(zip(self.sources, self.facts, strict=True)):
            if source is None or source in named:
                continue
            owner, name = source
            if owner == MANY:
                is_right = not fact.control
            elif self.roles[owner] != "assistant":
                is_right = fact.msg == owner and fact.content and fact.kind == "CONTEXT"
            elif (name == "call" and self.roles[fact.msg] != "assistant") or at < self._least(owner):
                continue  # a call that a tool result repeats; text that serving supplies (`<think>`)
            else:
                is_right = fact.msg == owner and fact.content and fact.kind in self._kinds(owner, name)
            if not is_right:
                named.add(source)
                yield f"{name} of {owner} at {self._shown(at)} is {fact}"

    def _kinds(self, owner: int, name: str) -> tuple[str, ...]:
        """The kinds that a text of an assistant may have; think tags in a content divide it."""
        if name == "reasoning":
            return ("REASONING",)
        return ("REPLY", "REASONING") if "think" in str(self.case.given[owner].get("content")) else ("REPLY",)

    def _headers(self) -> Iterator[str]:
        """Headers that name a role; without a name (Mistral, Llama 2) nobody can say whose a gap is."""
        for at, owner in enumerate(self.owners):
            if owner < 0 or (at and self.owners[at - 1] == owner):
                continue
            header = len(self.text[:at].rstrip()) - 1
            start = max((n + 1 for n in range(at) if self.owners[n] != NONE), default=0)
            fact = self.facts[header]
            shared = (owner, NONE, owner + 1 if self.roles[owner] == "system" else owner)  # in the first user's turn
            if self.roles[owner] not in self.text[start:at].lower() or fact.content or fact.msg in shared:
                continue
            # Instructions that come later count as earlier, for templates put them first.
            before = [m for n, m in enumerate(self.case.given) if n < owner or self.roles[n] == "system"]
            earlier = self.case.plainly(before, prompt=False)
            if earlier is not None and self.text.startswith(earlier) and header < len(earlier):
                continue  # the turn before ends with it (DeepSeek R1 as vLLM writes it)
            yield f"the header before {self._shown(at)} is of {owner}; found {fact.msg}"

    def _answer(self, index: int) -> Iterator[str]:
        """The span that the model emits as an assistant's message."""
        sampled = [at for at, fact in enumerate(self.facts) if fact.sampled and fact.msg == index]
        served = self._served(index)
        if not sampled:
            if served is not None and index in self.owners[served.start :]:
                yield f"nothing of message {index} is sampled"
            return
        start, stop = sampled[0], sampled[-1] + 1
        if len(sampled) != stop - start:
            yield f"the sampled span of message {index} has holes"
        if served is not None and start not in served:
            yield f"message {index} is sampled from {self._shown(start)}; serving ends at {self._shown(served.start)}"
        for at, owner in enumerate(self.owners):
            if owner == index == self.facts[at].msg and not start <= at < stop and at >= self._least(index):
                yield f"message {index} at {self._shown(at)} is not sampled"
                break
        ends_in = next((token for token in self._endings if self.seen[start:stop].endswith(token)), "")
        follows = next((token for token in self._endings if self.seen[stop:].lstrip().startswith(token)), "")
        if not ends_in and follows and index in self.owners[start:stop] and stop not in self.stops_at:
            yield f"the stop of message {index}, {follows!r}, is not sampled"
        kinds = [self.facts[at].kind for at in sampled]
        if ends_in and kinds[-1] != "STOP":
            yield f"the stop of message {index}, {ends_in!r}, is {kinds[-1]}"
        if "STOP" in kinds and set(kinds[kinds.index("STOP") :]) != {"STOP"}:
            yield f"a stop of message {index} is not at its end"

    def _least(self, index: int) -> int:
        """Where the text ends that is served for an answer; 0 where the rendering does not begin with it."""
        served = self._served(index)
        return 0 if served is None else served.start

    def _served(self, index: int) -> range | None:
        """Where an answer may begin: after the text that is served, or after white space there if that differs.

        `None` where the rendering does not begin with the served text.
        """
        if index not in self._starts:
            before = self.case.given[:index]
            served = self.case.plainly(before, prompt=True)
            begun = None if served is None else _after(self.text, served)
            # An answer that comes first, where a loop over no messages writes no prompt, and one after an answer that
            # the template lets continue: no server starts a turn there, and its header is not the model's.
            if begun is not None and (index == 0 or self.roles[index - 1] == "assistant"):
                added = (served or "").removeprefix(self.case.plainly(before, prompt=False) or "")
                begun = begun if any(part.strip() for part in self._stops.split(added)) else None
            self._starts[index] = begun
        return self._starts[index]

    # ---- for readers

    def _field(self, span: range) -> str:
        source = next(source for at in span if (source := self.sources[at]))
        return f"{source[1]} of {source[0]}"

    def _shown(self, at: int) -> str:
        return f"{self.text[max(0, at - 20) : at]!r}|{self.text[at : at + 25]!r}"
