"""How a rendering is shown: one line (`repr`), coloured text in a terminal, coloured tokens in a notebook.

A token has one of four kinds, by its facts and its loss weight, in this order:

    trained    weight > 0: the token is in the loss
    sampled    the model itself would emit it, but it is not in the loss
    context    the content of a message that the model only reads
    scaffold   what the chat template writes around contents
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt import token_display
from niels_gpt.token_display import CONTEXT, SAMPLED, SCAFFOLD, TRAINED, TokenRow


@dataclass(frozen=True)
class TokenColumns:
    """The columns that are shown of a rendering; the arrays have one entry per token.

    Attributes:
        ids: int32.
        message_indices: int32, -1 for no message.
        sampled: bool.
        is_content: bool.
        weights: float32, the weight in the loss; `None` where the messages are not available, which decide it.
        roles: the role of each message.
        spelling: the text of one id; `None` where no tokenizer is available, then ids are shown.
    """

    ids: npt.NDArray[np.integer[Any]]
    message_indices: npt.NDArray[np.integer[Any]]
    sampled: npt.NDArray[np.bool_]
    is_content: npt.NDArray[np.bool_]
    weights: npt.NDArray[np.float32] | None
    roles: Sequence[str]
    spelling: Callable[[int], str] | None

    def kinds(self) -> npt.NDArray[np.intp]:
        """Places in `KINDS`, one per token."""
        trained = np.zeros(len(self.ids), np.bool_) if self.weights is None else self.weights > 0
        # `np.select` takes the first condition that holds, so the order is that of the kinds above.
        facts = [trained, self.sampled, self.is_content]
        return np.select(facts, [TRAINED, SAMPLED, CONTEXT], SCAFFOLD)

    def facts(self, at: int) -> str:
        """The message, facts and weight of the token at a place, for its tooltip."""
        message = int(self.message_indices[at])
        owner = f"message {message} ({self.roles[message]})" if 0 <= message < len(self.roles) else "no message"
        facts = [name for name, fact in (("sampled", self.sampled[at]), ("content", self.is_content[at])) if fact]
        weight = [] if self.weights is None else [f"loss weight {float(self.weights[at]):g}"]
        return ", ".join([owner, *facts, *weight])

    def row(self) -> TokenRow:
        """The tokens as they are shown."""
        return TokenRow(self.ids, self.kinds(), self.facts)


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
    return token_display.terminal_text([columns.row()], columns.spelling)


def notebook_html(columns: TokenColumns, attribution: str) -> str:
    """The rendering as HTML: a span for each token, its id and facts in the tooltip."""
    return token_display.notebook_html(summary(columns, attribution), [columns.row()], columns.spelling)
