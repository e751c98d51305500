"""The task that encodes conversations, for SFT caches and episodes (see `tasks.Task`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from niels_gpt.builds.encoder_protocol import ConversationEncoder, EncodedBatch
from niels_gpt.builds.images import ImageFolder
from niels_gpt.builds.tasks import Chunk, RowMetadata
from niels_gpt.errors import MessageError
from niels_gpt.messages import ChatMsg, Conversation, Message, ReadMessages, read_conversation, weight_of
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.sources.rows.chats import refuse_columns

Rows = Iterable[Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected]

# In a row's metadata: see `EncodedBatch`.
IMAGES: Final = "images"

# Reasons of rows that are rejected for a file, which may be another one in the next run.
FILE_REASONS: Final = frozenset({"broken_image", "image_outside", "image_refused"})


@dataclass(frozen=True)
class ConversationTask:
    """Encodes conversations.

    Args:
        mask_dtype: "uint8", "float32" or `None`; rows whose weights do not fit it are rejected.
        types: store type and source of each row.
        source_name: the `source` of rows that name none.
        images: the encoder's folder of images; those of each row are in the chunks' metadata.
    """

    encoder: ConversationEncoder
    mask_dtype: str | None
    types: bool = False
    source_name: str | None = None
    images: ImageFolder | None = None

    @property
    def binary_mask(self) -> bool:
        return self.mask_dtype == "uint8"

    def chunks(self, rows: Rows, rejections: Rejections) -> Iterator[Chunk]:
        for batch in self.encoder.encode(self._checked(rows), rejections):
            # Several samples may be of one conversation.
            for chat in {id(chat): chat for chat in batch.conversations if chat.unread}.values():
                rejections.unread.update([*chat.unread])
            groups = [chat.group for chat in batch.conversations]
            yield Chunk(batch.ids, batch.lengths, batch.weights, groups, self._metadata(batch))

    def is_current(self, contents: Iterable[Chunk | Rejected]) -> bool:
        if self.images is None:
            return True
        parts = list(contents)  # gone through twice, and perhaps read from a unit's files
        if any(isinstance(part, Rejected) and part.reason in FILE_REASONS for part in parts):
            return False
        rows = (row for part in parts if isinstance(part, Chunk) for row in part.metadata)
        return self.images.first_changed((one["path"], one["sha256"]) for row in rows for one in row[IMAGES]) is None

    def _checked(self, rows: Rows) -> Iterator[Conversation | Rejected]:
        """The rows as conversations; `Rejected` in place of one whose weights or metadata the files cannot hold."""
        for number, row in enumerate(rows):
            if isinstance(row, Rejected):
                yield row
                continue
            # Known before the row is read, because the error of a row that cannot be read also names it.
            where = row.where if isinstance(row, Conversation) else f"example {number}"
            try:
                chat = _as_conversation(number, row)
                refuse_columns(chat.metadata, chat.tools)
                if self.binary_mask:
                    _check_message_weights(chat)
                if self.types:
                    _check_metadata(chat)
            except MessageError as error:
                yield Rejected(where, error.reason, f"{where}: {error}")
            else:
                yield chat

    def _metadata(self, batch: EncodedBatch) -> Sequence[RowMetadata]:
        if not self.types and self.images is None:
            return ()
        rows: list[dict[str, Any]] = [{} for _ in batch.conversations]
        if self.types:  # the columns of `episodes.parquet`
            for row, chat in zip(rows, batch.conversations, strict=True):
                row["type"] = chat.metadata.get("type")
                row["source"] = chat.metadata.get("source") or self.source_name
                row["weight"] = 1.0
        if self.images is not None and batch.images is not None:
            for row, images in zip(rows, batch.images, strict=True):
                row[IMAGES] = [asdict(image) for image in images]
        return [*rows]


def _check_message_weights(chat: Conversation) -> None:
    for index, message in enumerate(chat.messages):
        if len(message) > 2 and (weight := weight_of(message)) not in (0.0, 1.0):  # else role and content only
            raise MessageError(
                "weight_needs_float32",
                f"message {index}: weight {weight}, but the mask holds 0 and 1; build episodes with --mask float32 "
                '(mask_dtype="float32")',
            )


def _check_metadata(chat: Conversation) -> None:
    for name in ("type", "source"):
        if not isinstance(chat.metadata.get(name, ""), str | None):
            raise MessageError("wrong_type", f"{name} is {chat.metadata[name]!r}; expected a string")


def _as_conversation(number: int, row: Sequence[ChatMsg] | Sequence[Message] | Conversation) -> Conversation:
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
    return Conversation(ReadMessages(read.messages), f"example {number}", changes=read.changes, unread=read.unread)
