"""databricks-dolly-15k: one question, perhaps with a context, and one answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.inputs import Rejected
from niels_gpt.messages import Conversation, normalise
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.hub import HubDataset, StoredRows

REPO = "databricks/databricks-dolly-15k"


@dataclass(frozen=True)
class Dolly(StoredRows, ChatSource):
    """Conversations of dolly-15k: user = instruction, with `context:` behind a blank line where there is one."""

    dataset: HubDataset = field(default_factory=lambda: HubDataset(REPO))

    def row(self, row: dict[str, Any], where: str) -> Conversation | Rejected:
        """A conversation; `category` is in the metadata."""
        return conversation(row, where)


def conversation(row: dict[str, Any], where: str) -> Conversation | Rejected:
    """A row as a conversation."""
    missing = [key for key in ("instruction", "response") if not isinstance(row.get(key), str)]
    if missing:
        found = ", ".join(map(repr, row)) or "none"
        return Rejected(where, "missing_field", f"{where}: no text under {missing[0]!r}; keys found: {found}")
    question = row["instruction"]
    if isinstance(row.get("context"), str) and row["context"].strip():
        question += f"\n\ncontext:\n{row['context']}"
    try:
        messages = normalise([{"role": "user", "content": question}, {"role": "assistant", "content": row["response"]}])
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    return Conversation(messages, where=where, metadata={"category": row.get("category")})
