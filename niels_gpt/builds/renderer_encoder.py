"""Conversations to ids and loss weights by a renderer: one sample of each, or one for each turn of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.changes import BY_ORACLE, NO_TRAINED_STOP, NOT_WRITTEN
from niels_gpt.builds.encoder_protocol import EncodedBatch, check_ids
from niels_gpt.builds.images import ImageFile, ImageFolder, has_images
from niels_gpt.builds.rows import batches, characters
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import NOTHING_TRAINED, Conversation, Message, is_untrained
from niels_gpt.renderers.base_renderer import BaseRenderer
from niels_gpt.renderers.images.loading import refuse_images
from niels_gpt.renderers.kinds import kinds_of
from niels_gpt.renderers.loss import LossOn, check_full
from niels_gpt.renderers.masks import TokenFacts, batch_weights, samples_of, trained_turns
from niels_gpt.renderers.notes import (
    NO_NOTES,
    Notes,
    OnUnwritten,
    Unwritten,
    check_on_unwritten,
    check_written,
    decided,
    lost_in_all,
)
from niels_gpt.renderers.protocol import Renders, as_produced, listing, stops_of, with_kwargs
from niels_gpt.renderers.round_trip import RoundTrip, round_trips
from niels_gpt.renderers.types import RenderedBatch
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.store.schema import PlacedImage

# What becomes of a conversation with several answers:
#   per-conversation  one sample, as the conversation is rendered now; reasoning that the format drops is lost
#   per-turn          a sample for each trained turn, which ends with it and trains it alone
#   auto              as few samples as train every turn on the ids with which it was produced
Samples = Literal["per-conversation", "per-turn", "auto"]

# With several samples, and with one.
NO_IMAGES: Final = (
    "only --samples per-conversation takes images; build these rows into another dataset, or drop the row",
    "name the folder of the images, which episodes alone take (niels-gpt build --images, ng.build(images=)), "
    "with a renderer that has a processor; or drop the row. "
    "Without their names in the dataset, a model trained on it would see only placeholders",
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
        samples: its training samples. trained: whether any token of them is.
        proofs: what comes back of each of its renderings, where they are to be proven.
        error: that of a wrong weight.
    """

    chat: Conversation
    attributed: Sequence[tuple[str, Notes]]
    unwritten: Sequence[Unwritten]
    by_format: Sequence[Unwritten]
    samples: Sequence[Sample]
    trained: bool
    proofs: Sequence[RoundTrip] = ()
    images: Sequence[PlacedImage] = ()
    error: MessageError | None = None


@dataclass(frozen=True)
class RendererEncoder:
    """Encodes with a renderer.

    Args:
        fingerprints: recorded in the manifest: `tokenizer_sha256`, `template_sha256`, and what else decides the ids.
        on: which tokens are trained; default the sampled ones. A message's `train` and `weight` apply on top.
        policy: whether conversations are used whose rendering is incomplete.
        images: the folder of the images in conversations; `None`: conversations with images are rejected.
        samples: how many samples a conversation makes; those of one conversation follow each other.
    """

    renderer: Renders
    vocab_size: int | None = None
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)
    on: LossOn = field(default_factory=LossOn)
    policy: RenderingPolicy = field(default_factory=RenderingPolicy)
    images: ImageFolder | None = None
    samples: Samples = "per-conversation"

    def __post_init__(self) -> None:
        # The policy decides and counts, so the renderer must not refuse before.
        object.__setattr__(self, "policy", self.policy.of(self.renderer))
        object.__setattr__(self, "renderer", listing(self.renderer))

    @property
    def identified(self) -> bool:
        """See `ConversationEncoder`: true if both fingerprints are known."""
        return all(self.fingerprints.get(name) for name in ("tokenizer_sha256", "template_sha256"))

    def describe(self) -> dict[str, Any]:
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
        if self.samples != "per-conversation":
            options["samples"] = self.samples
        # So that a loader knows an id to pad with.
        stops = stops_of(self.renderer)
        special = {"special_token_ids": {"eot": stops[0]}} if stops else {}
        return {"encoder": type(self.renderer).__name__, **known, **special, **options}

    def encode(self, rows: Iterable[Conversation | Rejected], rejections: Rejections) -> Iterator[EncodedBatch]:
        # Unusable rows stay in their places within a batch, so that rejections come in the order of the rows.
        for batch in batches(rows, self._size):
            encoded = list(rejections.accepted(self._encoded(batch)))
            for one in encoded:
                rejections.changed.update(_codes(one))
            joined = self._joined(encoded)
            if without_stop := self._without_trained_stop(joined):
                rejections.changed[NO_TRAINED_STOP] += without_stop
            yield joined

    def _encoded(self, batch: Sequence[Conversation | Rejected]) -> Iterator[Rendering | Rejected]:
        chats = [row for row in batch if isinstance(row, Conversation)]
        try:
            rendered = iter(self._render(chats))
        except MessageError:  # one cannot be rendered, which shows below
            rendered = iter(())
        for row in batch:
            if isinstance(row, Rejected):
                yield row
                continue
            try:
                yield self._checked(next(rendered, None) or self._render([row])[0])
            except MessageError as error:
                left_out = error.reason == NOTHING_TRAINED and is_untrained(row.messages)
                yield Rejected(row.where, error.reason, f"{row.where}: {error}", expected=left_out)

    def _checked(self, one: Rendering) -> Rendering:
        """The same; `MessageError` where it is not used."""
        for attribution, _ in one.attributed:
            check_full(attribution, allow_partial=self.policy.allow_partial)
        check_written(one.unwritten, self.policy.on_unwritten or "content")
        for proof in one.proofs:
            if not proof.proven:
                raise MessageError("not_proven", f"{proof.difference}. Repair the row, or drop it")
        if one.error is not None:
            raise one.error
        if not one.trained:
            raise MessageError(NOTHING_TRAINED, "no token of this conversation is trained; drop the row")
        return one

    def _joined(self, encoded: Sequence[Rendering]) -> EncodedBatch:
        chats: list[Conversation] = []
        for one in encoded:
            chat = one.chat
            if len(one.samples) > 1 and chat.group is None:  # all samples of a conversation go to the same split
                chat = replace(chat, group=chat.where)
            chats += [chat] * len(one.samples)
        samples = [sample for one in encoded for sample in one.samples]
        ids = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in samples)])
        check_ids(ids, self.vocab_size)
        return EncodedBatch(
            chats,
            ids,
            np.array([len(ids) for ids, _ in samples], dtype=np.int64),
            np.concatenate([np.zeros(0, np.float32), *(weights for _, weights in samples)]),
            images=None if self.images is None else [one.images for one in encoded],
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
        """How many characters are rendered for a row: of several samples, also the messages up to each trained turn."""
        if not isinstance(row, Conversation):
            return 0
        whole = characters(row.messages, row.tools)
        if self.samples == "per-conversation":
            return whole
        try:
            turns = trained_turns(row.messages, self.on)
        except MessageError:  # a wrong weight, which is found where weights are taken
            return whole
        return whole + sum(characters(row.messages[: turn + 1], row.tools) for turn in turns)

    def _render(self, chats: Sequence[Conversation]) -> Sequence[Rendering]:
        """Conversations, rendered in one call; none where several of them cannot be.

        Raises:
            MessageError: one of them cannot be rendered, or an image cannot be used.
        """
        messages: list[Sequence[Message]] = [chat.messages for chat in chats]
        files: list[ImageFile] = []
        if len(chats) != 1:
            # Files of images are looked up row by row, since each of them may be missing.
            alone = self.images is not None and any(map(has_images, messages))
            if alone or not chats or not isinstance(self.renderer, BatchRenderer):
                return ()
        elif self.images is None:
            refuse_images(messages[0], "image_in_dataset", NO_IMAGES[self.samples == "per-conversation"])
        else:
            messages[0], files = self.images.located(messages[0])
        whole = self._batch(self.renderer, chats, messages, alone=len(chats) == 1)
        if len(chats) > 1 and whole.media:  # images, and no folder for them: alone it shows which row has them
            return ()
        if self.samples != "per-conversation":
            return self._samples_of(chats, whole)
        images = [] if self.images is None else self.images.placed(files, whole.media[0] if whole.media else None)
        weights, error = np.zeros(len(whole.ids), np.float32), None
        try:
            weights = batch_weights(whole, self.on, allow_partial=True)  # the policy decides
        except MessageError as wrong:
            if len(chats) > 1:
                raise
            error = MessageError(wrong.reason, str(wrong).removeprefix("conversation 0: "))
        for image in images:  # no model says placeholders, whatever else is trained
            weights[image.start : image.start + image.tokens] = 0
        proofs, edges, renderings = self._proofs(chats, whole), whole.edges, []
        sums = np.concatenate(([0], np.cumsum(weights != 0)))[edges]
        trained, ends = (sums[1:] > sums[:-1]).tolist(), edges.tolist()
        for number, (chat, attributed) in enumerate(zip(chats, _attributed(whole), strict=True)):
            tokens, notes, own = slice(ends[number], ends[number + 1]), attributed[1], proofs[number : number + 1]
            sample = whole.ids[tokens], weights[tokens]
            renderings.append(
                Rendering(
                    chat, (attributed,), notes.unwritten, notes.by_format, [sample], trained[number], own, images, error
                )
            )
        return renderings

    def _samples_of(self, chats: Sequence[Conversation], whole: RenderedBatch) -> Sequence[Rendering]:
        """The samples of each conversation. Formats that drop reasoning from history render a turn differently later::

            conversation   U1 A1 U2 A2          (A: with reasoning, a: without, as history has it)
            auto           U1 A1                trains A1
                           U1 a1 U2 A2          trains A2; a1 is context
            per-turn       the same here; where history is not rewritten, still a sample for each turn

        A turn is rendered with the messages before it, so a conversation of n turns is rendered n + 1 times.
        """
        turns = [trained_turns(chat.messages, self.on) for chat in chats]
        # Chats of the turns 1 3 and 1: three parts, (chat 0, 1) (chat 0, 3) (chat 1, 1).
        parts = [(chat, turn) for chat, of_chat in zip(chats, turns, strict=True) for turn in of_chat]
        of_parts, ends = [chat for chat, _ in parts], [chat.messages[: turn + 1] for chat, turn in parts]
        produced = self._batch(as_produced(self.renderer), of_parts, ends, alone=len(chats) == 1)
        # Of what a turn was produced with, the turn alone is proven: the messages before it are those of the whole.
        proofs = self._proofs(chats, whole), iter(self._proofs(of_parts, produced, [turn for _, turn in parts]))
        # One iterator over all of `produced`, of which each conversation takes as many as it has turns.
        each = zip(_facts(produced), _attributed(produced), strict=True)
        renderings = []
        wholes = zip(_facts(whole), _attributed(whole), strict=True)
        for number, (chat, of_chat, (facts, attributed)) in enumerate(zip(chats, turns, wholes, strict=True)):
            of_turns = dict(zip(of_chat, islice(each, len(of_chat)), strict=True))
            notes = {turn: of_turn[1][1] for turn, of_turn in of_turns.items()}
            samples = samples_of(
                facts,
                {turn: of_turn[0] for turn, of_turn in of_turns.items()},
                chat.messages,
                self.on,
                per_turn=self.samples == "per-turn",
            )
            renderings.append(
                Rendering(
                    chat,
                    [attributed, *(of_turn[1] for of_turn in of_turns.values())],
                    lost_in_all(attributed[1].unwritten, {turn: one.unwritten for turn, one in notes.items()}),
                    lost_in_all(attributed[1].by_format, {turn: one.by_format for turn, one in notes.items()}),
                    samples,
                    any(weights.any() for _, weights in samples),
                    [*proofs[0][number : number + 1], *islice(proofs[1], len(of_chat))],
                )
            )
        return renderings

    def _batch(
        self,
        renderer: Any,
        chats: Sequence[Conversation],
        messages: Sequence[Sequence[Message]],
        *,
        alone: bool,
    ) -> RenderedBatch:
        """These messages of these conversations, with their tools and options; those of one conversation `alone`.

        Raises:
            MessageError: one of them cannot be rendered; its text names no conversation if it is `alone`.
        """
        if not alone:
            given = [chat.chat_template_kwargs for chat in chats]
            options = {"chat_template_kwargs": given} if any(given) else {}  # renderers of other packages take none
            batch: RenderedBatch = renderer.render_many(messages, tools=[chat.tools for chat in chats], **options)
            return batch
        rendered = [render_one(renderer, *both) for both in zip(chats, messages, strict=True)]
        return self._as_batch(rendered, messages)

    def _as_batch(self, rendered: Sequence[Any], messages: Sequence[Sequence[Message]]) -> RenderedBatch:
        """Renderings of this package or of another, which may lack kinds, attribution and notes."""
        stops, facts = stops_of(self.renderer), [np.zeros(0, np.int64)]
        for one in rendered:
            indices, sampled, content = one.message_indices, one.sampled_mask, one.is_content
            if not len(sampled) == len(indices) == len(content) == len(one.token_ids):
                raise UsageError(
                    f"{type(self.renderer).__name__}: {len(one.token_ids)} ids, {len(sampled)} sampled flags, "
                    f"{len(content)} content flags and {len(indices)} message indices; expected one of each per token"
                )
            self.on.check_kinds(one)
            facts.append(np.fromiter(indices, np.int64, len(indices)) << 4 | kinds_of(one, stops))
        lengths = np.array([len(one.token_ids) for one in rendered], np.int64)
        ids = np.concatenate([np.zeros(0, np.int64), *(np.asarray(one.token_ids, np.int64) for one in rendered)])
        return RenderedBatch(
            ids.astype(np.int32),
            lengths,
            np.concatenate(facts).astype(np.int32),
            np.ones(len(ids), np.int64),  # a piece for each token
            lengths,
            messages,
            [getattr(one, "attribution", "full") for one in rendered],
            [getattr(one, "multi_modal_data", None) for one in rendered],
            notes=[
                getattr(one, "notes", None) or NO_NOTES._replace(unwritten=tuple(getattr(one, "unwritten", ())))
                for one in rendered
            ],
        )

    def _proofs(
        self, chats: Sequence[Conversation], batch: RenderedBatch, first: Sequence[int] | None = None
    ) -> Sequence[RoundTrip]:
        """What comes back of each rendering, where that is to be proven; `first` as in `round_trips`."""
        if not self.policy.prove:
            return ()
        renderer: Any = self.renderer
        if not isinstance(renderer, BaseRenderer):
            raise UsageError(f"prove=True (--prove) needs a renderer of this package; found {type(renderer).__name__}")
        renderers = [renderer.with_kwargs(chat.chat_template_kwargs) for chat in chats]
        return round_trips(renderers, batch, [chat.tools for chat in chats], first)


def render_one(renderer: Any, chat: Conversation, messages: Sequence[Message]) -> Any:
    """These messages of a conversation, with its tools and options.

    Raises:
        MessageError: they cannot be rendered.
    """
    return with_kwargs(renderer, chat.chat_template_kwargs).render(messages, tools=chat.tools)


def _attributed(batch: RenderedBatch) -> list[tuple[str, Notes]]:
    return list(zip(batch.attribution, batch.notes or [NO_NOTES] * len(batch), strict=True))


def _facts(batch: RenderedBatch) -> list[TokenFacts]:
    """The facts of each conversation of a batch."""
    edges = batch.edges.tolist()
    ids, indices = batch.ids.astype(np.int64), batch.message_indices.astype(np.int64)
    return [
        TokenFacts(ids[a:b], indices[a:b], batch.kinds[a:b], len(messages))
        for a, b, messages in zip(edges[:-1], edges[1:], batch.messages, strict=True)
    ]


def _codes(one: Rendering) -> list[str]:
    """The codes of what a report counts of a conversation that is used, each once; for `Rejections.changed`."""
    codes = dict.fromkeys(one.chat.changes)
    for attribution, notes in one.attributed:
        codes |= dict.fromkeys(notes.changes)
        if attribution != "full":
            codes["partial_attribution"] = None
        if notes.route == "oracle":
            codes[BY_ORACLE] = None
    for lost in one.unwritten:
        codes[f"{lost.field}{NOT_WRITTEN}"] = None
    if one.proofs:
        # What is counted of a proven conversation; the codes of one that is changed or shortened come on top.
        changed = bool(one.chat.changes) or any(proof.changes for proof in one.proofs)
        dropped = bool(one.unwritten or one.by_format)
        codes |= dict.fromkeys([PROVEN, *[PROVEN_CHANGED] * changed, *[PROVEN_BY_FORMAT] * dropped])
    return [*codes]
