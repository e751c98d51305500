"""Calls that begin with a name and end at the next call: Mistral's, since Tekken v11."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from niels_gpt.renderers.conversation import Call, to_json
from niels_gpt.renderers.dialects.base import Arguments, Block, Schemas, call_block
from niels_gpt.renderers.dialects.json_values import strict_json
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion

_ID, _ARGUMENTS = "[CALL_ID]", "[ARGS]"


@dataclass(frozen=True)
class NamedCalls:
    """`[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`, one after the other, without a closing tag.

    Attributes:
        ids: calls are written with their ids; reading takes ids in any case.
    """

    opening: str = "[TOOL_CALLS]"
    ids: bool = True

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        out.model_markup(self.opening, msg)
        out.model_text(call.name, msg)
        if self.ids:
            out.model_markup(_ID, msg)
            out.model_text(call.id, msg)
        out.model_markup(_ARGUMENTS, msg)
        out.model_text(to_json(call.items, f"{call.where}.arguments"), msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        at = completion.find(self.opening, start)
        while at >= 0:
            following = completion.find(self.opening, at + len(self.opening))
            yield self._read_call(completion, at, len(completion.text) if following < 0 else following)
            at = following

    def _read_call(self, completion: Completion, at: int, stop: int) -> Block:
        """The call between its opening tag and the next one, or the end of the completion."""
        inner = at + len(self.opening)
        split = completion.find(_ARGUMENTS, inner, stop)
        head = stop if split < 0 else split
        id_at = completion.find(_ID, inner, head)
        name = completion.decoded(inner, head if id_at < 0 else id_at).strip() or None
        call_id = None if id_at < 0 else completion.decoded(id_at + len(_ID), head).strip() or None
        arguments: Arguments = None
        is_last = stop == len(completion.text) and not completion.stopped  # what is cut off may be unfinished
        status = Status.UNCLOSED_BLOCK if is_last else Status.MALFORMED_STRUCTURE
        if split >= 0:
            arguments = completion.decoded(split + len(_ARGUMENTS), stop).strip()
            try:
                value = strict_json(arguments)
            except ValueError:
                status = Status.UNCLOSED_BLOCK if is_last else Status.INVALID_JSON
            else:
                arguments = value if isinstance(value, dict) else arguments
                shape = Status.OK if isinstance(value, dict) else Status.MALFORMED_STRUCTURE
                status = shape if name else Status.MISSING_NAME
        return call_block(completion, (at, stop), (at, stop), name, arguments, status, call_id)
