"""Harmony, the format of gpt-oss: a turn is one or several messages, each with a channel and maybe a recipient.

::

    <|channel|>analysis<|message|>hm<|end|>
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>

The first part of this module reads the messages of a completion, the second writes and reads calls, and the third
(`namespace`) declares tools: a TypeScript-like namespace in the developer message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.parsed import ParsedToolCall
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window, hold, match_end
from niels_gpt.renderers.conversation import Call, as_mapping, to_json
from niels_gpt.renderers.dialects.base import Arguments, CallDialect, Schemas
from niels_gpt.renderers.dialects.json_values import parse_arguments
from niels_gpt.renderers.emitter import Emitter

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
# A role or a channel is one word: assistant, functions.f, analysis.
_ROLE = re.compile(r"[\w.:-]*")
# At the beginning of a word; the name ends before white space or `<|channel|>`.
_RECIPIENT = re.compile(r"(?<!\S)to=([^\s<]*)")


# ---- the messages of a completion


@dataclass(frozen=True)
class HarmonyMessage:
    """A message in a completion; all places are characters of the completion's text.

    Attributes:
        start: the start of its header, after the role.
        text_start, stop: the edges of its text; after `stop` come `<|end|>`, a stop, or nothing.
        channel: "" for none.
        recipient: the place of `to=` and the name after it; `None`: the message is for the user.
        has_full_header: the header ends in `<|message|>`.
        truncated: the message has no end.
    """

    start: int
    text_start: int
    stop: int
    channel: str
    recipient: tuple[int, str] | None
    has_full_header: bool
    truncated: bool


def _read_message(completion: Completion, start: int, stop: int, *, truncated: bool) -> HarmonyMessage:
    text, has_start = completion.text, completion.find(START, start, stop) == start
    at = match_end(_ROLE, text, start + len(START), stop) if has_start else start
    # All places are -1 where a marker is missing, as in the header of a model that forgot the format.
    message = completion.find(MESSAGE, at, stop)
    header_end = stop if message < 0 else message
    marker = completion.find(CHANNEL, at, header_end)
    channel_end = match_end(_ROLE, text, marker + len(CHANNEL), header_end) if marker >= 0 else at
    recipient = _RECIPIENT.search(text, at, header_end)
    # A model that forgot the format writes plain text. There, `to=` is a recipient only at the very beginning.
    plain = message < 0 and marker < 0 and not has_start
    if recipient and plain and text[at : recipient.start()].strip():
        recipient = None
    # Text may follow half a header, but not where the header itself was truncated.
    after_half_header = channel_end if plain or not truncated else stop
    return HarmonyMessage(
        start=at,
        text_start=message + len(MESSAGE) if message >= 0 else after_half_header,
        stop=stop,
        channel=completion.decoded(marker + len(CHANNEL), channel_end) if marker >= 0 else "",
        recipient=(recipient.start(), completion.decoded(*recipient.span(1))) if recipient else None,
        has_full_header=message >= 0,
        truncated=truncated,
    )


# ---- calls


@dataclass(frozen=True)
class HarmonyCalls(CallDialect):
    """` to=functions.f<|channel|>commentary json<|message|>{...}<|call|>`: a message to a function."""

    opening: str = " to="
    closing: str = "<|call|>"
    reads_reasoning = True

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        out.model_markup(f"{self.opening}functions.", msg)
        out.model_text(call.name, msg)
        # The template writes the `content_type` of a call that has one, else json.
        out.model_markup(f"{CHANNEL}commentary json{MESSAGE}", msg)
        out.model_text(call.json, msg)
        out.stop(self.closing, msg)

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`: analysis is reasoning, a message to a function is a call, all others are content.

        A recipient is read before the channel, where `write` puts it, and after it. What has no full header is known
        only where the message ends.
        """
        rest = Window(completion, start)
        while (yield from rest.has(start)):
            header = Window(completion, start, (MESSAGE, END))
            yield from header.pass_on(hold)
            read_to = header.stop + len(MESSAGE) if header.marker == MESSAGE else header.stop
            is_cut = not header.marker and not completion.stopped
            message = _read_message(completion, start, read_to, truncated=is_cut)
            if message.recipient is not None:
                start = yield from self._scan_call(completion, start, message, out)
                continue
            is_reasoning = message.channel == "analysis"
            begin, take = (out.begin_reasoning, out.reasoning_to) if is_reasoning else (out.skip_to, out.content_to)
            begin(message.text_start)
            text = Window(completion, message.text_start, (END,))
            yield from text.pass_on(take)
            # A marker is "" where the completion ended instead, which then has no more messages.
            start = text.stop + len(text.marker)

    def _scan_call(
        self, completion: Completion, start: int, message: HarmonyMessage, out: ResponseBuilder
    ) -> Steps[int]:
        """Report the call whose header is known; the character after it."""
        _, recipient = message.recipient or (0, "")
        out.skip_to(message.start)
        out.open_call(message.start)
        text = Window(completion, message.text_start, (END,))
        if message.has_full_header:
            out.name(_function_of(recipient))
            out.begin_argument(message.text_start)
            yield from text.pass_on(out.argument_to)
            out.end_argument(text.stop)
        else:
            yield from text.pass_on(hold)
        is_cut = not text.marker and not completion.stopped
        # Read again to the end: without a full header, what the text is shows only there.
        message = _read_message(completion, start, text.stop, truncated=is_cut)
        to, recipient = message.recipient or (0, "")
        name = _function_of(recipient)
        arguments: Arguments = None
        status = Status.MALFORMED_STRUCTURE
        if message.has_full_header:
            arguments, status = parse_arguments(completion.decoded(message.text_start, message.stop), name)
        if message.truncated:
            status = Status.UNCLOSED_BLOCK
        elif name is None:
            status = Status.MISSING_NAME
        first, last = completion.span(message.start, message.stop)
        last += not message.truncated  # the token that ends the message belongs to the call
        raw = completion.decoded(to + len("to="), message.stop)
        out.close_call(ParsedToolCall(raw, name, arguments, (first, last), status), text.stop)
        return text.stop + len(text.marker)


def _function_of(recipient: str) -> str | None:
    return recipient.removeprefix("functions.") or None


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
