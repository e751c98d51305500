"""`niels-gpt export | import | publish | fetch`: datasets in formats of other programs, and in stores such as S3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from niels_gpt import ranges
from niels_gpt.cli.options import Json, OutDirectory, Overwrite, ShardBytes, Split, grouped
from niels_gpt.cli.terminal import ShownProgress, out, print_json, print_line, table_of
from niels_gpt.errors import without_passwords
from niels_gpt.export.arranging import Arrangement
from niels_gpt.export.formats import SHARD_TOKENS, Format
from niels_gpt.export.preferences import PREFERENCE_FORMATS, PreferenceFormat
from niels_gpt.export.registry import FORMATS
from niels_gpt.imports.run import FORMATS as IMPORTS
from niels_gpt.inputs.token_formats import DTYPES
from niels_gpt.options import Argument, Option
from niels_gpt.scale.fetch import fetch as fetch_dataset
from niels_gpt.scale.publish import publish as publish_dataset
from niels_gpt.store.manifest import no_such_directory
from niels_gpt.store.remote import plain_name
from niels_gpt.values import VALUE_HELP, name_and_value, option_value

EXPORTS: Final[Mapping[str, Format | PreferenceFormat]] = {**FORMATS, **PREFERENCE_FORMATS}
# `--option NAME=VALUE` of each format, for the help: "hf: assistant_masks; ..."
_OPTIONS = "; ".join(f"{name}: {', '.join(each.options)}" for name, each in EXPORTS.items() if each.options)


@dataclass(frozen=True)
class FormatFlags:
    """Options of some formats only."""

    binary: Annotated[bool, Option("Weights above 0 become 1 where only 0 and 1 fit.")] = False
    shard_tokens: Annotated[
        int,
        Option(
            "At most so many tokens in a file; a longer row has one of its own.",
            "TOKENS",
            limits=ranges.SHARD_TOKENS,
            flag="--shard-size",
        ),
    ] = SHARD_TOKENS
    option: Annotated[
        list[str] | None,
        Option(f"An option that one format alone has ({_OPTIONS}). {VALUE_HELP}; repeat for more.", "NAME=VALUE"),
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


@grouped
def export_command(
    source: Annotated[Path, Argument("A cache, episodes or preferences.", "DATASET")],
    to: Annotated[
        str,
        Option("; ".join(f"{each.name}: {each.title}" for each in EXPORTS.values()) + ".", "FORMAT", names=(*EXPORTS,)),
    ],
    directory: OutDirectory,
    rows: Annotated[Arrangement, "Rows"],
    form: FormatFlags,
    split: Annotated[Split | None, Option("Only this split.  [default: both]")] = None,
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
    from niels_gpt.export.run import export

    arranged = {name: value for name, value in vars(rows).items() if name != "pad_multiple"}  # an option of formats
    given = arranged | options | {"binary": form.binary, "shard_tokens": form.shard_tokens, "split": split}
    with ShownProgress() as progress:
        manifest = export(source, to, directory, overwrite=overwrite, progress=progress, **given)
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


@grouped
def import_command(
    source: Annotated[Path, Argument("A directory or file of another program.", "PATH")],
    form: Annotated[
        str,
        Option(
            "; ".join(f"{each.name}: {each.title}" for each in IMPORTS.values()) + ".",
            "FORMAT",
            names=(*IMPORTS,),
            flag="--from",
        ),
    ],
    directory: OutDirectory,
    eos_id: Annotated[int | None, Option("tokens: the id that ends documents.", limits=ranges.TOKEN_ID)] = None,
    dtype: Annotated[str | None, Option("tokens: NAMES.  [default: as the files say]", names=(*DTYPES,))] = None,
    vocab_size: Annotated[int | None, Option("Ids must be below it; recorded.", limits=ranges.VOCAB_SIZE)] = None,
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


@grouped
def publish(
    folder: Annotated[Path, Argument("A finished cache or episodes dataset.", "DATASET")],
    url: Annotated[str, Argument("Where to, for example s3://bucket/episodes/chats.", "URL")],
    overwrite: Annotated[bool, Option("Replace another dataset at URL.")] = False,
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


@grouped
def fetch(
    url: Annotated[str, Argument("A published dataset.", "URL")],
    out_dir: Annotated[
        Path | None,
        Option(
            "A new directory for the dataset; by default fetched/NAME, as it is called at URL.", "DIR", flag="--out"
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
