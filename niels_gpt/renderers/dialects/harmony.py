"""Harmony, the format of gpt-oss: a turn is one or several messages, each with a channel and maybe a recipient.

::

    <|channel|>analysis<|message|>hm<|end|>
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>

The first part of this module writes and reads calls and the messages of a completion; the second (`namespace`)
declares tools: a TypeScript-like namespace in the developer message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.messages.tools import to_json
from niels_gpt.renderers.completions.blocks import Block, Schemas
from niels_gpt.renderers.completions.parsed import ParsedToolCall
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import Call, as_mapping
from niels_gpt.renderers.dialects.base import Arguments, CallDialect, end_of
from niels_gpt.renderers.dialects.json_values import parse_arguments
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import Kind

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
# A role or a channel is one word: assistant, functions.f, analysis.
_ROLE = re.compile(r"[\w.:-]*")
# At the beginning of a word; the name ends before white space or `<|channel|>`.
_RECIPIENT = re.compile(r"(?<!\S)to=([^\s<]*)")
# What may follow a channel: the type of the content.
_TYPE = re.compile(r"\s*(?:<\|constrain\|>)?\s*[\w./-]*\s*")


@dataclass(frozen=True)
class _Header:
    """The header of a message; all places are characters of the completion's text.

    Attributes:
        start, stop: after the role, up to the text of the message.
        words: a stretch before the channel and the recipient that belongs to no header; rest: what follows the channel.
        channel: "" for none; is_full: it ends in `<|message|>`.
        recipient: the place of `to=` and the name after it; `None`: the message is for the user.
        is_known: the rest is what a header may hold.
    """

    start: int
    stop: int
    words: tuple[int, int]
    rest: tuple[int, int]
    channel: str
    is_full: bool
    recipient: tuple[int, str] | None
    is_known: bool


def _header(completion: Completion, start: int, stop: int, *, is_cut: bool) -> _Header:
    """The header that begins at a character, in a message that goes on to `stop`, where the completion may be cut."""
    text, has_start = completion.text, completion.find(START, start, stop) == start
    at = end_of(_ROLE, text, start + len(START), stop) if has_start else start
    # All places are -1 where a marker is missing, as in the header of a model that forgot the format.
    message = completion.find(MESSAGE, at, stop)
    header_end = stop if message < 0 else message
    marker = completion.find(CHANNEL, at, header_end)
    channel_end = end_of(_ROLE, text, marker + len(CHANNEL), header_end) if marker >= 0 else at
    found = _RECIPIENT.search(text, at, header_end)
    # A model that forgot the format writes plain text. There, `to=` is a recipient only at the very beginning.
    is_plain = message < 0 and marker < 0 and not has_start
    if found and is_plain and text[at : found.start()].strip():
        found = None
    recipient = (found.start(), completion.decoded(*found.span(1))) if found else None
    is_half = is_cut and message < 0 and not is_plain  # the completion was cut within the header
    first = min([place for place in (marker, found.start() if found else -1, message) if place >= 0], default=at)
    held = text[at:first].rstrip()
    words = (at, at) if is_half or not held else (at, at + len(held))
    rest = (channel_end, header_end) if message >= 0 else (channel_end, channel_end)
    if marker < 0 and message >= 0:
        rest = (words[1], header_end)
    held = text[slice(*rest)]
    if found and rest[0] <= found.start() < rest[1]:
        held = held.replace(found.group(), " ", 1)
    # Text may follow half a header, but not where the header itself was cut.
    text_at = message + len(MESSAGE) if message >= 0 else stop if is_half else channel_end
    channel = completion.decoded(marker + len(CHANNEL), channel_end) if marker >= 0 else ""
    is_known = _TYPE.fullmatch(held) is not None
    return _Header(words[1], text_at, words, rest, channel, message >= 0, recipient, is_known)


@dataclass(frozen=True)
class HarmonyCalls(CallDialect):
    """` to=functions.f<|channel|>commentary json<|message|>{...}<|call|>`: a message to a function."""

    opening: str = " to="
    closing: str = "<|call|>"
    reads_reasoning = True
    marks = (MESSAGE, END)
    texts = (MESSAGE,)
    ends = (END,)

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        out.model_markup(f"{self.opening}functions.", msg)
        out.model_text(call.name, msg)
        # The template writes the `content_type` of a call that has one, else json.
        out.model_markup(f"{CHANNEL}commentary json{MESSAGE}", msg)
        out.model_text(call.json, msg)
        out.stop(self.closing, msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """Analysis is reasoning, a message to a function is a call, all others are content.

        So are words between two messages, and those in a header that are no part of one. A recipient is read before
        the channel, where `write` puts it, and after it.
        """
        text = completion.text
        while start < len(text):
            header_end, tag = completion.first(start, (MESSAGE, END))
            begin, found = completion.first(start, (START,), header_end)
            if found and text[start:begin].strip():  # words before `<|start|>`
                yield Block(start, begin, kind=Kind.REPLY)
                start = begin
            read_to = header_end + (len(tag) if tag == MESSAGE else 0)
            header = _header(completion, start, read_to, is_cut=not tag and not completion.stopped)
            yield Block(start, header.words[0])
            yield Block(*header.words, kind=Kind.REPLY)
            stop, tag = completion.first(header.stop, (END,))
            start = stop + len(tag)
            if header.recipient is not None:
                yield _call(completion, header, stop, tag)
                continue
            if header.is_known:
                yield Block(header.start, header.stop)
            else:
                yield Block(header.start, header.rest[0])
                yield Block(*header.rest, kind=Kind.REPLY)
                yield Block(header.rest[1], header.stop)
            yield Block(header.stop, stop, kind=Kind.REASONING if header.channel == "analysis" else Kind.REPLY)
            if tag:
                yield Block(stop, start)


def _call(completion: Completion, header: _Header, stop: int, tag: str) -> Block:
    """The call with a header, whose text goes on to `stop`, where `tag` is, "" for none."""
    is_cut = not tag and not completion.stopped
    # Read again to the end: without `<|message|>`, what the text is shows only there.
    header = header if header.is_full else _header(completion, header.start, stop, is_cut=is_cut)
    to, recipient = header.recipient or (0, "")
    name = recipient.removeprefix("functions.") or None
    arguments: Arguments = None
    status = Status.MALFORMED_STRUCTURE
    if header.is_full:
        arguments, status = parse_arguments(completion.decoded(header.stop, stop), name)
    if is_cut:
        status = Status.UNCLOSED_BLOCK
    elif name is None:
        status = Status.MISSING_NAME
    elif status is Status.OK and not header.is_known:
        status = Status.MALFORMED_STRUCTURE
    first, last = completion.span(header.start, stop)
    last += not is_cut  # the token that ends the message belongs to the call
    raw = completion.decoded(to + len("to="), stop)
    return Block(header.start, stop + len(tag), ParsedToolCall(raw, name, arguments, (first, last), status))


# ---- declarations

_ITEMS = {"string": "string[]", "number": "number[]", "integer": "number[]", "boolean": "boolean[]"}
_PLAIN = {"object": "object", "number": "number", "integer": "number", "boolean": "boolean"}
# White space that the official template writes in these two places; models have been trained with it.
_INDENT = "\n" + 16 * " "
_DEFAULT_INDENT = 20 * " "


def namespace(name: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """All functions of a namespace. Where a schema should be and is none, the type is `any`, as in the template.

    Raises:
        MessageError: `wrong_tools`: a schema that is nested too deeply.
    """
    try:
        functions = "".join(map(_function, tools))
    except RecursionError as error:
        raise MessageError(
            "wrong_tools", "tools: a schema is nested too deeply to declare; expected some tens of levels. Flatten it"
        ) from error
    return f"## {name}\n\nnamespace {name} {{\n\n{functions}}} // namespace {name}"


def _function(tool: Mapping[str, Any]) -> str:
    function = tool["function"]
    parameters = as_mapping(function.get("parameters"))
    properties = as_mapping(parameters.get("properties"))
    comment = f"// {function['description']}\n" if function.get("description") is not None else ""
    if not properties:
        return f"{comment}type {function['name']} = () => any;\n\n"
    required, lines = _list(parameters.get("required")), ""
    for key, value in properties.items():
        spec, default = as_mapping(value), ""
        # The template begins most defaults with a comma and writes one after every parameter, so there are two.
        if "default" in spec and spec.get("enum"):
            default = f", // default: {spec['default']}"
        elif "default" in spec and spec.get("oneOf"):
            default = f"// default: {spec['default']}"
        elif "default" in spec:
            default = f", // default: {to_json(spec['default'])}"
        described = f"// {spec['description']}\n" if spec.get("description") else ""
        lines += f"{described}{key}{'' if key in required else '?'}: {_type(spec)}{default},\n"
    return f"{comment}type {function['name']} = (_: {{\n{lines}}}) => any;\n\n"


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _type(spec: Mapping[str, Any]) -> str:
    """The type that a JSON schema allows; the branches are in the order of the template's."""
    kind, or_null = spec.get("type"), " | null" if spec.get("nullable") else ""
    if kind == "array":
        items = spec.get("items")
        inner = _ITEMS.get(str(as_mapping(items).get("type"))) if items else "any[]"
        if not inner:
            inner = _type(as_mapping(items))
            # As in the template, a list is `any[]` if its items are `object | object` or their type is longer than 50.
            inner = "any[]" if inner == "object | object" or len(inner) > 50 else inner + "[]"
        return inner + or_null
    if isinstance(kind, list) and kind:
        return " | ".join(map(str, kind))
    if variants := list(map(as_mapping, _list(spec.get("oneOf")))):
        # The template means to write `any` for several variants of which one is an object, but it sets the variable for
        # this inside a loop, which Jinja's variables do not leave.
        return " | \n".join(
            _type(each)
            + (f"// {each['description']}" if each.get("description") else "")
            + (f"{_DEFAULT_INDENT}// default: {to_json(each['default'])}" if "default" in each else "")
            for each in variants
        )
    if kind == "string":
        if values := _list(spec.get("enum")):
            return '"' + '" | "'.join(map(str, values)) + '"'
        return "string" + or_null
    if kind == "object" and (properties := as_mapping(spec.get("properties"))):
        required = _list(spec.get("required"))
        fields = (
            f"{key}{'' if key in required else '?'}: {_INDENT}{_type(as_mapping(each))}"
            for key, each in properties.items()
        )
        return "{\n" + ", ".join(fields) + "}"
    # Only strings and lists can be null in the template.
    return _PLAIN.get(str(kind), "any")
