"""`niels-gpt publish` and `niels-gpt fetch`: finished datasets to and from S3 and other stores."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from niels_gpt import ranges
from niels_gpt.cli.options import Json
from niels_gpt.cli.terminal import ShownProgress, out, print_json
from niels_gpt.errors import without_passwords
from niels_gpt.scale.fetch import MAX_BYTES, ReadCache
from niels_gpt.scale.publish import publish as publish_dataset


def publish(
    folder: Annotated[Path, typer.Argument(metavar="DATASET", help="A finished cache or episodes dataset.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to, for example s3://bucket/episodes/chats.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another dataset at URL.")] = False,
    break_lock: Annotated[
        bool,
        typer.Option("--break-lock", help="Ignore the lock of a publisher on another machine, which has surely died."),
    ] = False,
    as_json: Json = False,
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
    url: Annotated[str, typer.Argument(metavar="URL", help="A published dataset.")],
    directory: Annotated[
        Path, typer.Option("--out", "--to", metavar="DIR", help="The directory of all fetched datasets. Also as --to.")
    ] = Path("fetched"),
    max_bytes: Annotated[
        int,
        typer.Option(
            help="The size of this directory; the datasets that were not used for longest are deleted.",
            **ranges.MAX_BYTES.option(),
        ),
    ] = MAX_BYTES,
) -> None:
    """A published dataset -> a local directory that every reader opens; prints its path.

    Example: niels-gpt episodes info $(niels-gpt fetch s3://bucket/episodes/chats)
    """
    with ShownProgress() as progress:
        print(ReadCache(directory, max_bytes=max_bytes, progress=progress).open(url))
