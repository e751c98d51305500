"""Emitters to ids and facts. No other module turns the pieces of a conversation into ids.

::

    texts of an emitter        <|im_start|>user\\n   hi there   <|im_end|>\\n
    facts (msg << 4 | kind)    0 TEMPLATE           0 CONTEXT  0 TEMPLATE
    ids                        1 8 9                14 15      2 9
    counts (tokens of each)    3                    2          2

`encode` takes a block of emitters and makes arrays (`RenderedBatch`): the tokenizer's `encode_strings` encodes all of
them in one call and returns how many tokens each piece owns. `encode_one` does the same for one emitter without the
bookkeeping of a batch. `render_conversations` is what `render_many` of every renderer calls.

`attribute_text_segments` attributes the tokens of any text, without a renderer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Messages
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.images.processors import MultiModalData, PlaceholderRange
from niels_gpt.renderers.types import RenderedBatch, RenderedTokens
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import Ids, PieceEncoder, Positions

if TYPE_CHECKING:
    from niels_gpt.renderers.images.processors import ProcessedImage


class Emit(Protocol):
    """`emit` of a renderer: writes one conversation on an emitter."""

    def __call__(self, messages: Messages, *, tools: Any = None) -> Emitter: ...


# Conversations that are emitted and encoded together. With 256 of them their texts and ids stay in the processor's
# cache; one call per conversation pays the tokenizer's fixed cost each time, one call per batch falls out of the cache.
BLOCK = 256


def encode_one(encoder: PieceEncoder, out: Emitter) -> RenderedTokens:
    """One emitter as ids with their facts; equal to `encode` of a list of it."""
    if out.images:
        # A batch of one, because a batch repeats the placeholders of images.
        return encode(encoder, [out])[0]
    # What is known of each token is not computed here: `RenderedTokens` makes the lists that are read.
    encoded = encoder.encode_strings([out.texts], [out.tokenizer_facts()])
    facts = np.array(out.facts, np.int32) if out.parse_content else encoded.facts
    return RenderedTokens.from_arrays(
        encoded.ids, facts, encoded.counts, out.messages, out.attribution, None, encoder.token_bytes, out.notes
    )


def render_conversations(
    encoder: PieceEncoder, emit: Emit, conversations: Sequence[Messages], tools: Sequence[Any] | None
) -> RenderedBatch:
    """Many conversations at once.

    Args:
        tools: one entry per conversation; default none.

    Raises:
        MessageError: for the first conversation that cannot be rendered, with its index.
        UsageError: not one entry of `tools` per conversation.
    """
    offered = [None] * len(conversations) if tools is None else tools
    if len(offered) != len(conversations):
        raise UsageError(f"{len(offered)} tools for {len(conversations)} conversations; expected one each, or None")
    batches = []
    # Of 600 conversations the blocks 0..256, 256..512, 512..600; of none one block without any, for empty arrays.
    for start in range(0, max(len(conversations), 1), BLOCK):
        emitters: list[Emitter] = []
        for number in range(start, min(start + BLOCK, len(conversations))):
            try:
                out = emit(conversations[number], tools=offered[number])
                out.processed_images()  # here, so that a broken image is an error of this conversation
            except MessageError as error:
                raise MessageError(error.reason, f"conversation {number}: {error}") from error
            emitters.append(out)
        batches.append(encode(encoder, emitters))
    return concatenate_batches(batches)


def encode(encoder: PieceEncoder, emitters: Sequence[Emitter]) -> RenderedBatch:
    """A block of emitters as ids with their facts; each conversation's ids are those of rendering it alone."""
    encoded = encoder.encode_strings([out.texts for out in emitters], [out.tokenizer_facts() for out in emitters])
    ids, counts, lengths, facts, pieces = encoded
    if any(out.parse_content for out in emitters):  # the tokenizer was told more than the kinds
        facts = np.fromiter(chain.from_iterable(out.facts for out in emitters), np.int32, len(facts))
    media: Sequence[MultiModalData | None] = ()
    if any(out.images for out in emitters):
        ids, counts, lengths, media = _repeat_placeholders(emitters, ids, counts, pieces)
    messages, attribution = [out.messages for out in emitters], [out.attribution for out in emitters]
    notes = [out.notes for out in emitters]
    return RenderedBatch(ids, lengths, facts, counts, pieces, messages, attribution, media, encoder.token_bytes, notes)


def concatenate_batches(batches: Sequence[RenderedBatch]) -> RenderedBatch:
    """Several batches as one, in order."""
    if len(batches) == 1:  # most calls; its arrays are not copied
        return batches[0]
    has_media = any(batch.media for batch in batches)
    return RenderedBatch(
        ids=np.concatenate([batch.ids for batch in batches]),
        lengths=np.concatenate([batch.lengths for batch in batches]),
        facts=np.concatenate([batch.facts for batch in batches]),
        counts=np.concatenate([batch.counts for batch in batches]),
        pieces=np.concatenate([batch.pieces for batch in batches]),
        messages=list(chain.from_iterable(batch.messages for batch in batches)),
        attribution=list(chain.from_iterable(batch.attribution for batch in batches)),
        media=[media for batch in batches for media in batch.media or [None] * len(batch)] if has_media else (),
        token_bytes=batches[0].token_bytes,
        notes=list(chain.from_iterable(batch.notes for batch in batches)),
    )


# ---- images


def _repeat_placeholders(
    emitters: Sequence[Emitter], ids: Ids, counts: Positions, pieces: Positions
) -> tuple[Ids, Positions, Positions, list[MultiModalData | None]]:
    """Repeat the placeholder token of every image as often as its processor says.

    ::

        pieces  a  <pad>  b      counts  2 1 3      the image takes 4 tokens
        ids     a a p b b b      becomes a a p p p p b b b      counts  2 4 3      range  offset 2, length 4

    Args:
        counts: the tokens of each piece.
        pieces: the number of pieces of each emitter.

    Returns:
        ids, tokens of each piece, tokens of each emitter, images of each emitter.

    Raises:
        MessageError: as `Emitter.processed_images`; `placeholder_in_content`: a text spells an image's placeholder
            where texts are parsed for control tokens.
    """
    images_of = [out.processed_images() for out in emitters]
    first = (np.cumsum(pieces) - pieces).tolist()  # pieces 3 2 4: the emitters' first pieces are 0 3 5
    repeats = np.ones(len(counts), dtype=np.int64)
    for start, images in zip(first, images_of, strict=True):
        for piece, image in images:
            repeats[start + piece] = image.tokens
    # In the example repeats 1 4 1 become 1 1 4 1 1 1, one for each id.
    ids = ids.repeat(repeats.repeat(counts))
    counts = counts * repeats
    ends = np.concatenate(([0], np.cumsum(counts)))
    # Pieces that end at 0 2 6 9, and emitters whose first pieces are 0 and 2: their ids are 0 to 6 and 6 to 9.
    edges = ends[[*first, len(counts)]]
    media = [
        _media_of(images, ids[begin:end], [int(ends[start + piece] - begin) for piece, _ in images])
        for start, begin, end, images in zip(first, edges[:-1], edges[1:], images_of, strict=True)
    ]
    return ids, counts, np.diff(edges), media


def _media_of(
    processed: Sequence[tuple[int, ProcessedImage]], ids: Ids, offsets: Sequence[int]
) -> MultiModalData | None:
    """The images of one conversation with these ids, in which they begin at `offsets`."""
    if not processed:
        return None
    images = [image for _, image in processed]
    # All placeholder tokens must be images': one that a text spells would shift the images after it in the model.
    expected = sum(image.tokens for image in images)
    found = np.count_nonzero(ids == ids[offsets[0]])
    if found != expected:
        raise MessageError(
            "placeholder_in_content",
            f"a text spells the placeholder token of images ({found} in all, {expected} of them images'), and "
            "special_tokens_in_content='parse' makes tokens of such texts; remove it, or render with 'text'",
        )
    return MultiModalData(
        mm_hashes={"image": [image.hash for image in images]},
        mm_placeholders={
            "image": [PlaceholderRange(at, image.tokens) for at, image in zip(offsets, images, strict=True)]
        },
        mm_items={"image": [dict(image.item) for image in images]},
    )


# ---- attribution without a renderer

_encoder_of = lru_cache(maxsize=2)(open_encoder)  # an encoder may hold hundreds of megabytes, so only two stay open


def attribute_text_segments(tokenizer: Any, segments: Sequence[tuple[str, bool]]) -> list[tuple[int, bool]]:
    """Encode adjacent `(text, is_content)` segments as one text.

    A token belongs to the segment of its first character. Control tokens are recognised outside of content only.

    Args:
        tokenizer: whatever `open_encoder` takes. The last two objects stay open; tokens that are added to them later
            are not seen. A path or a name is opened at every call: for many calls pass what `open_encoder` returns.

    Returns:
        `(token_id, is_content)` of each token.

    Raises:
        TokenizerError: the tokenizer cannot be used, or its attribution cannot be proven.
    """
    encoder = open_encoder(tokenizer) if isinstance(tokenizer, str | Path) else _encoder_of(tokenizer)
    texts, content = [text for text, _ in segments], [is_content for _, is_content in segments]
    ids, owner = encoder.encode_pieces(texts, [not is_content for is_content in content])
    flags = np.array([*content, False], dtype=np.bool_)[owner]
    return list(zip(ids.tolist(), flags.tolist(), strict=True))
