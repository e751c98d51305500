"""Scripts of conversations become ids and facts: the only place.

::

    messages --normalise--> Chat --a grammar--> Script (texts, facts) --encode--> RenderedBatch (arrays)

`render` is a batch of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Message
from niels_gpt.renderers.rendered import MultiModalData, PlaceholderRange, RenderedBatch, RenderedTokens
from niels_gpt.renderers.script import Script
from niels_gpt.tokenizer.pieces import Ids, Positions
from niels_gpt.tokenizer.protocol import PieceEncoder

if TYPE_CHECKING:
    from niels_gpt.renderers.processors import ProcessedImage

# What writes a conversation and its tools: the script, the messages as normalised, and how complete attribution is.
Write = Callable[[Sequence[Message], Any], tuple[Script, Sequence[Message], str]]

BLOCK = 256  # conversations that are read, written and encoded together, so that they fit into the processor's cache


def render_conversations(
    encoder: PieceEncoder, write: Write, conversations: Sequence[Sequence[Message]], tools: Sequence[Any] | None
) -> RenderedBatch:
    """Many conversations at once.

    Args:
        tools: of each conversation; default none.

    Raises:
        MessageError: of the first conversation that cannot be rendered, with its index in front.
        UsageError: as many tools as conversations were expected.
    """
    offered = [None] * len(conversations) if tools is None else tools
    if len(offered) != len(conversations):
        raise UsageError(f"{len(offered)} tools for {len(conversations)} conversations; expected one each, or None")
    blocks = [range(at, min(at + BLOCK, len(conversations))) for at in range(0, len(conversations), BLOCK)]
    return end_to_end([_block(encoder, write, conversations, offered, numbers) for numbers in blocks or [range(0)]])


def _block(
    encoder: PieceEncoder,
    write: Write,
    conversations: Sequence[Sequence[Message]],
    tools: Sequence[Any],
    numbers: range,
) -> RenderedBatch:
    """The conversations with these numbers."""
    scripts: list[Script] = []
    given: list[Sequence[Message]] = []
    attribution: list[str] = []
    for number in numbers:
        try:
            out, normal, how_complete = write(conversations[number], tools[number])
            out.media()
        except MessageError as error:
            raise MessageError(error.reason, f"conversation {number}: {error}") from error
        scripts.append(out)
        given.append(normal)
        attribution.append(how_complete)
    return encode(encoder, scripts, given, attribution)


def encode(
    encoder: PieceEncoder, scripts: Sequence[Script], messages: Sequence[Sequence[Message]], attribution: Sequence[str]
) -> RenderedBatch:
    """Scripts as ids, each as it would be alone.

    Args:
        messages: of each script, normalised. attribution: of each, "full" or what could not be attributed.
    """
    made = encoder.encode_strings([out.texts for out in scripts], [out.facts for out in scripts])
    ids, counts, lengths, facts, pieces = made
    media: Sequence[MultiModalData | None] = ()
    if any(out.images for out in scripts):
        ids, counts, lengths, media = with_images(scripts, ids, counts, pieces)
    return RenderedBatch(ids, lengths, facts, counts, pieces, messages, attribution, media)


def encode_one(
    encoder: PieceEncoder, out: Script, messages: Sequence[Message], attribution: str = "full"
) -> RenderedTokens:
    """One script as `encode` gives it."""
    if out.images:
        return encode(encoder, [out], [messages], [attribution])[0]
    made = encoder.encode_strings([out.texts], [out.facts])
    return RenderedTokens.view(made.ids, made.facts, made.counts, messages, attribution)


def end_to_end(batches: Sequence[RenderedBatch]) -> RenderedBatch:
    """One batch of several, one after the other."""
    if len(batches) == 1:
        return batches[0]
    some = any(batch.media for batch in batches)
    return RenderedBatch(
        ids=np.concatenate([batch.ids for batch in batches]),
        lengths=np.concatenate([batch.lengths for batch in batches]),
        facts=np.concatenate([batch.facts for batch in batches]),
        counts=np.concatenate([batch.counts for batch in batches]),
        pieces=np.concatenate([batch.pieces for batch in batches]),
        messages=list(chain.from_iterable(batch.messages for batch in batches)),
        attribution=list(chain.from_iterable(batch.attribution for batch in batches)),
        media=[held for batch in batches for held in batch.media or [None] * len(batch)] if some else (),
    )


def with_images(
    scripts: Sequence[Script], ids: Ids, counts: Positions, pieces: Positions
) -> tuple[Ids, Positions, Positions, list[MultiModalData | None]]:
    """The one token of every image, as often as its processor says.

    ::

        pieces  a  <pad>  b      counts  2 1 3      the image takes 4
        ids     a a p b b b      becomes a a p p p p b b b      counts  2 4 3      range  2, length 4

    Args:
        counts: tokens of each piece; pieces: of each script.

    Returns:
        ids, tokens of each piece, of each script, and the images of each script.

    Raises:
        MessageError: as `Script.media`; `placeholder_in_content`: a text spells an image's token where it is one.
    """
    made = [out.media() for out in scripts]
    first = (np.cumsum(pieces) - pieces).tolist()
    repeats = np.ones(len(counts), dtype=np.int64)
    for start, images in zip(first, made, strict=True):
        for piece, image in images:
            repeats[start + piece] = image.tokens
    ids = ids.repeat(repeats.repeat(counts))
    counts = counts * repeats
    ends = np.concatenate(([0], np.cumsum(counts)))
    edges = ends[[*first, len(counts)]]
    media = [
        _media_of(images, ids[begin:end], [int(ends[start + piece] - begin) for piece, _ in images])
        for start, begin, end, images in zip(first, edges[:-1], edges[1:], made, strict=True)
    ]
    return ids, counts, np.diff(edges), media


def _media_of(made: Sequence[tuple[int, ProcessedImage]], ids: Ids, offsets: Sequence[int]) -> MultiModalData | None:
    """The images of one conversation, whose tokens are these."""
    if not made:
        return None
    images = [image for _, image in made]
    taken = sum(image.tokens for image in images)
    found = np.count_nonzero(ids == ids[offsets[0]])
    if found != taken:
        raise MessageError(
            "placeholder_in_content",
            f"a text spells the token that stands for images ({found} in all, {taken} of them images'), and "
            "special_tokens_in_content='parse' makes tokens of such texts; remove it, or render with 'text'",
        )
    return MultiModalData(
        mm_hashes={"image": [image.hash for image in images]},
        mm_placeholders={
            "image": [PlaceholderRange(at, image.tokens) for at, image in zip(offsets, images, strict=True)]
        },
        mm_items={"image": [dict(image.item) for image in images]},
    )
