"""Attribution without a renderer: some texts, encoded as one (document 003's `attribute_text_segments`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.tokenizer.opening import open_encoder

_encoder_of = lru_cache(maxsize=2)(open_encoder)  # each may hold hundreds of megabytes


def attribute_text_segments(
    tokenizer: Any, segments: Sequence[tuple[str, bool]], *, overlap_is_content: bool = False
) -> list[tuple[int, bool]]:
    """Encode adjacent `(text, is_content)` segments as one text.

    A token belongs to the segment of its first character. Control tokens are recognised outside of content alone.

    Args:
        tokenizer: whatever `open_encoder` takes. The last two objects stay open; tokens that are added to them later
            are not seen. A path or a name is opened at every call: for many calls pass what `open_encoder` returns.
        overlap_is_content: a token counts as content where any of its bytes are; of tokens that are not the text's
            bytes (a normalised text), where any of its characters are.

    Returns:
        `(token_id, is_content)` of each token.

    Raises:
        TokenizerError: the tokenizer cannot be used, or its attribution cannot be proven.
    """
    encoder = open_encoder(tokenizer) if isinstance(tokenizer, str | Path) else _encoder_of(tokenizer)
    texts, content = [text for text, _ in segments], [is_content for _, is_content in segments]
    ids, owner = encoder.encode_pieces(texts, [not is_content for is_content in content])
    flags = np.array([*content, False], dtype=np.bool_)[owner]
    if overlap_is_content:
        text, tokens = "".join(texts).encode(), encoder.token_bytes(ids.tolist())
        if b"".join(tokens) == text:
            held = np.repeat(np.array(content, dtype=np.bool_), [len(part.encode()) for part in texts])
            edges = np.cumsum([0, *map(len, tokens)])
        else:
            held = np.repeat(np.array(content, dtype=np.bool_), [len(part) for part in texts])
            starts = encoder.encode_pieces(list("".join(texts)), (~held).tolist())[1]
            edges = np.append(starts, len(held))
        flags |= _overlaps(held, edges)
    return list(zip(ids.tolist(), flags.tolist(), strict=True))


def _overlaps(held: npt.NDArray[np.bool_], edges: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
    """Whether each token, from edge to edge, holds a place that is content.

    ::

        held  T T F F T     held before each place  0 1 2 2 2 3     edges  0 1 3 5     tokens hold  1 1 1
    """
    before = np.concatenate(([0], np.cumsum(held)))
    overlaps: npt.NDArray[np.bool_] = before[edges[1:]] > before[edges[:-1]]
    return overlaps
