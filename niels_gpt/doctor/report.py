"""A report: findings with their evidence, and its JSON form, version 1, which the explorer and other tools read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Final

from niels_gpt.display.html import CSS
from niels_gpt.display.terminal import in_colour
from niels_gpt.doctor.evidence import SEVERITIES, Evidence, Severity, WindowToken

__all__ = ["SEVERITIES", "VERSION", "Evidence", "Finding", "Report", "Severity", "Silenced", "WindowToken"]

VERSION: Final = 1

_EVIDENCE_IN_HTML: Final = 3  # places of a finding in a notebook; the report's JSON has all
_TABLE_HEAD: Final = "<tr><th>severity</th><th>rule</th><th>what was found, and what to do</th><th>rows</th></tr>"


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
        """One line; the report shows all of it."""
        return f"<Finding {self.rule} ({self.severity}, {self.rows:,} rows): {self.title}>"

    def _table_row(self) -> str:
        """The finding as a row of an HTML table; titles and notes may quote data, so all of it is escaped."""
        windows = "".join(evidence.html() for evidence in self.evidence[:_EVIDENCE_IN_HTML])
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
        # Five, so that it stays a line; the worst come first.
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
        """Print the whole report, tokens in colour even where standard output is a file."""
        from rich.console import Console

        from niels_gpt.doctor.show import render

        Console(force_terminal=True).print(render(self))

    def _repr_html_(self) -> str:
        """The findings as a table with coloured tokens, for notebooks."""
        rows = "".join(finding._table_row() for finding in self.findings)
        table = f"<style>{CSS}</style><table>{_TABLE_HEAD}{rows}</table>" if rows else ""
        return f"<div>{escape(repr(self)[1:-1])}</div>{table}"

    def rules(self, at_least: Severity = "info") -> list[str]:
        """The ids of the rules that fired at this severity or a worse one."""
        # They are listed from the worst on.
        included = SEVERITIES[: SEVERITIES.index(at_least) + 1]
        return [finding.rule for finding in self.findings if finding.severity in included]

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
        # Only where `fix` was passed.
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


def _in_terminal(report: Report) -> str:
    """A report as text in colour, as wide as the terminal."""
    # rich and the words of all rules are loaded where a report is printed, and not wherever one is made.
    from rich.console import Console

    from niels_gpt.doctor.show import render

    console = Console()  # a new one, which reads the terminal's width now
    with console.capture() as captured:
        console.print(render(report))
    return captured.get().rstrip("\n")
