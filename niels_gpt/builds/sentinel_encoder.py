"""Conversations to ids and loss weights in the sentinel format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.encoder_protocol import CacheTokenizer, EncodedBatch, check_cache_tokenizer, check_ids
from niels_gpt.builds.rows import MAX_MESSAGE_BYTES, batches, characters, check_no_nul
from niels_gpt.errors import MessageError
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT, check_chat, serialize_chats
from niels_gpt.messages import NOTHING_TRAINED, Conversation, is_untrained, weight_of
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.store.masks import assistant_mask
from niels_gpt.store.tokenizer_hash import tokenizer_sha256


class SentinelEncoder:
    """Encodes in the sentinel format of `niels_gpt.format.sft`; `train` and `weight` of a message go into the weights.

    Args:
        default_system_text: the system turn of conversations that have none.
        max_message_bytes: rows with a longer message are rejected.
        num_threads: threads for encoding; the ids do not depend on it.
        allow_message_weights: if false, rows with `train` or `weight` are rejected: an SFT cache with sentinels stores
            no mask that could hold them.

    Raises:
        UsageError: the tokenizer lacks a method. TokenizerError: its special ids are missing, shared or too large.
    """

    def __init__(
        self,
        tokenizer: CacheTokenizer,
        *,
        default_system_text: str = DEFAULT_SYSTEM_TEXT,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        num_threads: int | None = None,
        allow_message_weights: bool = True,
    ) -> None:
        self._allow_message_weights = allow_message_weights
        self._special = check_cache_tokenizer(tokenizer)
        self._tokenizer = tokenizer
        self._default_system_text = default_system_text
        self._max_message_bytes = max_message_bytes
        self._num_threads = num_threads

    @property
    def identified(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int | None:
        return self._tokenizer.vocab_size

    def describe(self) -> dict[str, Any]:
        return {
            "encoder": "sentinels",
            "tokenizer_sha256": tokenizer_sha256(self._tokenizer),
            "template_sha256": None,
            "special_token_ids": self._special,
            "default_system_text": self._default_system_text,
            "max_message_bytes": self._max_message_bytes,
        }

    def encode(self, rows: Iterable[Conversation | Rejected], rejections: Rejections) -> Iterator[EncodedBatch]:
        chats = rejections.accepted(row if isinstance(row, Rejected) else self._checked(row) for row in rows)
        for batch in batches(chats, lambda chat: characters(chat.messages)):
            ids, lengths = serialize_chats(
                [chat.messages for chat in batch],
                tokenizer=self._tokenizer,
                default_system_text=self._default_system_text,
                num_threads=self._num_threads,
            )
            check_ids(ids, self.vocab_size)
            for chat in batch:
                rejections.changed.update([*chat.changes])
            yield EncodedBatch(batch, ids, lengths, self._weights(ids, batch))

    def _checked(self, chat: Conversation) -> Conversation | Rejected:
        """A conversation that the sentinel format can express and that is trained; `Rejected` in place of another."""
        where = chat.where
        # Before the other checks: a row that is left out on purpose is no bad row, whatever else is wrong with it.
        if is_untrained(chat.messages):
            detail = "no assistant message is trained (train, weight), so the row is left out"
            return Rejected(where, NOTHING_TRAINED, f"{where}: {detail}", expected=True)
        try:
            if chat.tools:
                raise MessageError(
                    "unsupported_field", "tools have no place in a format of plain text turns; remove them"
                )
            if chat.chat_template_kwargs:
                given = ", ".join(chat.chat_template_kwargs)
                raise MessageError(
                    "unknown_option",
                    f"chat_template_kwargs is {given}; plain text turns have no options. Remove the column",
                )
            check_chat(chat.messages, allow_message_weights=self._allow_message_weights)
            if not any(message["role"] == "assistant" for message in chat.messages):
                raise MessageError("no_assistant", "no assistant message, so nothing would be trained; drop the row")
            for index, message in enumerate(chat.messages):
                self._check_content(str(message["content"]), index)
        except MessageError as error:
            return Rejected(where, error.reason, f"{where}: {error}")
        return chat

    def _check_content(self, content: str, index: int) -> None:
        check_no_nul(content, f"message {index}: content holds ")
        # A character has at most four bytes in UTF-8: only a long text needs the exact count.
        if 4 * len(content) > self._max_message_bytes and (size := len(content.encode())) > self._max_message_bytes:
            raise MessageError(
                "message_too_long",
                f"message {index}: content has {size:,} bytes; at most {self._max_message_bytes:,} are allowed. "
                "Split the row, or raise --max-message-bytes (max_message_bytes=)",
            )

    def _weights(self, ids: npt.NDArray[Any], chats: Sequence[Conversation]) -> npt.NDArray[np.float32]:
        """Loss weights: each trained id has the weight of its assistant turn.

        Content never contains a sentinel's id, so the n-th assistant sentinel begins the n-th assistant turn. Two turns
        of weights 1 and 0.5 (U user, A assistant, E end-of-turn sentinel)::

            ids      U u E A a E A a a E
            trained  . . . . x x . x x x
            turn     0 0 0 1 1 1 2 2 2 2       cumsum(ids == A)
            weights  0 0 0 0 1 1 0 h h h       h = 0.5
        """
        weight_of_turn = [weight_of(m) for chat in chats for m in chat.messages if m["role"] == "assistant"]
        trained = assistant_mask(ids, **{f"{name}_id": token for name, token in self._special.items()})
        # Turn 0, which is before the first assistant turn, has the weight 0.0 that is put in front below.
        turn = np.cumsum(ids == self._special["asst"])
        return np.where(trained, np.array([0.0, *weight_of_turn], dtype=np.float32)[turn], np.float32(0))
