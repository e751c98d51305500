"""What the commands print of a dataset: its counts, its origin, its lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from niels_gpt.episodes.format import SPLITS

if TYPE_CHECKING:
    from niels_gpt.episodes.summary import SplitSummary


def counts_table(manifest: dict[str, Any]) -> Table:
    """Episodes and tokens of each split, and what was left out."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("split", "episodes", "tokens", "trained tokens", "loss share"):
        table.add_column(name, justify="left" if name == "split" else "right")
    for split in SPLITS:
        row = manifest["splits"][split]
        share = f"{row['trained_tokens'] / max(1, row['tokens']):.1%}"
        table.add_row(split, *(f"{row[name]:,}" for name in ("episodes", "tokens", "trained_tokens")), share)
    for reason, number in manifest.get("dropped", {}).items():
        table.add_row(f"left out: {reason}", f"{number:,}", style="yellow")
    for reason, number in manifest.get("changed", {}).items():
        table.add_row(f"used, but {reason}", f"{number:,}", style="yellow")
    return table


def origin(manifest: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What a dataset was made of, as names and values."""
    if manifest is None:
        return [("manifest", "none: written by another program, so nothing is known of its tokenizer")]
    size = sum(record["bytes"] for record in manifest["files"].values())
    vocabulary = "unknown" if manifest["vocab_size"] is None else f"{manifest['vocab_size']:,} ids"
    return [
        ("dataset", str(manifest.get("dataset_name") or "(given by a program)")),
        ("tokenizer", f"{str(manifest.get('tokenizer_sha256'))[:12]}, {vocabulary}"),
        ("template", str(manifest.get("template_sha256") or manifest.get("encoder"))[:12]),
        ("mask", str(manifest["mask_dtype"])),
        ("on disk", f"{len(manifest['files'])} files, {size:,} bytes"),
    ]


def lengths_table(splits: list[SplitSummary], block_size: int) -> Table:
    """How long episodes are, and how full rows of `block_size` inputs get."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for split in splits:
        table.add_column(split.split, justify="right")
    for name, values in (
        ("episodes", [f"{s.episodes:,}" for s in splits]),
        ("tokens", [f"{s.tokens:,}" for s in splits]),
        ("mask", [s.mask for s in splits]),
        ("shortest", [f"{s.shortest:,}" for s in splits]),
        ("median", [f"{s.median:,}" for s in splits]),
        ("95 of 100 up to", [f"{s.percentile_95:,}" for s in splits]),
        ("longest", [f"{s.longest:,}" for s in splits]),
        (f"longer than {block_size + 1:,}", [f"{s.too_long:,}" for s in splits]),
        ("one a row: rows", [f"{s.episodes:,}" for s in splits]),
        ("one a row: filled", [f"{s.filled:.1%}" for s in splits]),
        ("packed: rows", [f"{s.packed_rows:,}" for s in splits]),
        ("packed: filled", [f"{s.packed_filled:.1%}" for s in splits]),
    ):
        table.add_row(name, *values)
    return table
