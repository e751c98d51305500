"""What the doctor says: evidence, findings, a report, and its JSON form (version 1, which other tools open)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
VERSION: Final = 1


@dataclass(frozen=True)
class WindowToken:
    """A token of evidence. `trained` is `None` where no mask is known, `role` where no turn is."""

    id: int
    text: str
    trained: bool | None = None
    role: str | None = None


@dataclass(frozen=True)
class Evidence:
    """One place where a rule fires.

    Attributes:
        row: index of the row in the input, from 0.
        where: where that row stands (`chats.jsonl:17`); empty for what concerns no row.
        note: what was found there.
        message: index of the message, where one is known.
        token: index of the token in its row, where one is known.
        window: the tokens around it; `mark` is the index of the token itself in it.
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
        details: numbers that belong to it, such as what each truncation policy would lose.
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
    """A finding that the user has seen and accepts, with the reason given."""

    finding: Finding
    reason: str


@dataclass(frozen=True)
class Report:
    """All that was found in one source.

    Attributes:
        source: what was read and how: kind, name, tokenizer, renderer, sample.
        rows, tokens, trained_tokens: how many were looked at.
        findings: errors first, then warnings, then remarks; each in the order of the registry.
        skipped: rules for this kind of input that were not judged, and why. judged: how many were.
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

    def rules(self, at_least: Severity = "info") -> list[str]:
        """The ids of the rules that fired at this severity or a worse one."""
        worst = SEVERITIES[: SEVERITIES.index(at_least) + 1]
        return [finding.rule for finding in self.findings if finding.severity in worst]

    def finding(self, rule: str) -> Finding | None:
        """The finding of a rule, `None` if it did not fire."""
        return next((finding for finding in self.findings if finding.rule == rule), None)

    def failed(self, at_least: Severity = "error") -> bool:
        """Something was found at this severity or a worse one."""
        return bool(self.rules(at_least))

    def reasons(self) -> dict[str, list[str]]:
        """The rules that were not judged, by the reason."""
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
