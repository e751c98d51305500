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

from enum import IntEnum
from typing import Final

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


MODEL_KINDS: Final = frozenset(kind for kind in Kind if kind & SAMPLED)  # the kinds that a model emits


def pack(message: int, kind: int) -> int:
    """The number of a piece; `message` is -1 for none."""
    return message << 4 | kind


def unpack(number: int) -> tuple[int, Kind]:
    """The message and the kind of a piece's number."""
    return number >> 4, Kind(number & KIND_BITS)
