"""Rows before they are encoded: the checks of documents, and batches of similar size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from niels_gpt.errors import MessageError
from niels_gpt.messages import (
    Message,
    check_text,
)
from niels_gpt.messages.tools import Tools
from niels_gpt.sources.files.inputs import Document, Rejected

BATCH_CHARACTERS = 1_000_000  # occupies all threads of an encoder, and needs little memory
BATCH_ROWS = 4096
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024

Row = TypeVar("Row")


def checked_documents(texts: Iterable[str | Document | Rejected]) -> Iterator[Document | Rejected]:
    """The documents in order, with `Rejected` in place of those that cannot be encoded, or have nothing to read."""
    return (_checked_document(number, text) for number, text in enumerate(texts))


def _checked_document(number: int, row: str | Document | Rejected) -> Document | Rejected:
    if isinstance(row, Rejected):
        return row
    document = row if isinstance(row, Document) else Document(f"document {number}", row)
    where, text = document.where, document.text
    if not isinstance(text, str):
        return Rejected(where, "wrong_type", f"{where}: a {type(text).__name__}; expected a string")
    if not text or text.isspace():
        # Expected: an empty text, or one of nothing but white space, is counted, but is none of the bad rows, which
        # have a limit.
        return Rejected(where, "empty", f"{where}: no text", expected=True)
    try:
        check_text(text)
        check_no_nul(text, "")
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    return document


def check_no_nul(text: str, where: str) -> None:
    """Refuse NUL: it appears in binary data that was taken for text, and other tools end a string at it."""
    if "\0" in text:
        at = text.index("\0")
        raise MessageError(
            "nul_character", f"{where}a NUL at character {at}, as binary data has; repair it or drop the row"
        )


def characters(messages: Sequence[Message], tools: Any = None) -> int:
    """About how many characters a conversation has, by which it is put into a batch."""
    size = 0 if tools is None else sum(map(len, tools.json_texts)) if isinstance(tools, Tools) else len(repr(tools))
    for message in messages:
        for value in message.values():  # `repr` of calls and parts takes a tenth of the time of rendering them
            size += len(value) if type(value) is str else len(repr(value))
    return size


def batches(rows: Iterable[Row], size: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Rows in lists of about `BATCH_CHARACTERS`, as `size` counts them, or at most `BATCH_ROWS` rows."""
    batch: list[Row] = []
    total = 0
    for row in rows:
        batch.append(row)
        total += size(row)
        # Also by rows: a million rows without any text would never fill a batch.
        if total >= BATCH_CHARACTERS or len(batch) >= BATCH_ROWS:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
