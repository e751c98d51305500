"""A report to read: in a terminal with tokens in colour, or as plain text; and the words of rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from niels_gpt.display.rows import STYLES, visible
from niels_gpt.doctor.evidence import SEVERITIES, Evidence, Severity
from niels_gpt.doctor.rules import RULES, Rule, thread_url

if TYPE_CHECKING:  # a report imports this module to show itself
    from niels_gpt.doctor.report import Finding, Report

COLOURS: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "info": "cyan"}
SHOWN = 3  # pieces of evidence of a finding in the terminal; JSON has all


def render(report: Report) -> RenderableType:
    """The report, worst first."""
    parts: list[RenderableType] = [_head(report)]
    if report.skipped:
        head, *lists = _not_judged_lines(report)
        parts += [Text(head, style="bold yellow"), Text("\n".join(lists), style="yellow")]
    parts.append(Text(_judged(report), style="dim"))
    for finding in report.findings:
        parts += [Text(), *_finding(finding)]
    for silenced in report.silenced:
        parts.append(Text(f"silenced  {silenced.finding.rule}: {silenced.reason}", style="bright_black"))
    # The verdict is the last line, which a terminal shows without scrolling.
    counts = {severity: sum(f.severity == severity for f in report.findings) for severity in SEVERITIES}
    names = {"error": "errors", "warning": "warnings", "info": "remarks"}
    if report.findings:
        verdict = ", ".join(
            f"{n} {names[severity] if n != 1 else names[severity][:-1]}" for severity, n in counts.items() if n
        )
        style = "bold red" if counts["error"] else "bold"
    elif report.skipped:  # not green: what was not judged may be wrong
        verdict = f"no finding by {report.judged} rules; {len(report.skipped)} were not judged, see above"
        style = "bold yellow"
    else:
        verdict, style = "nothing found", "bold green"
    parts += [Text(), Text(verdict, style=style)]
    return Group(*parts)


def _head(report: Report) -> Text:
    """The first line: what was read, how much of it, and with what."""
    about = [f"{report.rows:,} rows", f"{report.tokens:,} tokens", f"{report.trained_tokens:,} trained"]
    if report.source.get("kind") == "tokenizer":
        # It has no rows, so counts would all be 0.
        about = ["a tokenizer without data"]
    if "loss_share" in report.stats:
        about.append(f"{report.stats['loss_share']:.1%} in the loss")
    for what in ("rows", "answers"):
        if f"{what}_switched_off" in report.stats:
            about.append(f"{report.stats[f'{what}_switched_off']:,} {what} left out of the loss by their own weight")
    used = [f"{name} {report.source[name]}" for name in ("tokenizer", "renderer", "sample") if name in report.source]
    name = " and ".join(str(report.source[key]) for key in ("name", "other") if key in report.source)
    return Text.assemble((name, "bold"), ": " + ", ".join(about), (f"  ({', '.join(used)})" if used else "", "dim"))


def _finding(finding: Finding) -> Iterator[RenderableType]:
    yield Text.assemble(
        (f"{finding.severity:<8}", COLOURS[finding.severity]),
        (finding.rule, "bold"),
        f"  {finding.title}: {finding.summary}",
    )
    for evidence in finding.evidence[:SHOWN]:
        yield Padding(Text(f"{_place_of(evidence)}: {_safe(evidence.note)}"), (0, 0, 0, 8))
        if evidence.window:
            yield Padding(_window(evidence), (0, 0, 0, 10))
    more = finding.count - min(SHOWN, len(finding.evidence))
    if more > 0 and finding.evidence and finding.rows:  # a finding about the input as a whole has no places
        yield Padding(Text(f"and {more:,} more, in {finding.rows:,} rows", style="dim"), (0, 0, 0, 8))
    if finding.details:
        yield Padding(_details(finding), (0, 0, 0, 8))
    yield Padding(Text.assemble(("cause   ", "dim"), finding.cause), (0, 0, 0, 8))
    yield Padding(Text.assemble(("fix     ", "dim"), finding.fix), (0, 0, 0, 8))
    # Terminals open it by a click.
    style = f"link {finding.thread}" if finding.thread.startswith("https:") else ""
    yield Padding(Text.assemble(("thread  ", "dim"), (finding.thread, style)), (0, 0, 0, 8))


def _details(finding: Finding) -> Table:
    """A line for each entry of the details, whose values are numbers, or objects of numbers or of objects of them."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in finding.details.items():
        for inner, numbers in value.items() if isinstance(value, dict) else [(name, value)]:
            if isinstance(numbers, dict):
                numbers = ", ".join(f"{n:,} {what}" for what, n in numbers.items())
            table.add_row(str(inner), f"{numbers:,}" if isinstance(numbers, int) else str(numbers))
    return table


def _place_of(evidence: Evidence) -> str:
    """The place of evidence: `chats.jsonl:17 (row 16), message 1, token 41`.

    Rows, messages and tokens are counted from 0, lines of files from 1.
    """
    # `data row 16` names the row already; `chats.jsonl:17` does not.
    parts = [evidence.where] if evidence.where else []
    if evidence.row >= 0 and not evidence.where.endswith(f"row {evidence.row}"):
        parts = [f"{evidence.where} (row {evidence.row})".strip()]
    parts += [] if evidence.message is None else [f"message {evidence.message}"]
    parts += [] if evidence.token is None else [f"token {evidence.token}"]
    return _safe(", ".join(parts))


def _safe(text: str) -> str:
    """Control characters as escapes, so that data cannot change the terminal."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _window(evidence: Evidence) -> Text:
    """The tokens around a place, coloured as `Evidence.html` colours them, the one at the place underlined."""
    text = Text()
    for at, token in enumerate(evidence.window):
        style = STYLES["trained" if token.trained else "scaffold" if token.role is None else "context"]
        text.append(visible(token.text) or "∅", style=f"{style} underline" if at == evidence.mark else style)
        text.append(" ")
    return text


def _judged(report: Report) -> str:
    """How many rules were judged, and how places are numbered."""
    return f"judged: {report.judged} rules; rows, messages and tokens are counted from 0, lines of files from 1"


def _not_judged_lines(report: Report) -> list[str]:
    """The line of `not_judged`, then the rules of each reason.

    A reason may be long (which library is missing, how to install it), so it is written once: where there are several,
    they are numbered, and the rules follow the number.
    """
    reasons = report.reasons()
    if len(reasons) == 1:
        return [not_judged(report), *(", ".join(rules) for rules in reasons.values())]
    count = len(report.skipped)
    numbered = "; ".join(f"({number}) {reason}" for number, reason in enumerate(reasons, 1))
    lists = [f"({number}) {', '.join(rules)}" for number, rules in enumerate(reasons.values(), 1)]
    return [f"not judged: {count} of {count + report.judged} rules: {numbered}", *lists]


def not_judged(report: Report) -> str:
    """How many rules were not judged, and why; reports begin with it, because findings may be missing."""
    count = len(report.skipped)
    return f"not judged: {count} of {count + report.judged} rules: {'; '.join(report.reasons())}"


def plain(report: Report) -> str:
    """The report as text without colours, for a file; long lines are not broken."""
    console = Console(width=10_000, color_system=None)
    with console.capture() as captured:
        console.print(render(report))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def explain(rule: Rule) -> RenderableType:
    """All texts of a rule, for `niels-gpt rules RULE`."""
    rows = [
        ("what it means", rule.meaning),
        ("usual cause", rule.cause),
        ("fix", rule.fix),
        ("judged on", ", ".join(rule.applies)),
        ("threads", "\n".join(map(thread_url, rule.threads)) or rule.thread),
    ]
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    head = Text.assemble((rule.severity, COLOURS[rule.severity]), "  ", (rule.id, "bold"), f"  {rule.title}")
    return Group(head, table)


def listing() -> Table:
    """All rules as a table, for `niels-gpt rules`."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("severity", "rule", "what (judged on)"):
        # An id must stay whole, because users copy it; a long word of the last column is folded, never cut off.
        table.add_column(name, no_wrap=name == "rule", overflow="fold")
    for rule in RULES.values():
        what = Text.assemble(rule.title, (f" ({', '.join(rule.applies)})", "bright_black"))
        table.add_row(Text(rule.severity, style=COLOURS[rule.severity]), rule.id, what)
    return table
