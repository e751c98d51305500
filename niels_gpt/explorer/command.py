"""`niels-gpt explore`."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.findings import read_findings
from niels_gpt.explorer.gallery import Gallery
from niels_gpt.terminal import out


def explore(
    path: Path | None,
    *,
    tokenizers: Sequence[str],
    renderer: str | None,
    template: Path | None,
    date: str | None,
    findings: Path | None,
    port: int,
    browser: bool,
) -> None:
    """Serve the page until interrupted.

    Raises:
        MissingExtra: starlette or uvicorn is not installed. Else what cannot be opened, as its own error says.
    """
    gallery = Gallery(tokenizers, renderer=renderer, template=template, date=date)
    report = None if findings is None else read_findings(findings)
    from niels_gpt.explorer.server import HOST, bound, server_of  # here, because it needs the extra

    explorer = Explorer(gallery, open_dataset(path, gallery), report)
    listening = bound(port)
    address = f"http://{HOST}:{listening.getsockname()[1]}/"
    out().print(Text.assemble("explorer at ", (address, "bold"), "  (Ctrl-C ends it)"), soft_wrap=True)
    if browser:
        threading.Timer(0.3, webbrowser.open, [address]).start()
    try:
        server_of(explorer).run(sockets=[listening])
    finally:
        explorer.close()
