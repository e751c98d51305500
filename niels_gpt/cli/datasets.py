"""`niels-gpt info | verify | pack`, which open a dataset of any kind, and what a build prints at its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from niels_gpt import ranges
from niels_gpt.cli.options import TOO_LONG, Json, OutDirectory, Overwrite, ShardBytes, grouped
from niels_gpt.cli.terminal import ShownProgress, key_values, out, print_json, print_line, table_of
from niels_gpt.options import Argument, Option
from niels_gpt.store.kinds import has_checksums, open_dataset_manifest, require_episodes
from niels_gpt.store.manifest import HASH_KEY, NO_HASH, Manifest
from niels_gpt.store.schema import MANIFEST_NAME, META_NAME

WARN_OF_BAD_ROWS = 0.05  # a larger share of unusable rows is reported in the last line of a build
# What `--prove` counts says that nothing is wrong.
_PROOFS = {
    "round_trip_proven": "proven",
    "round_trip_changed": "proven, with something written otherwise",
    "round_trip_by_format": "proven, but for what the format leaves out",
}
_LABELS = {
    "percentile_95": "95 of 100 up to",
    "too_long": "longer than a row",
    "filled": "one a row: filled",
    "packed_rows": "packed: rows",
    "packed_filled": "packed: filled",
}

Dataset = Annotated[
    Path, Argument("The directory of a dataset: one with meta.json, or with train/ and val/.", "DATASET")
]


@grouped
def info(
    dataset: Dataset,
    length: Annotated[
        int,
        Option(
            "Rows of so many inputs, to see what fits and what is padded.",
            "TOKENS",
            limits=ranges.BLOCK_SIZE,
            flag="--sequence-length",
        ),
    ] = 1024,
    as_json: Json = False,
) -> None:
    """Print what a dataset was built from, its counts, and how long its rows are.

    Reads manifests and indices, and no tokens.

    Example: niels-gpt info episodes/chats --sequence-length 2048
    """
    kind, manifest = open_kind(dataset)
    lengths = _lengths(dataset, kind, length)
    if as_json:
        # Of texts there are counts alone.
        splits = lengths or (manifest or {}).get("splits", {})
        print_json(
            {
                "dataset": str(dataset),
                "kind": kind,
                "sequence_length": length,
                "splits": splits,
                "manifest": manifest,
            }
        )
        return
    out().print(key_values(str(dataset), [("kind", kind), *_origin(manifest)]))
    if manifest is not None:
        out().print(counts_of(manifest))
    if lengths:
        # Splits of preferences may have different facts, so a row of the table is a fact that any split has.
        names = dict.fromkeys(name for summary in lengths.values() for name in summary)
        table = table_of(f"in rows of {length:,} inputs", right=list(lengths))
        for name in names:
            label = _LABELS.get(name, name.replace("_", " "))
            table.add_row(label, *(_shown(name, summary.get(name)) for summary in lengths.values()))
        out().print(table)


def open_kind(dataset: Path) -> tuple[str, Manifest | None]:
    """What a directory holds: pretrain, sft, episodes or preferences; and its manifest.

    Raises:
        CacheError: no dataset, an unfinished or a damaged one.
    """
    kind, manifest = open_dataset_manifest(dataset)
    return (kind if manifest is None else str(manifest.get("kind", kind))), manifest


def _origin(manifest: Manifest | None) -> list[tuple[str, str]]:
    """What a dataset was built from, as names and values."""
    if manifest is None:
        return [("manifest", "none: written by another program, so its tokenizer is unknown")]
    vocabulary = "unknown" if manifest["vocab_size"] is None else f"{manifest['vocab_size']:,} ids"
    special = ", ".join(f"{name} {token}" for name, token in (manifest.get("special_token_ids") or {}).items())
    size = sum(record["bytes"] for record in manifest["files"].values())
    rows = [
        ("dataset", str(manifest.get("dataset_name") or "(rows passed by a program)")),
        ("tokenizer", f"{str(manifest.get('tokenizer_sha256'))[:12]}, {vocabulary}" + f" ({special})" * bool(special)),
        ("on disk", f"{len(manifest['files'])} files, {size:,} bytes"),
    ]
    if template := manifest.get("template_sha256") or manifest.get("encoder"):  # sentinels have no template
        rows.append(("template", str(template)[:12]))
    names = {"documents": "separator", "split": "split_rule", "ids": "token_dtype", "mask": "mask_dtype"}
    return rows + [(name, str(manifest[key])) for name, key in names.items() if key in manifest]


def _lengths(dataset: Path, kind: str, length: int) -> dict[str, dict[str, Any]]:
    """How long rows are, by split; nothing of a stream of texts, which has no rows."""
    if kind == "pretrain":
        return {}
    if kind == "preferences":
        from niels_gpt.preferences.dataset import summarise as summarise_preferences

        return summarise_preferences(dataset, length)
    from niels_gpt.episodes.summary import summarise

    return summarise(dataset, length)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1%}" if "filled" in name else f"{value:,.3f}"
    return "-" if value is None else value if isinstance(value, str) else f"{value:,}"


@grouped
def verify(
    dataset: Dataset,
    vocab_size: Annotated[
        int | None, Option("Ids must be below it.  [default: as recorded]", limits=ranges.VOCAB_SIZE)
    ] = None,
    as_json: Json = False,
) -> None:
    """Read every byte of a dataset, and compare it with what was written.

    Then every record, token and mask is checked. Exit code 3 for faults.

    Example: niels-gpt verify episodes/chats
    """
    from niels_gpt.store.verify import verify_dataset

    with ShownProgress() as progress:
        findings = list(verify_dataset(dataset, vocab_size=vocab_size, progress=progress))
    kind, manifest = open_kind(dataset)
    files = (manifest or {}).get("files", {})
    checked = manifest is not None and has_checksums(manifest)
    name = META_NAME if kind in ("pretrain", "sft") else MANIFEST_NAME
    not_judged = [] if checked else [f"{name} records no checksums: each value is checked alone"]
    # Of manifests of other programs nothing says whether they were edited.
    if manifest is not None and HASH_KEY not in manifest:
        not_judged.append(f"{name} itself: {NO_HASH}")
    if as_json:
        facts = {"dataset": str(dataset), "kind": kind, "ok": not findings, "files": len(files)}
        print_json({**facts, "findings": findings, "not_judged": not_judged})
    for finding in [] if as_json else findings:
        print_line(finding, "red")
    if not as_json and not findings:
        size = sum(record["bytes"] for record in files.values())
        result = "all as they were written" if checked else "no fault found"
        print_line(f"{dataset}: {len(files)} files, {size:,} bytes, {result}" if files else f"{dataset}: {result}")
        for line in not_judged:
            print_line(f"not judged: {line}", "yellow")
    raise typer.Exit(3 if findings else 0)


@grouped
def pack(
    dataset: Dataset,
    directory: OutDirectory,
    length: Annotated[
        int,
        Option(
            "Inputs of a row; rows hold one token more.", "TOKENS", limits=ranges.BLOCK_SIZE, flag="--sequence-length"
        ),
    ] = 1024,
    too_long: Annotated[
        str, Option("What becomes of episodes that fit into no row: NAMES.", "POLICY", names=TOO_LONG)
    ] = "error",
    shard_bytes: ShardBytes = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write episodes as packed rows, contiguous on disk.

    The batches of `packing=True` are then read from flat files, without a plan.

    Example: niels-gpt pack chats --sequence-length 2048 --out packed
    """
    require_episodes(dataset)  # before the modules of builds are imported, which takes long
    from niels_gpt.episodes.build import pack_episodes

    with ShownProgress() as progress:
        pack_episodes(
            dataset,
            directory,
            block_size=length,
            too_long=too_long,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            progress=progress,
        )
    print_built(directory, as_json=as_json, done=f"read it with block_size {length}, without packing")


def counts_of(manifest: Mapping[str, Any]) -> Table:
    """A table of the counts of each split, and of the rows that a build left out, changed or proved."""
    first: Mapping[str, int] = next(iter(manifest["splits"].values()), {})
    # Texts are trained whole, so they have no share to show.
    share = ["loss share"] if "trained_tokens" in first else []
    # Each completion of preferences is stored as an episode.
    names = {"episodes": "completions"} if manifest.get("kind") == "preferences" else {}
    titles = [names.get(column, column.replace("_", " ")) for column in first]
    table = table_of("split", right=[*titles, *share])
    for split, row in manifest["splits"].items():
        trained = [f"{row['trained_tokens'] / max(1, row['tokens']):.1%}"] if share else []
        table.add_row(split, *(f"{row[column]:,}" for column in first), *trained)
    changed = manifest.get("changed", {})
    for code, label in _PROOFS.items():
        if code in changed:
            table.add_row(label, f"{changed[code]:,}")
    used = {f"used, but {reason}": number for reason, number in changed.items() if reason not in _PROOFS}
    unread = {f"used, but nothing reads {key}": number for key, number in manifest.get("unread_keys", {}).items()}
    left_out = {f"left out: {reason}": number for reason, number in manifest.get("dropped", {}).items()}
    for label, number in {**left_out, **used, **unread}.items():
        table.add_row(label, f"{number:,}", style="yellow")
    return table


def print_built(place: Path, *, as_json: bool, tokenizer: str | None = None, done: str | None = None) -> None:
    """Print the counts of what a build wrote, and how to look at it.

    Args:
        tokenizer: that of the build; `niels-gpt show` finds a spm.model beside a cache by itself.
        done: the end of the last line; default how to look at a row.
    """
    kind, manifest = open_kind(place)
    assert manifest is not None  # after a build
    if as_json:
        counts = {name: manifest.get(name, {}) for name in ("splits", "dropped", "changed", "unread_keys")}
        print_json({"dataset": str(place), "kind": kind, **counts, "bad_rows": manifest.get("bad_rows")})
        return
    out().print(counts_of(manifest))
    needs_tokenizer = kind in ("episodes", "preferences") or "mask_dtype" in manifest or "separator_ids" in manifest
    look = f"niels-gpt show {place} 0" + (f" --tokenizer {tokenizer}" if tokenizer and needs_tokenizer else "")
    print_line(f"{place} is complete: {done}" if done else f"{place} is complete. Look at it: {look}")
    print_bad_rows(place, manifest)


def print_bad_rows(where: object, manifest: Mapping[str, Any]) -> None:
    """Print a warning, as a build's last line, if more than `WARN_OF_BAD_ROWS` of its rows were unusable."""
    bad = manifest.get("bad_rows") or {"left_out": 0, "of": 0}
    if bad["left_out"] > WARN_OF_BAD_ROWS * bad["of"]:  # without rows: 0 > 0, which is false
        share = f"{bad['left_out'] / bad['of']:.1%}"
        line = f"{where}: {bad['left_out']:,} of {bad['of']:,} rows ({share}) were unusable and are not in it"
        print_line(f"{line}; rejected.jsonl lists them", "bold yellow")
