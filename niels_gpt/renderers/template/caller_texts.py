"""Keeps the caller's texts text: no role, label or content of a conversation becomes a control token.

Where nothing shows whose a control token is, it is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.kinds import CONTROL, SAMPLED, Kind
from niels_gpt.renderers.template.controls import CONTENT_FIELDS
from niels_gpt.renderers.template.letters import STANDARD_WORDS, Writer
from niels_gpt.renderers.template.proofs.proof import Ints
from niels_gpt.renderers.template.stretches import Stretch
from niels_gpt.renderers.template.strings import strings_in


def check_roles(writer: Writer, messages: Sequence[Message], text: str, stretches: Sequence[Stretch]) -> None:
    """Refuse a role of the caller's that would be part of a control token."""
    others = {message["role"] for message in messages} - writer.roles
    written = [stretch for stretch in stretches if stretch.leaf.text in others] if others else []
    for start, stop in writer.controls.places(text) if written else ():
        for stretch in written:
            if stretch.leaf.message < 0 and stretch.start < stop and start < stretch.stop:
                role, roles = stretch.leaf.text, ", ".join(sorted(writer.roles))
                raise MessageError(
                    "unknown_role_in_control_token",
                    f"the role {role[:40]!r} would be part of the control token {text[start:stop]!r}; expected one "
                    f"of {roles}. If the format has this role, pass roles=({role[:40]!r},)",
                )


def keep_texts(
    writer: Writer,
    states: Ints,
    text: str,
    inputs: tuple[list[Message], Any],
    stretches: list[Stretch] | None,
    doubted: set[str],
) -> str:
    """Take from the states what would make control tokens of the caller's texts.

    Args:
        writer: knows the control tokens and roles.
        states: as `states_of` returns them, changed in place.
        text: the output.
        inputs: the messages and the tools.
        stretches: of labels, and of contents where they are seen; `None` if nothing shows them.
        doubted: control tokens that may be of texts.

    Returns:
        Why it is not certain of which texts control tokens are; "" if it is.
    """
    messages, tools = inputs
    for stretch in stretches or ():
        inside, owner = states[stretch.start : stretch.stop], stretch.leaf.message
        _become_text(inside)
        if owner >= 0 and messages[owner]["role"] != "assistant":  # signs that have no letter, such as quotes
            inside[inside == (owner << 4 | Kind.LABEL)] = owner << 4 | Kind.CONTEXT
    labels = set[str]()
    if stretches is None:
        known = [{key: one for key, one in message.items() if key not in CONTENT_FIELDS} for message in messages]
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        called = [{**call, "function": {**call["function"], "arguments": None}} for call in calls]
        labels = {*strings_in([known, called, tools])} - STANDARD_WORDS - Message.__annotations__.keys() - writer.roles
        labels.discard("")
    if not doubted and not labels:
        return ""
    uncertain = dict[str, None]()
    for start, stop in writer.controls.places(text):
        token, inside = text[start:stop], states[start:stop]
        is_doubted = token in doubted or any(token in label or label in token for label in labels)
        if is_doubted and (inside & CONTROL).any():
            _become_text(inside)
            uncertain[repr(token)] = None
    named = ", ".join(uncertain)
    return f"the output does not show whether {named} is of the template or of a text" if named else ""


def as_text(fact: int, messages: Sequence[Message]) -> int:
    """The message and kind of text of a caller's that stands where the template writes."""
    is_read = fact >= 0 and messages[fact >> 4]["role"] != "assistant"
    return fact & ~15 | (Kind.REPLY if fact & SAMPLED else Kind.CONTEXT if is_read else Kind.LABEL)


def _become_text(states: Ints) -> None:
    """Make scaffold a label in place, or, where the model emits it, a part of its reply."""
    as_text = states & ~15 | np.where(states & SAMPLED, int(Kind.REPLY), int(Kind.LABEL))
    states[:] = np.where(states & CONTROL, as_text, states)
