"""Conversations -> ids and loss weights, for the writer: by the sentinel format of document 000, or by a renderer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.builds import NOT_WRITTEN, CacheTokenizer, check_cache_tokenizer, check_ids
from niels_gpt.cache.formats import MAX_MESSAGE_BYTES
from niels_gpt.cache.meta import tokenizer_sha256
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.format.masks import assistant_mask
from niels_gpt.format.rows import batches, characters, conversation_of, usable_chats
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT, serialize_chats
from niels_gpt.inputs import Rejected
from niels_gpt.messages import NOTHING_TRAINED, ChatMsg, Conversation, Message, is_untrained, weight_of
from niels_gpt.renderers.images import refuse_images
from niels_gpt.renderers.loss import LossOn, batch_weights, check_full
from niels_gpt.renderers.rendered import RenderedBatch
from niels_gpt.renderers.unsupported import UnsupportedField, UnsupportedFields
from niels_gpt.sources.rejections import Rejections

_NO_IMAGES = (
    "a dataset keeps ids and masks and has no place for its pixels, and a model trained on it would see placeholders "
    "alone. Drop the row, or render such conversations where they are trained"
)
OnUnsupported = Literal["drop", "error"]
Rows = Iterable[Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected]


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

    Args:
        keeps_flags: without, rows with `train` or `weight` are unusable: there is no mask to keep them in.

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
        keeps_flags: bool = True,
    ) -> None:
        self._keeps_flags = keeps_flags
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
        chats = usable_chats(rows, rejections, max_message_bytes=self._max_message_bytes, keeps_flags=self._keeps_flags)
        for batch in batches(chats, lambda chat: characters(chat.messages)):
            ids, lengths = serialize_chats(
                [chat.messages for chat in batch],
                tokenizer=self._tokenizer,
                default_system_text=self._default_system_text,
                num_threads=self._num_threads,
            )
            check_ids(ids, self.vocab_size)
            for chat in batch:
                rejections.changed.update(chat.changed)
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
    is_content: Sequence[bool]


@runtime_checkable
class Renderer(Protocol):
    """What renders a whole conversation (DESIGN 2.3)."""

    def render(self, messages: Any, *, tools: Any = None) -> Rendered: ...


@runtime_checkable
class BatchRenderer(Renderer, Protocol):
    """What renders many at once, each as `render` does."""

    def render_many(self, conversations: Sequence[Any], *, tools: Sequence[Any] | None = None) -> RenderedBatch: ...


@runtime_checkable
class KnownRenderer(Renderer, Protocol):
    """A renderer that says which ids it makes and what from."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprints(self) -> Mapping[str, str | None]: ...


@dataclass(frozen=True)
class Choices:
    """What becomes of conversations whose ids or masks lack something.

    Attributes:
        allow_partial: use renderings whose attribution is only partial. Their masks may train tokens that the template
            wrote, so they are refused by default.
        on_unsupported: what becomes of fields that the format has no place for (`UnsupportedFields`). "drop": the
            conversation is used without them, as its official template writes it, and counted; "error": its row is
            refused.

    Raises:
        UsageError: an unknown `on_unsupported`.
    """

    allow_partial: bool = False
    on_unsupported: OnUnsupported = "drop"

    def __post_init__(self) -> None:
        if self.on_unsupported not in get_args(OnUnsupported):
            raise UsageError(
                f"on_unsupported is {self.on_unsupported!r}; expected one of {', '.join(get_args(OnUnsupported))}"
            )

    def check(self, attribution: str, unsupported: Sequence[UnsupportedField]) -> None:
        """Refuse a conversation.

        Raises:
            MessageError: `partial_attribution`, `unsupported_field`.
        """
        check_full(attribution, allow_partial=self.allow_partial)
        if unsupported and self.on_unsupported == "error":
            raise MessageError(
                "unsupported_field",
                f"{unsupported[0]} is not written, because the format has no place for it; remove it, drop the row, "
                "or leave it out with --on-unsupported drop (on_unsupported='drop')",
            )

    def allow(self, attribution: str, unsupported: Sequence[UnsupportedField]) -> bool:
        """`check` does not refuse the conversation."""
        return (attribution == "full" or self.allow_partial) and not (unsupported and self.on_unsupported == "error")


@dataclass(frozen=True)
class RendererEncoder:
    """Any renderer, and which of the tokens it makes count in the loss.

    Args:
        fingerprints: recorded in the manifest: `tokenizer_sha256`, `template_sha256`, and what else decides the ids.
        on: by default what the model itself would emit; a message's `train` and `weight` apply on top.
        choices: which conversations are refused because their ids or masks lack something.
    """

    renderer: Renderer
    vocab_size: int | None = None
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)
    on: LossOn = field(default_factory=LossOn)
    choices: Choices = field(default_factory=Choices)
    _unsupported: UnsupportedFields = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_unsupported", UnsupportedFields(self.renderer))

    @property
    def identified(self) -> bool:
        """See `Encoder`: both fingerprints are given."""
        return all(self.fingerprints.get(name) for name in ("tokenizer_sha256", "template_sha256"))

    def describe(self) -> dict[str, Any]:
        """See `Encoder`."""
        known = {"tokenizer_sha256": None, "template_sha256": None, **self.fingerprints}
        told = {name: held if name == "preset" else sorted(held) for name, held in asdict(self.on).items()}
        chosen: dict[str, Any] = {} if self.on == LossOn() else {"loss_on": told}
        usual = asdict(Choices())
        chosen |= {name: held for name, held in asdict(self.choices).items() if held != usual[name]}
        return {"encoder": type(self.renderer).__name__, **known, **chosen}

    def encode(self, rows: Rows, rejections: Rejections) -> Iterator[Encoded]:
        """See `Encoder`. Unusable rows travel with the others, so that they are rejected in the order of the rows."""
        judged = (_conversation(number, row) for number, row in enumerate(rows))
        for batch in batches(judged, _size):
            chats = [row for row in batch if isinstance(row, Conversation)]
            made = self._at_once(chats, rejections) if chats else None
            if made is None:
                yield self._one_by_one(batch, rejections)
            else:
                rejections.take(row for row in batch if isinstance(row, Rejected))
                yield made

    def _at_once(self, chats: list[Conversation], rejections: Rejections) -> Encoded | None:
        """All of them, or `None` if one cannot be rendered or stored, is refused, or says nothing that counts."""
        if not isinstance(self.renderer, BatchRenderer):
            return None
        try:
            made = self.renderer.render_many([chat.messages for chat in chats], tools=[chat.tools for chat in chats])
            weights = batch_weights(made, self.on)
        except MessageError:
            return None
        if made.media:
            return None
        # Trained tokens before each conversation's end, 2 2 5: the second has none.
        ends = np.concatenate(([0], np.cumsum(weights > 0)))[np.cumsum(made.lengths)]
        if (np.diff(ends, prepend=0) == 0).any():
            return None
        lost = [self._unsupported.of(chat.messages, chat.tools) for chat in chats]
        if not all(map(self.choices.allow, made.attribution, lost)):
            return None
        check_ids(made.ids, self.vocab_size)
        for chat, attribution, fields in zip(chats, made.attribution, lost, strict=True):
            rejections.changed.update(_changes(chat, attribution, fields))
        return Encoded(chats, made.ids, made.lengths, weights)

    def _one_by_one(self, rows: list[Conversation | Rejected], rejections: Rejections) -> Encoded:
        judged = (row if isinstance(row, Rejected) else self._alone(row, rejections) for row in rows)
        made = list(rejections.usable(judged))
        ids = np.concatenate([np.zeros(0, np.int64), *(ids for _, ids, _ in made)])
        check_ids(ids, self.vocab_size)
        lengths = np.array([len(ids) for _, ids, _ in made], dtype=np.int64)
        weights = np.concatenate([np.zeros(0, np.float32), *(weights for _, _, weights in made)])
        return Encoded([chat for chat, _, _ in made], ids, lengths, weights)

    def _alone(
        self, chat: Conversation, rejections: Rejections
    ) -> tuple[Conversation, npt.NDArray[np.int64], npt.NDArray[np.float32]] | Rejected:
        try:
            refuse_images(chat.messages, "image_in_dataset", _NO_IMAGES)
            made = self.renderer.render(chat.messages, tools=chat.tools)
            attribution = getattr(made, "attribution", "full")  # a renderer of the user's may not tell
            lost = self._unsupported.of(chat.messages, chat.tools)
            self.choices.check(attribution, lost)
            weights = self._weights(made, chat.messages)
        except MessageError as error:
            left_out = error.reason == NOTHING_TRAINED and is_untrained(chat.messages)
            return Rejected(chat.where, error.reason, f"{chat.where}: {error}", expected=left_out)
        rejections.changed.update(_changes(chat, attribution, lost))
        return chat, np.asarray(made.token_ids, dtype=np.int64), weights

    def _weights(self, made: Rendered, messages: Sequence[Message]) -> npt.NDArray[np.float32]:
        facts = (made.message_indices, made.sampled_mask, made.is_content)
        owners, sampled, body = (np.asarray(fact) for fact in facts)
        if not len(sampled) == len(owners) == len(body) == len(made.token_ids):
            raise UsageError(
                f"{type(self.renderer).__name__}: {len(made.token_ids)} ids, {len(sampled)} sampled flags, {len(body)} "
                f"content flags and {len(owners)} message indices; expected one of each per token"
            )
        weights = self.on.weights(owners.astype(np.int64), sampled.astype(bool), body.astype(bool), messages)
        if not weights.any():
            raise MessageError(NOTHING_TRAINED, "no token of this conversation is trained; drop the row")
        return weights


def _changes(chat: Conversation, attribution: str, unsupported: Sequence[UnsupportedField]) -> list[str]:
    """Codes of what is not as the row has it, each once."""
    if not (chat.changed or unsupported) and attribution == "full":
        return []
    fields = dict.fromkeys(f"{name}{NOT_WRITTEN}" for name, _ in unsupported)
    return [*chat.changed, *fields, *(["partial_attribution"] if attribution != "full" else [])]


def _conversation(
    number: int, row: Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected
) -> Conversation | Rejected:
    if isinstance(row, Rejected):
        return row
    try:
        return conversation_of(number, row)
    except MessageError as error:
        return Rejected(f"example {number}", error.reason, f"example {number}: {error}")


def _size(row: Conversation | Rejected) -> int:
    return characters(row.messages) if isinstance(row, Conversation) else 0


def encoder_of(given: Any, on: LossOn | None = None, choices: Choices | None = None) -> Encoder:
    """An encoder for whatever was given: an encoder, a renderer, or a tokenizer with the four sentinels.

    Args:
        on: which tokens of a renderer's count in the loss.
        choices: which conversations of a renderer's are refused.

    Raises:
        UsageError: none of these.
    """
    if isinstance(given, Encoder):
        return given
    if isinstance(given, CacheTokenizer):
        return SentinelEncoder(given)
    if isinstance(given, KnownRenderer):
        return RendererEncoder(given, given.vocab_size, given.fingerprints, on or LossOn(), choices or Choices())
    if isinstance(given, Renderer):
        return RendererEncoder(given, on=on or LossOn(), choices=choices or Choices())
    raise UsageError(
        f"{type(given).__name__} turns no conversation into ids; expected a renderer (render(messages)), or a "
        "tokenizer with encode(), special_token_ids() and vocab_size"
    )
