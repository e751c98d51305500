"""Conversations as the rules take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.report import Evidence
from niels_gpt.doctor.tally import Tally
from niels_gpt.inputs import Record, Rejected
from niels_gpt.messages import Message, ToolSpec
from niels_gpt.sources.chat_file import conversation_of


@dataclass(frozen=True)
class ChatRow:
    """A conversation, its row in the input, and where that stands; `arrow`: it came through Arrow."""

    number: int
    where: str
    messages: list[Message]
    tools: list[ToolSpec] | None = None
    arrow: bool = False


def chat_rows(
    numbers: npt.NDArray[np.int64], records: Sequence[Record | Rejected], dialect: str, tally: Tally
) -> list[ChatRow]:
    """The conversations of a slice; rows that are none become hits."""
    usable: list[ChatRow] = []
    for number, record in zip(numbers.tolist(), records, strict=True):
        read = record if isinstance(record, Rejected) else conversation_of(record, dialect)
        if isinstance(read, Rejected):
            rule = "empty-row" if read.reason == "no_messages" else "unusable-row"
            tally.add(rule, [Evidence(row=number, where=read.where, note=read.why)])
        else:
            arrow = isinstance(record, Record) and record.arrow
            usable.append(ChatRow(number, read.where, read.messages, read.tools, arrow))
    return usable


def texts_of(message: Message) -> Sequence[str]:
    """The texts of a message's content."""
    content = message["content"]
    if isinstance(content, str):
        return (content,)
    return [part["text"] for part in content if isinstance(part.get("text"), str)]
