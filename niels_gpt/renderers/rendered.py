"""What a renderer returns: ids, and of every token where it came from (documents 003 and 004, DESIGN 2.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.forks import cached_property
from niels_gpt.messages import Message
from niels_gpt.tokenizer.pieces import SCAFFOLD as SCAFFOLD
from niels_gpt.tokenizer.pieces import edges_of

# A piece's facts in one number, `(msg << 3) | bits`: message 2 sampled is 2 * 8 + 3 = 19, no message is -1 * 8 + bits.
SAMPLED, BODY = 1, 2  # and SCAFFOLD, which tokenizers know, is 4


class Piece(NamedTuple):
    """A run of characters with one origin.

    Attributes:
        text: the characters.
        msg: index into the caller's messages, -1 for none.
        sampled: the model itself would emit it.
        body: it came from the caller's or the model's data; on assistant text the same as `sampled`.
        scaffold: the template wrote it, so that control tokens in it are control tokens.
    """

    text: str
    msg: int = -1
    sampled: bool = False
    body: bool = False
    scaffold: bool = True


_TYPE_IDS = {"image": 1, "video": 2}


@dataclass(frozen=True)
class PlaceholderRange:
    """Where the placeholder tokens of one image stand: `token_ids[offset : offset + length]`."""

    offset: int
    length: int


@dataclass(frozen=True)
class MultiModalData:
    """What a model's processor made of the images, by modality ("image"), in order of appearance.

    Attributes:
        mm_hashes: of each medium, of its content alone.
        mm_placeholders: where its tokens stand.
        mm_items: the processor's numpy arrays, by the names of the model's arguments; equality does not look at them.
    """

    mm_hashes: dict[str, list[str]] = field(default_factory=dict)
    mm_placeholders: dict[str, list[PlaceholderRange]] = field(default_factory=dict)
    mm_items: dict[str, list[dict[str, Any]]] = field(default_factory=dict, compare=False)

    def is_empty(self) -> bool:
        """There is no medium at all."""
        return not (self.mm_hashes or self.mm_placeholders or self.mm_items)

    def moved(self, by: int) -> MultiModalData:
        """The same media `by` tokens further on."""
        places = {
            kind: [PlaceholderRange(place.offset + by, place.length) for place in held]
            for kind, held in self.mm_placeholders.items()
        }
        return MultiModalData(self.mm_hashes, places, self.mm_items)

    def then(self, later: MultiModalData) -> MultiModalData:
        """These media, and others behind them in the same ids."""

        def joined(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {kind: [*one.get(kind, ()), *other.get(kind, ())] for kind in {**one, **other}}

        return MultiModalData(
            joined(self.mm_hashes, later.mm_hashes),
            joined(self.mm_placeholders, later.mm_placeholders),
            joined(self.mm_items, later.mm_items),
        )


def array_of(given: Sequence[Any], dtype: Any) -> npt.NDArray[Any]:
    """A list as an array: `np.asarray` looks through it twice, to find out first what it holds."""
    return np.fromiter(given, dtype, len(given))


@dataclass(frozen=True)
class RenderedTokens:
    """A conversation as ids; the lists have one entry per token, `message_roles` and `message_tool_names` per message.

    Renderers make it from arrays (`RenderedBatch`): each of the four lists per token, and `message_tool_names`, is made
    when it is first asked for.

    Attributes:
        token_ids: below the tokenizer's `vocab_size`.
        message_indices: into the caller's messages; -1 belongs to none.
        sampled_mask: the model itself would emit this token: reply, tool calls, end of turn.
        is_content: it came from a message's body, or, on assistant messages, is sampled.
        message_roles: the role of each of the caller's messages.
        multi_modal_data: of renderers with images, `None` elsewhere.
        message_tool_names: of each tool message the function that answers, as far as known.
        attribution: "full", or "partial: " and what could not be traced to its message.
    """

    token_ids: list[int] = field(default_factory=list)
    message_indices: list[int] = field(default_factory=list)
    sampled_mask: list[bool] = field(default_factory=list)
    is_content: list[bool] = field(default_factory=list)
    message_roles: list[str] = field(default_factory=list)
    multi_modal_data: MultiModalData | None = None
    message_tool_names: list[str | None] = field(default_factory=list)
    attribution: str = "full"

    @classmethod
    def view(
        cls,
        ids: npt.NDArray[np.int32],
        facts: npt.NDArray[np.int32],
        counts: npt.NDArray[np.int64],
        messages: Sequence[Message],
        attribution: str = "full",
        media: MultiModalData | None = None,
    ) -> RenderedTokens:
        """One conversation, from arrays as `RenderedBatch` has them."""
        made = cls.__new__(cls)
        made.__dict__.update(
            _ids=ids,
            _facts=facts,
            _counts=counts,
            _messages=messages,
            message_roles=[message["role"] for message in messages],
            multi_modal_data=media,
            attribution=attribution,
        )
        return made

    def __getattr__(self, name: str) -> Any:
        """A list that has not been asked for yet; from then on it is an attribute like any other."""
        make = _MADE_LATER.get(name)
        if make is None or "_ids" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.__dict__[name] = made = make(self.__dict__)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """The contract's fields: a pickle holds the lists, whatever has been asked for."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def tokens_per_message(self, n_messages: int | None = None, *, sampled_only: bool = False) -> list[int]:
        """How many tokens each of the first `n_messages` has (default: of all); only sampled ones on request."""
        n = len(self.message_roles)
        owners = array_of(self.message_indices, np.int64)
        counted = (owners >= 0) & (owners < n)
        if sampled_only:
            counted &= self._fact(self.sampled_mask)
        counts: list[int] = np.bincount(owners[counted], minlength=n).tolist()
        return counts[: n if n_messages is None else n_messages]

    def with_media(self, media: MultiModalData) -> RenderedTokens:
        """The same tokens with these media."""
        return replace(self, multi_modal_data=media)

    def mm_token_type_ids(self) -> list[int]:
        """0 for texts, 1 for the placeholders of images, 2 for those of videos: what models ask for beside the ids."""
        kinds = np.zeros(len(self.token_ids), dtype=np.int64)
        media = self.multi_modal_data or MultiModalData()
        for kind, places in media.mm_placeholders.items():
            for place in places:
                kinds[place.offset : place.offset + place.length] = _TYPE_IDS[kind]
        types: list[int] = kinds.tolist()
        return types

    def _fact(self, given: list[bool]) -> npt.NDArray[np.bool_]:
        """A fact per token; False everywhere where the renderer does not tell it."""
        told = len(given) == len(self.message_indices)
        return array_of(given, np.bool_) if told else np.zeros(len(self.message_indices), dtype=np.bool_)

    def message_token_spans(self) -> list[tuple[int, int] | None]:
        """Of each message its first token and the one after its last; `None` where it has no tokens."""
        owners = array_of(self.message_indices, np.int64)
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
        """True on body tokens of messages with one of these roles."""
        wanted = np.array([role in roles for role in self.message_roles] + [False], dtype=np.bool_)
        owners = array_of(self.message_indices, np.int64)
        if len(owners) != len(self.token_ids):
            return [False] * len(self.token_ids)
        owners = np.where(owners < len(self.message_roles), owners, -1)
        mask: list[bool] = (wanted[owners] & self._fact(self.is_content)).tolist()
        return mask

    def content_token_spans_by_role(self) -> dict[str, list[tuple[int, int]]]:
        """The runs of body tokens of each role, message by message."""
        spans: dict[str, list[tuple[int, int]]] = {}
        owners = array_of(self.message_indices, np.int64)
        body = self._fact(self.is_content)
        for index, role in enumerate(self.message_roles):
            inside = np.concatenate([[False], (owners == index) & body, [False]])
            edges = np.flatnonzero(inside[1:] != inside[:-1]).reshape(-1, 2)
            spans.setdefault(role, []).extend((int(start), int(stop)) for start, stop in edges)
        return spans


@dataclass(frozen=True)
class RenderedBatch:
    """Many conversations as ids, one after the other, with the three facts of every token (DESIGN 2.1).

    The facts are kept by piece, some forty to a conversation, and become arrays by token when they are asked for.

    Attributes:
        ids: int32 of shape (tokens,).
        lengths: int64 of shape (conversations,), the tokens of each.
        facts: int32 of shape (pieces,), of each piece `(msg << 3) | bits`.
        counts: int64 of shape (pieces,), the tokens of each piece.
        pieces: int64 of shape (conversations,), the pieces of each.
        messages: the conversations as they were rendered, normalised; those that need no normalising are the caller's.
        attribution: of each conversation, as in `RenderedTokens`.
        media: of each conversation its images, `None` for none; empty where no conversation has any.
    """

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    facts: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    pieces: npt.NDArray[np.int64]
    messages: Sequence[Sequence[Message]]
    attribution: Sequence[str]
    media: Sequence[MultiModalData | None] = ()

    @cached_property
    def message_indices(self) -> npt.NDArray[np.int32]:
        """int32 of shape (tokens,), into the messages of its own conversation; -1 belongs to none."""
        return (self.facts >> 3).repeat(self.counts)

    @cached_property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """bool of shape (tokens,), as in `RenderedTokens`."""
        return self._told(SAMPLED)

    @cached_property
    def is_content(self) -> npt.NDArray[np.bool_]:
        """bool of shape (tokens,), as in `RenderedTokens`."""
        return self._told(BODY)

    def _told(self, bit: int) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self.facts & bit != 0).repeat(self.counts)
        return found

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[RenderedTokens]:
        """Each conversation as `render` returns it."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> RenderedTokens:
        """Conversation `number` as `render` returns it."""
        number = range(len(self))[number]
        own, pieces = slice(*self.edges[number : number + 2]), slice(*self.piece_edges[number : number + 2])
        media = self.media[number] if self.media else None
        of_pieces = self.facts[pieces], self.counts[pieces]
        return RenderedTokens.view(self.ids[own], *of_pieces, self.messages[number], self.attribution[number], media)

    @cached_property
    def edges(self) -> npt.NDArray[np.int64]:
        """int64 of shape (conversations + 1,): the token at which each conversation starts, and the end."""
        return edges_of(self.lengths)

    @cached_property
    def piece_edges(self) -> npt.NDArray[np.int64]:
        """int64 of shape (conversations + 1,): the piece at which each conversation starts, and the end."""
        return edges_of(self.pieces)


def extract_message_tool_names(messages: Sequence[Message]) -> list[str | None]:
    """Of each tool message the function it answers: its own `name`, or that of the earlier call with its id."""
    asked: dict[str, str] = {}
    names: list[str | None] = []
    for message in messages:
        role = message["role"]
        if role == "assistant":
            calls = message.get("tool_calls") or ()
            asked |= {call["id"]: call["function"]["name"] for call in calls if call.get("id")}
        names.append((message.get("name") or asked.get(message.get("tool_call_id", ""))) if role == "tool" else None)
    return names


# The fields of `RenderedTokens` that are made when they are asked for, from what `view` kept.
_MADE_LATER: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "token_ids": lambda held: held["_ids"].tolist(),
    "message_indices": lambda held: (held["_facts"] >> 3).repeat(held["_counts"]).tolist(),
    "sampled_mask": lambda held: (held["_facts"] & SAMPLED != 0).repeat(held["_counts"]).tolist(),
    "is_content": lambda held: (held["_facts"] & BODY != 0).repeat(held["_counts"]).tolist(),
    "message_tool_names": lambda held: extract_message_tool_names(held["_messages"]),
}
