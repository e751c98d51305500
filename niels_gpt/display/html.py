"""Rows of tokens as HTML, for notebooks and reports: a span for each token, its facts in the tooltip."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from niels_gpt.display.rows import (
    COLOURS,
    MEANINGS,
    NOTEBOOK_STYLES,
    Colour,
    Spelling,
    TokenRow,
    cached,
    first_tokens,
    kinds_of,
    printable,
)

MOST_TOKENS: Final = 20_000  # in HTML: a notebook becomes slow with more
CSS: Final = """
.ng-tokens { font: .85em/1.7 ui-monospace, Menlo, "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.ng-tokens span { border-radius: 2px; } .ng-tokens span:hover { outline: 1px solid #2a62c9; }
.ng-head { opacity: .7; font-size: .85em; margin: .3em 0; }
""" + "".join(f".ng-{kind} {{ {rules} }}\n" for kind, rules in NOTEBOOK_STYLES.items() if rules)


def notebook_html(head: str, rows: Sequence[TokenRow], spelling: Spelling | None = None) -> str:
    """The rows as HTML: a span for each token, its place, id and facts in the tooltip.

    Args:
        head: the first line, as plain text.
    """
    shown, left_out = first_tokens(rows, MOST_TOKENS)
    legend = " ".join(f'<span class="ng-{kind}">{escape(MEANINGS[kind])}</span>' for kind in kinds_of(shown))
    text_of = cached(spelling)
    parts = [f'<style>{CSS}</style><div class="ng-head">{escape(head)}. {legend}</div>']
    for row in shown:
        if row.heading:
            parts.append(f'<div class="ng-head">{escape(row.heading)}</div>')
        for number, part in enumerate(row.texts()):
            if number:
                parts.append(f'<div class="ng-head">{escape(row.name(number))}</div>')
            spans = [
                span(text_of(int(row.ids[at])), COLOURS[row.kinds[at]], f"{at}: id {int(row.ids[at])}, {row.facts(at)}")
                for at in range(part.start, part.stop)
            ]
            parts.append(f'<div class="ng-tokens">{"".join(spans)}</div>')
        if row.n_padding:
            parts.append(f'<div class="ng-tokens"><span class="ng-padding">{row.n_padding:,} × padding</span></div>')
    if left_out:
        parts.append(f'<div class="ng-head">and {left_out:,} more tokens</div>')
    return "".join(parts)


def span(text: str, kind: Colour, tip: str) -> str:
    """One token as HTML; `tip` appears when the pointer is over it."""
    lines = "⏎\n".join(escape("".join(map(printable, line))) for line in text.split("\n"))
    return f'<span class="ng-{kind}" title="{escape(tip)}">{lines}</span>'
