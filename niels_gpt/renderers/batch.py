"""Scripts of many conversations as ids, in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.rendered import SCAFFOLD, RenderedBatch
from niels_gpt.renderers.script import Script
from niels_gpt.tokenizer.protocol import PieceEncoder


def render_batch(
    encoder: PieceEncoder,
    write: Callable[[list[Message], Any], tuple[Script, str]],
    conversations: Sequence[Sequence[Message]],
    tools: Sequence[Any] | None,
) -> RenderedBatch:
    """Many conversations at once.

    Args:
        write: a conversation and its tools as a script, and how complete its attribution is.
        tools: of each conversation; default none.

    Raises:
        MessageError: of the first conversation that cannot be rendered, with its index in front.
        UsageError: as many tools as conversations were expected.
    """
    offered = [None] * len(conversations) if tools is None else tools
    if len(offered) != len(conversations):
        raise UsageError(f"{len(offered)} tools for {len(conversations)} conversations; expected one each, or None")
    scripts: list[Script] = []
    given: list[list[Message]] = []
    attribution: list[str] = []
    for number, (messages, own) in enumerate(zip(conversations, offered, strict=True)):
        try:
            normal = normalise(messages)
            out, told = write(normal, own)
        except MessageError as error:
            raise MessageError(error.reason, f"conversation {number}: {error}") from error
        scripts.append(out)
        given.append(normal)
        attribution.append(told)
    return encoded_batch(encoder, scripts, given, attribution)


def encoded_batch(
    encoder: PieceEncoder, scripts: Sequence[Script], messages: Sequence[Sequence[Message]], attribution: Sequence[str]
) -> RenderedBatch:
    """Scripts as ids, each as it would be alone."""
    texts = list(chain.from_iterable(out.texts for out in scripts))
    facts = np.fromiter(chain.from_iterable(out.facts for out in scripts), dtype=np.int32, count=len(texts))
    pieces = np.fromiter((len(out.texts) for out in scripts), dtype=np.int64, count=len(scripts))
    ids, counts, lengths = encoder.encode_flat(texts, (facts & SCAFFOLD != 0).tolist(), pieces)
    return RenderedBatch(ids, lengths, facts, counts, pieces, messages, attribution)
