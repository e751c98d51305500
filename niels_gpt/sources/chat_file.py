"""Conversations from the user's own files: one JSON object per line with `messages`, and `tools` if there are any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.inputs import Record, Rejected, fingerprint, read_jsonl, the_file
from niels_gpt.messages import Conversation, normalise


@dataclass(frozen=True)
class ChatFile:
    """A JSON-lines file of conversations.

    Raises:
        InputError: the file is missing, a directory or empty (when read).
    """

    path: Path

    @property
    def name(self) -> str:
        """The name that caches record: the file's, without its ending."""
        return self.path.stem

    def config(self) -> dict[str, Any]:
        """What was read, by content: name, bytes and sha256. Reads the file once."""
        return {"inputs": fingerprint([the_file(self.path)])}

    def iterate(self) -> Iterator[Conversation | Rejected]:
        """The conversations in order, normalised; unusable rows as `Rejected`."""
        for record in read_jsonl(self.path):
            yield record if isinstance(record, Rejected) else _conversation(record)


def _conversation(record: Record) -> Conversation | Rejected:
    row, where = record.value, record.where
    if not isinstance(row, dict):
        found = type(row).__name__
        return Rejected(
            where, "row_not_an_object", f"{where}: the row is a {found}; expected an object with 'messages'"
        )
    if row.get("messages") is None:
        keys = ", ".join(map(repr, row)) or "none"
        return Rejected(where, "no_messages", f"{where}: no 'messages' in the row; keys found: {keys}")
    try:
        messages = normalise(row["messages"])
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    metadata = {key: value for key, value in row.items() if key not in ("messages", "tools")}
    return Conversation(messages, where=where, tools=row.get("tools") or None, metadata=metadata)
