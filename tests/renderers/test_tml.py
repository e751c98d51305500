"""Our families beside tml-renderers: ids, what is trained, prompts; what differs is listed.

Every family renders random conversations of all that both know, but for what `DIFFERENCES` lists for it: there is no
other difference. Each listed one is judged by the official template or the model's documentation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("tml_renderers", reason="no tml-renderers")
from niels_gpt.errors import MessageError
from tests.renderers import tml
from tests.renderers.chats import Messages, Wanted, conversation
from tests.renderers.small import assistant, call, result, user
from tests.renderers.sweeps import kimi_id

Chat = tuple[Messages, Any]

# ---- ways around a listed difference


def tidied(messages: Messages) -> Messages:
    """Letters at the ends of all texts: they join no token with the markup beside them."""
    texts = ("content", "reasoning_content")
    return [{key: f"x{held or ''}x" if key in texts else held for key, held in m.items()} for m in messages]


def tidied_texts(messages: Messages) -> Messages:
    """The same of texts that are not empty."""
    texts = ("content", "reasoning_content")
    return [{key: f"x{held}x" if key in texts and held else held for key, held in m.items()} for m in messages]


def recent_reasoning(messages: Messages) -> Messages:
    """Only the last message has reasoning."""
    return [*without_reasoning(messages[:-1]), messages[-1]]


def without_reasoning(messages: Messages) -> Messages:
    return [{key: held for key, held in m.items() if key != "reasoning_content"} for m in messages]


def without_empty_reasoning(messages: Messages) -> Messages:
    return [{key: held for key, held in m.items() if key != "reasoning_content" or held} for m in messages]


def all_reasoning(messages: Messages) -> Messages:
    """Every assistant's message has reasoning."""
    return [
        m | {"reasoning_content": (m.get("reasoning_content") or "").strip() or "hm"} if m["role"] == "assistant" else m
        for m in messages
    ]


def without_texts_beside_calls(messages: Messages) -> Messages:
    return [m | {"content": ""} if m.get("tool_calls") else m for m in messages]


def without_calls(messages: Messages) -> Messages:
    return [m for m in messages if not m.get("tool_calls") and m["role"] != "tool"]


def until_results(messages: Messages) -> Messages:
    """No message after the first calls."""
    return messages[: next((at for at, m in enumerate(messages) if m["role"] == "tool"), None)]


def first_turn(messages: Messages) -> Messages:
    """Nothing after the first assistant's message."""
    return messages[: 1 + next(at for at, m in enumerate(messages) if m["role"] == "assistant")]


def plain_arguments(messages: Messages) -> Messages:
    """Arguments that are texts, small integers, true, false or null."""

    def plain(value: Any) -> bool:
        return value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**63)

    messages = json.loads(json.dumps(messages))
    for message in messages:
        for each in message.get("tool_calls") or []:
            given = each["function"]["arguments"]
            each["function"]["arguments"] = {name: value for name, value in given.items() if plain(value)}
    return messages


def without_blank_system(messages: Messages) -> Messages:
    return messages[messages[0]["role"] == "system" and not messages[0]["content"].strip() :]


def named_results(messages: Messages) -> Messages:
    """Every call has an id, and every result names its call."""
    made: Messages = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            message = message | {"tool_call_id": waiting.pop(0)}
        elif message.get("tool_calls"):
            waiting = [f"c{len(made)}.{at}" for at in range(len(message["tool_calls"]))]
            calls = [one | {"id": known} for one, known in zip(message["tool_calls"], waiting, strict=True)]
            message = message | {"tool_calls": calls}
        made.append(message)
    return made


def with_system(messages: Messages) -> Messages:
    return messages if messages[0]["role"] == "system" else [SYSTEM, *messages]


# ---- the list


@dataclass(frozen=True)
class Difference:
    """One way in which a family and tml-renderers part.

    Attributes:
        names: in `JUDGED`.
        right: who writes what the official template does; "either" where it says nothing.
        why: as in docs/deviations.md.
        messages, tools: the smallest conversation that shows it.
        ours, theirs: what stands in one text and not in the other, if anything; `None` where it is refused.
        avoid: the conversation without it.
        undeclared: it is avoided by conversations whose tools are not declared.
        tokens: the texts are compared token by token, with | between them.
    """

    names: tuple[str, ...]
    right: Literal["ours", "theirs", "either"]
    why: str
    messages: Messages
    ours: str | None
    theirs: str | None
    tools: Any = None
    avoid: Callable[[Messages], Messages] = list
    undeclared: bool = False
    tokens: bool = False


def of(*families: str, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The names of these families."""
    return tuple(name for name, case in tml.JUDGED.items() if case.family in families and name not in without)


def with_words(*words: str) -> tuple[str, ...]:
    """The names with one of these words."""
    return tuple(name for name in tml.JUDGED if any(word in name for word in words))


SYSTEM = {"role": "system", "content": "s"}
FUNCTION = {"name": "get", "description": "d", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
PARAMETERS = {"type": "object", "properties": {"b": {}, "a": {}}}
UNSORTED = [{"type": "function", "function": {**FUNCTION, "parameters": PARAMETERS}}]
PARAMETER = {"type": ["string", "null"], "description": " d ", "default": False}
DECLARED = [
    {"type": "function", "function": {**FUNCTION, "description": "", "parameters": {"properties": {"a": PARAMETER}}}}
]
QWEN3, QWEN35, QWEN38 = of("qwen3"), of("qwen3.5"), of("qwen3.8")
GLM = of("glm-5.2", "glm-5.3")
NANO, ULTRA = of("nemotron-3"), of("nemotron-3-ultra")
NEMOTRON = (*NANO, *ULTRA)
GPT_OSS = of("gpt-oss")
SILENT = with_words("without thinking")
THOUGHTLESS = tuple(name for name, case in tml.JUDGED.items() if not case.thinks)
NOBODYS = {"role": "tool", "content": "nobody's"}
TWO_CALLS = assistant("", tool_calls=[call(), call("put", 1)])
CYCLE = [SYSTEM, user(), assistant("", reasoning_content="r", tool_calls=[call()]), result()]
ANSWERED = [*CYCLE, assistant("y", reasoning_content="s")]
HISTORY = [SYSTEM, user(), assistant("x", reasoning_content="r"), user(), assistant("y", reasoning_content="s")]


def calling(text: str = "", **arguments: Any) -> Messages:
    """A conversation that ends with a call."""
    made = call() | {"function": {"name": "get", "arguments": arguments}}
    return [SYSTEM, user(), assistant(text, reasoning_content="r", tool_calls=[made])]


DIFFERENCES: dict[str, Difference] = {
    "a text that begins with a newline": Difference(
        (*QWEN3, "qwen3-vl"),
        "ours",
        "they encode a content separately from the markup beside it; the official tokenizer encodes the whole text",
        [SYSTEM, user("\nhi"), assistant("y", reasoning_content="r")],
        "user|\n\n|hi",
        "user|\n|\n|hi",
        avoid=tidied,
        tokens=True,
    ),
    "a text that ends with a sign before a call": Difference(
        (*QWEN3, "qwen3-vl"),
        "ours",
        "the same, between a content and the first call",
        calling("y;"),
        "y|;\n|<tool_call>",
        "y|;|\n|<tool_call>",
        avoid=tidied,
        tokens=True,
    ),
    "an answer without reasoning after an opened block": Difference(
        of("qwen3.5", "qwen3.8", without=SILENT),
        "either",
        "the text is the same; the official tokenizer makes one token of the newline of the prompt and that of the "
        "answer, and they keep the prompt's ids as they were served",
        [SYSTEM, user(), assistant("y")],
        "<think>|\n\n|</think>",
        "<think>|\n|\n|</think>",
        avoid=all_reasoning,
        tokens=True,
    ),
    "white space around a text": Difference(
        NEMOTRON,
        "ours",
        "they strip contents; the template writes them as they are",
        [SYSTEM, user("\n hi "), assistant("y", reasoning_content="r")],
        "user\n\n hi ",
        "user\nhi",
        avoid=tidied,
    ),
    "several messages of one user": Difference(
        tuple(name for name in tml.JUDGED if not name.startswith(("deepseek", "inkling"))),
        "ours",
        "they join them to one turn, without anything between; templates write a turn for each message",
        [SYSTEM, user("u1"), user("u2"), assistant("y", reasoning_content="r")],
        "u1<|",
        "u1u2",
    ),
    "reasoning of a call that was answered": Difference(
        ("qwen3",),
        "ours",
        "they drop it as soon as a result follows; the template keeps reasoning until a user speaks again",
        ANSWERED,
        '<think>\nr\n</think>\n\n<tool_call>\n{"name": "get", "arguments": {"city": "x"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user",
        'assistant\n<tool_call>\n{"name": "get", "arguments": {"city": "x"}}\n</tool_call><|im_end|>\n',
        avoid=recent_reasoning,
    ),
    "reasoning that is kept in history": Difference(
        ("qwen3 that keeps reasoning", "qwen3.5 that keeps reasoning"),
        "ours",
        "in history they write the block without the newlines with which the model writes it, and train it so",
        HISTORY,
        "<think>\nr\n</think>\n\nx",
        "<think>r</think>x",
        avoid=first_turn,
    ),
    "no reasoning, where it is kept in history": Difference(
        ("qwen3.5 that keeps reasoning", "qwen3.5 without thinking that keeps reasoning"),
        "either",
        "they write no block; the template has no such option, that of Qwen3.6 writes an empty one",
        [SYSTEM, user(), assistant("x"), user(), assistant("y", reasoning_content="s")],
        "<think>\n\n</think>\n\nx<|im_end|>\n<|im_start|>user",
        "assistant\nx<|im_end|>",
        avoid=first_turn,
    ),
    "the opened block of a turn in history": Difference(
        ("nemotron-3-ultra that keeps reasoning",),
        "ours",
        "they train the opening tag, which the generation prompt supplies and the model never writes",
        HISTORY,
        "<think>\n⟦r</think>x",
        "⟦<think>\nr</think>x",
        avoid=first_turn,
    ),
    "answers of Qwen3 in history, where reasoning is kept and thinking is off": Difference(
        ("qwen3 without thinking that keeps reasoning",),
        "ours",
        "they train them directly after the header, without the empty block that the prompt supplies",
        [SYSTEM, user(), assistant("x"), user(), assistant("y")],
        "</think>\n\n⟦x",
        "assistant\n⟦x",
        avoid=first_turn,
    ),
    "reasoning where Kimi K2.5 does not think and keeps it": Difference(
        ("kimi-k2.5 without thinking that keeps reasoning",),
        "ours",
        "they drop it; the template of K2.6, which has both options, writes it",
        [SYSTEM, user(), assistant("y", reasoning_content="r")],
        "<think>⟦r</think>y",
        "<think></think>⟦y",
        avoid=without_reasoning,
    ),
    "reasoning where thinking is off": Difference(
        tuple(name for name in SILENT if not name.startswith("kimi")),
        "either",
        "they refuse it; the template writes what the message holds",
        [SYSTEM, user(), assistant("y", reasoning_content="r")],
        "r",
        None,
        avoid=without_reasoning,
    ),
    "reasoning in a format without a place for it": Difference(
        ("qwen3-vl", "deepseek-v3"),
        "ours",
        "they write think tags; the template knows no reasoning and leaves it out",
        [SYSTEM, user(), assistant("y", reasoning_content="r")],
        "⟦y",
        "<think>r</think>y",
        avoid=without_reasoning,
    ),
    "an empty system message, and tools": Difference(
        (*QWEN35, *QWEN38),
        "ours",
        "they write the blank line before the message, the template only before one that holds text",
        [{"role": "system", "content": ""}, user(), assistant("y", reasoning_content="r")],
        "</IMPORTANT><|im_end|>",
        "</IMPORTANT>\n\n<|im_end|>",
        TOOLS,
        avoid=without_blank_system,
    ),
    "a text before a call": Difference(
        (*QWEN35, *QWEN38),
        "ours",
        "they write one newline between them, the template two",
        calling("t"),
        "t\n\n<tool_call>",
        "t\n<tool_call>",
        avoid=without_texts_beside_calls,
    ),
    "objects and lists as arguments": Difference(
        (*QWEN35, *QWEN38, *NEMOTRON),
        "ours",
        "they write JSON without spaces, the template with",
        calling(a={"b": [1, 2]}),
        '{"b": [1, 2]}',
        '{"b":[1,2]}',
        avoid=plain_arguments,
    ),
    "large and small numbers as arguments": Difference(
        (*QWEN35, *QWEN38, *NEMOTRON, *GPT_OSS),
        "ours",
        "they read numbers as floats and write them as Rust does: the integer has lost its digits",
        calling(a=10**30 + 1, b=-1e-7),
        "1000000000000000000000000000001",
        "1e+30",
        avoid=plain_arguments,
    ),
    "an answer without reasoning": Difference(
        tuple(name for name in NEMOTRON if name not in SILENT),
        "either",
        "they write what follows the prompt's opened block, the template an empty block of its own",
        [SYSTEM, user(), assistant("y")],
        "<think>⟦</think>y",
        "<think>\n⟦</think>",
        avoid=all_reasoning,
    ),
    "calls of Nemotron": Difference(
        NEMOTRON,
        "ours",
        "they leave out the newline before the first call, which the template writes after content or block",
        calling("t"),
        "t\n<tool_call>",
        "t<tool_call>",
        avoid=without_calls,
    ),
    "a text beside calls of DeepSeek": Difference(
        of("deepseek-v3", "deepseek-r1"),
        "ours",
        "they write two turns, though after the first the model has stopped; these templates leave the calls out, "
        "those of V3-0324 and R1-0528 write one turn",
        calling("t"),
        "t<｜tool▁calls▁begin｜>",
        "t<｜end▁of▁sentence｜><｜Assistant｜><｜tool▁calls▁begin｜>",
        avoid=without_texts_beside_calls,
    ),
    "an answer to results of DeepSeek": Difference(
        of("deepseek-v3", "deepseek-r1"),
        "ours",
        "they write an assistant's header after results; the template has none there, in the prompt neither",
        ANSWERED,
        "<｜tool▁outputs▁end｜>⟦",
        "<｜tool▁outputs▁end｜><｜Assistant｜>",
        avoid=until_results,
    ),
    "a text beside calls of DeepSeek V3.1": Difference(
        of("deepseek-v3.1"),
        "ours",
        "they write two turns, though after the first the model has stopped; the template writes one",
        without_reasoning(calling("t")),
        "t<｜tool▁calls▁begin｜>",
        "t<｜end▁of▁sentence｜><｜tool▁calls▁begin｜>",
        avoid=without_texts_beside_calls,
    ),
    "reasoning where DeepSeek V3.1 does not think": Difference(
        ("deepseek-v3.1",),
        "either",
        "they refuse it; the template writes none, ours that of the last message",
        [SYSTEM, user(), assistant("y", reasoning_content="r")],
        "<think>r</think>y",
        None,
        avoid=without_reasoning,
    ),
    "no reasoning where DeepSeek V3.1 thinks": Difference(
        ("deepseek-v3.1, thinking",),
        "ours",
        "they write the answer into the block that the prompt opens and close none; the template closes it",
        [SYSTEM, user(), assistant("y")],
        "</think>y",
        "<think>⟦y",
        avoid=all_reasoning,
    ),
    "several messages of one user of DeepSeek V4": Difference(
        of("deepseek-v4", "deepseek-v4-preview", "deepseek-v4.1"),
        "ours",
        "they join them without anything between; the encoders and DeepSeek's own library write a blank line",
        [SYSTEM, user("a"), user("b"), assistant("y", reasoning_content="r")],
        "a\n\nb<",
        ">ab<",
    ),
    "a result of DeepSeek V4.1 that names no call": Difference(
        of("deepseek-v4.1"),
        "theirs",
        "its encoder takes it for the first call's; ours leaves all results of the turn as they come",
        [SYSTEM, user(), TWO_CALLS, result("put", 1, "second"), NOBODYS, assistant("y")],
        "<tool_result>second</tool_result>\n\n<tool_result>nobody's",
        "<tool_result>nobody's</tool_result>\n\n<tool_result>second",
        avoid=named_results,
    ),
    "tools of DeepSeek V3.1": Difference(
        of("deepseek-v3.1"),
        "ours",
        "they refuse tools; the template writes none, and the model card says how",
        [SYSTEM, user(), assistant("y")],
        "s\n\n## Tools\nYou have access to the following tools:",
        None,
        TOOLS,
        undeclared=True,
    ),
    "results in another order than their calls": Difference(
        of("deepseek-v4", "deepseek-v4-preview"),
        "ours",
        "they leave them as they come, of V4.1 they do not; the encoders and DeepSeek's own library order them",
        [SYSTEM, user(), TWO_CALLS, result("put", 1, "second"), result(text="first"), assistant("y")],
        "<tool_result>first</tool_result>\n\n<tool_result>second",
        "<tool_result>second</tool_result>\n\n<tool_result>first",
    ),
    "no system message": Difference(
        ("kimi-k2",),
        "ours",
        "the default system turn: K2 Instruct's template ends it with a newline, that of K2 Thinking does not",
        [user(), assistant("y")],
        "Moonshot AI.<|im_end|>\n",
        "Moonshot AI.<|im_end|><|im_user|>",
        avoid=with_system,
    ),
    "reasoning of Kimi K2": Difference(
        ("kimi-k2",),
        "either",
        "theirs is K2 Thinking, ours K2 Instruct, which has no place for reasoning",
        [SYSTEM, user(), assistant("y", reasoning_content="r")],
        "⟦y",
        "⟦ry",
        avoid=without_reasoning,
    ),
    "answers of Kimi K2 in history": Difference(
        of("kimi-k2", "kimi-k2-thinking"),
        "ours",
        "they make one example, in which the last answer alone is trained",
        HISTORY,
        "x<|im_end|>⟧",
        "",
        avoid=first_turn,
    ),
    "tools of Kimi K2.5": Difference(
        of("kimi-k2.5"),
        "ours",
        "they declare them as JSON; the model's own tokenizer declares them in TypeScript and falls back to JSON",
        [SYSTEM, user(), assistant("y")],
        "# Tools\n\n## functions\nnamespace functions {",
        '[{"function":{"description":"d"',
        TOOLS,
        undeclared=True,
    ),
    "empty reasoning before a call": Difference(
        GPT_OSS,
        "ours",
        "they write a message without a text on the channel analysis; the template asks whether there is a text",
        [SYSTEM, user(), assistant("", reasoning_content="", tool_calls=[call()])],
        "assistant⟦ to=functions.get",
        "assistant⟦<|channel|>analysis<|message|><|end|>",
        avoid=without_empty_reasoning,
    ),
    "several calls in a turn": Difference(
        GPT_OSS,
        "ours",
        "refused: sampling stops at the first <|call|>, and the template writes one call; they write all",
        [SYSTEM, user(), assistant("", tool_calls=[call(), call("put", 1)])],
        None,
        "<|call|><|start|>assistant to=functions.put",
    ),
    "the end of reasoning of DeepSeek R1": Difference(
        of("deepseek-r1"),
        "ours",
        "they write the closing tag directly after it, and the answer directly after that; the model card quotes an "
        "empty block as `<think>\\n\\n</think>`, and a blank line follows it",
        [SYSTEM, user(), assistant("y", reasoning_content="r")],
        "<think>\n⟦r\n</think>\n\ny",
        "<think>\n⟦r</think>y",
        avoid=tidied_texts,
    ),
    "no reasoning of DeepSeek R1": Difference(
        of("deepseek-r1"),
        "ours",
        "they write the answer into the block that the prompt opens and close none; the template writes no block",
        [SYSTEM, user(), assistant("y")],
        "<｜Assistant｜>⟦y",
        "<think>\n⟦y",
        avoid=all_reasoning,
    ),
    "empty reasoning of Inkling": Difference(
        of("inkling"),
        "either",
        "they write a message without a text; ours none, as where a message has no reasoning",
        [SYSTEM, user(), assistant("y", reasoning_content="")],
        "⟦<|message_model|><|content_text|>y",
        "<|content_thinking|><|end_message|>",
        avoid=without_empty_reasoning,
    ),
    "objects as arguments of Inkling": Difference(
        of("inkling"),
        "ours",
        "they sort the names of arguments and leave objects in them as they are; the template sorts at every level",
        calling(a={"z": 1, "b": 2}),
        '{"b":2,"z":1}',
        '{"z":1,"b":2}',
        avoid=plain_arguments,
    ),
    "large and small numbers as arguments of Inkling": Difference(
        of("inkling"),
        "ours",
        "they read numbers as floats and write them as Rust does: the integer has lost its digits",
        calling(a=10**30 + 1, b=-1e-7),
        "1000000000000000000000000000001",
        '"a":1e30',
        avoid=plain_arguments,
    ),
    "a result of Inkling without a name": Difference(
        of("inkling"),
        "ours",
        "they head it by nothing; the template by the function that was called",
        ANSWERED,
        "<|message_tool|>get<|content_text|>",
        "<|message_tool|><|content_text|>",
    ),
    "tools of DeepSeek": Difference(
        of("deepseek-v3", "deepseek-r1"),
        "either",
        "they refuse tools; the template leaves them out",
        [SYSTEM, user(), assistant("y")],
        "y",
        None,
        TOOLS,
        undeclared=True,
    ),
    "a call without an id": Difference(
        of("kimi-k2", "kimi-k2-thinking", "kimi-k2.5"),
        "either",
        "they refuse it; ours counts functions.NAME:N as Kimi's ids do; the template writes an empty one",
        [*calling()[:2], assistant("", tool_calls=[{k: held for k, held in call().items() if k != "id"}])],
        "functions.get:0",
        None,
    ),
    "reasoning of answers that are history by now": Difference(
        ("glm-5.2", "glm-5.2, high effort", "glm-5.3 that drops reasoning"),
        "ours",
        "they make one example, which trains answers without the reasoning that a later prompt drops",
        HISTORY,
        "⟦r</think>x",
        "⟦</think>x",
        avoid=recent_reasoning,
    ),
    "tools of GLM": Difference(
        GLM,
        "ours",
        "they sort the properties of a schema; the template writes them as they come",
        [SYSTEM, user(), assistant("y", reasoning_content="r")],
        '"properties": {"b": {}, "a": {}}',
        '"properties": {"a": {}, "b": {}}',
        UNSORTED,
        undeclared=True,
    ),
    "think tags in a content, glm": Difference(
        GLM,
        "ours",
        "they are text to them, after an empty block; the template reads them as the message's reasoning",
        [SYSTEM, user(), assistant("<think>\nr\n</think>\n\ny")],
        "<think>⟦\nr\n</think>y",
        "<think>⟦</think><think>\nr",
    ),
    "U+001C to U+001F at the ends of a text": Difference(
        (*QWEN35, *QWEN38, *GLM),
        "ours",
        "white space to Python, in which templates strip texts, and not to Rust: they stay",
        [SYSTEM, user(), assistant("y\x1f", reasoning_content="r")],
        "y<|",
        "y\x1f<|",
    ),
    "values in the schemas of Nemotron's tools": Difference(
        NEMOTRON,
        "ours",
        "they write JSON; the template prints values that are neither lists nor objects, and lists of types, as Python",
        [SYSTEM, user(), assistant("y", reasoning_content="r")],
        "<type>['string', 'null']</type>\n<description>d</description>\n<default>False</default>",
        '<type>["string", "null"]</type>\n<description> d </description>\n<default>false</default>',
        DECLARED,
    ),
    **{
        f"an empty description of a tool, {family}": Difference(
            names,
            "ours",
            "they write none; the template writes an empty one",
            [SYSTEM, user(), assistant("y", reasoning_content="r")],
            own,
            other,
            DECLARED,
        )
        for family, names, own, other in (
            ("nemotron-3", NEMOTRON, "<description></description>\n<parameters>", "<name>get</name>\n<parameters>"),
            ("gpt-oss", GPT_OSS, "\n\n// \ntype get", "{\n\ntype get"),
        )
    },
    **{
        f"think tags in a content, {family}": Difference(
            of(family, without=SILENT),
            "ours",
            "they are text to them, after an empty block; the template reads them as the message's reasoning",
            [SYSTEM, user(), assistant("<think>\nr\n</think>\n\ny")],
            opened,
            "</think>\n\n<think>\nr",
        )
        for family, opened in (("qwen3", "assistant\n⟦<think>\nr"), ("qwen3.5", "<think>\n⟦r"))
    },
    "think tags in a content, deepseek-r1": Difference(
        of("deepseek-r1"),
        "ours",
        "they are text to them, within the opened block; the template takes what is after the last as the content",
        [SYSTEM, user(), assistant("<think>\nr\n</think>\n\ny")],
        "<think>\n⟦r\n</think>\n\ny",
        "<think>\n⟦<think>\nr",
    ),
}


def texts(name: str, chat: Chat, *, tokens: bool) -> tuple[str | None, str | None]:
    """What the two write: the trained turns, then the prompt; `None` where it is refused."""

    def written(samples: Any, prompt: Any) -> str | None:
        messages, tools = chat
        try:
            turns = tml.turns_of(samples(name, messages, tools))
            ids = prompt(name, messages[:-1], tools)
        except (MessageError, ValueError):  # theirs are ValueErrors
            return None
        shown = [tml.tokens(name, turn.ids) if tokens else tml.told(name, turn) for turn in turns]
        return "\n".join([*shown, tml.tokens(name, ids) if tokens else tml.theirs(name).tokenizer.decode(ids)])

    as_they_are = partial(tml.their_samples, respelled=False)
    return written(tml.our_samples, tml.our_prompt), written(as_they_are, tml.their_prompt)


@pytest.mark.parametrize("case", DIFFERENCES)
def test_listed_differences(case: str) -> None:
    """A listed difference occurs for all that it names."""
    listed = DIFFERENCES[case]
    for name in listed.names:
        about_reasoning = case.startswith("reasoning")
        quiet = (name in SILENT or name in THOUGHTLESS) and not about_reasoning
        messages = without_reasoning(listed.messages) if quiet else listed.messages
        ours, theirs = texts(name, (messages, listed.tools), tokens=listed.tokens)
        for text, own, other in ((ours, listed.ours, listed.theirs), (theirs, listed.theirs, listed.ours)):
            assert (text is None) == (own is None), name
            if text is not None and own is not None:
                assert own in text, name
                assert not other or other not in text, name


# ---- all else is equal


def random_chat(rng: random.Random, name: str) -> Chat:
    """A conversation of what both know, without what is listed for the family."""
    case = tml.JUDGED[name]
    held: dict[str, Any] = {"inline": False, "nones": False, "flags": False, "parts": False, "text_arguments": False}
    held |= {"loose": False, "user_first": True, "late_system": False, "one_call": case.family == "gpt-oss"}
    wanted = Wanted(**held, **({"call_id": kimi_id} if case.family.startswith("kimi") else {}))
    messages, tools = conversation(rng, wanted, ends_with="assistant")
    for listed in DIFFERENCES.values():
        if name in listed.names:
            messages, tools = listed.avoid(messages), None if listed.undeclared else tools
    while messages and messages[-1]["role"] != "assistant":  # what is avoided may have been the end, or all of it
        messages = messages[:-1]
    return (messages, tools) if messages else random_chat(rng, name)


@pytest.mark.parametrize("number", [10, pytest.param(250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", tml.JUDGED)
def test_all_else_is_equal(name: str, number: int) -> None:
    """Ids, what is trained of them, and prompts; the samples are as many, or fewer where turns share one."""
    rng = random.Random(name)
    for _ in range(number):
        messages, tools = random_chat(rng, name)
        ours, theirs = tml.our_samples(name, messages, tools), tml.their_samples(name, messages, tools)
        assert tml.turns_of(ours) == tml.turns_of(theirs)
        assert len(ours) <= len(theirs)
        if messages[-2]["role"] != "assistant":
            assert tml.our_prompt(name, messages[:-1], tools) == tml.their_prompt(name, messages[:-1], tools)
