"""`niels-gpt doctor template`: the report on a chat template, to read in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.text import Text

from niels_gpt.display.rows import MEANINGS, STYLES, Colour, printable
from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.template.probe_results import STATUSES, ProbeResult, Status, TemplateReport
from niels_gpt.renderers.template.proofs.stops import NO_STOP
from niels_gpt.renderers.types import Piece

COLOURS: Final[dict[Status, str]] = {"proven": "bold green", "partial": "bold yellow", "refused": "bright_black"}
MEANING: Final[dict[Status, str]] = {
    "proven": "letters and the proof by renderings give the same attribution",
    "partial": "not proven: training samples and builds refuse these",
    "refused": "the template refuses these",
}
STOP_STYLE: Final = f"{STYLES['sampled']} bold underline"
_MARGIN: Final = " " * 16  # before what belongs to a status
_WIDTH: Final = 80 - len(_MARGIN)  # columns beside the margin: a page has 80, and a paragraph may name a hundred kinds
_LEGEND: Final[tuple[Colour, ...]] = ("sampled", "context", "label", "scaffold")


def summary(report: TemplateReport) -> Iterator[Text]:
    """The report as text: what is proven, partial and refused, and which rules found the sampled spans."""
    yield Text.assemble((_safe(report.name), "bold"), f": {len(report.results)} probe conversations")
    for status in STATUSES:
        found = report.of(status)
        if found:
            yield Text.assemble((f"{status:<9}", COLOURS[status]), f" {len(found):>4}  ", (MEANING[status], "dim"))
            yield from _lines(report, status)
    slow = sum(result.route == "oracle" for result in report.results)
    if slow:
        yield from _titled("oracle", f"{slow} are attributed each by itself, which takes two renderings per message")
    # The number of probes for each: `starts    the generation prompt is a prefix (120), ...`.
    stops = {stop or "none (ordinary text, or the next turn's opener)": count for stop, count in report.stops.items()}
    for title, counts in (("starts", report.rules), ("stops", stops)):
        text = ", ".join(f"{_safe(name)} ({count})" for name, count in counts.items() if name)
        if text:
            yield from _titled(title, text)
    # Which tokens count as the end of a turn; and what to do, where a turn ends without one.
    stop_tokens = ", ".join(map(_safe, report.stop_tokens)) or "none"
    advice = ""
    if any(NO_STOP in reason for reason in report.reasons("partial")):
        advice += (
            ". If the turns end with another token, add its id to eos_token_id in generation_config.json beside the "
            "tokenizer, where generate() and servers also look"
        )
    yield from _titled("stop tokens", f"{stop_tokens} (eos, and those of generation_config.json){advice}")
    if report.final_stop:
        option = f"--renderer-option final_stop='{_safe(report.final_stop)}'"
        yield from _titled("proposed", f"{option} writes a stop after answers that have none, and fewer are partial")
    partial, rendered = report.counts["partial"], len(report.results) - report.counts["refused"]
    if not rendered:
        yield Text("the template refuses every probe, so nothing is proven", style="bold red")
    elif partial:
        yield Text(f"partial: {partial} of {rendered} rendered probes are not proven", style="bold yellow")
    else:
        yield Text(f"full attribution on all {rendered} rendered probes", style="bold green")


def _lines(report: TemplateReport, status: Status) -> Iterator[Text]:
    """Under each reason why probes are not proven, their names; the proven ones are only counted."""
    for reason, results in report.reasons(status).items() if status != "proven" else ():
        for line in textwrap.wrap(f"{_safe(reason)} ({len(results)})", _WIDTH, break_long_words=False):
            yield Text(f"{_MARGIN}{line}")
        names = _safe("; ".join(result.probe.name for result in results))
        for line in textwrap.wrap(names, _WIDTH - 4, break_long_words=False, break_on_hyphens=False):
            yield Text(f"{_MARGIN}    {line}", style="dim")


def _titled(title: str, text: str) -> Iterator[Text]:
    """A paragraph beside its title, which is written in the margin."""
    first, *others = textwrap.wrap(text, _WIDTH, break_long_words=False)
    yield Text.assemble((title.ljust(len(_MARGIN)), "bold"), first)
    yield from (Text(f"{_MARGIN}{line}") for line in others)


def legend() -> Text:
    """The colours of a probe."""
    parts = [Text(f" {MEANINGS[kind].partition(':')[0]} ", style=STYLES[kind]) for kind in _LEGEND]
    stop = Text(" stop ", style=STOP_STYLE)
    return Text("  ").join([*parts, stop, Text("⟦what the model emits⟧", style="dim")])


def shown_probe(result: ProbeResult) -> Iterator[Text]:
    """A probe, message by message, with what the model emits of it."""
    yield Text.assemble((f"{result.status:<9}", COLOURS[result.status]), (_safe(result.probe.name), "bold"))
    if result.reason:
        label = "it says: " if result.status == "refused" else "not proven: "
        first, *others = textwrap.wrap(label + _safe(result.reason), 76, break_long_words=False)
        yield Text.assemble("  ", (label, "dim"), first.removeprefix(label))
        yield from (Text(f"    {line}") for line in others)
    for line in _text(result).split("\n") if result.pieces else ():
        yield Text.assemble("  ", line)
    for span in result.spans:
        stop = f"ends in {span.stop_token}" if span.stop_token else "ends without a stop token"
        start = span.rule or "its start is not known"
        yield Text(f"  message {span.message}: {start}; {_safe(stop)}", style="dim")


def _text(result: ProbeResult) -> Text:
    """The rendering in colour, with a line in front of each message."""
    text, roles = Text(), [str(message["role"]) for message in result.probe.messages]
    for message, pieces in groupby(result.pieces, key=lambda piece: piece.msg):
        # Text of no message is the template's own, such as a default system prompt.
        title = f"── {message} {roles[message]} ──" if message >= 0 else "── no message ──"
        text.append(("\n" if text and not text.plain.endswith("\n") else "") + title + "\n", style="bright_black")
        for sampled, run in groupby(pieces, key=lambda piece: piece.sampled):
            text.append("⟦" * sampled, style=STYLES["sampled"])
            for piece in run:
                text.append(_lines_of(piece.text), style=_style(piece))
            text.append("⟧" * sampled, style=STYLES["sampled"])
    return text


def _style(piece: Piece) -> str:
    if piece.kind == Kind.STOP:
        return STOP_STYLE
    if piece.sampled or piece.content:
        return STYLES["sampled" if piece.sampled else "context"]
    return STYLES["label" if piece.kind == Kind.LABEL else "scaffold"]


def _lines_of(text: str) -> str:
    """Text with its line ends visible, and without control codes."""
    return "⏎\n".join(_safe(line) for line in text.split("\n"))


def _safe(text: str) -> str:
    """Text without control codes: a downloaded template must not change the terminal."""
    return "".join(map(printable, text))


def shown(report: TemplateReport, results: Sequence[ProbeResult]) -> Iterator[Text]:
    """The lines of the report: a legend, the probes in `results`, then the summary."""
    if any(result.pieces for result in results):
        yield legend()
    for result in results:
        yield Text()
        yield from shown_probe(result)
    if results:
        yield Text()
    yield from summary(report)


def to_show(report: TemplateReport) -> list[ProbeResult]:
    """Without `--all`: an example of what is proven, and the first probe of each reason for which others are not.

    Refusals are in the summary only.
    """
    examples = [result for result in report.of("proven") if any(piece.sampled for piece in result.pieces)]
    return [*examples[:1], *(results[0] for results in report.reasons("partial").values())]
