"""Scripts of many conversations as ids, in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.filling import encoded_shapes
from niels_gpt.renderers.rendered import SCAFFOLD, MultiModalData, PlaceholderRange, RenderedBatch
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.shapes import Shapes
from niels_gpt.tokenizer.pieces import Ids, Positions, edges_of
from niels_gpt.tokenizer.protocol import PieceEncoder

if TYPE_CHECKING:
    from niels_gpt.renderers.processors import ProcessedImage


BLOCK = 512  # conversations: what is read, written and encoded together should lie in the processor's cache


def render_batch(
    encoder: PieceEncoder,
    write: Callable[[list[Message], Any], tuple[Script, str]],
    conversations: Sequence[Sequence[Message]],
    tools: Sequence[Any] | None,
    shapes: Shapes | None = None,
) -> RenderedBatch:
    """Many conversations at once.

    Args:
        write: a conversation and its tools as a script, and how complete its attribution is.
        tools: of each conversation; default none.
        shapes: what `write` is known to write for conversations of plain texts.

    Raises:
        MessageError: of the first conversation that cannot be rendered, with its index in front.
        UsageError: as many tools as conversations were expected.
    """
    offered = [None] * len(conversations) if tools is None else tools
    if len(offered) != len(conversations):
        raise UsageError(f"{len(offered)} tools for {len(conversations)} conversations; expected one each, or None")
    numbers = range(len(conversations))
    blocks = [numbers[at : at + BLOCK] for at in range(0, len(numbers), BLOCK)] or [numbers]
    return end_to_end([_block(encoder, write, conversations, offered, own, shapes) for own in blocks])


def _block(
    encoder: PieceEncoder,
    write: Callable[[list[Message], Any], tuple[Script, str]],
    conversations: Sequence[Sequence[Message]],
    tools: Sequence[Any],
    numbers: range,
    shapes: Shapes | None,
) -> RenderedBatch:
    """The conversations with these numbers: those whose shapes are known filled in, the others written."""
    if shapes is None:
        return _written(encoder, write, conversations, tools, numbers)
    made: list[RenderedBatch] = []
    known: list[Sequence[int]] = []
    for shaped in shapes.of([conversations[at] for at in numbers], [tools[at] for at in numbers]).parted():
        filled = encoded_shapes(encoder, shaped)
        if filled is not None:
            made.append(filled)
            known.append(shaped.numbers)
    others = sorted(set(range(len(numbers))).difference(*known))
    if others or not made:
        made.append(_written(encoder, write, conversations, tools, [numbers.start + at for at in others]))
        known.append(others)
    return made[0] if len(made) == 1 else interleaved(made, known)


def _written(
    encoder: PieceEncoder,
    write: Callable[[list[Message], Any], tuple[Script, str]],
    conversations: Sequence[Sequence[Message]],
    tools: Sequence[Any],
    numbers: Sequence[int],
) -> RenderedBatch:
    """The conversations with these numbers, each written by the grammar."""
    scripts: list[Script] = []
    given: list[list[Message]] = []
    attribution: list[str] = []
    for number in numbers:
        try:
            normal = normalise(conversations[number])
            out, told = write(normal, tools[number])
            out.media()
        except MessageError as error:
            raise MessageError(error.reason, f"conversation {number}: {error}") from error
        scripts.append(out)
        given.append(normal)
        attribution.append(told)
    return encoded_batch(encoder, scripts, given, attribution)


def end_to_end(batches: Sequence[RenderedBatch]) -> RenderedBatch:
    """One batch of several, one behind the other."""
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


def interleaved(batches: Sequence[RenderedBatch], numbers: Sequence[Sequence[int]]) -> RenderedBatch:
    """One batch of several, whose conversations have these numbers in it, which ascend in each."""
    total = sum(map(len, batches))
    lengths, pieces = np.empty(total, np.int64), np.empty(total, np.int64)
    for batch, own in zip(batches, numbers, strict=True):
        lengths[own], pieces[own] = batch.lengths, batch.pieces
    media = [batch.media or [None] * len(batch) for batch in batches]
    return RenderedBatch(
        ids=_merged([batch.ids for batch in batches], [batch.lengths for batch in batches], numbers),
        lengths=lengths,
        facts=_merged([batch.facts for batch in batches], [batch.pieces for batch in batches], numbers),
        counts=_merged([batch.counts for batch in batches], [batch.pieces for batch in batches], numbers),
        pieces=pieces,
        messages=_placed([batch.messages for batch in batches], numbers),
        attribution=_placed([batch.attribution for batch in batches], numbers),
        media=_placed(media, numbers) if any(batch.media for batch in batches) else (),
    )


def _merged(
    arrays: Sequence[npt.NDArray[Any]], sizes: Sequence[Positions], numbers: Sequence[Sequence[int]]
) -> npt.NDArray[Any]:
    """Rows of these sizes, laid end to end in each array, in the order of their numbers.

    ::

        a a b | c c c      sizes  2 1 | 3      numbers  0 2 | 1      becomes  a a c c c b
    """
    edges = [edges_of(size).tolist() for size in sizes]
    rows = [[array[a:b] for a, b in pairwise(ends)] for array, ends in zip(arrays, edges, strict=True)]
    return np.concatenate(_placed(rows, numbers))


def _placed(parts: Sequence[Sequence[Any]], numbers: Sequence[Sequence[int]]) -> list[Any]:
    """What stands in several lists as one list, each thing at its number."""
    placed: list[Any] = [None] * sum(map(len, parts))
    for part, own in zip(parts, numbers, strict=True):
        for at, held in zip(own, part, strict=True):
            placed[at] = held
    return placed


def encoded_batch(
    encoder: PieceEncoder, scripts: Sequence[Script], messages: Sequence[Sequence[Message]], attribution: Sequence[str]
) -> RenderedBatch:
    """Scripts as ids, each as it would be alone."""
    texts = list(chain.from_iterable(out.texts for out in scripts))
    facts = np.fromiter(chain.from_iterable(out.facts for out in scripts), dtype=np.int32, count=len(texts))
    pieces = np.fromiter((len(out.texts) for out in scripts), dtype=np.int64, count=len(scripts))
    ids, counts, lengths = encoder.encode_flat(texts, (facts & SCAFFOLD != 0).tolist(), pieces)
    media: Sequence[MultiModalData | None] = ()
    if any(out.images for out in scripts):
        ids, counts, lengths, media = with_images(scripts, ids, counts, pieces)
    return RenderedBatch(ids, lengths, facts, counts, pieces, messages, attribution, media)


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
