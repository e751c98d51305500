"""Preferences to ids: every completion is rendered after its prompt, and the prompt is found among the ids.

::

    chosen    P P P P P a a a .      P: ids that all completions of the row share, up to the first trained id
    rejected  P P P P P b b .
    mask      0 0 0 0 0 1 1 1        the completion and the stop that ends it; nothing of the prompt

`PreferenceTask` runs in any process, as the tasks of `builds.conversations` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.encoder_protocol import ConversationEncoder
from niels_gpt.builds.renderer_encoder import RendererEncoder
from niels_gpt.builds.rows import batches, characters
from niels_gpt.builds.tasks import Chunk, RowMetadata
from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.protocol import with_kwargs
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.sources.rows.preference_rows import Preference

# Counted as rows: see `CHANGE_MESSAGES` of `builds.changes`.
OTHER_GENERATION_PROMPT: Final = "generation_prompt_differs"
SAME_IDS: Final = "identical_completions"
SCORES_CONTRADICT: Final = "scores_contradict_ranks"

Ids = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class EncodedCompletion:
    """One completion after its prompt.

    Attributes:
        ids: of prompt and completion, integers of shape (n,).
        weights: float32 of shape (n,); 0 on the prompt.
    """

    ids: Ids
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True)
class PreferenceTask:
    """Encodes preferences: an episode for each completion, those of a row one after the other (see `builds.tasks`)."""

    encoder: ConversationEncoder
    binary_mask: ClassVar[bool] = True

    def chunks(self, rows: Iterable[Preference | Rejected], rejections: Rejections) -> Iterator[Chunk]:
        """See `Task`. The metadata of an episode is its record of `completions.bin`. Chunks hold whole groups."""
        for batch in batches(rows, _size):
            encoded = iter(self._encoded([row for row in batch if isinstance(row, Preference)], rejections))
            ids: list[Ids] = [np.zeros(0, np.int64)]
            weights: list[npt.NDArray[np.float32]] = [np.zeros(0, np.float32)]
            groups: list[str | None] = []
            metadata: list[RowMetadata] = []
            for row in batch:
                found = row if isinstance(row, Rejected) else next(encoded)
                if isinstance(row, Rejected) or isinstance(found, Rejected):
                    rejections.record([found])  # type: ignore[list-item]
                    continue
                completions, prompt_length = found
                rejections.unread.update([*row.prompt.unread])
                ids += [each.ids for each in completions]
                weights += [each.weights for each in completions]
                groups += [row.prompt.group] * len(completions)
                metadata += _records(row, prompt_length)
            if metadata:
                lengths = np.array([len(each) for each in ids[1:]], dtype=np.int64)
                yield Chunk(np.concatenate(ids), lengths, np.concatenate(weights), groups, metadata)

    def _encoded(
        self, rows: Sequence[Preference], rejections: Rejections
    ) -> list[tuple[list[EncodedCompletion], int] | Rejected]:
        """The completions of each row and the length of their prompt; `Rejected` in place of an unusable row."""
        # Each completion in one conversation with its prompt, not alone: only so are the ids where both meet those of
        # training.
        chats = []
        for number, row in enumerate(rows):
            # The answers of a prompt are context: only what is compared is trained.
            prompt: list[Message] = [
                {**message, "train": False} if message["role"] == "assistant" else message
                for message in row.prompt.messages
            ]
            for completion in row.completions:
                messages, where = [*prompt, *completion.messages], f"{row.prompt.where}, {completion.name}"
                chats.append(replace(row.prompt, messages=messages, where=where, metadata={"row": number}))
        collected = _Collected()
        found: list[list[EncodedCompletion]] = [[] for _ in rows]
        for batch in self.encoder.encode(chats, collected):
            if not batch.conversations:  # all were refused, and numpy splits nothing into one part
                continue
            ends = np.cumsum(batch.lengths)
            parts = zip(np.split(batch.ids, ends[:-1]), np.split(batch.weights, ends[:-1]), strict=True)
            for chat, (ids, weights) in zip(batch.conversations, parts, strict=True):
                found[chat.metadata["row"]].append(EncodedCompletion(ids, weights))
        rejections.changed.update(collected.changed)
        return [
            self._checked(row, completions, collected, rejections) for row, completions in zip(rows, found, strict=True)
        ]

    def _checked(
        self, row: Preference, completions: list[EncodedCompletion], collected: _Collected, rejections: Rejections
    ) -> tuple[list[EncodedCompletion], int] | Rejected:
        prompt, where = row.prompt, row.prompt.where
        # The encoder rejected a side, so there is nothing to compare; the row has the reason of its first bad side.
        if len(completions) < len(row.completions):
            names = (f"{where}, {each.name}" for each in row.completions)
            first = next(collected.of[at] for at in names if at in collected.of)
            return Rejected(where, first.reason, first.detail)
        # What serving would put before a completion; not every encoder can render a prompt.
        generation_prompt: list[int] | None = None
        renderer: Any = self.encoder.renderer if isinstance(self.encoder, RendererEncoder) else None
        try:
            self._check_weights(row, completions)
            if hasattr(renderer, "render_ids"):
                own = with_kwargs(renderer, prompt.chat_template_kwargs)
                generation_prompt = [*own.render_ids(prompt.messages, tools=prompt.tools, add_generation_prompt=True)]
            sides = [each.ids for each in completions]
            length = shared_prompt(sides, [each.weights for each in completions], generation_prompt)
        except MessageError as error:
            return Rejected(where, error.reason, f"{where}: {error}")
        if generation_prompt is not None and sides[0][:length].tolist() != generation_prompt:
            rejections.changed[OTHER_GENERATION_PROMPT] += 1
        rejections.changed.update(_doubts(row, completions))
        return completions, length

    def _check_weights(self, row: Preference, completions: list[EncodedCompletion]) -> None:
        """Refuse weights that a mask cannot hold, and a last trained token that does not end an answer."""
        for completion, encoded in zip(row.completions, completions, strict=True):
            other = encoded.weights[(encoded.weights != 0) & (encoded.weights != 1)]
            if len(other):
                raise MessageError(
                    "unsupported_field",
                    f"{completion.name}: a weight of {other[0]:g}; the mask of preferences holds 0 and 1. Remove "
                    "`weight`",
                )
        stops: set[int] | None = None  # the format has no such ids, or the encoder does not name them
        if isinstance(self.encoder, RendererEncoder):
            renderer: Any = self.encoder.renderer
            # Where the next turn's opener is the stop (GLM), the last answer of a conversation has none.
            ended_by_opener = isinstance(renderer, Family) and bool(renderer.stops) and not renderer.end_turn[0]
            if hasattr(renderer, "get_stop_token_ids") and not ended_by_opener:
                stops = set(renderer.get_stop_token_ids())
        else:
            special = self.encoder.describe().get("special_token_ids") or {}
            stops = {special["eot"]} if "eot" in special else None
        if stops is None:
            return
        for completion, encoded in zip(row.completions, completions, strict=True):
            last = int(encoded.ids[np.flatnonzero(encoded.weights)[-1]])
            if last not in stops:
                raise MessageError(
                    "no_trained_stop",
                    f"{completion.name}: the last trained token is {last}, which does not end an answer; expected "
                    f"one of {sorted(stops)}. The model would not learn to stop: check the "
                    "template and the messages' `train`",
                )


def _doubts(row: Preference, completions: Sequence[EncodedCompletion]) -> Iterator[str]:
    """The doubts about a usable row: completions of different ranks with the same ids, scores that contradict ranks."""
    ranks = [completion.rank for completion in row.completions]
    # Completions are in the order of their ranks, so of two that differ the later one, b, is the worse.
    worse = [(a, b) for b in range(len(ranks)) for a in range(b) if ranks[a] != ranks[b]]
    if any(np.array_equal(completions[a].ids, completions[b].ids) for a, b in worse):
        yield SAME_IDS
    scores = [completion.score for completion in row.completions]
    pairs = [(scores[a], scores[b]) for a, b in worse]
    if (row.margin or 0) < 0 or any(one is not None and other is not None and one < other for one, other in pairs):
        yield SCORES_CONTRADICT


def shared_prompt(
    completions: Sequence[Ids], weights: Sequence[npt.NDArray[np.float32]], generation_prompt: Sequence[int] | None
) -> int:
    """How many ids at the beginning of all completions are their prompt.

    That is their longest common beginning, as far as nothing in it is trained. It may be one id shorter than the
    generation prompt, where the tokenizer joins the end of the prompt with the beginning of a completion.

    Args:
        completions: the ids of prompt and completion, each of shape (n,).
        weights: of the same shapes, 0 on the prompt.
        generation_prompt: what serving puts before a completion, if it is known.

    Raises:
        MessageError: the ids differ before the completions begin.
    """
    # Completions may begin with the same ids ("Yes, ..." and "Yes. ..."), and these are trained, so no prompt.
    begin = min(int(np.flatnonzero(each)[0]) for each in weights)
    first = completions[0]
    length = begin
    for other in completions[1:]:
        n = min(length, len(other))
        differing = np.flatnonzero(first[:n] != other[:n])
        length = int(differing[0]) if len(differing) else n
    needed = begin if generation_prompt is None else min(begin, len(generation_prompt) - 1)
    # A prompt has one token at least, from which the first token of a completion is predicted.
    if length < max(1, needed):
        raise MessageError(
            "prompt_differs",
            f"the ids of the completions differ from token {length} on, but the prompt has {begin}; the format renders "
            "it differently after different completions. Expected the same prompt on all sides",
        )
    return length


def _records(row: Preference, prompt_length: int) -> list[RowMetadata]:
    """The record in `completions.bin` of each completion; `None` for values that the row does not give."""
    return [
        {
            "number": number,
            "prompt_length": prompt_length,
            "rank": completion.rank,
            "label": completion.label,
            "score": completion.score,
            "margin": row.margin if number == 0 else None,
        }
        for number, completion in enumerate(row.completions)
    ]


def _size(row: Preference | Rejected) -> int:
    if isinstance(row, Rejected):
        return 0
    return sum(characters([*row.prompt.messages, *each.messages], row.prompt.tools) for each in row.completions)


class _Collected(Rejections):
    """Collects what an encoder rejects: one bad side makes a whole row unusable, which is rejected once."""

    def __init__(self) -> None:
        super().__init__(Path(), 0)
        self.of: dict[str, Rejected] = {}

    def _add(self, row: Rejected) -> None:
        self.of[row.where] = row
