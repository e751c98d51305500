"""Several training samples of one conversation: every trained turn on the ids with which it was produced.

Formats that drop reasoning from history render a turn differently after the next user message::

    conversation   U1 A1 U2 A2          (A: with reasoning, a: without, as history has it)
    auto           U1 A1                trains A1
                   U1 a1 U2 A2          trains A2; a1 is context
    per-turn       the same here; where history is not rewritten, still a sample for each turn

A turn is rendered with the messages before it, so a conversation of n turns is rendered n + 1 times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Literal

import numpy as np

from niels_gpt.builds.encoder_protocol import EncodedBatch, check_ids
from niels_gpt.builds.renderer_encoder import (
    BatchRenderer,
    RendererEncoder,
    attributed_of,
    changes_of,
    codes_of_proof,
    kwargs_of,
    kwargs_of_all,
)
from niels_gpt.errors import MessageError
from niels_gpt.messages import NOTHING_TRAINED, Conversation, is_untrained
from niels_gpt.renderers.images.loading import refuse_images
from niels_gpt.renderers.masks import Sample, TokenFacts, as_produced, samples_of, stops_of, trained_turns
from niels_gpt.renderers.notes import NO_NOTES, lost_in_all
from niels_gpt.renderers.types import RenderedBatch
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections

# What becomes of a conversation with several answers:
#   per-conversation  one sample, as the conversation is rendered now; reasoning that the format drops is lost
#   per-turn          a sample for each trained turn, which ends with it and trains it alone
#   auto              as few samples as train every turn on the ids with which it was produced
Samples = Literal["per-conversation", "per-turn", "auto"]
_NO_IMAGES = "only --samples per-conversation takes images; build these rows into another dataset, or drop the row"


@dataclass(frozen=True)
class SampleEncoder(RendererEncoder):
    """A `RendererEncoder` whose batches hold samples, several of some conversations, one after the other.

    Attributes:
        samples: "auto" or "per-turn", see `Samples`.
    """

    samples: Samples = "auto"

    def describe(self) -> dict[str, Any]:
        """See `ConversationEncoder`."""
        return {**super().describe(), "samples": self.samples}

    def _size(self, row: Conversation | Rejected) -> int:
        """The characters that are rendered for a conversation's samples: it is rendered up to each trained turn."""
        if not isinstance(row, Conversation):
            return 0
        sizes = [len(message["content"]) for message in row.messages]
        return sum(sum(sizes[: turn + 1]) for turn in self._turns(row)) + sum(sizes)

    def _turns(self, chat: Conversation) -> list[int]:
        try:
            return trained_turns(chat.messages, self.on)
        except MessageError:  # a wrong weight, which is found where weights are taken
            return []

    def _whole_batch(self, chats: list[Conversation], rejections: Rejections) -> EncodedBatch | None:
        """The samples of all conversations, rendered in one call; `None` if one must be rejected."""
        producer = as_produced(self.renderer)
        if self.policy.prove:  # one by one, which proves each
            return None
        if not isinstance(self.renderer, BatchRenderer) or not isinstance(producer, BatchRenderer):
            return None
        turns = [self._turns(chat) for chat in chats]
        # Chats of the turns 1 3 and 1: three parts, (chat 0, 1) (chat 0, 3) (chat 1, 1).
        parts = [(chat, turn) for chat, chat_turns in zip(chats, turns, strict=True) for turn in chat_turns]
        try:
            wholes = self.renderer.render_many(
                [chat.messages for chat in chats], tools=[chat.tools for chat in chats], **kwargs_of_all(chats)
            )
            ends = [chat.messages[: turn + 1] for chat, turn in parts]
            of_parts = [chat for chat, _ in parts]
            produced = producer.render_many(ends, tools=[chat.tools for chat in of_parts], **kwargs_of_all(of_parts))
            notes = iter(produced.notes)
            lost = [
                lost_in_all(of_whole, {turn: next(notes) for turn in chat_turns})
                for of_whole, chat_turns in zip(wholes.notes, turns, strict=True)
            ]
            if wholes.media or not all(map(self.policy.allow, wholes.attribution, lost)):
                return None
            if not all(self.policy.allow(attribution, ()) for attribution in produced.attribution):
                return None
            facts = iter(_facts_of(produced))
            samples = [
                self._samples(chat, whole, {turn: next(facts) for turn in chat_turns})
                for chat, whole, chat_turns in zip(chats, _facts_of(wholes), turns, strict=True)
            ]
        except MessageError:
            return None
        # One iterator over all of `produced`, of which each conversation takes as many as it has turns.
        of_turns = iter(attributed_of(produced))
        for chat, of_whole, chat_turns, unwritten in zip(chats, attributed_of(wholes), turns, lost, strict=True):
            attributed = [of_whole, *islice(of_turns, len(chat_turns))]
            rejections.changed.update(changes_of(chat, attributed, unwritten))
        return self._of_samples(chats, samples)

    def _one_by_one(self, rows: list[Conversation | Rejected], rejections: Rejections) -> EncodedBatch:
        checked = (row if isinstance(row, Rejected) else self._sample_one(row, rejections) for row in rows)
        found = list(rejections.accepted(checked))
        return self._of_samples([chat for chat, _ in found], [samples for _, samples in found])

    def _sample_one(self, chat: Conversation, rejections: Rejections) -> tuple[Conversation, list[Sample]] | Rejected:
        try:
            refuse_images(chat.messages, "image_in_dataset", _NO_IMAGES)
            turns = trained_turns(chat.messages, self.on)
            renderer: Any = self.renderer  # the protocol has no options, which only some rows have
            producer: Any = as_produced(self.renderer)
            rendered: list[Any] = [renderer.render(chat.messages, tools=chat.tools, **kwargs_of(chat))]
            rendered += [
                producer.render(chat.messages[: turn + 1], tools=chat.tools, **kwargs_of(chat)) for turn in turns
            ]
            whole_notes, *notes = (getattr(one, "notes", NO_NOTES) for one in rendered)
            lost = lost_in_all(whole_notes, dict(zip(turns, notes, strict=True)))
            attribution = next((one.attribution for one in rendered if one.attribution != "full"), "full")
            self.policy.check(attribution, lost)
            proof = self._checked_proof(rendered[0], chat)
            whole, *produced = (TokenFacts.of(one, stops_of(self.renderer)) for one in rendered)
            samples = self._samples(chat, whole, dict(zip(turns, produced, strict=True)))
        except MessageError as error:
            left_out = error.reason == NOTHING_TRAINED and is_untrained(chat.messages)
            return Rejected(chat.where, error.reason, f"{chat.where}: {error}", expected=left_out)
        attributed = [(one.attribution, getattr(one, "notes", NO_NOTES)) for one in rendered]
        rejections.changed.update(changes_of(chat, attributed, lost))
        rejections.changed.update(codes_of_proof(chat, proof))
        return chat, samples

    def _samples(self, chat: Conversation, whole: TokenFacts, produced: Mapping[int, TokenFacts]) -> list[Sample]:
        samples = samples_of(whole, produced, chat.messages, self.on, per_turn=self.samples == "per-turn")
        if not any(weights.any() for _, weights in samples):
            raise MessageError(NOTHING_TRAINED, "no token of this conversation is trained; drop the row")
        return samples

    def _of_samples(self, chats: Sequence[Conversation], samples: Sequence[Sequence[Sample]]) -> EncodedBatch:
        # All samples of a conversation go to the same split.
        grouped = [
            chat if len(chat_samples) == 1 or chat.group is not None else replace(chat, group=chat.where)
            for chat, chat_samples in zip(chats, samples, strict=True)
        ]
        flat = list(chain.from_iterable(samples))
        ids = np.concatenate([np.zeros(0, np.int64), *(ids for ids, _ in flat)])
        check_ids(ids, self.vocab_size)
        return EncodedBatch(
            [chat for chat, chat_samples in zip(grouped, samples, strict=True) for _ in chat_samples],
            ids,
            np.array([len(ids) for ids, _ in flat], dtype=np.int64),
            np.concatenate([np.zeros(0, np.float32), *(weights for _, weights in flat)]),
        )


def _facts_of(batch: RenderedBatch) -> list[TokenFacts]:
    """The facts of each conversation of a batch."""
    ends = np.cumsum(batch.lengths).tolist()
    ids, indices = batch.ids.astype(np.int64), batch.message_indices.astype(np.int64)
    return [
        TokenFacts(ids[a:b], indices[a:b], batch.kinds[a:b], len(messages))
        for a, b, messages in zip([0, *ends], ends, batch.messages, strict=False)
    ]
