"""`niels-gpt explore`: the explorer as a web page that only this machine can reach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from niels_gpt import ranges
from niels_gpt.cli.options import RendererFlags, RowFormat, grouped
from niels_gpt.cli.paths import EXISTING_OR_HUB, EXISTING_TOKENIZER, existing
from niels_gpt.options import Argument, Option


@grouped
def explore(
    renderer: RendererFlags,
    path: Annotated[
        str | None,
        Argument(
            "Conversations, preferences, a cache, episodes, or a hub dataset.  [default: the families alone]",
            "PATH",
            check=EXISTING_OR_HUB,
        ),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        Option(
            "A tokenizer directory or hub name, or a directory of such directories; repeat for more.",
            "PATH",
            check=EXISTING_TOKENIZER,
        ),
    ] = None,
    form: RowFormat = None,
    findings: Annotated[
        Path | None,
        Option("A report of the doctor (doctor --json).", "FILE", check=existing("a report of the doctor")),
    ] = None,
    serving: Annotated[str | None, Option("A server whose prompts the drift view compares.", "URL")] = None,
    port: Annotated[int, Option("0 takes any that is free.", limits=ranges.PORT)] = 0,
    browser: Annotated[bool, Option("Open the page in a browser.")] = True,
) -> None:
    """Open a local web page that shows families, masks, datasets and templates.

    Options of the renderer apply to the format that rows are shown in first. It serves until Ctrl-C.

    Example: niels-gpt explore chats.jsonl --tokenizer ~/models/Qwen3-8B
    """
    # Renderer and report are checked before the server starts, so that an error is in the terminal.
    chosen = renderer.options()
    import niels_gpt as ng

    ng.explore(
        path,
        tokenizers=tokenizer or (),
        renderer=chosen,
        format=form,
        findings=findings,
        serving=serving,
        port=port,
        browser=browser,
    )
