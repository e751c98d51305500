"""A report as SARIF 2.1.0 (OASIS, Static Analysis Results Interchange Format), which code-scanning tools read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from niels_gpt.doctor.evidence import Evidence, Severity
from niels_gpt.doctor.report import Finding, Report
from niels_gpt.doctor.rules import RULES
from niels_gpt.version import __version__

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Final[dict[Severity, str]] = {"error": "error", "warning": "warning", "info": "note"}
# `chats.jsonl:17`, but not `data row 17` or `data.json:0`; SARIF counts lines from 1.
_FILE_LINE: Final = re.compile(r"(?P<file>.+):(?P<line>[1-9]\d*)")


def to_sarif(report: Report) -> dict[str, Any]:
    """The report as one run: every rule that fired with its words, and one result for each piece of evidence."""
    findings: list[tuple[Finding, str | None]] = [(finding, None) for finding in report.findings]
    findings += [(silenced.finding, silenced.reason) for silenced in report.silenced]
    rules = []
    for finding, _ in findings:
        rule = RULES[finding.rule]
        words: dict[str, Any] = {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.meaning},
            "help": {"text": f"Cause: {rule.cause} Fix: {rule.fix}"},
            "defaultConfiguration": {"level": LEVELS[rule.severity]},
        }
        rules.append(words | ({"helpUri": rule.thread} if rule.threads else {}))
    # `ruleIndex` of a result is the rule's index in `rules`, which has one for each finding.
    results = [
        result for index, (finding, reason) in enumerate(findings) for result in _results(finding, index, reason)
    ]
    # Rules that were not judged are notifications of the tool itself, not results about the data.
    notifications = [
        {"level": "warning", "message": {"text": f"not judged ({reason}): {', '.join(names)}"}}
        for reason, names in report.reasons().items()
    ]
    properties = {
        "rows": report.rows,
        "tokens": report.tokens,
        "trainedTokens": report.trained_tokens,
        "rulesJudged": report.judged,
        "rulesNotJudged": len(report.skipped),
    }
    run = {
        "tool": {"driver": {"name": "niels-gpt doctor", "version": __version__, "rules": rules}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": properties,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _results(finding: Finding, index: int, reason: str | None) -> Iterator[dict[str, Any]]:
    """A result for each piece of evidence; `reason` is why the user accepts the finding."""
    # A finding without evidence is one result without a location.
    for evidence in finding.evidence or (None,):
        note = f": {evidence.note}" if evidence is not None else ""
        result: dict[str, Any] = {
            "ruleId": finding.rule,
            "ruleIndex": index,
            "level": LEVELS[finding.severity],
            "message": {"text": f"{finding.title}{note} ({finding.summary})"},
        }
        if evidence is not None:
            result |= _location(evidence)
        if reason is not None:  # code-scanning tools show suppressed results as accepted
            result["suppressions"] = [{"kind": "external", "justification": reason}]
        yield result


def _location(evidence: Evidence) -> dict[str, Any]:
    """File and line where the place has them (`chats.jsonl:17`), else its name only."""
    properties = {"row": evidence.row, "message": evidence.message, "token": evidence.token}
    known = {name: value for name, value in properties.items() if value is not None}
    if not evidence.where:
        return {"properties": known}
    found = _FILE_LINE.fullmatch(evidence.where)
    # A logical location may be any name; a physical one must be a file, and may have a line.
    logical = [{"fullyQualifiedName": evidence.where}]
    if found is None:
        return {"locations": [{"logicalLocations": logical}], "properties": known}
    path = Path(found["file"])
    # `as_uri` refuses relative paths; these stay relative, so that a code host finds them in its checkout.
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    physical = {"artifactLocation": {"uri": uri}, "region": {"startLine": int(found["line"])}}
    return {"locations": [{"physicalLocation": physical, "logicalLocations": logical}], "properties": known}
