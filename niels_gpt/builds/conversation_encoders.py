"""Conversations to ids and loss weights, for builds: in the sentinel format, or by a renderer.

`as_encoder` takes whatever the caller has (a tokenizer with the four sentinels, a renderer, an encoder) and returns a
`ConversationEncoder`: `SentinelEncoder` or `RendererEncoder`. Both encode rows in batches and hand unusable ones to
`Rejections` in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.build import NOT_WRITTEN, CacheTokenizer, check_cache_tokenizer, check_ids
from niels_gpt.builds.images import ImageFile, ImageFolder, PlacedImage, has_images
from niels_gpt.builds.rows import MAX_MESSAGE_BYTES, as_conversation, batches, characters, checked_conversations
from niels_gpt.errors import MessageError, UsageError, did_you_mean
from niels_gpt.format.masks import assistant_mask
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT, serialize_chats
from niels_gpt.messages import NOTHING_TRAINED, ChatMsg, Conversation, Message, is_untrained, weight_of
from niels_gpt.renderers.images.loading import refuse_images
from niels_gpt.renderers.loss import LossOn, check_full
from niels_gpt.renderers.masks import batch_weights
from niels_gpt.renderers.types import RenderedBatch
from niels_gpt.renderers.unsupported import UnsupportedField, UnsupportedFields
from niels_gpt.sources.inputs import Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.storage.manifests import tokenizer_sha256

NO_IMAGES = (
    "name the folder of the images, which episodes alone take (niels-gpt episodes build --images, ng.build(images=)), "
    "with a renderer that has a processor; or drop the row. "
    "Without their names in the dataset, a model trained on it would see only placeholders"
)
OnUnsupported = Literal["drop", "error"]
# What becomes of a conversation with several answers:
#   per-conversation  one sample, as the conversation is rendered now; reasoning that the format drops is lost
#   per-turn          a sample for each trained turn, which ends with it and trains it alone
#   auto              as few samples as train every turn on the ids with which it was produced
Samples = Literal["per-conversation", "per-turn", "auto"]
Rows = Iterable[Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected]


@dataclass(frozen=True)
class EncodedBatch:
    """A batch of encoded conversations.

    Attributes:
        conversations: in order.
        ids: int64 or int32, the conversations concatenated, shape (n,).
        lengths: number of ids of each conversation, int64.
        weights: loss weights, float32 of shape (n,); 0 is not trained.
        prefixes: where the ids before each conversation's own are, as `EpisodeWriter.write` takes them; `None` unless
            the encoder shares prefixes.
        images: those of each conversation; `None` unless the encoder has a folder of images.
    """

    conversations: list[Conversation]
    ids: npt.NDArray[np.integer[Any]]
    lengths: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    prefixes: npt.NDArray[np.int64] | None = None
    images: Sequence[Sequence[PlacedImage]] | None = None


@runtime_checkable
class ConversationEncoder(Protocol):
    """Turns conversations into ids and loss weights, as all builds of conversations need it."""

    @property
    def identified(self) -> bool:
        """Whether equal `describe()` means equal ids, so that a finished build may count as "already built"."""

    @property
    def vocab_size(self) -> int | None:
        """All ids are below this; `None` if it is not known."""

    def describe(self) -> dict[str, Any]:
        """All that decides ids and weights, for the manifest; at least `tokenizer_sha256` and `template_sha256`."""

    def encode(self, rows: Rows, rejections: Rejections) -> Iterator[EncodedBatch]:
        """Encode the usable rows in batches, in order; the others go to `rejections`."""


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
        """See `ConversationEncoder`."""
        return True

    @property
    def vocab_size(self) -> int | None:
        """See `ConversationEncoder`."""
        return self._tokenizer.vocab_size

    def describe(self) -> dict[str, Any]:
        """See `ConversationEncoder`."""
        return {
            "encoder": "sentinels",
            "tokenizer_sha256": tokenizer_sha256(self._tokenizer),
            "template_sha256": None,
            "special_token_ids": self._special,
            "default_system_text": self._default_system_text,
            "max_message_bytes": self._max_message_bytes,
        }

    def encode(self, rows: Rows, rejections: Rejections) -> Iterator[EncodedBatch]:
        """See `ConversationEncoder`."""
        chats = checked_conversations(
            rows,
            rejections,
            max_message_bytes=self._max_message_bytes,
            allow_message_weights=self._allow_message_weights,
        )
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
            yield EncodedBatch(batch, ids, lengths, self._weights(ids, batch))

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
        turn = np.cumsum(ids == self._special["asst"])
        return np.where(trained, np.array([0.0, *weight_of_turn], dtype=np.float32)[turn], np.float32(0))


class Rendered(Protocol):
    """What `Renderer.render` returns: lists with one entry per token, see docs/attribution.md."""

    token_ids: Sequence[int]
    message_indices: Sequence[int]
    sampled_mask: Sequence[bool]
    is_content: Sequence[bool]


@runtime_checkable
class Renderer(Protocol):
    """Renders a conversation. The renderers of this package and those of others fit."""

    def render(self, messages: Any, *, tools: Any = None) -> Rendered: ...


@runtime_checkable
class BatchRenderer(Renderer, Protocol):
    """A renderer that also renders many conversations in one call, each as `render` does."""

    def render_many(self, conversations: Sequence[Any], *, tools: Sequence[Any] | None = None) -> RenderedBatch: ...


@runtime_checkable
class KnownRenderer(Renderer, Protocol):
    """A renderer that names its vocabulary size and the hashes of what decides its ids."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprints(self) -> Mapping[str, str | None]: ...


@dataclass(frozen=True)
class RenderingPolicy:
    """Whether conversations are used whose rendering is incomplete.

    Attributes:
        allow_partial: use renderings whose attribution is only partial. Their masks may train scaffold tokens, so they
            are rejected by default.
        on_unsupported: for fields that the format has no place for (`UnsupportedFields`). "drop": render without them,
            as the official template does, and count the row; "error": reject the row.

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
        """Raise `MessageError` (`partial_attribution`, `unsupported_field`) for a conversation that is not used."""
        check_full(attribution, allow_partial=self.allow_partial)
        if unsupported and self.on_unsupported == "error":
            raise MessageError(
                "unsupported_field",
                f"{unsupported[0]} is not written, because the format has no place for it; remove it, drop the row, "
                "or leave it out with --on-unsupported drop (on_unsupported='drop')",
            )

    def allow(self, attribution: str, unsupported: Sequence[UnsupportedField]) -> bool:
        """Whether `check` passes, without building a message: the fast path of batches."""
        return (attribution == "full" or self.allow_partial) and not (unsupported and self.on_unsupported == "error")


@dataclass(frozen=True)
class _Encoded:
    chat: Conversation
    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    images: Sequence[PlacedImage]


@dataclass(frozen=True)
class RendererEncoder:
    """Encodes with a renderer.

    Args:
        fingerprints: recorded in the manifest: `tokenizer_sha256`, `template_sha256`, and what else decides the ids.
        on: which tokens are trained; default the sampled ones. A message's `train` and `weight` apply on top.
        policy: whether conversations are used whose rendering is incomplete.
        images: the folder of the images in conversations; `None`: conversations with images are rejected.
    """

    renderer: Renderer
    vocab_size: int | None = None
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)
    on: LossOn = field(default_factory=LossOn)
    policy: RenderingPolicy = field(default_factory=RenderingPolicy)
    images: ImageFolder | None = None
    _unsupported: UnsupportedFields = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_unsupported", UnsupportedFields(self.renderer))

    @property
    def identified(self) -> bool:
        """See `ConversationEncoder`: true if both fingerprints are known."""
        return all(self.fingerprints.get(name) for name in ("tokenizer_sha256", "template_sha256"))

    def describe(self) -> dict[str, Any]:
        """See `ConversationEncoder`."""
        known = {"tokenizer_sha256": None, "template_sha256": None, **self.fingerprints}
        options: dict[str, Any] = {}
        if self.on != LossOn():
            loss_on = {name: value if name == "preset" else sorted(value) for name, value in asdict(self.on).items()}
            options["loss_on"] = loss_on
        # Defaults are left out, so that manifests written before an option existed still compare equal.
        defaults = asdict(RenderingPolicy())
        options |= {name: value for name, value in asdict(self.policy).items() if value != defaults[name]}
        if self.images is not None:
            options["image_processor"] = self.images.describe()
        return {"encoder": type(self.renderer).__name__, **known, **options}

    def encode(self, rows: Rows, rejections: Rejections) -> Iterator[EncodedBatch]:
        """See `ConversationEncoder`."""
        # Unusable rows stay in their places within a batch, so that rejections come in the order of the rows.
        parsed = (_conversation(number, row) for number, row in enumerate(rows))
        for batch in batches(parsed, self._size):
            chats = [row for row in batch if isinstance(row, Conversation)]
            encoded = self._whole_batch(chats, rejections) if chats else None
            if encoded is None:
                yield self._one_by_one(batch, rejections)
            else:
                rejections.record(row for row in batch if isinstance(row, Rejected))
                yield encoded

    def _size(self, row: Conversation | Rejected) -> int:
        """How many characters are rendered for a row."""
        return characters(row.messages) if isinstance(row, Conversation) else 0

    def _whole_batch(self, chats: list[Conversation], rejections: Rejections) -> EncodedBatch | None:
        """Encode all conversations in one call; `None` if one must be rejected, which `_one_by_one` then finds."""
        if not isinstance(self.renderer, BatchRenderer):
            return None
        if self.images is not None and any(has_images(chat.messages) for chat in chats):
            return None
        try:
            rendered = self.renderer.render_many(
                [chat.messages for chat in chats], tools=[chat.tools for chat in chats]
            )
            weights = batch_weights(rendered, self.on)
        except MessageError:
            return None
        # Images, and no folder for them: `_one_by_one` says which row has them.
        if rendered.media:
            return None
        # Trained tokens up to each conversation's end, for instance 2 2 5: the second conversation has none.
        ends = np.concatenate(([0], np.cumsum(weights > 0)))[np.cumsum(rendered.lengths)]
        if (np.diff(ends, prepend=0) == 0).any():
            return None
        lost = [self._unsupported.of(chat.messages, chat.tools) for chat in chats]
        if not all(map(self.policy.allow, rendered.attribution, lost)):
            return None
        check_ids(rendered.ids, self.vocab_size)
        for chat, attribution, fields in zip(chats, rendered.attribution, lost, strict=True):
            rejections.changed.update(changes_of(chat, attribution, fields))
        images = None if self.images is None else [()] * len(chats)
        return EncodedBatch(chats, rendered.ids, rendered.lengths, weights, images=images)

    def _one_by_one(self, rows: list[Conversation | Rejected], rejections: Rejections) -> EncodedBatch:
        checked = (row if isinstance(row, Rejected) else self._encode_one(row, rejections) for row in rows)
        encoded = list(rejections.accepted(checked))
        ids = np.concatenate([np.zeros(0, np.int64), *(one.ids for one in encoded)])
        check_ids(ids, self.vocab_size)
        return EncodedBatch(
            [one.chat for one in encoded],
            ids,
            np.array([len(one.ids) for one in encoded], dtype=np.int64),
            np.concatenate([np.zeros(0, np.float32), *(one.weights for one in encoded)]),
            images=None if self.images is None else [one.images for one in encoded],
        )

    def _encode_one(self, chat: Conversation, rejections: Rejections) -> _Encoded | Rejected:
        try:
            messages: Sequence[Message] = chat.messages
            if self.images is None:
                refuse_images(messages, "image_in_dataset", NO_IMAGES)
                files: list[ImageFile] = []
            else:
                messages, files = self.images.located(messages)
            rendered = self.renderer.render(messages, tools=chat.tools)
            attribution = getattr(rendered, "attribution", "full")  # renderers of other packages may lack it
            lost = self._unsupported.of(chat.messages, chat.tools)
            self.policy.check(attribution, lost)
            images = (
                [] if self.images is None else self.images.placed(files, getattr(rendered, "multi_modal_data", None))
            )
            weights = self._weights(rendered, chat.messages, images)
        except MessageError as error:
            left_out = error.reason == NOTHING_TRAINED and is_untrained(chat.messages)
            return Rejected(chat.where, error.reason, f"{chat.where}: {error}", expected=left_out)
        rejections.changed.update(changes_of(chat, attribution, lost))
        return _Encoded(chat, np.asarray(rendered.token_ids, dtype=np.int64), weights, images)

    def _weights(
        self, rendered: Rendered, messages: Sequence[Message], images: Sequence[PlacedImage] = ()
    ) -> npt.NDArray[np.float32]:
        facts = (rendered.message_indices, rendered.sampled_mask, rendered.is_content)
        indices, sampled, content = (np.asarray(fact) for fact in facts)
        if not len(sampled) == len(indices) == len(content) == len(rendered.token_ids):
            raise UsageError(
                f"{type(self.renderer).__name__}: {len(rendered.token_ids)} ids, {len(sampled)} sampled flags, "
                f"{len(content)} content flags and {len(indices)} message indices; expected one of each per token"
            )
        weights = self.on.weights(indices.astype(np.int64), sampled.astype(bool), content.astype(bool), messages)
        for image in images:  # no model says placeholders, whatever else is trained
            weights[image.start : image.start + image.tokens] = 0
        if not weights.any():
            raise MessageError(NOTHING_TRAINED, "no token of this conversation is trained; drop the row")
        return weights


def refuse_image_folder(encoder: ConversationEncoder, kind: str) -> None:
    """Raise `UsageError` for an encoder with images, which a dataset of this kind has no place for."""
    if isinstance(encoder, RendererEncoder) and encoder.images is not None:
        raise UsageError(f"{kind} hold no images, and the encoder has the folder {encoder.images.folder}; leave it out")


def check_samples(samples: str) -> None:
    """Raise `UsageError` unless this is one of `Samples`."""
    if samples not in get_args(Samples):
        near = did_you_mean(samples, get_args(Samples))
        raise UsageError(f"samples is {samples!r}; expected one of {', '.join(get_args(Samples))}{near}")


def changes_of(chat: Conversation, attribution: str, unsupported: Sequence[UnsupportedField]) -> list[str]:
    """The codes of everything that was changed or left out in a conversation, each once; for `Rejections.changed`."""
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
        return as_conversation(number, row)
    except MessageError as error:
        return Rejected(f"example {number}", error.reason, f"example {number}: {error}")


def as_encoder(
    encoder: Any,
    on: LossOn | None = None,
    policy: RenderingPolicy | None = None,
    samples: Samples = "per-conversation",
    images: str | Path | None = None,
) -> ConversationEncoder:
    """An encoder from an encoder, a renderer, or a tokenizer with the four sentinels.

    Args:
        on: for renderers: which tokens are trained.
        policy: for renderers: whether conversations are used whose rendering is incomplete.
        samples: for renderers: how many samples a conversation makes.
        images: for renderers with a processor: the folder of the images in conversations.

    Raises:
        UsageError: `encoder` is none of these; samples per turn are wanted without a renderer; or images without a
            folder, without a processor, or in samples per turn.
    """
    check_samples(samples)
    folder = None if images is None else _image_folder(encoder, Path(images), samples)
    if isinstance(encoder, ConversationEncoder):
        if samples != "per-conversation":
            raise UsageError(f"samples are {samples}, and {type(encoder).__name__} is an encoder; pass its renderer")
        return encoder
    if isinstance(encoder, CacheTokenizer):
        if samples == "per-turn":  # "auto" is one: the sentinel format never rewrites history
            raise UsageError("samples are per-turn, and our own sentinels make one a conversation; pass a renderer")
        return SentinelEncoder(encoder)
    on, policy = on or LossOn(), policy or RenderingPolicy()
    if isinstance(encoder, KnownRenderer):
        known: dict[str, Any] = {"vocab_size": encoder.vocab_size, "fingerprints": encoder.fingerprints}
    elif isinstance(encoder, Renderer):
        known = {}
    else:
        raise UsageError(
            f"{type(encoder).__name__} does not turn conversations into ids; expected a renderer (render(messages)), "
            "or a tokenizer with encode(), special_token_ids() and vocab_size"
        )
    if samples == "per-conversation":
        return RendererEncoder(encoder, on=on, policy=policy, images=folder, **known)
    from niels_gpt.builds.sample_encoder import SampleEncoder  # which is a `RendererEncoder`

    return SampleEncoder(encoder, on=on, policy=policy, samples=samples, **known)


def _image_folder(renderer: Any, folder: Path, samples: Samples) -> ImageFolder:
    processor = getattr(renderer, "processor", None)
    if processor is None:
        raise UsageError(
            f"images are in {folder}, and {type(renderer).__name__} has no image processor; pass a renderer of a model "
            "with images, made with processor=transformers.AutoImageProcessor.from_pretrained(MODEL)"
        )
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such directory; expected the folder of the conversations' images")
    if samples != "per-conversation":
        raise UsageError(f"samples are {samples}, and conversations with images make one sample; leave samples out")
    return ImageFolder(folder, processor)
