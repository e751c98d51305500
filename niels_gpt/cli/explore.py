"""`niels-gpt explore`: the explorer as a web page that only this machine can reach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from niels_gpt import ranges
from niels_gpt.cli.options import (
    Date,
    RendererName,
    RendererOption,
    RowFormat,
    Template,
    renderer_options,
)
from niels_gpt.cli.paths import EXISTING_TOKENIZER, existing, existing_or_hub


def explore(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            help="Conversations, preferences, a cache, episodes, or a hub dataset.  \\[default: the families alone]",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="A tokenizer directory or hub name, or a directory of such directories; repeat for more.",
            **EXISTING_TOKENIZER,
        ),
    ] = None,
    renderer: RendererName = None,
    renderer_option: RendererOption = None,
    template: Template = None,
    date: Date = None,
    form: RowFormat = None,
    findings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A report of the doctor (doctor --json).",
            **existing("a report of the doctor (doctor --json)", "file"),
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes any that is free.", **ranges.PORT.option())] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open a local web page that shows families, masks, datasets and templates.

    Options of the renderer apply to the format that rows are shown in first. It serves until Ctrl-C.

    Example: niels-gpt explore chats.jsonl --tokenizer ~/models/Qwen3-8B
    """
    # Paths, renderer and report are checked before the server starts, so that an error is in the terminal.
    if path is not None:
        existing_or_hub(path)
    chosen = renderer_options(renderer, renderer_option, template, date)
    import niels_gpt as ng

    ng.explore(
        path,
        tokenizers=tokenizer or (),
        renderer_name=chosen.name,
        renderer_options=chosen.options,
        template=template,
        date=date,
        format=form,
        findings=findings,
        port=port,
        browser=browser,
    )
