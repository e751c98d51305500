"""How a rendering is shown: one line (`repr`), coloured text in a terminal, coloured tokens in a notebook.

A token has one of four kinds, by its facts and its loss weight, in this order:

    trained    weight > 0: the token is in the loss
    sampled    the model itself would emit it, but it is not in the loss
    context    the content of a message that the model only reads
    scaffold   what the chat template writes around contents
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.token_styles import CONTEXT, KINDS, MEANINGS, SAMPLED, SCAFFOLD, TRAINED, Kind, printable

_MOST_TOKENS = 20_000  # in HTML: a notebook becomes slow with more

# The colours of `token_styles.STYLES` as ANSI codes.
_ANSI: dict[Kind, str] = {"trained": "1;30;42", "sampled": "30;43", "context": "", "scaffold": "35", "padding": "90"}

_CSS = """
.ng-tokens { font: .85em/1.7 ui-monospace, Menlo, "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.ng-tokens span { border-radius: 2px; } .ng-tokens span:hover { outline: 1px solid #2a62c9; }
.ng-trained { background: #2da44e40; border-bottom: 2px solid #2da44e; }
.ng-sampled { background: #d4a72c40; border-bottom: 2px dotted #bf8700; }
.ng-scaffold { color: #8a4fbf; } .ng-head { opacity: .7; font-size: .85em; margin: .3em 0; }
"""


@dataclass(frozen=True)
class TokenColumns:
    """What is shown of a rendering; the arrays have one entry per token.

    Attributes:
        ids: int32.
        message_indices: int32, -1 for no message.
        sampled: bool.
        is_content: bool.
        weights: float32, the weight in the loss; `None` where the messages are not at hand, which decide it.
        roles: the role of each message.
        spelling: the text of one id; `None` where no tokenizer is at hand, then ids are shown.
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
        facts = [trained, self.sampled, self.is_content]
        return np.select(facts, [TRAINED, SAMPLED, CONTEXT], SCAFFOLD)

    def texts(self) -> list[str]:
        """The text of each token, or its id and a space."""
        text = cache(self.spelling or (lambda token: f"{token} "))  # most ids of a conversation occur several times
        return [text(token) for token in self.ids.tolist()]


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
    kinds = columns.kinds().tolist()
    legend = "  ".join(_coloured(f" {MEANINGS[kind]} ", kind) for kind in KINDS if KINDS.index(kind) in set(kinds))
    return legend + "\n\n" + "".join(_coloured(text, kind) for text, kind in _runs(columns.texts(), kinds)) + "\n"


def _runs(texts: list[str], kinds: list[int]) -> Iterator[tuple[str, Kind]]:
    """Neighbouring tokens of one kind, joined.

    ::

        texts  Hi  !  <e>      kinds  context context scaffold   ->   ("Hi!", context), ("<e>", scaffold)
    """
    start = 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at] != kinds[start]:
            yield "".join(texts[start:at]), KINDS[kinds[start]]
            start = at


def _coloured(text: str, kind: Kind) -> str:
    """Text in the colour of its kind; a colour ends before a line does, or terminals paint the rest of the line."""
    lines = ["".join(map(printable, line)) for line in text.split("\n")]
    code = _ANSI[kind]
    if not code:
        return "\n".join(lines)
    return "⏎\n".join(f"\x1b[{code}m{line}\x1b[0m" if line else "" for line in lines)


def notebook_html(columns: TokenColumns, attribution: str) -> str:
    """The rendering as HTML: a span for each token, its id and facts in the tooltip."""
    kinds = columns.kinds().tolist()
    shown = [_span(columns, at, text, KINDS[kinds[at]]) for at, text in enumerate(columns.texts()[:_MOST_TOKENS])]
    left_out = len(kinds) - len(shown)
    end = f'<div class="ng-head">and {left_out:,} more tokens</div>' if left_out else ""
    legend = " ".join(
        f'<span class="ng-{kind}">{escape(MEANINGS[kind])}</span>' for kind in KINDS if KINDS.index(kind) in set(kinds)
    )
    return (
        f"<style>{_CSS}</style>"
        f'<div class="ng-head">{escape(summary(columns, attribution))}. {legend}</div>'
        f'<div class="ng-tokens">{"".join(shown)}</div>{end}'
    )


def _span(columns: TokenColumns, at: int, text: str, kind: Kind) -> str:
    message = int(columns.message_indices[at])
    owner = f"message {message} ({columns.roles[message]})" if 0 <= message < len(columns.roles) else "no message"
    facts = [name for name, fact in (("sampled", columns.sampled[at]), ("content", columns.is_content[at])) if fact]
    weight = [] if columns.weights is None else [f"loss weight {float(columns.weights[at]):g}"]
    tip = ", ".join([f"{at}: id {int(columns.ids[at])}", owner, *facts, *weight])
    lines = "⏎\n".join(escape("".join(map(printable, line))) for line in text.split("\n"))
    return f'<span class="ng-{kind}" title="{escape(tip)}">{lines}</span>'
