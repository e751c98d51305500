"""A report: findings with their evidence, and its JSON form, version 1, which the explorer and other tools read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Final, Literal

from niels_gpt.token_display import CSS, Kind, in_colour, span

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
VERSION: Final = 1

_EVIDENCE_IN_HTML: Final = 3  # places of a finding in a notebook; the report's JSON has all
_TABLE_HEAD: Final = "<tr><th>severity</th><th>rule</th><th>what was found, and what to do</th><th>rows</th></tr>"


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

    def _html(self) -> str:
        """The place, the note, and the tokens around the place, as HTML."""
        tokens = "".join(_token_html(token, marked=at == self.mark) for at, token in enumerate(self.window))
        window = f'<div class="ng-tokens">{tokens}</div>' if tokens else ""
        return f'<div class="ng-head">{escape(self.where)}: {escape(self.note)}</div>{window}'


def _token_html(token: WindowToken, *, marked: bool) -> str:
    # As in the terminal (`doctor/show.py`).
    kind: Kind = "trained" if token.trained else "scaffold" if token.role is None else "context"
    facts = [f"id {token.id}", *([] if token.role is None else [token.role])]
    if token.trained is not None:
        facts.append("trained" if token.trained else "not trained")
    if token.expected is not None and token.expected != token.trained:
        facts.append("should be trained" if token.expected else "should not be trained")
    shown = span(token.text or "∅", kind, ", ".join(facts))
    return f"<u>{shown}</u>" if marked else shown


@dataclass(frozen=True)
class Finding:
    """One rule that fired.

    Attributes:
        count: how many places; `rows`: in how many rows.
        evidence: the first few places, in order of the input.
        details: further numbers, such as what each truncation policy would lose.
    """

    rule: str
    severity: Severity
    title: str
    count: int
    rows: int
    summary: str
    cause: str
    fix: str
    thread: str
    evidence: tuple[Evidence, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line; `show()` prints all of it."""
        return f"<Finding {self.rule} ({self.severity}, {self.rows:,} rows): {self.title}>"

    def __str__(self) -> str:
        """In a terminal all of it with tokens in colour, elsewhere the same as `repr`."""
        return _in_terminal(self) if in_colour() else repr(self)

    def show(self) -> None:
        """Print the finding with its evidence, tokens in colour."""
        _print(self)

    def _repr_html_(self) -> str:
        """The finding with its evidence as coloured tokens, for notebooks."""
        return f"<style>{CSS}</style><table>{_TABLE_HEAD}{self._table_row()}</table>"

    def _table_row(self) -> str:
        windows = "".join(evidence._html() for evidence in self.evidence[:_EVIDENCE_IN_HTML])
        return (
            f"<tr><td>{escape(self.severity)}</td><td><code>{escape(self.rule)}</code></td>"
            f"<td style='text-align:left'><b>{escape(self.title)}</b><br>{escape(self.summary)}"
            f"<br><i>{escape(self.fix)}</i>{windows}</td><td>{self.rows:,}</td></tr>"
        )


@dataclass(frozen=True)
class Silenced:
    """A finding that the user accepts, with the reason."""

    finding: Finding
    reason: str


@dataclass(frozen=True)
class Report:
    """All that was found in one source.

    Attributes:
        source: what was read and how: kind, name, tokenizer, renderer, sample.
        rows, tokens, trained_tokens: how many were read.
        findings: errors first, then warnings, then remarks (info); each in the order of the registry.
        silenced: findings that the user accepts.
        skipped: rules for this kind of input that were not judged: rule -> reason.
        judged: how many rules were judged.
        stats: further numbers about the input, such as the share of trained tokens.
        repaired: what `fix` wrote: path, rows, and the rules whose rows were repaired, left out, or left as they are.
    """

    source: Mapping[str, Any]
    rows: int
    tokens: int
    trained_tokens: int
    findings: tuple[Finding, ...]
    silenced: tuple[Silenced, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    judged: int = 0
    stats: Mapping[str, Any] = field(default_factory=dict)
    repaired: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        """One line of counts; `niels-gpt doctor` prints all of it."""
        found = ", ".join(
            f"{finding.rule} ({finding.severity}, {finding.rows:,} rows)" for finding in self.findings[:5]
        )
        more = f" and {len(self.findings) - 5} more" if len(self.findings) > 5 else ""
        tokens = f", {self.tokens:,} tokens, {self.trained_tokens:,} trained" if self.tokens else ""
        skipped = f"; {len(self.skipped)} rules not judged" if self.skipped else ""
        return f"<Report: {self.rows:,} rows{tokens}: {found or 'nothing found'}{more}{skipped}>"

    def __str__(self) -> str:
        """In a terminal the whole report with tokens in colour, elsewhere the same as `repr`."""
        return _in_terminal(self) if in_colour() else repr(self)

    def show(self) -> None:
        """Print the whole report, tokens in colour."""
        _print(self)

    def _repr_html_(self) -> str:
        """The findings as a table with coloured tokens, for notebooks."""
        rows = "".join(finding._table_row() for finding in self.findings)
        table = f"<style>{CSS}</style><table>{_TABLE_HEAD}{rows}</table>" if rows else ""
        return f"<div>{escape(repr(self)[1:-1])}</div>{table}"

    def rules(self, at_least: Severity = "info") -> list[str]:
        """The ids of the rules that fired at this severity or a worse one."""
        # They are listed from the worst on.
        worst = SEVERITIES[: SEVERITIES.index(at_least) + 1]
        return [finding.rule for finding in self.findings if finding.severity in worst]

    def finding(self, rule: str) -> Finding | None:
        """The finding of a rule, `None` if it did not fire."""
        return next((finding for finding in self.findings if finding.rule == rule), None)

    def failed(self, at_least: Severity = "error") -> bool:
        """Whether a rule fired at this severity or a worse one."""
        return bool(self.rules(at_least))

    def reasons(self) -> dict[str, list[str]]:
        """The rules that were not judged: reason -> rules."""
        reasons: dict[str, list[str]] = {}
        for rule, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(rule)
        return reasons

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object, version 1."""
        repaired = {} if self.repaired is None else {"repaired": dict(self.repaired)}
        return repaired | {
            "version": VERSION,
            "source": dict(self.source),
            "rows": self.rows,
            "tokens": self.tokens,
            "trained_tokens": self.trained_tokens,
            "stats": dict(self.stats),
            "findings": [asdict(finding) for finding in self.findings],
            "silenced": [{**asdict(silenced.finding), "reason": silenced.reason} for silenced in self.silenced],
            "skipped": dict(self.skipped),
            "judged": self.judged,
            "not_judged": len(self.skipped),
        }


def _in_terminal(shown: Report | Finding) -> str:
    """A report or finding as text in colour, as wide as the terminal."""
    from rich.console import Console

    from niels_gpt.doctor.show import render  # which imports this module

    console = Console()
    # Captured, because `str` must return text; rich knows the width and the colours of the terminal.
    with console.capture() as captured:
        console.print(render(shown))
    return captured.get().rstrip("\n")


def _print(shown: Report | Finding) -> None:
    """Print in colour even where standard output is a file, as `RenderedTokens.show` does."""
    from rich.console import Console

    from niels_gpt.doctor.show import render  # which imports this module

    Console(force_terminal=True).print(render(shown))
