"""Which control tokens a rendering spells, and whether each is the template's own (DESIGN 2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import Message
from niels_gpt.renderers.traced import LOST
from niels_gpt.renderers.turns import Controls, Run

UNKNOWN_ROLE: Final = -5  # an origin: a role that templates may write, but not into a control token

# Roles of the formats in use. Templates write them into control tokens (`'<|' + message.role + '|>'`).
KNOWN_ROLES: Final = frozenset(
    {
        "system",
        "developer",
        "user",
        "assistant",
        "model",
        "chatbot",
        "tool",
        "function",
        "ipython",
        "observation",
        "environment",
        "context",
    }
)


def check_controls(runs: Sequence[Run], messages: Sequence[Message], held: Any, controls: Controls) -> None:
    """Refuse control tokens of which it is not known whether the template means them.

    Text of a caller never becomes a control token, so one that is only partly a literal stays text. Two cases are
    not decided so: a role that is not known, and text whose origin is lost although no text of the caller has it.

    Args:
        held: what else the caller gave (tools, variables).

    Raises:
        MessageError: `unknown_role_in_control_token`.
        TemplateError: the template writes a control token through an operation that keeps no origins.
    """
    doubtful = {run.origin for run in runs} & {LOST, UNKNOWN_ROLE}
    if not doubtful:
        return
    for spelling, parts in _spelled(runs, controls):
        role = next((run for run in parts if run.origin == UNKNOWN_ROLE), None)
        if role is not None:
            raise MessageError(
                "unknown_role_in_control_token",
                f"the role {role.text[:40]!r} would be part of the control token {spelling!r}; expected one of "
                f"{', '.join(sorted(KNOWN_ROLES))}. If the format has this role, pass roles=({role.text[:40]!r},)",
            )
        if any(run.origin == LOST for run in parts) and not _holds((messages, held), spelling):
            raise TemplateError(
                f"the chat template writes the control token {spelling!r} through an operation that does not keep "
                "where text comes from, so that it cannot be told from text of the messages; write it as a string "
                "constant and join it with + or ~"
            )


def _spelled(runs: Sequence[Run], controls: Controls) -> Iterator[tuple[str, list[Run]]]:
    """Each control token that the text spells, and the runs that it goes through."""
    at, number = 0, 0
    for start, end in controls.places("".join(run.text for run in runs)):
        while at + len(runs[number].text) <= start:
            at += len(runs[number].text)
            number += 1
        parts, stop, last = [runs[number]], at + len(runs[number].text), number
        while stop < end:
            last += 1
            parts.append(runs[last])
            stop += len(runs[last].text)
        spelling = "".join(run.text for run in runs[number : last + 1])[start - at : end - at]
        yield spelling, parts


def _holds(value: Any, text: str) -> bool:
    """Some string in a value holds this text."""
    if isinstance(value, str):
        return text in value
    if isinstance(value, dict):
        return any(_holds(key, text) or _holds(held, text) for key, held in value.items())
    return isinstance(value, list | tuple) and any(_holds(held, text) for held in value)
