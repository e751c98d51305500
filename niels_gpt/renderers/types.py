"""The values that renderers return.

::

    RenderedTokens    one conversation: ids, the message and kind of every token   render
    RenderedBatch     many conversations, as flat arrays                           render_many
    ParsedResponse    a completion: content, reasoning, tool calls                 parse_response
    MultiModalData    the images of a conversation, with their tokens

What the model would emit and what is content follows from a token's kind (`kinds.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.display.rows import TokenSpelling
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Message
from niels_gpt.renderers.display import TokenColumns, notebook_html, summary, terminal_text
from niels_gpt.renderers.images.processors import MultiModalData
from niels_gpt.renderers.kinds import CONTENT, KIND_BITS, SAMPLED, kinds_of
from niels_gpt.renderers.kinds import Piece as Piece
from niels_gpt.renderers.loss import LossOn, Preset, check_full, extract_message_tool_names
from niels_gpt.renderers.notes import NO_NOTES, Notes, Unwritten
from niels_gpt.tokenizer.pieces import edges_of

IGNORED = -100  # the label of a token that is not in the loss, as torch's cross entropy ignores it by default
_TYPE_IDS = {"image": 1, "video": 2}


def as_array(values: Sequence[Any], dtype: Any) -> npt.NDArray[Any]:
    """A list as an array; quicker than `np.asarray`, which goes through a list twice."""
    return np.fromiter(values, dtype, len(values))


@dataclass(frozen=True)
class RenderedTokens:
    """A conversation as ids; the lists have one entry per token, `message_roles` and `message_tool_names` per message.

    Attributes:
        token_ids: the ids.
        message_indices: the index of each token's message among the caller's, -1 for none.
        sampled_mask: the model itself would emit this token: reply, tool calls, end of turn.
        is_content: the token is content of a message, or, on assistant messages, is sampled.
        message_roles: the role of each of the caller's messages.
        multi_modal_data: the images; `None` where there are none.
        message_tool_names: for each tool message the function that it answers, as far as known, else `None`.
        attribution: "full", or "partial: " and what could not be proven.
        notes: how a template was attributed, and what of the conversation is not in it.
        kinds: what each token is (`Kind`, as integers); empty where a renderer of another package made no kinds. Two
            renderings are equal whatever their kinds and notes.
    """

    token_ids: list[int] = field(default_factory=list)
    message_indices: list[int] = field(default_factory=list)
    sampled_mask: list[bool] = field(default_factory=list)
    is_content: list[bool] = field(default_factory=list)
    message_roles: list[str] = field(default_factory=list)
    multi_modal_data: MultiModalData | None = None
    message_tool_names: list[str | None] = field(default_factory=list)
    attribution: str = "full"
    kinds: list[int] = field(default_factory=list, compare=False)
    notes: Notes = field(default=NO_NOTES, compare=False)
    _messages: Sequence[Message] | None = field(default=None, compare=False)
    _token_bytes: Callable[[list[int]], list[bytes]] | None = field(default=None, compare=False)

    @classmethod
    def from_arrays(
        cls,
        ids: npt.NDArray[np.int32],
        facts: npt.NDArray[np.int32],
        counts: npt.NDArray[np.int64],
        messages: Sequence[Message],
        attribution: str = "full",
        media: MultiModalData | None = None,
        token_bytes: Callable[[list[int]], list[bytes]] | None = None,
        notes: Notes = NO_NOTES,
    ) -> RenderedTokens:
        """One conversation, from arrays as `RenderedBatch` has them; `token_bytes` is for `show`."""
        owners, kinds = (facts >> 4).repeat(counts), (facts & KIND_BITS).repeat(counts)
        return cls(
            ids.tolist(),
            owners.tolist(),
            (kinds & SAMPLED != 0).tolist(),
            (kinds & CONTENT != 0).tolist(),
            [message["role"] for message in messages],
            media,
            extract_message_tool_names(messages),
            attribution,
            kinds.tolist(),
            notes,
            messages,
            token_bytes,
        )

    def arrays(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Ids, and the facts and the number of tokens of each piece, as `RenderedBatch` has them."""
        facts = as_array(self.message_indices, np.int32) << 4 | as_array(self.kinds, np.int32)  # a piece for each token
        return as_array(self.token_ids, np.int32), facts, np.ones(len(facts), np.int64)

    @property
    def attribution_route(self) -> str:
        """How a template was attributed: "gaps", or "oracle", which is slow; "" for a grammar. See `Notes`."""
        return self.notes.route

    @property
    def unwritten(self) -> tuple[Unwritten, ...]:
        """The texts of messages, calls and declarations that the format has no place for: they are not in the ids."""
        return self.notes.unwritten

    @property
    def by_format(self) -> tuple[Unwritten, ...]:
        """The reasoning of answers that the format drops from history by design."""
        return self.notes.by_format

    @property
    def changes(self) -> Mapping[str, int]:
        """What is written otherwise than the caller has it, code -> how many times (`adapting.py`)."""
        return self.notes.changes

    def __getstate__(self) -> dict[str, Any]:
        """All fields but the messages, and `token_bytes`, which belongs to a tokenizer of this process."""
        return self.__dict__ | {"_messages": None, "_token_bytes": None}

    def weights(
        self,
        loss_on: LossOn | Preset = "all_assistant_turns",
        *,
        messages: Sequence[Message] | None = None,
        allow_partial: bool = False,
    ) -> npt.NDArray[np.float32]:
        """The loss weight of every token, float32 of shape (tokens,): 0 where a token is not trained.

        Args:
            loss_on: which tokens are trained: a `LossOn`, or the name of its preset.
            messages: the messages that were rendered, normalised; needed only after unpickling.
            allow_partial: also for a rendering in which some content could not be attributed.

        Raises:
            UsageError: no such preset, a rendering without attribution or without its messages, or other messages.
            MessageError: partial attribution; a weight that is negative or not a number.
        """
        rendered_messages = self._messages if messages is None else messages
        if rendered_messages is None:
            raise UsageError(
                "this rendering does not have its messages, which hold weights and train flags (a pickle leaves them "
                "out). Pass messages=, the messages that were rendered"
            )
        self.check_attribution()
        check_full(self.attribution, allow_partial=allow_partial)
        roles = [message["role"] for message in rendered_messages]
        if self.message_roles != roles:
            raise UsageError(
                f"the rendering has messages of roles {self.message_roles}; expected those of the messages: {roles}"
            )
        return LossOn.of(loss_on).weights_of(self, rendered_messages)

    def check_attribution(self) -> None:
        """Refuse a rendering without attribution.

        Raises:
            UsageError: there is not one fact per token.
        """
        n = len(self.token_ids)
        if not len(self.message_indices) == len(self.sampled_mask) == len(self.is_content) == n:
            raise UsageError(
                f"{n} ids with {len(self.message_indices)} message_indices, {len(self.sampled_mask)} in sampled_mask "
                f"and {len(self.is_content)} in is_content; expected one of each per id. No mask can be built without "
                "them: use a renderer with attribution"
            )

    def labels(
        self,
        loss_on: LossOn | Preset = "all_assistant_turns",
        *,
        messages: Sequence[Message] | None = None,
        allow_partial: bool = False,
    ) -> list[int]:
        """The ids with -100 where a token is not trained, as `transformers` takes them: not shifted.

        ::

            token_ids      5   7    9   4    11   3      the model emits 11 and the stop token 3
            sampled_mask   .   .    .   .    #    #
            labels()    -100 -100 -100 -100  11   3

        Args, Raises: as `weights`.

        Raises:
            UsageError: a weight that is neither 0 nor 1, which labels cannot express.
        """
        # -100 or the id: cross entropy over labels has no place for a weight of a half.
        weights = self.weights(loss_on, messages=messages, allow_partial=allow_partial)
        fractional = weights[(weights != 0) & (weights != 1)]
        if fractional.size:
            raise UsageError(
                f"a message has the weight {float(fractional[0]):g}; labels can express only 0 and 1. Use weights(), "
                "or give the messages weights of 0 and 1"
            )
        found: list[int] = np.where(weights > 0, as_array(self.token_ids, np.int64), IGNORED).tolist()
        return found

    def show(self, loss_on: LossOn | Preset = "all_assistant_turns") -> None:
        """Print the text in colour: what is trained, sampled, context and scaffold.

        Raises:
            UsageError, MessageError: as `weights`, but partial attribution is shown.
        """
        print(terminal_text(self._columns(self.weights(loss_on, allow_partial=True))), end="")

    def _columns(self, weights: npt.NDArray[np.float32] | None = None) -> TokenColumns:
        """The columns to show; default weights: those of `LossOn()`, where the messages are available."""
        n = len(self.token_ids)
        if weights is None:
            # `repr` must not raise: without messages, or with weights that are invalid, nothing is shown as trained.
            with suppress(UsageError, MessageError):
                weights = self.weights(allow_partial=True)
        return TokenColumns(
            ids=as_array(self.token_ids, np.int64),
            message_indices=as_array(self.message_indices or [-1] * n, np.int64),
            kinds=kinds_of(self),
            weights=weights,
            roles=self.message_roles,
            spelling=None if self._token_bytes is None else TokenSpelling(self._token_bytes),
        )

    def __repr__(self) -> str:
        """One line of counts; the lists are attributes."""
        return f"<RenderedTokens: {summary(self._columns(), self.attribution)}>"

    def __str__(self) -> str:
        """In a terminal the text in colour, elsewhere the same as `repr`."""
        columns = self._columns()
        if columns.spelling is None or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
            return repr(self)
        return f"{self!r}\n{terminal_text(columns)}"

    def _repr_html_(self) -> str:
        """Coloured tokens for notebooks."""
        return notebook_html(self._columns(), self.attribution)

    def tokens_per_message(self, n_messages: int | None = None, *, sampled_only: bool = False) -> list[int]:
        """The number of tokens of each of the first `n_messages` (default: all), or of their sampled tokens."""
        n = len(self.message_roles)
        owners = as_array(self.message_indices, np.int64)
        counted = (owners >= 0) & (owners < n)
        if sampled_only:
            counted &= self._fact(self.sampled_mask)
        # Owners 0 0 -1 2 of three messages: counts 2 0 1. Owner -1, the scaffold between messages, is not counted.
        counts: list[int] = np.bincount(owners[counted], minlength=n).tolist()
        return counts[: n if n_messages is None else n_messages]

    def with_media(self, media: MultiModalData) -> RenderedTokens:
        """The same tokens with these images."""
        return replace(self, multi_modal_data=media)

    def mm_token_type_ids(self) -> list[int]:
        """0 for text, 1 for placeholders of images, 2 for those of videos: an input of vision models."""
        kinds = np.zeros(len(self.token_ids), dtype=np.int64)
        media = self.multi_modal_data or MultiModalData()
        for kind, places in media.mm_placeholders.items():
            for place in places:
                kinds[place.offset : place.offset + place.length] = _TYPE_IDS[kind]
        types: list[int] = kinds.tolist()
        return types

    def _fact(self, values: list[bool]) -> npt.NDArray[np.bool_]:
        """A fact as an array; all False if the renderer has not set it."""
        is_set = len(values) == len(self.message_indices)
        return as_array(values, np.bool_) if is_set else np.zeros(len(self.message_indices), dtype=np.bool_)

    def message_token_spans(self) -> list[tuple[int, int] | None]:
        """For each message its first token and the one after its last; `None` where it has no tokens."""
        owners = as_array(self.message_indices, np.int64)
        found = [np.flatnonzero(owners == index) for index in range(len(self.message_roles))]
        return [(int(at[0]), int(at[-1]) + 1) if at.size else None for at in found]

    def role_token_spans(self) -> dict[str, list[tuple[int, int]]]:
        """The spans of messages by role."""
        spans: dict[str, list[tuple[int, int]]] = {role: [] for role in self.message_roles}
        for role, span in zip(self.message_roles, self.message_token_spans(), strict=True):
            if span is not None:
                spans[role].append(span)
        return spans

    def tokens_by_role(self, *, sampled_only: bool = False) -> dict[str, int]:
        """How many tokens each role has."""
        counts = dict.fromkeys(self.message_roles, 0)
        for role, number in zip(self.message_roles, self.tokens_per_message(sampled_only=sampled_only), strict=True):
            counts[role] += number
        return counts

    def content_mask_for_roles(self, roles: Collection[str]) -> list[bool]:
        """True on content tokens of messages with one of these roles."""
        # The False at the end is for tokens of no message: their index is -1, which selects the last entry.
        wanted = np.array([role in roles for role in self.message_roles] + [False], dtype=np.bool_)
        owners = as_array(self.message_indices, np.int64)
        if len(owners) != len(self.token_ids):
            return [False] * len(self.token_ids)
        owners = np.where(owners < len(self.message_roles), owners, -1)
        mask: list[bool] = (wanted[owners] & self._fact(self.is_content)).tolist()
        return mask

    def content_token_spans_by_role(self) -> dict[str, list[tuple[int, int]]]:
        """The runs of content tokens of each role, message by message."""
        spans: dict[str, list[tuple[int, int]]] = {}
        owners = as_array(self.message_indices, np.int64)
        content = self._fact(self.is_content)
        for index, role in enumerate(self.message_roles):
            # content  . # # . #  with a False at both ends changes at 1 3 4 5: the runs 1..3 and 4..5.
            inside = np.concatenate([[False], (owners == index) & content, [False]])
            edges = np.flatnonzero(inside[1:] != inside[:-1]).reshape(-1, 2)
            spans.setdefault(role, []).extend((int(start), int(stop)) for start, stop in edges)
        return spans


@dataclass(frozen=True)
class RenderedBatch:
    """Many conversations as ids, one after the other, with the message and the kind of every token.

    They are stored per piece, of which a conversation has some forty, and become arrays per token when they are
    read. Two conversations of 3 and 2 tokens, each with two pieces::

        ids      5 6 7 | 5 8     lengths  3 2
        counts   1 2   | 1 1     pieces   2 2      facts  one for each piece

    Attributes:
        ids: int32 of shape (tokens,).
        lengths: int64 of shape (conversations,), the number of tokens of each.
        facts: int32 of shape (pieces,), `msg << 4 | kind` of each piece.
        counts: int64 of shape (pieces,), the number of tokens of each piece.
        pieces: int64 of shape (conversations,), the number of pieces of each.
        messages: the normalised messages of each conversation.
        attribution, notes: as in `RenderedTokens`, for each conversation.
        media: the images of each conversation or `None`; empty where no conversation has any.
        token_bytes: the bytes of ids, so that a conversation of the batch can be shown; not part of a pickle.
    """

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    facts: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    pieces: npt.NDArray[np.int64]
    messages: Sequence[Sequence[Message]]
    attribution: Sequence[str]
    media: Sequence[MultiModalData | None] = ()
    token_bytes: Callable[[list[int]], list[bytes]] | None = field(default=None, compare=False, repr=False)
    notes: Sequence[Notes] = ()

    @classmethod
    def of(cls, rendered: RenderedTokens, messages: Sequence[Message]) -> RenderedBatch:
        """A batch of one rendering of these messages."""
        ids, facts, counts = rendered.arrays()
        length, pieces = np.array([len(ids)], np.int64), np.array([len(facts)], np.int64)
        attribution, notes = [rendered.attribution], [rendered.notes]
        return cls(ids, length, facts, counts, pieces, [messages], attribution, notes=notes)

    @cached_property
    def message_indices(self) -> npt.NDArray[np.int32]:
        """int32 of shape (tokens,), into the messages of its own conversation; -1 belongs to none."""
        return (self.facts >> 4).repeat(self.counts)

    @cached_property
    def kinds(self) -> npt.NDArray[np.int32]:
        """int32 of shape (tokens,): the `Kind` of each."""
        return (self.facts & KIND_BITS).repeat(self.counts)

    @cached_property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """bool of shape (tokens,), as in `RenderedTokens`."""
        return self._has_bit(SAMPLED)

    @cached_property
    def is_content(self) -> npt.NDArray[np.bool_]:
        """bool of shape (tokens,), as in `RenderedTokens`."""
        return self._has_bit(CONTENT)

    def _has_bit(self, bit: int) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = (self.facts & bit != 0).repeat(self.counts)
        return mask

    def __repr__(self) -> str:
        """One line of counts."""
        partial = sum(1 for attribution in self.attribution if attribution != "full")
        end = f", {partial:,} with partial attribution" if partial else ""
        sampled = int(self.counts[self.facts & SAMPLED != 0].sum())
        return f"<RenderedBatch: {len(self):,} conversations, {len(self.ids):,} tokens, {sampled:,} sampled{end}>"

    def __getstate__(self) -> dict[str, Any]:
        """All fields but `token_bytes`, which belongs to a tokenizer of this process."""
        return {name: value for name, value in self.__dict__.items() if name != "token_bytes"} | {"token_bytes": None}

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[RenderedTokens]:
        """Each conversation as `render` returns it."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> RenderedTokens:
        """Conversation `number` as `render` returns it."""
        number = range(len(self))[number]  # -1 is the last one, and an IndexError ends a loop over the batch
        tokens, pieces = slice(*self.edges[number : number + 2]), slice(*self.piece_edges[number : number + 2])
        media = self.media[number] if self.media else None
        of_pieces = self.facts[pieces], self.counts[pieces]
        notes = self.notes[number] if self.notes else NO_NOTES
        attribution, messages = self.attribution[number], self.messages[number]
        return RenderedTokens.from_arrays(
            self.ids[tokens], *of_pieces, messages, attribution, media, self.token_bytes, notes
        )

    @cached_property
    def edges(self) -> npt.NDArray[np.int64]:
        """int64 of shape (conversations + 1,): the token at which each conversation starts, and the end."""
        return edges_of(self.lengths)

    @cached_property
    def piece_edges(self) -> npt.NDArray[np.int64]:
        """int64 of shape (conversations + 1,): the piece at which each conversation starts, and the end."""
        return edges_of(self.pieces)
