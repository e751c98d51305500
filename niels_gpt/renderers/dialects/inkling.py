"""TMLv0, the format of Inkling: a turn is one or several messages, each with a kind of content.

::

    <|content_thinking|>hm<|end_message|><|message_model|><|content_text|>hi<|end_message|>
    <|message_model|>f<|content_invoke_tool_json|>{"name":"f","args":{}}<|end_message|>

All of these markers are control tokens.
"""

from __future__ import annotations

import json

from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.parsed import ParsedToolCall
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window, hold
from niels_gpt.renderers.conversation import Call, sorted_json, to_json
from niels_gpt.renderers.dialects.base import Arguments, CallDialect, Schemas
from niels_gpt.renderers.dialects.json_values import parse_call_object, scan_call_object, strict_json
from niels_gpt.renderers.emitter import Emitter

MODEL, END = "<|message_model|>", "<|end_message|>"
TEXT, THINKING, CALL = "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"
_MARKERS = (TEXT, THINKING, CALL, END, MODEL)


class InklingCalls(CallDialect):
    """`f<|content_invoke_tool_json|>{"name":"f","args":{...}}<|end_message|>`: a message with a JSON object.

    Arguments are written without blanks, their keys sorted at every level. The name before the marker counts; where
    there is none, that of the object.
    """

    opening = CALL
    reads_reasoning = True

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`; the family writes `<|message_model|>`."""
        # Through `to_json`, which refuses what is no JSON: `sorted_json` takes only what it has let through.
        arguments = json.loads(to_json(call.items, f"{call.where}.arguments"))
        out.model_text(call.name, msg)
        out.model_markup(CALL, msg)
        out.model_text(f'{{"name":{to_json(call.name)},"args":{sorted_json(arguments)}}}', msg)
        out.model_markup(END, msg)

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`; the kind of a message distinguishes reasoning, content and calls.

        A message without a kind is content. So is a text before a kind that is not a call, where a model that does not
        follow the format may write it.
        """
        rest = Window(completion, start)
        while (yield from rest.has(start)):
            # A completion begins after the generation prompt, so its first message has no `<|message_model|>`.
            head = start + len(MODEL) if completion.find(MODEL, start) == start else start
            header = Window(completion, head, _MARKERS)
            yield from header.pass_on(hold)
            if header.marker == CALL:
                start = yield from self._scan_call(header, out)
                continue
            out.skip_to(head)
            out.content_to(header.stop)
            kind = header.marker
            if kind not in (TEXT, THINKING):
                start = header.stop + (len(END) if kind == END else 0)
                continue
            at = header.stop + len(kind)
            begin, take = (out.skip_to, out.content_to) if kind == TEXT else (out.begin_reasoning, out.reasoning_to)
            begin(at)
            text = Window(completion, at, _MARKERS)
            yield from text.pass_on(take)
            start = text.stop + (len(END) if text.marker == END else 0)

    @staticmethod
    def _scan_call(header: Window, out: ResponseBuilder) -> Steps[int]:
        """Report the call with this header; the character after it."""
        completion, head, at = header.completion, header.start, header.stop + len(CALL)
        name = completion.decoded(head, header.stop).strip() or None
        out.skip_to(head)
        out.open_call(head)
        out.name(name)
        body = Window(completion, at, _MARKERS)
        value = yield from body.skip_space(at)
        yield from scan_call_object(body, value, "args", out)
        yield from body.pass_on(hold)
        stop = body.stop + (len(END) if body.marker == END else 0)
        own_name: str | None = None
        arguments: Arguments = None
        try:
            own_name, arguments, status = parse_call_object(strict_json(completion.decoded(at, body.stop)), "args")
        except ValueError:
            status = Status.INVALID_JSON
        # The header's name is enough, even where the object has none.
        if status is Status.MISSING_NAME and name:
            status = Status.OK if isinstance(arguments, dict) else Status.MALFORMED_STRUCTURE
        if not body.marker and not completion.stopped:
            status = Status.UNCLOSED_BLOCK
        raw, tokens = completion.decoded(head, body.stop), completion.span(head, stop)
        out.close_call(ParsedToolCall(raw, name or own_name, arguments, tokens, status), stop)
        return stop
