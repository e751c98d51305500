"""One conversation whose texts are encoded apart, as lists: what is known of its shape lies ready in lists too.

::

    known      <|im_start|>user\\n        <|im_end|>\\n<|im_start|>assistant\\n        <|im_end|>\\n
    encoded                         Hi.                                        Yes!
    ids        3 tokens             + 2 + 5 tokens                             + 2 + 2 tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from niels_gpt.messages import Message
from niels_gpt.renderers.apart import Apart, Bools, Laid, encode_texts
from niels_gpt.renderers.rendered import BODY, SAMPLED, RenderedTokens, tool_names_of
from niels_gpt.tokenizer.flat import FlatEncoder
from niels_gpt.tokenizer.pieces import Ids
from niels_gpt.tokenizer.seams import SEAM


class Alone(NamedTuple):
    """An `Apart` for one conversation at a time.

    Attributes:
        form: as in `Apart`.
        steps: of each text the known tokens before it, its first unit, and the unit behind its last.
        end: the known tokens behind the last.
        indices, sampled, is_content: of each piece, as in `RenderedTokens`.
    """

    form: str
    laid: Laid
    steps: list[tuple[list[int], int, int]]
    end: list[int]
    indices: Ids
    sampled: Bools
    is_content: Bools

    @classmethod
    def of(cls, part: Apart) -> Alone:
        """The same made ready.

        ::

            tokens  2 -1 -1 1      ids  <s> \\n </s>      units  1 2      steps  (<s> \\n, 1, 3)      end  </s>
        """
        laid, ids = part.alone, part.ids.tolist()
        units = iter(laid.texts.tolist())
        steps: list[tuple[list[int], int, int]] = []
        begin = end = 0
        for tokens in laid.tokens.tolist():
            if tokens >= 0:
                end += tokens
                continue
            unit = next(units)
            if steps and steps[-1][2] == unit:  # no seam is between them: they are encoded as one text
                steps[-1] = (*steps[-1][:2], unit + 1)
                continue
            steps.append((ids[begin:end], unit, unit + 1))
            begin = end
        facts = part.facts
        return cls(part.form, laid, steps, ids[begin:], facts >> 3, facts & SAMPLED != 0, facts & BODY != 0)


def encode_alone(
    flat: FlatEncoder, alone: Alone, values: Sequence[str], messages: Sequence[Message]
) -> RenderedTokens | None:
    """A conversation as ids with attribution; `None`: it is not proven.

    Args:
        values: in the order in which they stand there. messages: as `normalise` returns them.
    """
    laid = alone.laid
    found = encode_texts(flat, laid, alone.form % tuple(values) if alone.form else SEAM.join(values), values)
    if found is None:
        return None
    encoded, taken = found
    # Units of 1 2 1 3 tokens (seam text seam text) have the edges 0 1 3 4 7; the texts are tokens 1..3 and 4..7.
    told, edges = encoded.tolist(), list(accumulate(taken.tolist(), initial=0))
    ids: list[int] = []
    for known, first, behind in alone.steps:
        ids += known
        ids += told[edges[first] : edges[behind]]
    ids += alone.end
    counts = np.add.reduceat(laid.tokens_of(taken), laid.first)
    roles = [message["role"] for message in messages]
    return RenderedTokens(
        token_ids=ids,
        message_indices=alone.indices.repeat(counts).tolist(),
        sampled_mask=alone.sampled.repeat(counts).tolist(),
        is_content=alone.is_content.repeat(counts).tolist(),
        message_roles=roles,
        message_tool_names=tool_names_of(messages, roles),
    )
