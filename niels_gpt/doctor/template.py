"""`niels-gpt doctor template`: the report on a chat template, to read in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from niels_gpt.renderers.template.probe_results import STATUSES, ProbeResult, Status, TemplateReport, runs, spans_of
from niels_gpt.renderers.template.proofs.proof import SampledSpan
from niels_gpt.renderers.template.proofs.stops import NO_STOP
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.token_display import MEANINGS, STYLES, Kind, printable

COLOURS: dict[Status, str] = {
    "certified": "bold green",
    "proven": "bold cyan",
    "partial": "bold yellow",
    "refused": "bright_black",
}
MEANING: dict[Status, str] = {
    "certified": "one run attributes these, and the proof by substitution agrees",
    "proven": "attributed by the proof itself, from several runs",
    "partial": "not proven: training samples and builds refuse these",
    "refused": "the template refuses these",
}
STOP_STYLE = f"{STYLES['sampled']} bold underline"
_MARGIN = " " * 16  # before what belongs to a status
_WIDTH = 80 - len(_MARGIN)  # columns beside the margin: a page has 80, and a paragraph may name a hundred kinds
_LEGEND: tuple[Kind, ...] = ("sampled", "context", "scaffold")


def summary(report: TemplateReport) -> Iterator[Text]:
    """The report as text: what is certified, proven, partial and refused, and which rules found the sampled spans."""
    yield Text.assemble((_safe(report.name), "bold"), f": {len(report.results)} probe conversations")
    for status in STATUSES:
        found = report.of(status)
        if found:
            yield Text.assemble((f"{status:<9}", COLOURS[status]), f" {len(found):>4}  ", (MEANING[status], "dim"))
            yield from _lines(report, status)
    # The number of probes for each: `starts    the generation prompt is a prefix (120), ...`.
    stops = {stop or "none (ordinary text, or the next turn's opener)": count for stop, count in report.stops.items()}
    for title, counts in (("starts", report.rules), ("stops", stops)):
        text = ", ".join(f"{_safe(name)} ({count})" for name, count in counts.items() if name)
        if text:
            yield from _titled(title, text)
    # Which tokens count as the end of a turn; and what to do, where a turn ends without one.
    stop_tokens = ", ".join(map(_safe, report.stop_tokens)) or "none"
    reasons = [reason.text for reason in report.reasons("partial")]
    advice = ""
    # Both kinds of advice may be given: the token may be unknown, or not written at all.
    if any(NO_STOP in reason for reason in reasons):
        advice += (
            ". If the turns end with another token, add its id to eos_token_id in generation_config.json beside the "
            "tokenizer, where generate() and servers look, too"
        )
    if any(" stop" in reason for reason in reasons):
        advice += ". Where the template writes none after answers, --renderer-option final_stop=TOKEN writes one"
    yield from _titled("stop tokens", f"{stop_tokens} (eos, and those of generation_config.json){advice}")
    partial, rendered = report.counts["partial"], len(report.results) - report.counts["refused"]
    if not rendered:
        yield Text("the template refuses every probe, so nothing is proven", style="bold red")
    elif partial:
        yield Text(f"partial: {partial} of {rendered} rendered probes are not proven", style="bold yellow")
    else:
        yield Text(f"full attribution on all {rendered} rendered probes", style="bold green")


def _lines(report: TemplateReport, status: Status) -> Iterator[Text]:
    """What has a status: kinds of conversations; for all but the certified ones under the reason why."""
    if status == "certified":
        for line in _kinds(report, report.of(status)):
            yield Text(f"{_MARGIN}{line}")
        return
    for reason in report.reasons(status):
        for line in textwrap.wrap(f"{_safe(reason.text)} ({reason.count})", _WIDTH, break_long_words=False):
            yield Text(f"{_MARGIN}{line}")
        for line in _kinds(report, reason.results, indent="    "):
            yield Text(f"{_MARGIN}{line}", style="dim")


def _kinds(report: TemplateReport, results: Sequence[ProbeResult], indent: str = "") -> Iterator[str]:
    """The kinds of some results, a paragraph for each set of variants: `only with tools: one turn; a call`."""
    for variants, kinds in report.kinds_by_variants(results).items():
        text = _safe((f"only {variants}: " if variants else "") + "; ".join(kinds))
        later = f"{indent}  "
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent=indent, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
        )


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


def shown_probe(result: ProbeResult, spans: Sequence[SampledSpan]) -> Iterator[Text]:
    """A probe, message by message, with what the model emits of it.

    Args:
        spans: the sampled spans as they are proven; empty if they are not.
    """
    yield Text.assemble((f"{result.status:<10}", COLOURS[result.status]), (_safe(result.probe.name), "bold"))
    if result.reason:
        label = {"proven": "one run is wrong: ", "refused": "it says: "}.get(result.status, "not proven: ")
        first, *others = textwrap.wrap(label + _safe(result.reason), 76, break_long_words=False)
        yield Text.assemble("  ", (label, "dim"), first.removeprefix(label))
        yield from (Text(f"    {line}") for line in others)
    for line in _text(result, spans).split("\n") if result.pieces else ():
        yield Text.assemble("  ", line)
    for span in spans:
        stop = f"ends in {span.stop_token}" if span.stop_token else "ends without a stop token"
        start = span.rule or "its start is not known"
        yield Text(f"  message {span.message}: {start}; {_safe(stop)}", style="dim")


def _text(result: ProbeResult, spans: Sequence[SampledSpan]) -> Text:
    """The rendering in colour, with a line in front of each message."""
    text, stops = Text(), {span.stop: span.stop_token for span in spans}
    roles, at = [str(message["role"]) for message in result.probe.messages], 0
    for message, pieces in runs(result.pieces):
        # Text of no message is the template's own, such as a default system prompt.
        title = f"── {message} {roles[message]} ──" if message >= 0 else "── no message ──"
        text.append(("\n" if text and not text.plain.endswith("\n") else "") + title + "\n", style="bright_black")
        sampled = False
        for piece in pieces:
            if piece.sampled != sampled:
                text.append("⟦" if piece.sampled else "⟧", style=STYLES["sampled"])
                sampled = piece.sampled
            at += len(piece.text)
            # A stop token is the end of a sampled piece, and has a style of its own.
            stop = stops.get(at, "") if piece.sampled else ""
            body = piece.text.removesuffix(stop)
            kind: Kind = "sampled" if piece.sampled else "context" if piece.content else "scaffold"
            text.append(_lines_of(body), style=STYLES[kind])
            if len(body) < len(piece.text):
                text.append(_lines_of(stop), style=STOP_STYLE)
        if sampled:
            text.append("⟧", style=STYLES["sampled"])
    return text


def _lines_of(text: str) -> str:
    """Text with its line ends visible, and without control codes."""
    return "⏎\n".join(_safe(line) for line in text.split("\n"))


def _safe(text: str) -> str:
    """Text without control codes: a downloaded template must not change the terminal."""
    return "".join(map(printable, text))


def shown(report: TemplateReport, renderer: TemplateRenderer, results: Sequence[ProbeResult]) -> Iterator[Text]:
    """The lines of the report: a legend, the probes in `results`, then the summary."""
    if any(result.pieces for result in results):
        yield legend()
    for result in results:
        yield Text()
        yield from shown_probe(result, spans_of(renderer, result.probe))
    if results:
        yield Text()
    yield from summary(report)


def to_show(report: TemplateReport) -> list[ProbeResult]:
    """Without `--all`: an example of what is certified, and the first probe of each reason for which others are not.

    Refusals are in the summary only.
    """
    examples = [result for result in report.of("certified") if any(piece.sampled for piece in result.pieces)]
    statuses: tuple[Status, ...] = ("proven", "partial")
    firsts = [reason.results[0] for status in statuses for reason in report.reasons(status)]
    return [*examples[:1], *firsts]
