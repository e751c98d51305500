"""`niels-gpt publish` and `niels-gpt fetch`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from niels_gpt import ranges
from niels_gpt.errors import without_passwords
from niels_gpt.scale.fetch import MAX_BYTES, ReadCache
from niels_gpt.scale.publish import publish as publish_dataset
from niels_gpt.terminal import ShownProgress, out, print_json


def publish(
    folder: Annotated[Path, typer.Argument(help="A finished cache or episodes dataset.")],
    url: Annotated[str, typer.Argument(help="Where to, for example s3://bucket/episodes/chats.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another dataset there.")] = False,
    break_lock: Annotated[
        bool, typer.Option("--break-lock", help="A publisher on another machine is surely dead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """A finished dataset -> a URL; every file is read back and checked, the manifest comes last. Run again to go on.

    Example: niels-gpt publish episodes/chats s3://bucket/episodes/chats
    """
    with ShownProgress() as progress:
        done = publish_dataset(folder, url, overwrite=overwrite, break_lock=break_lock, progress=progress)
    url = without_passwords(url)
    if as_json:
        print_json({"url": url, **asdict(done)})
        return
    line = f"{url}: {done.files} files, {done.uploaded} sent ({done.uploaded_bytes:,} bytes), {done.skipped} were there"
    if done.resumed_bytes:
        line += f"; {done.resumed_bytes:,} bytes had been sent before"
    out().print(Text(line, style="green"), soft_wrap=True)


def fetch(
    url: Annotated[str, typer.Argument(help="A published dataset.")],
    to: Annotated[Path, typer.Option(help="The local read cache.")] = Path("fetched"),
    max_bytes: Annotated[
        int, typer.Option(help="Its size; what was not used for longest goes.", **ranges.MAX_BYTES.option())
    ] = MAX_BYTES,
) -> None:
    """A published dataset -> a local directory that every reader opens; prints its path.

    Example: niels-gpt episodes info $(niels-gpt fetch s3://bucket/episodes/chats)
    """
    with ShownProgress() as progress:
        print(ReadCache(to, max_bytes=max_bytes, progress=progress).open(url))
