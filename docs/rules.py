"""Writes the table of rules in docs/doctor.md from niels_gpt/doctor/rules/rules.toml: python -m docs.rules"""

from __future__ import annotations

from pathlib import Path

from niels_gpt.doctor.rules import RULES

PAGE = Path(__file__).with_name("doctor.md")
HEAD = "| rule | severity | judged on | what |\n|---|---|---|---|\n"


def with_table(text: str) -> str:
    """The page with the table of today's rules."""
    before, _, rest = text.partition(HEAD)
    _, _, after = rest.partition("\n\n")
    rows = [f"| `{rule.id}` | {rule.severity} | {', '.join(rule.applies)} | {rule.title} |" for rule in RULES.values()]
    return before + HEAD + "\n".join(rows) + "\n\n" + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
