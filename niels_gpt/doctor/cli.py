"""`niels-gpt doctor`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from niels_gpt import ranges
from niels_gpt.errors import UsageError
from niels_gpt.files import write_atomic
from niels_gpt.renderers.options import Date, LossPreset, Rendering, ToolBodies
from niels_gpt.terminal import ShownProgress, out, print_json

if TYPE_CHECKING:
    from niels_gpt.doctor.report import Report

Level = Literal["not-judged", "warning", "error"]
FINDINGS = 1  # the exit code where something was found
NOT_JUDGED = 4  # nothing was found, but rules were not judged and that was asked for


def doctor(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="INPUT",
            help="Conversations or input_ids (.jsonl, .json, .parquet, save_to_disk), a cache, episodes, a hub "
            "dataset, a tokenizer directory.",
            show_default=False,
        ),
    ] = None,
    other: Annotated[
        str | None,
        typer.Argument(metavar="[OTHER]", help="A second tokenizer or template: compare the two.", show_default=False),
    ] = None,
    chats: Annotated[
        str | None, typer.Option(metavar="FILE", help="Conversations on which the two are compared, beside probes.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="A Hugging Face tokenizer directory or hub name, or a spm.model.")
    ] = None,
    template: Annotated[Path | None, typer.Option(help="Another chat template than the tokenizer's.")] = None,
    renderer: Annotated[str | None, typer.Option(help="A family such as qwen3, or template.")] = None,
    date: Date = None,
    loss_on: LossPreset = None,
    tool_bodies: ToolBodies = None,
    split: Annotated[str | None, typer.Option(help="Of a hub dataset (default train), or of a cache.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="messages, sharegpt, alpaca or prompt_completion.")
    ] = None,
    sample: Annotated[int | None, typer.Option(help="Look at so many rows only.", **ranges.SAMPLE.option())] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.", **ranges.SEED.option())] = 0,
    workers: Annotated[
        int | None, typer.Option(help="Processes.  \\[default: one for each core]", **ranges.WORKERS.option())
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(help="The longest row that training takes, in tokens.", **ranges.EXAMINED_LENGTH.option()),
    ] = None,
    evidence: Annotated[
        int, typer.Option(help="How many places of each rule are kept.", **ranges.EVIDENCE.option())
    ] = 5,
    silence: Annotated[
        list[str] | None, typer.Option(metavar="RULE=REASON", help="Accept a finding; repeat for more.")
    ] = None,
    fail_on: Annotated[
        Level,
        typer.Option(
            "--fail-on",
            help="Exit with 1 from which severity on; not-judged: on errors, and with 4 where rules were not judged.",
        ),
    ] = "error",
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with 1 on warnings and errors, with 4 where rules were not judged."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    as_sarif: Annotated[bool, typer.Option("--sarif", help="Print it as SARIF 2.1.0.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print it as markdown.")] = False,
    target: Annotated[Path | None, typer.Option("--out", help="Write the report to this file.")] = None,
    explain: Annotated[str | None, typer.Option(metavar="RULE", help="Explain a rule.")] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List all rules.")] = False,
) -> None:
    """Find what no loss curve shows: masks, ends of turns, templates, tool calls, packing, drift.

    Exit codes: 0 clean, 1 findings at or above --fail-on, 2 wrong usage, 3 data that cannot be read, 4 (with --strict
    or --fail-on not-judged) no such finding, but rules that were not judged. Without these two options such a report
    exits with 0, and its first lines say how many rules were not judged, and why.

    Examples:

    niels-gpt doctor chats.jsonl --tokenizer ~/models/Qwen3-8B --renderer qwen3

    niels-gpt doctor tokenised.parquet --tokenizer ~/models/Llama-3.1-8B-Instruct --max-length 4096

    niels-gpt doctor ~/models/mine ~/models/served --chats chats.jsonl
    """
    from niels_gpt.doctor.run import diagnose

    if rules or explain is not None:
        _words(explain, as_json)
        return
    form_of_output = _form(as_json, as_sarif, as_markdown)
    if source is None:
        raise UsageError("nothing to examine: give a file, a directory or a hub dataset; --rules lists the rules")
    silenced = dict(map(_silenced, silence or ()))
    with ShownProgress(quiet=form_of_output != "text" and target is None) as progress:
        report = diagnose(
            source,
            other,
            chats=chats,
            tokenizer=tokenizer,
            template=template,
            renderer=renderer,
            date=date,
            loss_on=Rendering(preset=loss_on, tool_bodies=tuple(tool_bodies or ())).loss_on,
            split=split,
            form=form,
            sample=sample,
            seed=seed,
            max_length=max_length,
            workers=workers or cores(),
            silence=silenced,
            evidence=evidence,
            progress=progress,
        )
    _write(report, form_of_output, target)
    raise typer.Exit(_exit_code(report, fail_on, strict=strict))


def _exit_code(report: Report, fail_on: Level, *, strict: bool) -> int:
    """Findings first: whoever repairs them runs the doctor again."""
    if report.failed("warning" if strict or fail_on == "warning" else "error"):
        return FINDINGS
    return NOT_JUDGED if report.skipped and (strict or fail_on == "not-judged") else 0


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _form(as_json: bool, as_sarif: bool, as_markdown: bool) -> str:
    asked = [name for name, on in (("json", as_json), ("sarif", as_sarif), ("markdown", as_markdown)) if on]
    if len(asked) > 1:
        raise UsageError(f"--{' and --'.join(asked)}: one form of report at a time")
    return asked[0] if asked else "text"


def _silenced(given: str) -> tuple[str, str]:
    rule, equals, reason = given.partition("=")
    if not equals:
        raise UsageError(f"--silence {given}: expected RULE=REASON, with the reason why it is accepted")
    return rule, reason


def _words(explain: str | None, as_json: bool) -> None:
    from dataclasses import asdict

    from niels_gpt.doctor.rules import RULES, rule_of
    from niels_gpt.doctor.show import explain as explained
    from niels_gpt.doctor.show import listing

    if as_json:
        print_json(asdict(rule_of(explain)) if explain is not None else [asdict(rule) for rule in RULES.values()])
    else:
        out().print(listing() if explain is None else explained(rule_of(explain)))


def _write(report: Any, form: str, target: Path | None) -> None:
    from niels_gpt.doctor.sarif import to_sarif
    from niels_gpt.doctor.show import markdown, not_judged, render

    if form == "text" and target is None:
        out().print(render(report))
        return
    if form in ("text", "markdown"):
        text = markdown(report)
    else:
        value = report.to_json() if form == "json" else to_sarif(report)
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    if target is None:
        print(text, end="")
    else:
        write_atomic(target, text.encode())
        told = f"; {not_judged(report)}" if report.skipped else ""
        out().print(f"{target}: {len(report.findings)} findings{told}")
