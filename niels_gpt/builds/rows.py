"""Rows before they are encoded: the checks of documents and conversations, and batches of similar size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from niels_gpt.errors import MessageError
from niels_gpt.format.sft import check_chat
from niels_gpt.messages import (
    NOTHING_TRAINED,
    ChatMsg,
    Conversation,
    Message,
    check_text,
    is_untrained,
    read_conversation,
)
from niels_gpt.messages.tools import Tools
from niels_gpt.sources.files.inputs import Document, Rejected
from niels_gpt.sources.rejections import Rejections

BATCH_CHARACTERS = 1_000_000  # occupies all threads of an encoder, and needs little memory
BATCH_ROWS = 4096
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024

_UNTRAINED = "no assistant message is trained (train, weight), so the row is left out"

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
        _check_no_nul(text, "")
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    return document


def checked_conversations(
    examples: Iterable[Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected],
    rejections: Rejections,
    *,
    max_message_bytes: int,
    allow_message_weights: bool = False,
) -> Iterator[Conversation]:
    """The conversations that the sentinel format can express and that are trained; the others go to `rejections`.

    Args:
        max_message_bytes: the largest content of a message, as UTF-8.
        allow_message_weights: accept `train` and `weight` of messages, because weights are stored.

    Raises:
        DataError: too many bad rows, see `Rejections`.
    """
    checked = (
        _checked_conversation(number, row, max_message_bytes, allow_message_weights)
        for number, row in enumerate(examples)
    )
    return rejections.accepted(checked)


def _checked_conversation(
    number: int,
    row: Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected,
    max_message_bytes: int,
    allow_message_weights: bool,
) -> Conversation | Rejected:
    if isinstance(row, Rejected):
        return row
    where = row.where if isinstance(row, Conversation) else f"example {number}"
    try:
        chat = as_conversation(number, row)
        # Before the other checks: a row that is left out on purpose is no bad row, whatever else is wrong with it.
        if is_untrained(chat.messages):
            return Rejected(where, NOTHING_TRAINED, f"{where}: {_UNTRAINED}", expected=True)
        if chat.tools:
            raise MessageError("unsupported_field", "tools have no place in a format of plain text turns; remove them")
        if chat.chat_template_kwargs:
            given = ", ".join(chat.chat_template_kwargs)
            raise MessageError(
                "unknown_option",
                f"chat_template_kwargs is {given}; plain text turns have no options. Remove the column",
            )
        check_chat(chat.messages, allow_message_weights=allow_message_weights)
        if not any(message["role"] == "assistant" for message in chat.messages):
            raise MessageError("no_assistant", "no assistant message, so nothing would be trained; drop the row")
        _check_contents(chat.messages, max_message_bytes)
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    return chat


def as_conversation(number: int, row: Sequence[ChatMsg] | Sequence[Message] | Conversation) -> Conversation:
    """A row as a normalised conversation; a list of messages is named `example NUMBER`.

    Raises:
        MessageError: see `messages.normalise`.
    """
    if isinstance(row, Conversation):
        return row
    if isinstance(row, Mapping):
        raise MessageError(
            "messages_not_a_list",
            "the row is an object; expected its list of messages, or a Conversation. Rows of a datasets.Dataset: pass "
            "sources.chat_files.from_dataset(dataset)",
        )
    read = read_conversation(row)
    return Conversation(read.messages, f"example {number}", changes=read.changes, unread=read.unread)


def _check_no_nul(text: str, where: str) -> None:
    """Refuse NUL: it appears in binary data that was taken for text, and other tools end a string at it."""
    if "\0" in text:
        at = text.index("\0")
        raise MessageError(
            "nul_character", f"{where}a NUL at character {at}, as binary data has; repair it or drop the row"
        )


def _check_contents(messages: Sequence[Message], max_message_bytes: int) -> None:
    for index, message in enumerate(messages):
        _check_no_nul(str(message["content"]), f"message {index}: content holds ")
        # A character has at most four bytes in UTF-8: only a long text needs the exact count.
        if 4 * len(message["content"]) > max_message_bytes:
            size = len(str(message["content"]).encode())
            if size > max_message_bytes:
                raise MessageError(
                    "message_too_long",
                    f"message {index}: content has {size:,} bytes; at most {max_message_bytes:,} are allowed. "
                    "Split the row, or raise --max-message-bytes (max_message_bytes=)",
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
