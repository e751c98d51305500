"""A report: findings with their evidence, and its JSON form, version 1, which the explorer and other tools read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Final, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
VERSION: Final = 1


@dataclass(frozen=True)
class WindowToken:
    """A token shown with evidence. `trained` is `None` without a mask, `role` where turns are not known."""

    id: int
    text: str
    trained: bool | None = None
    role: str | None = None


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

    def __repr__(self) -> str:
        """One line of counts; `niels-gpt doctor` prints all of it."""
        found = ", ".join(
            f"{finding.rule} ({finding.severity}, {finding.rows:,} rows)" for finding in self.findings[:5]
        )
        more = f" and {len(self.findings) - 5} more" if len(self.findings) > 5 else ""
        tokens = f", {self.tokens:,} tokens, {self.trained_tokens:,} trained" if self.tokens else ""
        skipped = f"; {len(self.skipped)} rules not judged" if self.skipped else ""
        return f"<Report: {self.rows:,} rows{tokens}: {found or 'nothing found'}{more}{skipped}>"

    def _repr_html_(self) -> str:
        """The findings as a table, for notebooks."""
        rows = "".join(
            f"<tr><td>{escape(finding.severity)}</td><td><code>{escape(finding.rule)}</code></td>"
            f"<td style='text-align:left'><b>{escape(finding.title)}</b><br>{escape(finding.summary)}"
            f"<br><i>{escape(finding.fix)}</i></td><td>{finding.rows:,}</td></tr>"
            for finding in self.findings
        )
        head = "<tr><th>severity</th><th>rule</th><th>what was found, and what to do</th><th>rows</th></tr>"
        return f"<div>{escape(repr(self)[1:-1])}</div>" + (f"<table>{head}{rows}</table>" if rows else "")

    def rules(self, at_least: Severity = "info") -> list[str]:
        """The ids of the rules that fired at this severity or a worse one."""
        worst = SEVERITIES[: SEVERITIES.index(at_least) + 1]
        return [finding.rule for finding in self.findings if finding.severity in worst]

    def finding(self, rule: str) -> Finding | None:
        """The finding of a rule, `None` if it did not fire."""
        return next((finding for finding in self.findings if finding.rule == rule), None)

    def failed(self, at_least: Severity = "error") -> bool:
        """Some rule fired at this severity or a worse one."""
        return bool(self.rules(at_least))

    def reasons(self) -> dict[str, list[str]]:
        """The rules that were not judged: reason -> rules."""
        reasons: dict[str, list[str]] = {}
        for rule, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(rule)
        return reasons

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object, version 1."""
        return {
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
