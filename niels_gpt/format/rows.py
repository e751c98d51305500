"""Rows on their way into a cache: which can be used, and in what portions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from niels_gpt.errors import MessageError
from niels_gpt.format.sft import check_chat
from niels_gpt.inputs import Document, Rejected
from niels_gpt.messages import (
    NOTHING_TRAINED,
    ChatMsg,
    Conversation,
    Message,
    check_text,
    is_untrained,
    normalise,
)
from niels_gpt.sources.rejections import Rejections

BATCH_CHARACTERS = 1_000_000
BATCH_ROWS = 4096

_UNTRAINED = "no assistant message counts (train, weight), so nothing would be trained"

Row = TypeVar("Row")


def judged_documents(texts: Iterable[str | Document | Rejected]) -> Iterator[Document | Rejected]:
    """The documents that can be encoded, in order; in place of the others, empty ones among them, why they cannot."""
    return (_judged_document(number, given) for number, given in enumerate(texts))


def _judged_document(number: int, given: str | Document | Rejected) -> Document | Rejected:
    if isinstance(given, Rejected):
        return given
    document = given if isinstance(given, Document) else Document(f"document {number}", given)
    where, text = document.where, document.text
    if not isinstance(text, str):
        return Rejected(where, "wrong_type", f"{where}: a {type(text).__name__}; expected a string")
    if not text:
        return Rejected(where, "empty", f"{where}: no text", expected=True)
    try:
        check_text(text)
        _check_no_nul(text, "")
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    return document


def usable_chats(
    examples: Iterable[Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected],
    rejections: Rejections,
    *,
    max_message_bytes: int,
    keeps_flags: bool = False,
) -> Iterator[Conversation]:
    """The conversations that document 000's format can express and that train something; others to `rejections`.

    Args:
        keeps_flags: the mask is stored, so that `train` and `weight` of a message can be kept.

    Raises:
        DataError: too many bad rows, see `Rejections`.
    """
    judged = (_judged_chat(number, given, max_message_bytes, keeps_flags) for number, given in enumerate(examples))
    return rejections.usable(judged)


def _judged_chat(
    number: int,
    given: Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected,
    max_message_bytes: int,
    keeps_flags: bool,
) -> Conversation | Rejected:
    if isinstance(given, Rejected):
        return given
    where = given.where if isinstance(given, Conversation) else f"example {number}"
    try:
        chat = conversation_of(number, given)
        if is_untrained(chat.messages):
            return Rejected(where, NOTHING_TRAINED, f"{where}: {_UNTRAINED}", expected=True)
        if chat.tools:
            raise MessageError("unsupported_field", "tools have no place in a format of plain text turns; remove them")
        check_chat(chat.messages, keeps_flags=keeps_flags)
        _check_trains(chat.messages)
        _check_contents(chat.messages, max_message_bytes)
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    return chat


def conversation_of(number: int, given: Sequence[ChatMsg] | Sequence[Message] | Conversation) -> Conversation:
    """A row as a conversation, normalised; a bare list of messages is named by its number.

    Raises:
        MessageError: see `messages.normalise`.
    """
    if isinstance(given, Conversation):
        return given
    if isinstance(given, Mapping):
        raise MessageError(
            "messages_not_a_list",
            "the row is an object; expected its list of messages, or a Conversation. Rows of a datasets.Dataset: pass "
            "sources.chat_file.from_dataset(dataset)",
        )
    return Conversation(normalise(given), where=f"example {number}")


def _check_trains(messages: Sequence[Message]) -> None:
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        raise MessageError("no_assistant", "no assistant message, so nothing would be trained; drop the row")


def _check_no_nul(text: str, where: str) -> None:
    """A NUL is what binary data looks like, and it ends strings in other tools."""
    if "\0" in text:
        at = text.index("\0")
        raise MessageError(
            "nul_character", f"{where}a NUL at character {at}, as binary data has; repair it or drop the row"
        )


def _check_contents(messages: Sequence[Message], max_message_bytes: int) -> None:
    for index, message in enumerate(messages):
        _check_no_nul(str(message["content"]), f"message {index}: content holds ")
        # A character has at most four bytes: the exact count is taken only where it can matter.
        if 4 * len(message["content"]) > max_message_bytes:
            size = len(str(message["content"]).encode())
            if size > max_message_bytes:
                raise MessageError(
                    "message_too_long",
                    f"message {index}: content has {size:,} bytes; at most {max_message_bytes:,} are allowed. "
                    "Split the row, or raise --max-message-bytes (max_message_bytes=)",
                )


def characters(messages: Sequence[Message]) -> int:
    """The size of a conversation, in characters of content."""
    return sum(len(message["content"]) for message in messages)


def batches(rows: Iterable[Row], size: Callable[[Row], int], *, limit: int = BATCH_CHARACTERS) -> Iterator[list[Row]]:
    """Rows in lists of about `limit` (in characters, or what `size` counts): enough for all threads, little to hold."""
    batch: list[Row] = []
    total = 0
    for row in rows:
        batch.append(row)
        total += size(row)
        if total >= limit or len(batch) >= BATCH_ROWS:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
