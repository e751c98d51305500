"""How a rendering is shown: one line (`repr`), coloured text in a terminal, coloured tokens in a notebook.

A token has one of five colours, by its kind (`kinds.py`) and its loss weight, in this order:

    trained    weight > 0: the token is in the loss
    sampled    the model itself would emit it, but it is not in the loss
    context    the content of a message that the model only reads
    label      a name, an id or a schema of the caller's inside the template's text
    scaffold   what the chat template writes around contents
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.display import html, terminal
from niels_gpt.display.rows import CONTEXT, LABEL, SAMPLED, SCAFFOLD, TRAINED, TokenRow
from niels_gpt.renderers import kinds
from niels_gpt.renderers.kinds import Kind


@dataclass(frozen=True)
class TokenColumns:
    """The columns that are shown of a rendering; the arrays have one entry per token.

    Attributes:
        ids: int32.
        message_indices: int32, -1 for no message.
        kinds: int64, the `Kind` of each.
        weights: float32, the weight in the loss; `None` where the messages are not available, which decide it.
        roles: the role of each message.
        spelling: the text of one id; `None` where no tokenizer is available, then ids are shown.
    """

    ids: npt.NDArray[np.integer[Any]]
    message_indices: npt.NDArray[np.integer[Any]]
    kinds: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None
    roles: Sequence[str]
    spelling: Callable[[int], str] | None

    @property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """Whether the model itself would emit it."""
        sampled: npt.NDArray[np.bool_] = (self.kinds & kinds.SAMPLED) != 0
        return sampled

    def colours(self) -> npt.NDArray[np.intp]:
        """Places in `COLOURS` of `display/rows.py`, one per token."""
        trained = np.zeros(len(self.ids), np.bool_) if self.weights is None else self.weights > 0
        # `np.select` takes the first condition that holds, so the order is that of the colours above.
        conditions = [trained, self.sampled, (self.kinds & kinds.CONTENT) != 0, self.kinds == Kind.LABEL]
        return np.select(conditions, [TRAINED, SAMPLED, CONTEXT, LABEL], SCAFFOLD)

    def facts(self, at: int) -> str:
        """The message, kind and weight of the token at a place, for its tooltip."""
        message = int(self.message_indices[at])
        owner = f"message {message} ({self.roles[message]})" if 0 <= message < len(self.roles) else "no message"
        weight = [] if self.weights is None else [f"loss weight {float(self.weights[at]):g}"]
        return ", ".join([owner, Kind(self.kinds[at]).name.lower(), *weight])

    def row(self) -> TokenRow:
        """The tokens as they are shown."""
        return TokenRow(self.ids, self.colours(), self.facts)


def summary(columns: TokenColumns, attribution: str) -> str:
    """One line: counts of tokens and messages, and the attribution where it is not full."""
    parts = [
        f"{len(columns.ids):,} tokens",
        f"{len(columns.roles)} messages",
        f"{int(columns.sampled.sum()):,} sampled",
    ]
    if columns.weights is not None:
        parts.append(f"{int((columns.weights > 0).sum()):,} trained")
    return ", ".join(parts if attribution == "full" else [*parts, f"attribution {attribution}"])


def terminal_text(columns: TokenColumns) -> str:
    """The rendering as running text in ANSI colours, with a legend in front."""
    return terminal.terminal_text([columns.row()], columns.spelling)


def notebook_html(columns: TokenColumns, attribution: str) -> str:
    """The rendering as HTML: a span for each token, its id and facts in the tooltip."""
    return html.notebook_html(summary(columns, attribution), [columns.row()], columns.spelling)
