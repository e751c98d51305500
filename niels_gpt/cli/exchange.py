"""`niels-gpt export | import | publish | fetch`: datasets in formats of other programs, and in stores such as S3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from niels_gpt import ranges
from niels_gpt.cli.options import (
    Json,
    OutDirectory,
    Overwrite,
    ShardBytes,
    Split,
    grouped,
    one_of,
    sequence_length,
)
from niels_gpt.cli.options import (
    too_long as too_long_option,
)
from niels_gpt.cli.paths import IN_HOME
from niels_gpt.cli.terminal import ShownProgress, out, print_json, print_line, table_of
from niels_gpt.errors import CacheError, without_passwords
from niels_gpt.export.formats import SHARD_TOKENS, Format
from niels_gpt.export.preferences import PREFERENCE_FORMATS, PreferenceFormat
from niels_gpt.export.registry import FORMATS
from niels_gpt.imports.run import FORMATS as IMPORTS
from niels_gpt.inputs.token_formats import DTYPES
from niels_gpt.scale.fetch import fetch as fetch_dataset
from niels_gpt.scale.publish import publish as publish_dataset
from niels_gpt.store.manifest import no_such_directory
from niels_gpt.store.remote import plain_name
from niels_gpt.store.schema import MANIFESTS
from niels_gpt.values import VALUE_HELP, name_and_value, option_value

EXPORTS: Final[Mapping[str, Format | PreferenceFormat]] = {**FORMATS, **PREFERENCE_FORMATS}
# `--option NAME=VALUE` of each format, for the help: "hf: assistant_masks; ..."
_OPTIONS = "; ".join(f"{name}: {', '.join(each.options)}" for name, each in EXPORTS.items() if each.options)


@dataclass(frozen=True)
class ArrangementFlags:
    """The options that choose the exported rows, and how these are cut, packed and ordered."""

    split: Annotated[Split | None, typer.Option(help="Only this split.  \\[default: both]")] = None
    limit: Annotated[
        int | None, typer.Option(help="The first so many rows of each split.", **ranges.LIMIT.option())
    ] = None
    max_length: Annotated[int | None, sequence_length("The most tokens of a row.", ranges.MAX_LENGTH)] = None
    too_long: Annotated[str, too_long_option("What becomes of longer rows:")] = "error"
    packing: Annotated[bool, typer.Option("--packing", help="Several whole rows in one of --sequence-length.")] = False
    shuffle: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Rows in a random order, drawn with this seed.  \\[default: in their stored order]",
            **ranges.SEED.option(),
        ),
    ] = None


@dataclass(frozen=True)
class FormatFlags:
    """Options of some formats only, and the size of files."""

    binary: Annotated[bool, typer.Option("--binary", help="Weights above 0 become 1 where only 0 and 1 fit.")] = False
    shard_size: Annotated[
        int,
        typer.Option(
            "--shard-size",
            metavar="TOKENS",
            help="At most so many tokens in a file; a longer row has one of its own.",
            **ranges.SHARD_TOKENS.option("--shard-size"),
        ),
    ] = SHARD_TOKENS
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help=f"An option that one format alone has ({_OPTIONS}). {VALUE_HELP}; repeat for more.",
            show_default=False,
        ),
    ] = None

    def own_options(self, to: str) -> dict[str, Any]:
        """The options of this format, as keywords of `export`.

        Raises:
            UsageError: a value of --option has no `=`; the message lists the options of the format.
        """
        names = ", ".join(EXPORTS[to].options)
        expected = f"NAME=VALUE; options of {to}: {names}" if names else f"none, because {to} has no options of its own"
        named = (name_and_value("--option", text, expected) for text in self.option or ())
        return {name: option_value(text) for name, text in named}


ExportFormat = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="FORMAT",
        help="; ".join(f"{each.name}: {each.title}" for each in EXPORTS.values()) + ".",
        **one_of("--to", EXPORTS),
    ),
]


@grouped
def export_command(
    source: Annotated[
        Path, typer.Argument(metavar="DATASET", help="A cache, episodes or preferences.", show_default=False)
    ],
    to: ExportFormat,
    directory: OutDirectory,
    rows: Annotated[ArrangementFlags, "Rows"],
    form: FormatFlags,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a dataset in another trainer's format.

    The files, their masks, and a README that says how its reader is configured.

    Example: niels-gpt export episodes/chats --to trl --out exports/chats

    Packed into rows of one length: --packing --sequence-length 4096
    """
    options = form.own_options(to)
    if not source.exists():
        raise no_such_directory(source, "a cache, episodes or preferences")
    if source.is_file():
        raise _is_a_file(source, to)
    from niels_gpt.export.run import export

    with ShownProgress() as progress:
        manifest = export(
            source,
            to,
            directory,
            **vars(rows),
            binary=form.binary,
            shard_tokens=form.shard_size,
            overwrite=overwrite,
            progress=progress,
            **options,
        )
    if as_json:
        print_json({"out": str(directory)} | manifest)
        return
    table = table_of("split", right=("rows", "texts", "tokens", "trained"))
    for split, counts in manifest["splits"].items():
        table.add_row(split, *(f"{counts[name]:,}" for name in ("rows", "texts", "tokens", "trained_tokens")))
    out().print(table)
    for line in manifest["use"]:
        print_line(f"* {line}", "")
    print_line(f"{directory} is complete; its README.md repeats this, with more")


def _is_a_file(source: Path, to: str) -> CacheError:
    """The error of an export of a file: its dataset's directory, or the command that builds a dataset of it."""
    # A manifest, or data in a directory below it, such as train/tokens.bin. Not every file beside a manifest: rows may
    # lie beside a meta.json of another program.
    if source.name in MANIFESTS or source.suffix in (".bin", ".idx", ".npy"):
        for folder in source.parents[:3]:
            if any((folder / name).is_file() for name in MANIFESTS):
                return CacheError(
                    f"{source}: a file of a dataset; expected its directory: niels-gpt export {folder} --to {to}"
                )
    return CacheError(
        f"{source}: a file; expected a dataset. Build first: niels-gpt build {source} --out DIR, then niels-gpt export "
        f"DIR --to {to}"
    )


def import_command(
    source: Annotated[
        Path, typer.Argument(metavar="PATH", help="A directory or file of another program.", show_default=False)
    ],
    form: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help="; ".join(f"{each.name}: {each.title}" for each in IMPORTS.values()) + ".",
            **one_of("--from", IMPORTS),
        ),
    ],
    directory: OutDirectory,
    eos_id: Annotated[
        int | None, typer.Option(help="tokens: the id that ends documents.", **ranges.TOKEN_ID.option("--eos-id"))
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help=f"tokens: {', '.join(DTYPES)}.  \\[default: as the files say]", **one_of("--dtype", DTYPES)),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Ids must be below it; recorded.", **ranges.VOCAB_SIZE.option())
    ] = None,
    shard_bytes: ShardBytes = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Read a token dataset of another program, and write it as episodes.

    Its mask is taken where it has one.

    Example: niels-gpt import owt --from tokens --dtype uint16 --eos-id 2 --out o
    """
    from niels_gpt.imports.run import import_episodes

    with ShownProgress() as progress:
        manifest = import_episodes(
            source,
            form,
            directory,
            eos_id=eos_id,
            dtype=dtype,
            vocab_size=vocab_size,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        print_json({"dataset": str(directory), "splits": manifest["splits"]})
        return
    for split, counts in manifest["splits"].items():
        numbers = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items())
        out().print(f"{split}: {numbers}")
    line = f"{directory} is complete. Look at it: niels-gpt info {directory}"
    print_line(line)


def publish(
    folder: Annotated[Path, typer.Argument(metavar="DATASET", help="A finished cache or episodes dataset.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to, for example s3://bucket/episodes/chats.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another dataset at URL.")] = False,
    as_json: Json = False,
) -> None:
    """Copy a finished dataset to a URL. Run it again to continue.

    Every file is read back, the manifest comes last.

    Example: niels-gpt publish episodes/chats s3://bucket/episodes/chats
    """
    with ShownProgress() as progress:
        result = publish_dataset(folder, url, overwrite=overwrite, progress=progress)
    url = without_passwords(url)  # before it is printed: a URL may hold the key of a store
    if as_json:
        print_json({"url": url, **asdict(result)})
        return
    sent = f"{result.uploaded} sent ({result.uploaded_bytes:,} bytes)"
    print_line(f"{url}: {result.files} files, {sent}, {result.skipped} were there")


def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="A published dataset.")],
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="A new directory for the dataset; by default fetched/NAME, as it is called at URL.",
            **IN_HOME,
        ),
    ] = None,
) -> None:
    """Copy a published dataset to a local directory, and print its path.

    Every reader opens it there.

    Example: niels-gpt info $(niels-gpt fetch s3://bucket/episodes/chats)
    """
    with ShownProgress() as progress:
        # Nothing else on stdout: the path is used by `$(niels-gpt fetch ...)`.
        print(fetch_dataset(url, out_dir or Path("fetched", plain_name(url)), progress=progress))
