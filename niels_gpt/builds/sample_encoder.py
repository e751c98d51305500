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
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np

from niels_gpt.builds.renderer_encoder import RendererEncoder, Rendering, attributed, render_one, rendered_batch
from niels_gpt.builds.rows import characters
from niels_gpt.errors import MessageError
from niels_gpt.messages import Conversation
from niels_gpt.renderers.images.loading import refuse_images
from niels_gpt.renderers.masks import TokenFacts, samples_of, trained_turns
from niels_gpt.renderers.notes import NO_NOTES, Notes, lost_in_all
from niels_gpt.renderers.protocol import as_produced, stops_of
from niels_gpt.renderers.round_trip import RoundTrip
from niels_gpt.renderers.types import RenderedBatch
from niels_gpt.sources.files.inputs import Rejected

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
        turns = self._turns(row)
        sizes, tools = [characters([message]) for message in row.messages], characters((), row.tools)
        return sum(sum(sizes[: turn + 1]) for turn in turns) + sum(sizes) + tools * (len(turns) + 1)

    def _turns(self, chat: Conversation) -> list[int]:
        try:
            return trained_turns(chat.messages, self.on)
        except MessageError:  # a wrong weight, which is found where weights are taken
            return []

    def _render_many(self, chats: Sequence[Conversation]) -> Sequence[Rendering]:
        turns = [self._turns(chat) for chat in chats]
        # Chats of the turns 1 3 and 1: three parts, (chat 0, 1) (chat 0, 3) (chat 1, 1).
        parts = [(chat, turn) for chat, of_chat in zip(chats, turns, strict=True) for turn in of_chat]
        of_parts = [chat for chat, _ in parts]
        wholes = rendered_batch(self.renderer, chats, [chat.messages for chat in chats])
        ends = [chat.messages[: turn + 1] for chat, turn in parts]
        produced = rendered_batch(as_produced(self.renderer), of_parts, ends)
        if wholes is None or produced is None or wholes.media:
            return ()
        # One iterator over all of `produced`, of which each conversation takes as many as it has turns.
        facts = zip(_facts_of(produced), _attributed_of(produced), strict=True)
        whole = zip(_facts_of(wholes), _attributed_of(wholes), strict=True)
        # Of what a turn was produced with, the turn alone is proven: the messages before it are those of the whole.
        proven = self.proofs(chats, wholes), iter(self.proofs(of_parts, produced, [turn for _, turn in parts]))
        renderings = []
        for number, (chat, of_chat, of_whole) in enumerate(zip(chats, turns, whole, strict=True)):
            proofs = [*proven[0][number : number + 1], *islice(proven[1], len(of_chat))]
            renderings.append(self._rendering(chat, of_whole, dict(zip(of_chat, facts, strict=False)), proofs))
        return renderings

    def _render(self, chat: Conversation) -> Rendering:
        refuse_images(chat.messages, "image_in_dataset", _NO_IMAGES)
        turns, producer = trained_turns(chat.messages, self.on), as_produced(self.renderer)
        rendered = [render_one(self.renderer, chat, chat.messages)]
        rendered += [render_one(producer, chat, chat.messages[: turn + 1]) for turn in turns]
        stops = stops_of(self.renderer)
        whole, *produced = ((TokenFacts.of(one, stops), attributed(one)) for one in rendered)
        proofs = self.proofs_of(chat, rendered, [0, *turns])
        return self._rendering(chat, whole, dict(zip(turns, produced, strict=True)), proofs)

    def _rendering(
        self,
        chat: Conversation,
        whole: tuple[TokenFacts, tuple[str, Notes]],
        produced: Mapping[int, tuple[TokenFacts, tuple[str, Notes]]],
        proofs: Sequence[RoundTrip],
    ) -> Rendering:
        """A conversation from the facts of the whole and of each turn as it was produced."""
        notes = {turn: notes for turn, (_, (_, notes)) in produced.items()}
        lost = lost_in_all(whole[1][1].unwritten, {turn: one.unwritten for turn, one in notes.items()})
        dropped = lost_in_all(whole[1][1].by_format, {turn: one.by_format for turn, one in notes.items()})
        facts = {turn: of_turn for turn, (of_turn, _) in produced.items()}
        said = [whole[1], *(attribution for _, attribution in produced.values())]
        try:
            samples = samples_of(whole[0], facts, chat.messages, self.on, per_turn=self.samples == "per-turn")
        except MessageError as error:
            return Rendering(chat, said, lost, dropped, error)
        return Rendering(chat, said, lost, dropped, samples, proofs)


def _attributed_of(batch: RenderedBatch) -> list[tuple[str, Notes]]:
    return list(zip(batch.attribution, batch.notes or [NO_NOTES] * len(batch), strict=True))


def _facts_of(batch: RenderedBatch) -> list[TokenFacts]:
    """The facts of each conversation of a batch."""
    ends = np.cumsum(batch.lengths).tolist()
    ids, indices = batch.ids.astype(np.int64), batch.message_indices.astype(np.int64)
    return [
        TokenFacts(ids[a:b], indices[a:b], batch.kinds[a:b], len(messages))
        for a, b, messages in zip([0, *ends], ends, batch.messages, strict=False)
    ]
