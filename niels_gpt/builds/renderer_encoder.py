"""Conversations to ids and loss weights by a renderer: one sample a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.changes import BY_ORACLE, NO_TRAINED_STOP, NOT_WRITTEN
from niels_gpt.builds.encoder_protocol import EncodedBatch, Rows, check_ids
from niels_gpt.builds.images import ImageFile, ImageFolder, PlacedImage, has_images
from niels_gpt.builds.rows import as_conversation, batches, characters
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import NOTHING_TRAINED, ChatMsg, Conversation, Message, is_untrained
from niels_gpt.renderers.base_renderer import BaseRenderer
from niels_gpt.renderers.images.loading import refuse_images
from niels_gpt.renderers.loss import LossOn, check_full
from niels_gpt.renderers.masks import Renders, batch_weights, listing, stops_of, trained_turns
from niels_gpt.renderers.notes import (
    NO_NOTES,
    Notes,
    OnUnwritten,
    Unwritten,
    check_on_unwritten,
    check_written,
    decided,
    refused,
)
from niels_gpt.renderers.round_trip import RoundTrip, round_trip_of
from niels_gpt.renderers.types import RenderedBatch
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections

NO_IMAGES = (
    "name the folder of the images, which episodes alone take (niels-gpt episodes build --images, ng.build(images=)), "
    "with a renderer that has a processor; or drop the row. "
    "Without their names in the dataset, a model trained on it would see only placeholders"
)


# Counts of `prove`, see `CHANGE_MESSAGES` of `builds.changes`.
PROVEN: Final = "round_trip_proven"
PROVEN_CHANGED: Final = "round_trip_changed"
PROVEN_BY_FORMAT: Final = "round_trip_by_format"
KWARGS: Final = "chat_template_kwargs"  # the column of rows that has options of the renderer for each row


@runtime_checkable
class BatchRenderer(Renders, Protocol):
    """A renderer that also renders many conversations in one call, each as `render` does."""

    def render_many(
        self, conversations: Sequence[Any], *, tools: Sequence[Any] | None = None, **options: Any
    ) -> RenderedBatch: ...


@runtime_checkable
class KnownRenderer(Renders, Protocol):
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
        on_unwritten: which rows are rejected for a text that the format has no place for, and which are counted
            (`renderers/notes.py`). `None`: as the renderer's own option says, else "content".
        prove: reject rows whose rendering does not give them again (`renderers/round_trip.py`), and count the others.

    Raises:
        UsageError: an unknown `on_unwritten`.
    """

    allow_partial: bool = False
    on_unwritten: OnUnwritten | None = None
    prove: bool = False

    def __post_init__(self) -> None:
        if self.on_unwritten is not None:
            check_on_unwritten(self.on_unwritten)

    def of(self, renderer: Any) -> RenderingPolicy:
        """The policy for one renderer, whose own option counts where this policy has none."""
        return replace(self, on_unwritten=decided(renderer, self.on_unwritten))

    def check(self, attribution: str, unwritten: Sequence[Unwritten]) -> None:
        """Raise `MessageError` (`partial_attribution`, `unwritten`) for a conversation that is not used."""
        check_full(attribution, allow_partial=self.allow_partial)
        check_written(unwritten, self.on_unwritten or "content")

    def allow(self, attribution: str, unwritten: Sequence[Unwritten]) -> bool:
        """Whether `check` passes, without building a message: the fast path of batches."""
        return (attribution == "full" or self.allow_partial) and not refused(unwritten, self.on_unwritten or "content")


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

    renderer: Renders
    vocab_size: int | None = None
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)
    on: LossOn = field(default_factory=LossOn)
    policy: RenderingPolicy = field(default_factory=RenderingPolicy)
    images: ImageFolder | None = None

    def __post_init__(self) -> None:
        # The policy decides and counts, so the renderer must not refuse before.
        object.__setattr__(self, "policy", self.policy.of(self.renderer))
        object.__setattr__(self, "renderer", listing(self.renderer))

    @property
    def identified(self) -> bool:
        """See `ConversationEncoder`: true if both fingerprints are known."""
        return all(self.fingerprints.get(name) for name in ("tokenizer_sha256", "template_sha256"))

    def describe(self) -> dict[str, Any]:
        """See `ConversationEncoder`."""
        # Both keys are always there: a null says that this renderer has no such hash.
        known = {"tokenizer_sha256": None, "template_sha256": None, **self.fingerprints}
        options: dict[str, Any] = {}
        if self.on != LossOn():
            options["loss_on"] = self.on.describe()
        # Defaults are left out, so that manifests written before an option existed still compare equal.
        defaults = asdict(RenderingPolicy().of(None))
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
                encoded = self._one_by_one(batch, rejections)
            else:
                rejections.record(row for row in batch if isinstance(row, Rejected))
            without_stop = self._without_trained_stop(encoded)
            if without_stop:
                rejections.changed[NO_TRAINED_STOP] += without_stop
            yield encoded

    def _without_trained_stop(self, batch: EncodedBatch) -> int:
        """How many conversations have a sample whose answers are trained without any token at which serving stops.

        Serving stops at a family's own stops; else at the tokenizer's eos and what generation_config.json names.

        ::

            sample         0           1       2
            trained stops  . # . . #   . . .   . #      ends of samples 5 8 10, sums 2 2 3: sample 1 has none
        """
        stops = stops_of(self.renderer)
        if not stops or self.on.preset == "all_tokens":
            return 0
        trained_stop = np.isin(batch.ids, stops) & (batch.weights > 0)
        sums = np.concatenate(([0], np.cumsum(trained_stop)))[np.cumsum(batch.lengths)]
        lacking = np.flatnonzero(np.diff(sums, prepend=0) == 0).tolist()
        chats = {id(chat): chat for chat in (batch.conversations[at] for at in lacking)}
        # Where only contents of other roles are trained, no answer lacks its end.
        return sum(bool(trained_turns(chat.messages, self.on)) for chat in chats.values())

    def _size(self, row: Conversation | Rejected) -> int:
        """How many characters are rendered for a row."""
        return characters(row.messages) if isinstance(row, Conversation) else 0

    def _whole_batch(self, chats: list[Conversation], rejections: Rejections) -> EncodedBatch | None:
        """Encode all conversations in one call; `None` if one must be rejected, which `_one_by_one` then finds."""
        if not isinstance(self.renderer, BatchRenderer):
            return None
        # Files of images are looked up row by row, since each of them may be missing.
        if self.images is not None and any(has_images(chat.messages) for chat in chats):
            return None
        try:
            rendered = self.renderer.render_many(
                [chat.messages for chat in chats], tools=[chat.tools for chat in chats], **kwargs_of_all(chats)
            )
            weights = batch_weights(rendered, self.on, allow_partial=True)  # the policy decides below
        except MessageError:
            return None
        # Images, and no folder for them: `_one_by_one` says which row has them.
        if rendered.media:
            return None
        # Trained tokens up to each conversation's end, for instance 2 2 5: the second conversation has none.
        ends = np.concatenate(([0], np.cumsum(weights > 0)))[np.cumsum(rendered.lengths)]
        if (np.diff(ends, prepend=0) == 0).any():
            return None
        lost = [notes.unwritten for notes in rendered.notes] or [()] * len(chats)
        if not all(map(self.policy.allow, rendered.attribution, lost)):
            return None
        proofs = (
            [self._proof(one, chat) for one, chat in zip(rendered, chats, strict=True)] if self.policy.prove else []
        )
        if not all(proof.proven for proof in proofs):
            return None
        check_ids(rendered.ids, self.vocab_size)
        # Counted only now: a batch that is given up above is counted row by row.
        for chat, attributed, unwritten in zip(chats, attributed_of(rendered), lost, strict=True):
            rejections.changed.update(changes_of(chat, [attributed], unwritten))
        for chat, proof in zip(chats, proofs, strict=False):
            rejections.changed.update(codes_of_proof(chat, proof))
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
            render: Any = self.renderer.render  # the protocol has no options, which only some rows have
            rendered = render(messages, tools=chat.tools, **kwargs_of(chat))
            attribution = getattr(rendered, "attribution", "full")  # renderers of other packages may lack it
            lost = getattr(rendered, "unwritten", ())
            self.policy.check(attribution, lost)
            proof = self._checked_proof(rendered, chat)
            images = (
                [] if self.images is None else self.images.placed(files, getattr(rendered, "multi_modal_data", None))
            )
            weights = self._weights(rendered, chat.messages, images)
        except MessageError as error:
            left_out = error.reason == NOTHING_TRAINED and is_untrained(chat.messages)
            return Rejected(chat.where, error.reason, f"{chat.where}: {error}", expected=left_out)
        notes = getattr(rendered, "notes", NO_NOTES)
        rejections.changed.update(changes_of(chat, [(attribution, notes)], lost))
        rejections.changed.update(codes_of_proof(chat, proof))
        return _Encoded(chat, np.asarray(rendered.token_ids, dtype=np.int64), weights, images)

    def _proof(self, rendered: Any, chat: Conversation) -> RoundTrip:
        renderer: Any = self.renderer
        if not isinstance(renderer, BaseRenderer):
            raise UsageError(f"prove=True (--prove) needs a renderer of this package; found {type(renderer).__name__}")
        by = renderer.with_kwargs(kwargs_of(chat).get(KWARGS))
        return round_trip_of(by, rendered, chat.messages, chat.tools)

    def _checked_proof(self, rendered: Any, chat: Conversation) -> RoundTrip | None:
        """The proof of a conversation, `None` where none is wanted; `MessageError` (`not_proven`) if it has none."""
        if not self.policy.prove:
            return None
        proof = self._proof(rendered, chat)
        if not proof.proven:
            raise MessageError("not_proven", f"{proof.difference}. Repair the row, or drop it")
        return proof

    def _weights(
        self, rendered: Any, messages: Sequence[Message], images: Sequence[PlacedImage] = ()
    ) -> npt.NDArray[np.float32]:
        indices, sampled, content = rendered.message_indices, rendered.sampled_mask, rendered.is_content
        if not len(sampled) == len(indices) == len(content) == len(rendered.token_ids):
            raise UsageError(
                f"{type(self.renderer).__name__}: {len(rendered.token_ids)} ids, {len(sampled)} sampled flags, "
                f"{len(content)} content flags and {len(indices)} message indices; expected one of each per token"
            )
        weights = self.on.weights_of(rendered, messages, stops_of(self.renderer))
        for image in images:  # no model says placeholders, whatever else is trained
            weights[image.start : image.start + image.tokens] = 0
        if not weights.any():
            raise MessageError(NOTHING_TRAINED, "no token of this conversation is trained; drop the row")
        return weights


def changes_of(
    chat: Conversation, attributed: Sequence[tuple[str, Notes]], unwritten: Sequence[Unwritten]
) -> list[str]:
    """The codes of what is to be said of a conversation, each once; for `Rejections.changed`.

    Args:
        attributed: the attribution of its renderings, and the notes of each.
        unwritten: what is in none of them.
    """
    fields = dict.fromkeys(f"{one.field}{NOT_WRITTEN}" for one in unwritten)
    is_partial = any(attribution != "full" for attribution, _ in attributed)
    by_oracle = any(notes.route == "oracle" for _, notes in attributed)
    adapted = dict.fromkeys(code for _, notes in attributed for code in notes.changes)
    return [*{**chat.changes, **adapted}, *fields, *["partial_attribution"] * is_partial, *[BY_ORACLE] * by_oracle]


def codes_of_proof(chat: Conversation, proof: RoundTrip | None) -> list[str]:
    """What is counted of a proven conversation; the codes of one that is changed or shortened come on top."""
    if proof is None:
        return []
    changed, dropped = bool(chat.changes or proof.changes), bool(proof.by_format or proof.unwritten)
    return [PROVEN, *[PROVEN_CHANGED] * changed, *[PROVEN_BY_FORMAT] * dropped]


def kwargs_of(chat: Conversation) -> dict[str, Any]:
    """The keyword with a row's `chat_template_kwargs`, where it has some; renderers of other packages lack it.

    Raises:
        MessageError: it is no object.
    """
    found = chat.metadata.get(KWARGS)
    if isinstance(found, str) and found.strip():
        with suppress(ValueError):
            found = json.loads(found)
    if not found:
        return {}
    if not isinstance(found, Mapping):
        raise MessageError("wrong_type", f"{KWARGS} is {str(found)[:40]!r}; expected an object of names and values")
    # Arrow adds a null for every key that any row has.
    given = {name: value for name, value in found.items() if value is not None}
    return {KWARGS: given} if given else {}


def kwargs_of_all(chats: Sequence[Conversation]) -> dict[str, Any]:
    """The same for a batch: one entry per conversation, where any has some."""
    given = [kwargs_of(chat).get(KWARGS) for chat in chats]
    return {KWARGS: given} if any(given) else {}


def attributed_of(rendered: RenderedBatch) -> list[tuple[str, Notes]]:
    """The attribution of each conversation, and its notes."""
    return list(zip(rendered.attribution, rendered.notes or [NO_NOTES] * len(rendered), strict=True))


def _conversation(
    number: int, row: Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected
) -> Conversation | Rejected:
    if isinstance(row, Rejected):
        return row
    try:
        return as_conversation(number, row)
    except MessageError as error:
        return Rejected(f"example {number}", error.reason, f"example {number}: {error}")
