"""`niels-gpt explore`: the explorer as a web page that only this machine can reach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from niels_gpt import ranges
from niels_gpt.cli.options import (
    Date,
    RendererName,
    RendererOption,
    RowFormat,
    Template,
    note_automatic,
    renderer_options,
)
from niels_gpt.cli.paths import EXISTING_TOKENIZER, existing, existing_or_hub
from niels_gpt.cli.terminal import out


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
    options = renderer_options(renderer, renderer_option, template, date)
    from niels_gpt.explorer.api import Explorer, open_dataset
    from niels_gpt.explorer.findings import read_findings
    from niels_gpt.explorer.renderer_list import RendererList

    listed = RendererList(tokenizer or (), options)
    report = None if findings is None else read_findings(findings)
    from niels_gpt.explorer.server import serve  # here, because it needs the extra

    explorer = Explorer(listed, open_dataset(path, listed, form), report)
    if listed.tokenizers:
        # Rows are shown with the first tokenizer unless the page chooses another.
        note_automatic(options, next(iter(listed.tokenizers.values())))

    def announce(address: str) -> None:
        out().print(Text.assemble("explorer at ", (address, "bold"), "  (Ctrl-C ends it)"), soft_wrap=True)

    serve(explorer, port=port, browser=browser, announce=announce)
