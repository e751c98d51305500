"""Evidence: one place where a rule fires, with the tokens around it; and how severe a finding is.

Rules and counters make evidence, and `report.py` puts it into findings.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from niels_gpt.display.html import span
from niels_gpt.display.rows import Colour

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")


@dataclass(frozen=True)
class WindowToken:
    """A token shown with evidence.

    Attributes:
        trained: it is in the loss; `None` without a mask.
        role: of its turn, where turns are known.
        expected: the mask should train it, because the model samples it; `None` where mask or turns are not known.
    """

    id: int
    text: str
    trained: bool | None = None
    role: str | None = None
    expected: bool | None = None


@dataclass(frozen=True)
class Evidence:
    """One place where a rule fires.

    Attributes:
        row: index of the row in the input, from 0; -1 where the evidence is not a row.
        where: where the row comes from (`chats.jsonl:17`); empty where there is no place.
        note: what was found there.
        message: index of the message, where one is known.
        token: index of the token in its row, where one is known.
        window: the tokens around it.
        mark: the index of the token in `window`.
    """

    row: int
    where: str
    note: str
    message: int | None = None
    token: int | None = None
    window: tuple[WindowToken, ...] = ()
    mark: int | None = None

    def html(self) -> str:
        """The place, the note, and the tokens around the place, as HTML."""
        tokens = []
        for at, token in enumerate(self.window):
            # The same kinds, and so the same colours, as in the terminal (`show._window`).
            kind: Colour = "trained" if token.trained else "scaffold" if token.role is None else "context"
            facts = [f"id {token.id}", *([] if token.role is None else [token.role])]
            if token.trained is not None:
                facts.append("trained" if token.trained else "not trained")
            if token.expected is not None and token.expected != token.trained:
                facts.append("should be trained" if token.expected else "should not be trained")
            # ∅ for a token without text, which would have nothing to point at.
            html = span(token.text or "∅", kind, ", ".join(facts))
            tokens.append(f"<u>{html}</u>" if at == self.mark else html)
        window = f'<div class="ng-tokens">{"".join(tokens)}</div>' if tokens else ""
        return f'<div class="ng-head">{escape(self.where)}: {escape(self.note)}</div>{window}'
