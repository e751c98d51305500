"""`niels-gpt doctor`: findings about data, masks, tokenizers and templates, printed or written as a report."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from niels_gpt import ranges
from niels_gpt.cli.options import LossFlags, RendererFlags, RowFormat, grouped
from niels_gpt.cli.paths import EXISTING_OR_HUB, EXISTING_TOKENIZER, must_be_writable
from niels_gpt.cli.terminal import ShownProgress, note, out
from niels_gpt.doctor.options import DiagnoseOptions
from niels_gpt.errors import UsageError
from niels_gpt.options import Argument, Option
from niels_gpt.store.files import write_atomic
from niels_gpt.values import name_and_value

if TYPE_CHECKING:
    from niels_gpt.doctor.report import Report

Level = Literal["not-judged", "warning", "error"]
# 2 and 3 are the exit codes of errors: a wrong call, and data that cannot be read.
FINDINGS = 1  # the exit code if something was found
NOT_JUDGED = 4  # the exit code if nothing was found, but rules could not be judged and an option makes that a failure


@dataclass(frozen=True)
class ReportFlags:
    """The options about the report: its form, its file, and which findings set the exit code."""

    silence: Annotated[
        list[str] | None,
        Option("Accept the findings of a rule (`niels-gpt rules` lists them); repeat for more.", "RULE=REASON"),
    ] = None
    fail_on: Annotated[
        Level,
        Option("Exit with 1 from which severity on; not-judged: on errors, and with 4 where rules were not judged."),
    ] = "error"
    strict: Annotated[bool, Option("Exit with 1 on warnings and errors, with 4 where rules were not judged.")] = False
    as_json: Annotated[bool, Option("Print it as JSON.", flag="--json")] = False
    as_sarif: Annotated[bool, Option("Print it as SARIF 2.1.0.", flag="--sarif")] = False
    file: Annotated[Path | None, Option("Write it to this file.", "FILE", flag="--out")] = None

    @property
    def form(self) -> str:
        """text, json or sarif.

        Raises:
            UsageError: both are given.
        """
        if self.as_json and self.as_sarif:
            raise UsageError("--json and --sarif: one form of report at a time; leave out the other")
        return "json" if self.as_json else "sarif" if self.as_sarif else "text"

    @property
    def silenced(self) -> dict[str, str]:
        """Rule -> the reason why its findings are accepted.

        Raises:
            UsageError: an option without a reason.
        """
        expected = "RULE=REASON, with the reason why it is accepted"
        return dict(name_and_value("--silence", text, expected) for text in self.silence or ())


@grouped
def doctor(
    source: Annotated[
        str,
        Argument(
            "Conversations or input_ids (.jsonl, .json, .parquet, save_to_disk), a cache, episodes, a hub "
            "dataset, a tokenizer directory.",
            "INPUT",
        ),
    ],
    report: Annotated[ReportFlags, "Report"],
    rows: DiagnoseOptions,
    loss: Annotated[LossFlags, "Rendering"],
    renderer: Annotated[RendererFlags, "Rendering"],
    other: Annotated[
        str | None,
        Argument("A second tokenizer or template: compare the two.", "OTHER"),
    ] = None,
    chats: Annotated[
        str | None,
        Option("Conversations on which the two are compared, besides the built-in probes.", "FILE"),
    ] = None,
    tokenizer: Annotated[
        str | None, Option("A Hugging Face tokenizer directory or hub name, or a spm.model.", "PATH")
    ] = None,
    form: RowFormat = None,
    workers: Annotated[int | None, Option("Processes.  [default: one for each core]", limits=ranges.WORKERS)] = None,
    fix: Annotated[
        Path | None,
        Option(
            "Write rows of ids to this .jsonl file, with what is certain of their labels repaired; of a tokenizer its "
            "generation_config.json. What is left is listed.",
            "FILE",
        ),
    ] = None,
    validation: Annotated[
        str | None, Option("Validation data: find rows of the input that are also in it.", "INPUT")
    ] = None,
) -> None:
    """Find faults that the loss curve does not show, in data, masks and templates.

    Masks, ends of turns, templates, tool calls, packing and drift are judged.

    Exit codes: 0 clean, 1 findings at or above --fail-on, 2 wrong usage, 3 data that cannot be read, 4 (with --strict
    or --fail-on not-judged) no such finding, but rules that were not judged. Without these two options such a report
    exits with 0, and its first lines say how many rules were not judged, and why.

    A chat template without data: niels-gpt doctor template --help

    Examples:

    niels-gpt doctor chats.jsonl --tokenizer ~/models/Qwen3-8B --renderer qwen3

    niels-gpt doctor tokenised.parquet --tokenizer ~/models/Llama-3.1-8B-Instruct

    niels-gpt doctor ~/models/mine ~/models/served --chats chats.jsonl
    """
    # Read first: these properties refuse options that exclude each other.
    report_form, loss_on, silence = report.form, loss.loss_on, report.silenced
    for place in (source, validation, None if other is None else chats):  # `diagnose` explains the last one
        EXISTING_OR_HUB(place)
    for place in (other, tokenizer):
        EXISTING_TOKENIZER(place)
    for file in (fix, report.file):
        must_be_writable(file)
    # The report is written last, so it would replace the repaired rows.
    if fix is not None and report.file is not None and fix.resolve() == report.file.resolve():
        raise UsageError(
            f"--fix and --out both write {report.file}; name two files, one for the rows, one for the report"
        )
    chosen = renderer.options()
    from niels_gpt.doctor.run import diagnose

    # Lines of progress would be between those of a report that a program reads from a terminal.
    with ShownProgress(quiet=report_form != "text" and report.file is None) as progress:
        given = {"form": form, "workers": workers or cores(), "fix": fix, "validation": validation, "loss_on": loss_on}
        found = diagnose(
            source,
            other,
            chats=chats,
            tokenizer=tokenizer,
            template=renderer.template,
            # Without either option `diagnose` takes the template, so that findings are about the file that is served.
            renderer=chosen if renderer.renderer is not None or chosen.options else None,
            date=renderer.date,
            **vars(rows) | given | {"silence": silence, "progress": progress},
        )
    # Only conversations are rendered; rows of ids and tokenizers are examined as they are.
    rendered = other is None and found.source.get("kind") == "chats"
    if report_form == "text" and tokenizer is not None and rendered:
        for line in chosen.automatic(tokenizer):
            note(line)
    _write(found, report_form, report.file)
    if found.repaired is not None and report_form != "json":  # JSON has it in the report
        note(repairs(found.repaired))
    raise typer.Exit(_exit_code(found, report.fail_on, strict=report.strict))


def repairs(done: Mapping[str, Any]) -> str:
    """The result of --fix in one paragraph: the file, what was repaired, and what was not."""
    parts = [f"{done['path']}: {done['rows']:,} rows" if done["rows"] else str(done["path"])]
    for key, label in (("repaired", "repaired"), ("left_out", "left out"), ("left", "left as it is")):
        # A tokenizer's generation_config.json has no rows.
        counts = {rule: f" ({n:,} {'row' if n == 1 else 'rows'})" if n else "" for rule, n in done[key].items()}
        parts += [f"{label}: {', '.join(rule + count for rule, count in counts.items())}"] if counts else []
    return "; ".join(parts if len(parts) > 1 else [*parts, "nothing to repair"])


def cores() -> int:
    """How many cores this process may use."""
    # Containers and job schedulers give a process fewer cores than the machine has. macOS lacks this function.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _exit_code(report: Report, fail_on: Level, *, strict: bool) -> int:
    """The exit code of a report: findings before rules that were not judged.

    A process has one exit code. After the findings are repaired, the next run shows the other problem.
    """
    if report.failed("warning" if strict or fail_on == "warning" else "error"):
        return FINDINGS
    return NOT_JUDGED if report.skipped and (strict or fail_on == "not-judged") else 0


def _write(report: Report, form: str, file: Path | None) -> None:
    """Print the report, or write it to a file, which is then complete or does not exist."""
    from niels_gpt.doctor.sarif import to_sarif
    from niels_gpt.doctor.show import not_judged, plain, render

    if form == "text" and file is None:
        out().print(render(report))
        return
    if form in ("json", "sarif"):
        value = report.to_json() if form == "json" else to_sarif(report)
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    else:
        text = plain(report)
    if file is None:
        print(text, end="")  # not by rich, which would break long lines
        return
    write_atomic(file, text.encode())
    skipped = f"; {not_judged(report)}" if report.skipped else ""
    n = len(report.findings)
    out().print(f"{file}: {n} {'finding' if n == 1 else 'findings'}{skipped}")
