"""One conversation whose texts are encoded apart, as lists: what is known of its shape lies ready in lists too.

::

    known      <|im_start|>user\\n        <|im_end|>\\n<|im_start|>assistant\\n        <|im_end|>\\n
    encoded                         Hi.                                        Yes!
    ids        3 tokens             + 2 + 5 tokens                             + 2 + 2 tokens

numpy takes a microsecond for the shortest array, in which a list of twenty is walked through.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.messages import Message
from niels_gpt.renderers.apart import Apart, Bools, filled
from niels_gpt.renderers.rendered import BODY, SAMPLED, RenderedTokens, tool_names_of
from niels_gpt.tokenizer.flat import FlatEncoder, each_bytes_of
from niels_gpt.tokenizer.pieces import Positions
from niels_gpt.tokenizer.seams import SEAM


class Alone(NamedTuple):
    """An `Apart` for one conversation at a time.

    Attributes:
        form: as in `Apart`.
        sizes: of each unit its bytes, without the value in it; places: the unit that each value stands in.
        sides: the edges of units at the sides of seams; `None`: all of them are.
        steps: of each text the known tokens before it, its first unit, and the unit behind its last.
        end: the known tokens behind the last text.
        tokens: of each cell, -1 where it is encoded; encoded: those cells, and the unit of each.
        first: the first cell of each piece; `None`: each cell is one.
        indices, sampled, is_content: of each piece, as in `RenderedTokens`; indices of uint8 where they fit.
    """

    form: tuple[str, ...]
    sizes: list[int]
    places: list[int]
    sides: Positions | None
    steps: list[tuple[list[int], int, int]]
    end: list[int]
    tokens: list[int]
    encoded: list[tuple[int, int]]
    first: Positions | None
    indices: npt.NDArray[Any]
    sampled: Bools
    is_content: Bools

    @classmethod
    def of(cls, part: Apart) -> Alone:
        """The same made ready.

        ::

            tokens  2 -1 -1 1      ids  <s> \\n </s>      units  1 2      steps  (<s> \\n, 1, 3)      end  </s>
        """
        laid, ids, facts, indices = part.laid, part.ids.tolist(), part.facts, part.facts >> 3
        encoded = list(zip(laid.encoded.tolist(), laid.texts.tolist(), strict=True))
        steps: list[tuple[list[int], int, int]] = []
        begin = 0
        for cell, unit in encoded:
            if steps and steps[-1][2] == unit:  # no seam is between them: they are encoded as one text
                steps[-1] = (*steps[-1][:2], unit + 1)
                continue
            known = laid.tokens[:cell]
            end = int(known[known > 0].sum())
            steps.append((ids[begin:end], unit, unit + 1))
            begin = end
        return cls(
            form=part.form,
            sizes=laid.sizes.tolist(),
            places=laid.places.tolist(),
            sides=None if laid.sides.size == laid.sizes.size else laid.sides,
            steps=steps,
            end=ids[begin:],
            tokens=laid.tokens.tolist(),
            encoded=encoded,
            first=None if laid.first.size == laid.tokens.size else laid.first,
            indices=indices.astype(np.uint8) if ((indices >= 0) & (indices < 256)).all() else indices,
            sampled=facts & SAMPLED != 0,
            is_content=facts & BODY != 0,
        )


def encode_alone(
    flat: FlatEncoder, alone: Alone, values: Sequence[str], messages: Sequence[Message]
) -> RenderedTokens | None:
    """A conversation as ids with attribution; `None`: it is not proven.

    ::

        units      seam text seam text      sizes  2 3 2 5      edges  0 2 5 7 12      cuts  0 1 3 4 8
        cells      known text known text known                  tokens  3 2 5 4 2

    Args:
        values: in the order in which they stand there. messages: as `normalise` returns them.
    """
    text = SEAM + (filled(alone.form, values) if alone.form else SEAM.join(values))
    sizes = alone.sizes.copy()
    for at, size in zip(alone.places, each_bytes_of(values, ascii_only=text.isascii()), strict=True):
        sizes[at] += size
    found = flat.encode_apart(text, list(accumulate(sizes, initial=0)), alone.sides)
    if found is None:
        return None
    told, cuts = found[0].tolist(), found[1].tolist()
    ids: list[int] = []
    for known, first, behind in alone.steps:
        ids += known
        ids += told[cuts[first] : cuts[behind]]
    ids += alone.end
    tokens = alone.tokens.copy()
    for cell, unit in alone.encoded:
        tokens[cell] = cuts[unit + 1] - cuts[unit]
    counts = np.array(tokens) if alone.first is None else np.add.reduceat(tokens, alone.first)
    indices = alone.indices.repeat(counts)  # bytes become a list in two thirds of the time
    roles = [message["role"] for message in messages]
    return RenderedTokens(
        token_ids=ids,
        message_indices=list(indices.tobytes()) if indices.dtype == np.uint8 else indices.tolist(),
        sampled_mask=alone.sampled.repeat(counts).tolist(),
        is_content=alone.is_content.repeat(counts).tolist(),
        message_roles=roles,
        message_tool_names=tool_names_of(messages, roles),
    )
