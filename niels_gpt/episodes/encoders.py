"""Conversations -> ids and loss weights, for the writer: by the sentinel format of document 000, or by a renderer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.builds import CacheTokenizer, check_cache_tokenizer, check_ids
from niels_gpt.cache.formats import MAX_MESSAGE_BYTES
from niels_gpt.cache.meta import tokenizer_sha256
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.format.masks import assistant_mask
from niels_gpt.format.rows import batches, characters, conversation_of, usable_chats
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT, serialize_chats
from niels_gpt.inputs import Rejected
from niels_gpt.messages import Conversation, Message, weight_of
from niels_gpt.sources.rejections import Rejections

Rows = Iterable[Sequence[Message] | Conversation | Rejected]
BATCH_TOKENS = 1_000_000


@dataclass(frozen=True)
class Encoded:
    """Some conversations as ids.

    Attributes:
        conversations: in order.
        ids: int64 or int32, all one after the other, shape (n,).
        lengths: ids of each conversation, int64.
        weights: float32 of shape (n,): 0 where nothing is trained.
    """

    conversations: list[Conversation]
    ids: npt.NDArray[np.integer[Any]]
    lengths: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


@runtime_checkable
class Encoder(Protocol):
    """What the writer needs."""

    @property
    def identified(self) -> bool:
        """`describe` tells this encoder from every other that makes other ids: two builds may be compared."""

    @property
    def vocab_size(self) -> int | None:
        """All ids are below it; `None` if that is not known."""

    def describe(self) -> dict[str, Any]:
        """All that decides ids and weights, for the manifest: at least tokenizer_sha256 and template_sha256."""

    def encode(self, rows: Rows, rejections: Rejections) -> Iterator[Encoded]:
        """The usable rows in portions, in order; the others go to `rejections`."""


class SentinelEncoder:
    """Document 000's format, with each message's `train` and `weight` kept in the mask.

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
    ) -> None:
        self._special = check_cache_tokenizer(tokenizer)
        self._tokenizer = tokenizer
        self._default_system_text = default_system_text
        self._max_message_bytes = max_message_bytes
        self._num_threads = num_threads

    @property
    def identified(self) -> bool:
        """See `Encoder`."""
        return True

    @property
    def vocab_size(self) -> int | None:
        """See `Encoder`."""
        return self._tokenizer.vocab_size

    def describe(self) -> dict[str, Any]:
        """See `Encoder`."""
        return {
            "encoder": "sentinels",
            "tokenizer_sha256": tokenizer_sha256(self._tokenizer),
            "template_sha256": None,
            "special_token_ids": self._special,
            "default_system_text": self._default_system_text,
            "max_message_bytes": self._max_message_bytes,
        }

    def encode(self, rows: Rows, rejections: Rejections) -> Iterator[Encoded]:
        """See `Encoder`."""
        chats = usable_chats(rows, rejections, max_message_bytes=self._max_message_bytes, keeps_flags=True)
        for batch in batches(chats, lambda chat: characters(chat.messages)):
            ids, lengths = serialize_chats(
                [chat.messages for chat in batch],
                tokenizer=self._tokenizer,
                default_system_text=self._default_system_text,
                num_threads=self._num_threads,
            )
            check_ids(ids, self.vocab_size)
            yield Encoded(batch, ids, lengths, self._weights(ids, batch))

    def _weights(self, ids: npt.NDArray[Any], chats: Sequence[Conversation]) -> npt.NDArray[np.float32]:
        """Every trained id has the weight of its turn; sentinels come by id only, so the n-th is that of the n-th turn.

        ::

            ids      U u E A a E A a a E        turns' weights  1 0.5
            weights  . . . . 1 1 . h h h        (h: 0.5)
        """
        of_turn = [weight_of(m) for chat in chats for m in chat.messages if m["role"] == "assistant"]
        trained = assistant_mask(ids, **{f"{name}_id": token for name, token in self._special.items()})
        turn = np.cumsum(ids == self._special["asst"])
        return np.where(trained, np.array([0.0, *of_turn], dtype=np.float32)[turn], np.float32(0))


class Rendered(Protocol):
    """What a renderer returns (DESIGN 2.3): one entry per token in each list."""

    token_ids: Sequence[int]
    message_indices: Sequence[int]
    sampled_mask: Sequence[bool]


@runtime_checkable
class Renderer(Protocol):
    """What renders a whole conversation (DESIGN 2.3)."""

    def render(self, messages: Any, *, tools: Any = None) -> Rendered: ...


@runtime_checkable
class KnownRenderer(Renderer, Protocol):
    """A renderer that says which ids it makes and what from."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprints(self) -> Mapping[str, str | None]: ...


@dataclass(frozen=True)
class RendererEncoder:
    """Any renderer; what the model itself would emit is trained, times the `train` and `weight` of its message.

    Args:
        fingerprints: recorded in the manifest: `tokenizer_sha256`, `template_sha256`, and what else decides the ids.
    """

    renderer: Renderer
    vocab_size: int | None = None
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def identified(self) -> bool:
        """See `Encoder`: both fingerprints are given."""
        return all(self.fingerprints.get(name) for name in ("tokenizer_sha256", "template_sha256"))

    def describe(self) -> dict[str, Any]:
        """See `Encoder`."""
        known = {"tokenizer_sha256": None, "template_sha256": None, **self.fingerprints}
        return {"encoder": type(self.renderer).__name__, **known}

    def encode(self, rows: Rows, rejections: Rejections) -> Iterator[Encoded]:
        """See `Encoder`."""
        rendered = rejections.usable(self._rendered(number, row) for number, row in enumerate(rows))
        for batch in batches(rendered, lambda one: len(one[1]), limit=BATCH_TOKENS):
            ids = np.concatenate([ids for _, ids, _ in batch])
            check_ids(ids, self.vocab_size)
            lengths = np.array([len(ids) for _, ids, _ in batch], dtype=np.int64)
            weights = np.concatenate([weights for _, _, weights in batch])
            yield Encoded([chat for chat, _, _ in batch], ids, lengths, weights)

    def _rendered(
        self, number: int, row: Sequence[Message] | Conversation | Rejected
    ) -> tuple[Conversation, npt.NDArray[np.int64], npt.NDArray[np.float32]] | Rejected:
        if isinstance(row, Rejected):
            return row
        try:
            chat = conversation_of(number, row)
            made = self.renderer.render(chat.messages, tools=chat.tools)
            weights = self._weights(made, chat.messages)
        except MessageError as error:
            where = row.where if isinstance(row, Conversation) else f"example {number}"
            return Rejected(where, error.reason, f"{where}: {error}")
        return chat, np.asarray(made.token_ids, dtype=np.int64), weights

    def _weights(self, made: Rendered, messages: Sequence[Message]) -> npt.NDArray[np.float32]:
        of_message = np.array([*map(weight_of, messages), 0.0], dtype=np.float32)  # index -1: no message
        sampled = np.asarray(made.sampled_mask, dtype=np.bool_)
        owners = np.asarray(made.message_indices, dtype=np.int64)
        if not len(sampled) == len(owners) == len(made.token_ids):
            raise UsageError(
                f"{type(self.renderer).__name__}: {len(made.token_ids)} ids, {len(sampled)} sampled flags and "
                f"{len(owners)} message indices; expected one of each per token"
            )
        weights = np.where(sampled, of_message[owners], np.float32(0))
        if not weights.any():
            raise MessageError("nothing_trained", "no token of this conversation is trained; drop the row")
        return weights


def encoder_of(given: Any) -> Encoder:
    """An encoder for whatever was given: an encoder, a renderer, or a tokenizer with the four sentinels.

    Raises:
        UsageError: none of these.
    """
    if isinstance(given, Encoder):
        return given
    if isinstance(given, CacheTokenizer):
        return SentinelEncoder(given)
    if isinstance(given, KnownRenderer):
        return RendererEncoder(given, vocab_size=given.vocab_size, fingerprints=given.fingerprints)
    if isinstance(given, Renderer):
        return RendererEncoder(given)
    raise UsageError(
        f"{type(given).__name__} turns no conversation into ids; expected a renderer (render(messages)), or a "
        "tokenizer with encode(), special_token_ids() and vocab_size"
    )
