"""TMLv0, the format of Inkling: a turn is one or several messages, each with a kind of content.

::

    <|content_thinking|>hm<|end_message|><|message_model|><|content_text|>hi<|end_message|>
    <|message_model|>f<|content_invoke_tool_json|>{"name":"f","args":{}}<|end_message|>

All of these markers are control tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from niels_gpt.messages.tools import to_json
from niels_gpt.renderers.completions.blocks import Block, Schemas
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import Call, sorted_json
from niels_gpt.renderers.dialects.base import Arguments, CallDialect, call_block
from niels_gpt.renderers.dialects.json_values import KeyTwice, parse_call_object, strict_json
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import Kind

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
    marks = _MARKERS
    texts = (TEXT, THINKING)
    ends = (END, MODEL, *texts, CALL)

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """The family writes `<|message_model|>`."""
        # Through `to_json`, which refuses what is no JSON: `sorted_json` takes only what it has let through.
        arguments = json.loads(call.json)
        out.model_text(call.name, msg)
        out.model_markup(CALL, msg)
        out.model_text(f'{{"name":{to_json(call.name)},"args":{sorted_json(arguments)}}}', msg)
        out.model_markup(END, msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """The kind of a message distinguishes reasoning, content and calls.

        A message without a kind is content. So is a text before a kind that is not a call, where a model that does not
        follow the format may write it.
        """
        while start < len(completion.text):
            # A completion begins after the generation prompt, so its first message has no `<|message_model|>`.
            head = start + len(MODEL) if completion.find(MODEL, start) == start else start
            yield Block(start, head)
            at, kind = completion.first(head, _MARKERS)
            if kind == CALL:
                yield (block := _call(completion, head, at))
                start = block.stop
                continue
            yield Block(head, at, kind=Kind.REPLY)
            start = at
            if kind in (TEXT, THINKING):
                begin = at + len(kind)
                yield Block(at, begin)
                start, kind = completion.first(begin, _MARKERS)
                yield Block(begin, start, kind=Kind.REPLY if completion.text.startswith(TEXT, at) else Kind.REASONING)
            if kind == END:
                yield Block(start, start + len(END))
                start += len(END)


def _call(completion: Completion, head: int, header_end: int) -> Block:
    """The call whose header is between two characters."""
    name = completion.decoded(head, header_end).strip() or None
    at = header_end + len(CALL)
    end, tag = completion.first(at, _MARKERS)
    own_name: str | None = None
    arguments: Arguments = None
    try:
        own_name, arguments, status, _ = parse_call_object(strict_json(completion.decoded(at, end)), "args")
    except KeyTwice:
        status = Status.MALFORMED_STRUCTURE
    except ValueError:
        status = Status.INVALID_JSON
    # The header's name is enough, even where the object has none.
    if status is Status.MISSING_NAME and name:
        status = Status.OK if isinstance(arguments, dict) else Status.MALFORMED_STRUCTURE
    if not tag and not completion.stopped:
        status = Status.UNCLOSED_BLOCK
    stop = end + (len(END) if tag == END else 0)
    return call_block(completion, (head, stop), (head, end), name or own_name, arguments, status)
