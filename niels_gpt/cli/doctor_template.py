"""`niels-gpt doctor template`: tests a chat template on probes and prints what is proven of its attribution."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from niels_gpt.cli.options import Json, TemplateFlags, grouped
from niels_gpt.cli.paths import EXISTING_TOKENIZER
from niels_gpt.cli.terminal import ShownProgress, out, print_json
from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.options import Argument, Option

PARTIAL = 1  # the exit code if something is not proven
_DAY = "2026-01-31"  # for templates that write the date; the result does not depend on which


@grouped
def doctor_template(
    place: Annotated[
        str,
        Argument("A directory or hub name, with the tokenizer and its chat template.", "MODEL"),
    ],
    renderer: TemplateFlags,
    probe: Annotated[list[str] | None, Option("Show this probe; repeat for more.", "NAME")] = None,
    every: Annotated[bool, Option("Show all probes.", flag="--all")] = False,
    as_json: Json = False,
) -> None:
    """Judge a chat template: the message of each character, and what the model emits.

    It is tried on more than 100 conversations.

    Every probe conversation is rendered as builds render it, with two letters of each text replaced, which shows where
    each text is. The result must be what a proof gives of the conversation itself: all letters of its contents are
    replaced, and it is rendered up to each answer with the generation prompt. A conversation is proven, partial
    (something is not; training refuses it) or refused by the template. One proven probe and one for each reason are
    shown in colour.

    Exit codes: 0 proven wherever the template renders, 1 something is partial or nothing is rendered, 2 wrong usage, 3
    the tokenizer or template cannot be read. For a file of the name "template", name it ./template to
    `niels-gpt doctor`.

    Example: niels-gpt doctor template ~/models/mine

    Example: niels-gpt doctor template ~/models/mine --template new.jinja --all

    With variables of the template: --renderer-option enable_thinking=false
    """
    # `niels-gpt doctor` takes such files, so they are also tried here; probes need a tokenizer.
    if place.endswith((".jinja", ".jinja2", ".j2")):
        raise UsageError(
            f"{place}: a template without a tokenizer; name the tokenizer's directory, and --template {place}"
        )
    EXISTING_TOKENIZER(place)
    chosen = replace(renderer.options(), date=renderer.date or _DAY)
    from niels_gpt.renderers.template.probe_results import report_on
    from niels_gpt.renderers.template.renderer import TemplateRenderer

    opened = chosen.open(place)
    assert isinstance(opened, TemplateRenderer)  # "template" opens no family
    with ShownProgress(quiet=as_json) as progress:
        report = report_on(opened, f"{renderer.template} with {place}" if renderer.template else place, progress)
    results = {result.probe.name: result for result in report.results}
    for name in probe or ():
        if name not in results:
            raise UsageError(f"--probe is {name!r}, and no probe has this name{did_you_mean(name, list(results))}")
    if as_json:
        print_json(report.to_json())
    else:
        from niels_gpt.doctor.template import shown, to_show

        named = [results[name] for name in probe or ()]
        for line in shown(report, report.results if every else named or to_show(report)):
            out().print(line, soft_wrap=True)
    raise typer.Exit(0 if report.passed else PARTIAL)
