"""`Kind`: what a piece of a rendering is, and so each of its tokens. Everything else about a token follows from it.

==========  ==============================  ==========================  =======  =======  ==========================
kind        written by                      example                     sampled  content  control tokens recognised
==========  ==============================  ==========================  =======  =======  ==========================
LABEL       the caller, within the          a tool's name, a schema
            template's text
CONTEXT     the caller                      What is 2 + 2?                       yes
REPLY       the model                       It is 4.                    yes      yes
REASONING   the model, in a think block     2 and 2 make 4.             yes      yes
TEMPLATE    the template                    ``<|im_start|>user``                          yes
OPENER      the template, where an option   GLM's ``<|user|>``, which   yes               yes
            trains it                       ends the turn before
IMAGE       the caller                      an image's placeholders              yes      yes
MARKUP      the model                       ``</think>``                yes      yes      yes
STOP        the model                       the token that ends its     yes      yes      yes
                                            turn
==========  ==============================  ==========================  =======  =======  ==========================

The three facts are bits of a kind's number (`SAMPLED`, `CONTENT`, `CONTROL`); 8 tells two kinds with equal facts apart.
A piece is one number too, its message above its kind: the reply of message 2 is `2 << 4 | 3 = 35`, and a template's
text of no message `-1 << 4 | 4 = -12`. Where many pieces are handled the shifts are spelled out; elsewhere `pack` and
`unpack` do it.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

SAMPLED: Final = 1  # the model itself would emit it
CONTENT: Final = 2  # data of a message: of the caller, or all that the model writes
CONTROL: Final = 4  # control tokens are recognised in it; tokenizers read this bit (`SCAFFOLD` in tokenizer/pieces.py)
KIND_BITS: Final = 15  # the kind of a piece's number


class Kind(IntEnum):
    """What a token is; the module's table says what follows from each."""

    LABEL = 0
    CONTEXT = CONTENT
    REPLY = SAMPLED | CONTENT
    TEMPLATE = CONTROL
    OPENER = SAMPLED | CONTROL
    IMAGE = CONTENT | CONTROL
    MARKUP = SAMPLED | CONTENT | CONTROL
    REASONING = 8 | SAMPLED | CONTENT
    STOP = 8 | SAMPLED | CONTENT | CONTROL


_UNSET: Final = (-1, False, False)  # message, sampled and content where a renderer of another package says nothing
MODEL_KINDS: Final = frozenset(kind for kind in Kind if kind & SAMPLED)  # the kinds that a model emits


class Piece(NamedTuple):
    """A run of characters with one origin.

    Attributes:
        text: the characters.
        msg: index into the caller's messages, -1 for none.
        kind: what it is.
    """

    text: str
    msg: int = -1
    kind: Kind = Kind.TEMPLATE

    @property
    def sampled(self) -> bool:
        """The model itself would emit it."""
        return bool(self.kind & SAMPLED)

    @property
    def content(self) -> bool:
        """It is data of the caller or the model; on assistant text the same as `sampled`."""
        return bool(self.kind & CONTENT)

    @property
    def scaffold(self) -> bool:
        """The template or the model's markup wrote it, so control tokens in it are recognised."""
        return bool(self.kind & CONTROL)


def pack(message: int, kind: int) -> int:
    """The number of a piece; `message` is -1 for none."""
    return message << 4 | kind


def unpack(number: int) -> tuple[int, Kind]:
    """The message and the kind of a piece's number."""
    return number >> 4, Kind(number & KIND_BITS)


def has_kinds(rendered: Any) -> bool:
    """Whether a rendering has the kinds of its tokens; renderers of other packages give the contract's lists alone."""
    return len(getattr(rendered, "kinds", ())) == len(rendered.token_ids)


def kinds_of(rendered: Any, stops: Collection[int] = ()) -> npt.NDArray[np.int64]:
    """The kind of every token of a rendering, int64 of shape (tokens,); derived where its renderer gives none.

    What the model emits is then REPLY, or STOP where it is the last such token of an answer and one of the stops::

        message      0 0 0   1 1 1 1   2            roles  user assistant user
        sampled      . . .   . # # .   #            the last one is an opener that ends the turn before
        content      . # .   . # # .   .            stops  9
        ids          5 6 9   5 7 9 3   5
        kinds        T C T   T R S T   O            (T: TEMPLATE, C: CONTEXT, R: REPLY, S: STOP, O: OPENER)

    Args:
        rendered: with the contract's lists; one that is not set counts as False.
        stops: the ids at which sampling stops.
    """
    n = len(rendered.token_ids)
    if has_kinds(rendered):
        return np.fromiter(rendered.kinds, np.int64, n)
    lists = rendered.message_indices, rendered.sampled_mask, rendered.is_content
    indices, *flags = (
        given if len(given) == n else [default] * n for given, default in zip(lists, _UNSET, strict=True)
    )
    owners: npt.NDArray[np.int64] = np.array(indices, np.int64)
    sampled, content = (np.array(flag, np.bool_) for flag in flags)
    roles = list(getattr(rendered, "message_roles", ()))
    answers = np.array([*(role == "assistant" for role in roles), False])[np.where(owners < len(roles), owners, -1)]
    of_model = np.where(content | answers, Kind.REPLY, Kind.OPENER)
    kinds = np.where(sampled, of_model, np.where(content, Kind.CONTEXT, Kind.TEMPLATE)).astype(np.int64)
    # In the example the messages of sampled tokens are 1 1 2 from the left, and 2 1 1 from the right: the first of
    # each message from the right is its last one.
    at = np.flatnonzero(sampled & answers)[::-1]
    last = at[np.unique(owners[at], return_index=True)[1]]
    kinds[last[np.isin(np.asarray(rendered.token_ids)[last], list(stops))]] = Kind.STOP
    return kinds
