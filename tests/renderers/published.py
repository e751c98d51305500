"""Chat templates as people publish them, put together at random, with the facts that each rendering must have.

A `Format` says what its turns look like (ChatML, Llama 2 and 3, Gemma, Mistral, Zephyr, DeepSeek, ...), where it puts
system texts, tools, reasoning, calls and results, and where it writes its stop. `published_source.py` writes it down as
Jinja in one of many manners: loops over messages or indices, macros, set blocks, namespaces, rebuilt messages, slices.
`Format.expected` says the same in Python: every character with its message, and what the model emits.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.renderers.chats import Wanted, conversation, plain_text

Messages = list[dict[str, Any]]
TODAY = "2026-01-01"


class Run(NamedTuple):
    """A stretch of a rendering.

    Attributes:
        owners: the messages that it may belong to; several where none of them is wrong.
        content: whether it is content; `None` for quotes that JSON puts around it, which may be.
    """

    text: str
    owners: frozenset[int]
    sampled: bool
    content: bool | None


@dataclass(frozen=True)
class Markup:
    """What stands around the contents of each role.

    Attributes:
        opens: what a turn begins with.
        ends: what follows the content; for assistants it holds the stop.
        prompt: the generation prompt.
        merged: what stands around a system text in the first question, where system messages have no turn.
    """

    opens: Mapping[str, str]
    ends: Mapping[str, str]
    stop: str
    prompt: str
    merged: tuple[str, str] = ("", "\n\n")

    @property
    def is_uniform(self) -> bool:
        """Whether all turns end alike."""
        return len(set(self.ends.values())) == 1


ROLES = ("system", "user", "assistant", "tool")


def _named(opening: str, end: str, stop: str, **names: str) -> Markup:
    """A markup whose openings name the role; all turns end alike."""
    opens = {role: opening.format(names.get(role, role)) for role in ROLES}
    return Markup(opens, dict.fromkeys(ROLES, end), stop, opens["assistant"])


def _only_answers_end(opens: Sequence[str], ends: Sequence[str], stop: str, prompt: str, *merged: str) -> Markup:
    pairs = merged if len(merged) == 2 else ("", "\n\n")
    return Markup(dict(zip(ROLES, opens, strict=True)), dict(zip(ROLES, ends, strict=True)), stop, prompt, pairs)


_COMMAND = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>"
MARKUPS = {
    "chatml": _named("<|im_start|>{}\n", "<|im_end|>\n", "<|im_end|>"),
    "chatml in one line": _named("<|im_start|>{}\n", "<|im_end|>", "<|im_end|>"),
    "llama 3": _named("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>", "<|eot_id|>", tool="ipython"),
    "gemma": _named("<start_of_turn>{}\n", "<end_of_turn>\n", "<end_of_turn>", assistant="model"),
    "zephyr": _named("<|{}|>\n", "</s>\n", "</s>"),
    "phi 3": _named("<|{}|>\n", "<|end|>\n", "<|end|>"),
    "phi 4": _named("<|im_start|>{}<|im_sep|>", "<|im_end|>", "<|im_end|>"),
    "command r": _named(
        _COMMAND,
        *["<|END_OF_TURN_TOKEN|>"] * 2,
        system="SYSTEM",
        user="USER",
        assistant="CHATBOT",
        tool="SYSTEM",
    ),
    "llama 2": _only_answers_end(
        ("", "[INST] ", " ", "[INST] "),
        ("", " [/INST]", " </s>", " [/INST]"),
        "</s>",
        "",
        "<<SYS>>\n",
        "\n<</SYS>>\n\n",
    ),
    "mistral": _only_answers_end(
        ("[SYSTEM_PROMPT]", "[INST]", "", "[TOOL_RESULTS]"),
        ("[/SYSTEM_PROMPT]", "[/INST]", "</s>", "[/TOOL_RESULTS]"),
        "</s>",
        "",
    ),
    "deepseek": _only_answers_end(
        ("", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁outputs▁begin｜>"),
        ("", "", "<｜end▁of▁sentence｜>", "<｜tool▁outputs▁end｜>"),
        "<｜end▁of▁sentence｜>",
        "<｜Assistant｜>",
    ),
    "vicuna": _only_answers_end(("", "USER: ", "ASSISTANT: ", "TOOL: "), ("", " ", "</s>", " "), "</s>", "ASSISTANT:"),
    "granite": _named(
        "<|start_of_role|>{}<|end_of_role|>", "<|end_of_text|>\n", "<|end_of_text|>", tool="tool_response"
    ),
}
CONTROLS = (
    *("<|im_end|>", "<|im_start|>", "<|im_sep|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>"),
    *("<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "</s>"),
    *(_COMMAND[:25], *(f"<|{who}_TOKEN|>" for who in ("END_OF_TURN", "SYSTEM", "USER", "CHATBOT")), "<bos>"),
    *("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "<｜User｜>", "<｜Assistant｜>"),
    *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜end▁of▁sentence｜>"),
    *("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
)


@dataclass(frozen=True)
class Format:
    """A chat format.

    Attributes:
        bos: what a rendering begins with.
        system: "turn"; "merged" into the first question; "bare", a text before all turns.
        default: the system text where there is none; "" for none.
        tools: where they are declared: "system", "question" (before the last), or "" for nowhere.
        thought: reasoning: "" (not written), "always", "last" (since the last question), "empty" (as "last", an empty
            block without), "split" (as "last", cut out of the content), "cut" (cut out of the content, never written).
        calls: the markup of calls, or "".
        results: "turn", "grouped" (in one question), "json" (in an object), "rest" (written without a header).
        trim: contents without white space around.
        stop: "turn" (with its turn), "next" (the next turn writes it), "next and end", "unless last".
        prefill: what the generation prompt writes behind the header.
        prompt: the prompt stands at the "end", in the "loop", or follows other messages than answers ("asked").
        parts: contents may be lists.
    """

    markup: Markup
    bos: str
    system: str
    default: str
    tools: str
    thought: str
    calls: str
    results: str
    trim: bool
    stop: str
    prefill: str
    prompt: str
    parts: bool

    @property
    def is_sliced(self) -> bool:
        """Whether the first system message is written before the loop."""
        return self.system != "turn" or bool(self.default) or self.tools == "system"

    def wanted(self) -> Wanted:
        """What conversations this format has a place for."""
        late = self.system == "turn"
        return Wanted(tools=bool(self.calls), late_system=late, parts=self.parts, tool_parts=self.parts)

    # ---- what a rendering is

    def expected(self, messages: Messages, tools: Any, gen: bool) -> list[Run]:
        """Every run of a rendering."""
        return _Page(self, messages, tools).runs(gen)

    def is_complete(self, messages: Messages, index: int, gen: bool) -> bool:
        """Whether the stop of an answer is written."""
        return index < len(messages) - 1 or self.stop in ("turn", "next and end") or gen


def random_format(rng: random.Random) -> Format:
    """A format."""
    name = rng.choice([*MARKUPS, "chatml", "chatml", "llama 3"])
    markup = MARKUPS[name]
    bare = not markup.opens["system"]
    system = rng.choice(["merged", "bare"] if bare else ["turn", "turn", "turn", "merged"])
    calls = rng.choice(["", "", "hermes", "brackets", "object", "xml"])
    stop = rng.choice(["turn"] * 5 + ["next", "next and end", "unless last"]) if markup.is_uniform else "turn"
    default = rng.choice(["", "", "You are helpful.", f"Today is {TODAY}."]) if system != "bare" else ""
    tools = rng.choice(["", "system", "question"]) if calls and system == "turn" else ""
    results = rng.choice(
        ["turn", "turn", "json", "grouped" if name.startswith("chatml") and stop == "turn" else "turn"]
    )
    thought = rng.choice(["", "", "always", "last", "empty", "split", "cut"])
    sliced = system != "turn" or bool(default) or tools == "system"
    prompts = ["end", "end", "asked", *([] if sliced else ["loop"])]  # a loop over nothing would write no prompt
    prefills = {"": ["", ""], "empty": ["", "<think>\n"]}.get(thought, ["", "", "<think>\n"])
    return Format(
        markup,
        bos=rng.choice(["", "<s>", "<bos>"]),
        system=system,
        default=default,
        tools=tools,
        thought=thought,
        calls=calls,
        results=results,
        trim=rng.random() < 0.4,
        stop=stop,
        prefill=rng.choice(prefills) if markup.prompt == markup.opens["assistant"] else "",
        prompt=rng.choice(prompts) if stop == "turn" else "end",
        parts=rng.random() < 0.4,
    )


def random_chat(rng: random.Random, form: Format) -> tuple[Messages, Any]:
    """A conversation that a format has a place for, and tools."""
    chat, tools = conversation(rng, form.wanted())
    if form.tools == "question":  # they move on to each new question, so that nothing says whose an empty one's turn is
        empty = [one["role"] == "user" and not plain_text(one["content"]).strip() for one in chat]
        chat = [{**one, "content": "So?"} if is_empty else one for one, is_empty in zip(chat, empty, strict=True)]
    return chat, tools


class _Page:
    """The runs of one rendering."""

    def __init__(self, form: Format, messages: Messages, tools: Any) -> None:
        self.form, self.messages, self.tools = form, messages, tools
        has_system = bool(messages) and messages[0]["role"] == "system"
        self.first = 1 if form.is_sliced and has_system else 0  # of the messages that the loop sees
        users = [at for at, message in enumerate(messages) if message["role"] == "user" and at >= self.first]
        self.last_question = users[-1] if users else self.first - 1
        self.found: list[Run] = []

    def add(self, text: str, *owners: int, sampled: bool = False, content: bool | None = False) -> None:
        if text:
            self.found.append(Run(text, frozenset(owners), sampled, content))

    def text(self, index: int) -> str:
        """A message's content as the template writes it."""
        text = plain_text(self.messages[index]["content"])
        return text.strip() if self.form.trim else text

    def runs(self, gen: bool) -> list[Run]:
        form, markup = self.form, self.form.markup
        self.add(form.bos, -1, 0, 1)
        self.head()
        for index in range(self.first, len(self.messages)):
            self.turn(index)
        last = len(self.messages) - 1
        late = form.stop == "next and end" or (gen and form.stop in ("next", "unless last"))
        if late and last >= self.first:
            self.end(last, last, -1)
        asked = {"end": True, "loop": last >= self.first, "asked": self.asked()}[form.prompt]
        if gen and asked:
            self.add(markup.prompt + form.prefill, -1)
        return self.found

    def asked(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] != "assistant"

    # ---- before the loop

    def head(self) -> None:
        form, markup = self.form, self.form.markup
        if form.system == "bare" and self.first:
            text = self.text(0)
            self.add(text, 0, content=True)
            self.add("\n\n" if text else "", 0)
        if form.system != "turn" or not form.is_sliced:
            return
        tools = f"# Tools\n{lines_of(self.tools)}" if form.tools == "system" and self.tools else ""
        default = "" if self.first else form.default
        if not self.first and not tools and not default:
            return
        owners = (0, -1) if self.first else (-1,)
        text = self.text(0) if self.first else ""
        ends = (
            owners if not text and (tools or default) else owners[:1]
        )  # the template writes it without the message too
        self.add(markup.opens["system"], *ends)
        self.add(text, 0, content=True)
        self.add(default, *owners)
        self.add(("\n\n" if text or default else "") + tools if tools else "", *owners)
        self.add(markup.ends["system"], *ends)

    # ---- turns

    def turn(self, index: int) -> None:
        form, markup, role = self.form, self.form.markup, self.messages[index]["role"]
        if form.stop.startswith("next") and index > self.first:
            self.end(index - 1, index - 1, index)
        if role == "assistant":
            self.answer(index)
        elif role == "tool":
            self.result(index)
        else:
            if form.tools == "question" and self.tools and index == self.last_question:
                self.add(f"[AVAILABLE_TOOLS]{listed(self.tools)}[/AVAILABLE_TOOLS]", index, index - 1, -1)
            merged = role == "user" and index == self.first and form.system == "merged"
            system = (self.text(0) if self.first else form.default) if merged else ""
            self.add(markup.opens[role], index, *([0] if system and self.first else []))
            if system:
                owner = 0 if self.first else index
                self.add(markup.merged[0], owner, index, -1)
                self.add(system, owner, *([] if self.first else [-1]), content=bool(self.first))
                self.add(markup.merged[1], owner, index, -1)
            self.add(self.text(index), index, content=True)
            self.add("" if self.ends_elsewhere(index) else markup.ends[role], index)

    def ends_elsewhere(self, index: int) -> bool:
        last = index == len(self.messages) - 1
        return self.form.stop.startswith("next") or (self.form.stop == "unless last" and last)

    def end(self, index: int, *owners: int) -> None:
        """The end of a turn which something else writes."""
        markup = self.form.markup
        role = self.messages[index]["role"]
        if role != "assistant":
            self.add(markup.ends[role], *owners)
            return
        before, _, after = markup.ends[role].partition(markup.stop)
        self.add(before + markup.stop, index, sampled=True, content=True)
        self.add(after, *owners)

    def answer(self, index: int) -> None:
        form, markup = self.form, self.form.markup
        end = "" if self.ends_elsewhere(index) else markup.ends["assistant"]
        before, stop, after = end.partition(markup.stop)
        text = markup.opens["assistant"] + self.said(index) + before + stop
        prompt = markup.prompt + form.prefill
        start = len(prompt) if text.startswith(prompt) else len(markup.prompt)
        self.add(text[:start], index)
        self.add(text[start:], index, sampled=True, content=True)
        self.add(after, index)

    def said(self, index: int) -> str:
        """Reasoning, content and calls of an answer."""
        form, message = self.form, self.messages[index]
        content, thought = self.text(index), message.get("reasoning_content") or ""
        recent = index > self.last_question
        if form.thought in ("split", "cut"):
            parts = content.split("</think>")
            thought = parts[0].split("<think>")[-1].strip("\n") if len(parts) > 1 else ""
            content = parts[-1].lstrip("\n") if len(parts) > 1 else content
        written = {"always": thought, "last": recent and thought, "split": recent and thought, "empty": recent}
        block = f"<think>\n{thought}\n</think>\n\n" if written.get(form.thought) else ""
        return block + content + "".join(calls_of(form.calls, message.get("tool_calls") or []))

    def result(self, index: int) -> None:
        form, markup = self.form, self.form.markup
        if form.results == "grouped":
            self.grouped(index)
            return
        self.add(markup.opens["tool"], index)
        if form.results == "json":
            self.add('{"output": ', index)
            self.add('"', index, content=None)
            self.add(json.dumps(self.text(index), ensure_ascii=False)[1:-1], index, content=True)
            self.add('"', index, content=None)
            self.add("}", index)
        else:
            self.add(self.text(index), index, content=True)
        self.add("" if self.ends_elsewhere(index) else markup.ends["tool"], index)

    def grouped(self, index: int) -> None:
        roles = [message["role"] for message in self.messages[self.first :]] + [""]
        at = index - self.first
        if at == 0 or roles[at - 1] != "tool":
            self.add(self.form.markup.opens["user"].rstrip(), index)
        self.add("\n", index, index - 1)
        self.add("<tool_response>\n", index)
        self.add(self.text(index), index, content=True)
        self.add("\n</tool_response>", index)
        if roles[at + 1] != "tool":
            self.add(self.form.markup.ends["user"], index)


def dumped(value: Any) -> str:
    """As transformers' `tojson`."""
    return json.dumps(value, ensure_ascii=False)


def lines_of(tools: Any) -> str:
    return "".join(dumped(tool) + "\n" for tool in tools)


def listed(tools: Any) -> str:
    return "[" + ", ".join(map(dumped, tools)) + "]"


def calls_of(markup: str, calls: Sequence[Any]) -> Iterator[str]:
    for number, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments  # as servers decode them
        written = dumped(arguments)
        if markup == "hermes":
            yield f'\n<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'
        elif markup == "brackets":
            yield "[TOOL_CALLS][" if number == 0 else ", "
            yield dumped({"name": name, "arguments": arguments}) + ("]" if number == len(calls) - 1 else "")
        elif markup == "object":
            yield f'{{"name": "{name}", "parameters": {written}}}'
        elif markup == "xml":
            yield f"\n<function={name}>\n"
            for key, value in arguments.items():
                shown = value if isinstance(value, str) else dumped(value)
                yield f"<parameter={key}>\n{shown}\n</parameter>\n"
            yield "</function>"
