"""Conversations to ids and loss weights by a renderer: one sample a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.changes import BY_ORACLE, NO_TRAINED_STOP, NOT_WRITTEN
from niels_gpt.builds.encoder_protocol import EncodedBatch, Rows, check_ids
from niels_gpt.builds.images import ImageFile, ImageFolder, has_images
from niels_gpt.builds.rows import as_conversation, batches, characters
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import NOTHING_TRAINED, ChatMsg, Conversation, Message, is_untrained
from niels_gpt.renderers.base_renderer import BaseRenderer
from niels_gpt.renderers.images.loading import refuse_images
from niels_gpt.renderers.loss import LossOn, check_full
from niels_gpt.renderers.masks import batch_weights, trained_turns
from niels_gpt.renderers.notes import (
    NO_NOTES,
    Notes,
    OnUnwritten,
    Unwritten,
    check_on_unwritten,
    check_written,
    decided,
)
from niels_gpt.renderers.protocol import Renders, listing, stops_of, with_kwargs
from niels_gpt.renderers.round_trip import RoundTrip, round_trips
from niels_gpt.renderers.types import RenderedBatch
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.store.schema import PlacedImage

NO_IMAGES = (
    "name the folder of the images, which episodes alone take (niels-gpt episodes build --images, ng.build(images=)), "
    "with a renderer that has a processor; or drop the row. "
    "Without their names in the dataset, a model trained on it would see only placeholders"
)


# Counts of `prove`, see `CHANGE_MESSAGES` of `builds.changes`.
PROVEN: Final = "round_trip_proven"
PROVEN_CHANGED: Final = "round_trip_changed"
PROVEN_BY_FORMAT: Final = "round_trip_by_format"


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


# Ids and weights of one sample, each of shape (n,).
Sample = tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.float32]]


class Rendering(NamedTuple):
    """A conversation as it was rendered, before it is known whether it is used.

    Attributes:
        attributed: attribution and notes of each of its renderings: the whole, and for several samples its parts.
        unwritten: the texts that are in none of them; by_format: those that the format drops by design.
        samples: its training samples; the error of a wrong weight.
        proofs: what comes back of each of its renderings, where they are to be proven.
    """

    chat: Conversation
    attributed: Sequence[tuple[str, Notes]]
    unwritten: Sequence[Unwritten]
    by_format: Sequence[Unwritten]
    samples: Sequence[Sample] | MessageError
    proofs: Sequence[RoundTrip] = ()
    images: Sequence[PlacedImage] = ()


# A conversation that is used, its samples, and the codes of what is counted of it, for `Rejections.changed`.
_Encoded = tuple[Rendering, Sequence[Sample], Sequence[str]]


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
        # So that a loader knows an id to pad with.
        stops = stops_of(self.renderer)
        special = {"special_token_ids": {"eot": stops[0]}} if stops else {}
        return {"encoder": type(self.renderer).__name__, **known, **special, **options}

    def encode(self, rows: Rows, rejections: Rejections) -> Iterator[EncodedBatch]:
        """See `ConversationEncoder`."""
        # Unusable rows stay in their places within a batch, so that rejections come in the order of the rows.
        parsed = (_conversation(number, row) for number, row in enumerate(rows))
        for batch in batches(parsed, self._size):
            encoded = list(rejections.accepted(self._encoded(batch)))
            rejections.changed.update(code for _, _, codes in encoded for code in codes)
            joined = self._joined(encoded)
            if without_stop := self._without_trained_stop(joined):
                rejections.changed[NO_TRAINED_STOP] += without_stop
            yield joined

    def _encoded(self, batch: Sequence[Conversation | Rejected]) -> Iterator[_Encoded | Rejected]:
        chats = [row for row in batch if isinstance(row, Conversation)]
        try:
            rendered = iter(self._render_many(chats))
        except MessageError:  # one cannot be rendered, which shows below
            rendered = iter(())
        for row in batch:
            if isinstance(row, Rejected):
                yield row
                continue
            try:
                yield self._checked(next(rendered, None) or self._render(row))
            except MessageError as error:
                left_out = error.reason == NOTHING_TRAINED and is_untrained(row.messages)
                yield Rejected(row.where, error.reason, f"{row.where}: {error}", expected=left_out)

    def _checked(self, one: Rendering) -> _Encoded:
        """The samples of a conversation and what is counted of it; `MessageError` where it is not used."""
        for attribution, _ in one.attributed:
            check_full(attribution, allow_partial=self.policy.allow_partial)
        check_written(one.unwritten, self.policy.on_unwritten or "content")
        for proof in one.proofs:
            if not proof.proven:
                raise MessageError("not_proven", f"{proof.difference}. Repair the row, or drop it")
        if isinstance(one.samples, MessageError):
            raise one.samples
        if not any(weights.any() for _, weights in one.samples):
            raise MessageError(NOTHING_TRAINED, "no token of this conversation is trained; drop the row")
        return one, one.samples, [*changes_of(one), *codes_of_proofs(one)]

    def _joined(self, encoded: Sequence[_Encoded]) -> EncodedBatch:
        chats: list[Conversation] = []
        for one, of_chat, _ in encoded:
            chat = one.chat
            if len(of_chat) > 1 and chat.group is None:  # all samples of a conversation go to the same split
                chat = replace(chat, group=chat.where)
            chats += [chat] * len(of_chat)
        samples = [sample for _, of_chat, _ in encoded for sample in of_chat]
        ids = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in samples)])
        check_ids(ids, self.vocab_size)
        return EncodedBatch(
            chats,
            ids,
            np.array([len(ids) for ids, _ in samples], dtype=np.int64),
            np.concatenate([np.zeros(0, np.float32), *(weights for _, weights in samples)]),
            images=None if self.images is None else [one.images for one, _, _ in encoded],
        )

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
        return characters(row.messages, row.tools) if isinstance(row, Conversation) else 0

    def _render_many(self, chats: Sequence[Conversation]) -> Sequence[Rendering]:
        """All conversations, rendered in one call; none where that is not possible.

        Raises:
            MessageError: one of them cannot be rendered.
        """
        # Files of images are looked up row by row, since each of them may be missing.
        if self.images is not None and any(has_images(chat.messages) for chat in chats):
            return ()
        batch = rendered_batch(self.renderer, chats, [chat.messages for chat in chats])
        if batch is None or batch.media:  # images, and no folder for them: `_render` says which row has them
            return ()
        weights = batch_weights(batch, self.on, allow_partial=True)  # the policy decides
        proofs = self.proofs(chats, batch)
        renderings, start = [], 0
        for number, (chat, length) in enumerate(zip(chats, batch.lengths.tolist(), strict=True)):
            notes, tokens = batch.notes[number] if batch.notes else NO_NOTES, slice(start, start + length)
            samples, said = [(batch.ids[tokens], weights[tokens])], ((batch.attribution[number], notes),)
            own = proofs[number : number + 1]
            renderings.append(Rendering(chat, said, notes.unwritten, notes.by_format, samples, own))
            start += length
        return renderings

    def _render(self, chat: Conversation) -> Rendering:
        """One conversation, with its images.

        Raises:
            MessageError: it cannot be rendered, or an image cannot be used.
        """
        messages: Sequence[Message] = chat.messages
        if self.images is None:
            refuse_images(messages, "image_in_dataset", NO_IMAGES)
            files: list[ImageFile] = []
        else:
            messages, files = self.images.located(messages)
        rendered = render_one(self.renderer, chat, messages)
        media = getattr(rendered, "multi_modal_data", None)
        images = [] if self.images is None else self.images.placed(files, media)

        said, proofs = attributed(rendered), self.proofs_of(chat, [rendered], [0])
        samples = self._samples(rendered, chat.messages, images)
        return Rendering(chat, [said], said[1].unwritten, said[1].by_format, samples, proofs, images)

    def _samples(
        self, rendered: Any, messages: Sequence[Message], images: Sequence[PlacedImage]
    ) -> list[Sample] | MessageError:
        try:
            weights = self._weights(rendered, messages)
        except MessageError as error:
            return error
        for image in images:  # no model says placeholders, whatever else is trained
            weights[image.start : image.start + image.tokens] = 0
        return [(np.asarray(rendered.token_ids, dtype=np.int64), weights)]

    def _weights(self, rendered: Any, messages: Sequence[Message]) -> npt.NDArray[np.float32]:
        indices, sampled, content = rendered.message_indices, rendered.sampled_mask, rendered.is_content
        if not len(sampled) == len(indices) == len(content) == len(rendered.token_ids):
            raise UsageError(
                f"{type(self.renderer).__name__}: {len(rendered.token_ids)} ids, {len(sampled)} sampled flags, "
                f"{len(content)} content flags and {len(indices)} message indices; expected one of each per token"
            )
        return self.on.weights_of(rendered, messages, stops_of(self.renderer))

    def proofs(
        self, chats: Sequence[Conversation], batch: RenderedBatch, first: Sequence[int] | None = None
    ) -> Sequence[RoundTrip]:
        """What comes back of each rendering, where that is to be proven; `first` as in `round_trips`."""
        if not self.policy.prove:
            return ()
        renderer = self._proving()
        renderers = [renderer.with_kwargs(chat.chat_template_kwargs) for chat in chats]
        return round_trips(renderers, batch, [chat.tools for chat in chats], first)

    def proofs_of(self, chat: Conversation, rendered: Sequence[Any], first: Sequence[int]) -> list[RoundTrip]:
        """The same for renderings of one conversation, each of so many of its messages as it has."""
        if not self.policy.prove:
            return []
        self._proving()
        batches = (RenderedBatch.of(one, chat.messages[: len(one.message_roles)]) for one in rendered)
        return [self.proofs([chat], one, [at])[0] for one, at in zip(batches, first, strict=True)]

    def _proving(self) -> BaseRenderer:
        renderer: Any = self.renderer
        if not isinstance(renderer, BaseRenderer):
            raise UsageError(f"prove=True (--prove) needs a renderer of this package; found {type(renderer).__name__}")
        return renderer


def rendered_batch(
    renderer: Any, chats: Sequence[Conversation], messages: Sequence[Sequence[Message]]
) -> RenderedBatch | None:
    """These messages of these conversations, with their tools and options, in one call; `None` if it cannot.

    Raises:
        MessageError: one of them cannot be rendered.
    """
    if not isinstance(renderer, BatchRenderer):
        return None
    given = [chat.chat_template_kwargs for chat in chats]
    options = {"chat_template_kwargs": given} if any(given) else {}  # renderers of other packages take none
    return renderer.render_many(messages, tools=[chat.tools for chat in chats], **options)


def render_one(renderer: Any, chat: Conversation, messages: Sequence[Message]) -> Any:
    """These messages of a conversation, with its tools and options.

    Raises:
        MessageError: they cannot be rendered.
    """
    return with_kwargs(renderer, chat.chat_template_kwargs).render(messages, tools=chat.tools)


def attributed(rendered: Any) -> tuple[str, Notes]:
    """The attribution of a rendering, and its notes; renderers of other packages may lack both."""
    notes = getattr(rendered, "notes", None) or NO_NOTES._replace(unwritten=tuple(getattr(rendered, "unwritten", ())))
    return getattr(rendered, "attribution", "full"), notes


def changes_of(one: Rendering) -> list[str]:
    """The codes of what is to be said of a conversation, each once; for `Rejections.changed`."""
    codes = dict.fromkeys(one.chat.changes)
    for attribution, notes in one.attributed:
        codes |= dict.fromkeys(notes.changes)
        if attribution != "full":
            codes["partial_attribution"] = None
        if notes.route == "oracle":
            codes[BY_ORACLE] = None
    for lost in one.unwritten:
        codes[f"{lost.field}{NOT_WRITTEN}"] = None
    return [*codes]


def codes_of_proofs(one: Rendering) -> list[str]:
    """What is counted of a proven conversation; the codes of one that is changed or shortened come on top."""
    if not one.proofs:
        return []
    changed = bool(one.chat.changes) or any(proof.changes for proof in one.proofs)
    dropped = bool(one.unwritten or one.by_format)
    return [PROVEN, *[PROVEN_CHANGED] * changed, *[PROVEN_BY_FORMAT] * dropped]


def _conversation(
    number: int, row: Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected
) -> Conversation | Rejected:
    if isinstance(row, Rejected):
        return row
    try:
        return as_conversation(number, row)
    except MessageError as error:
        return Rejected(f"example {number}", error.reason, f"example {number}: {error}")
