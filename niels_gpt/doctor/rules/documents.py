"""Rules on caches of plain text: documents in shards, without turns or masks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from niels_gpt.datasets import Dataset, DocumentPieces
from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.rows import Int64s
from niels_gpt.doctor.rules import data
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.stored import rows_of_pieces, stream_of, where
from niels_gpt.doctor.view import Scope, View

RULES: Final = (
    Rule(
        "documents-not-separated",
        "warning",
        "documents are not separated by an end-of-text token",
        "Training windows run from one text into the next: the model learns that texts change their subject without a "
        "border, and does not learn to end one.",
        "The cache was built with --separator none (separator='none').",
        "Build it with an end-of-text token after each document, which is the default.",
        applies=("documents",),
        needs=("everything",),
    ),
    Rule(
        "counts-differ",
        "error",
        "the counts in meta.json differ from those of the files",
        "Epochs, token budgets and mixtures are planned by these numbers, and files that were exchanged or edited hold "
        "other data than the recipe says.",
        "Shards of another build, or files that were edited in place.",
        "Build the cache again; `niels-gpt cache verify` compares checksums.",
        applies=("documents",),
        needs=("everything",),
    ),
)


def check(numbers: Int64s, documents: DocumentPieces, dataset: Dataset, scope: Scope, counters: Counters) -> None:
    """Judge some documents of a cache, or pieces of long ones."""
    rows, filled = rows_of_pieces(dataset, documents, numbers)
    counters.sums["rows"] += int(documents.begins.sum())
    counters.sums[f"{documents.split}: documents"] += int(documents.begins.sum())
    counters.sums[f"{documents.split}: ends"] += int(documents.ends.sum())
    counters.sums["tokens"] += len(rows.ids)
    for at in np.flatnonzero(documents.whole & (documents.starts == documents.stops)).tolist():
        counters.add(
            "empty-row",
            [Evidence(int(numbers[at]), where(dataset, documents, at), "an end-of-text token and no text before it")],
        )
    if not len(rows):
        return
    view = View(rows, scope, counters)
    # A document that comes in pieces has no hash of its own, so its copies are not found.
    data.hash_rows(view, documents.whole[filled])
    data.check_ids(view)
    # Control tokens of conversations inside plain text; eot may separate the documents.
    ids = view.rows.ids
    found = np.isin(ids, [token for name, token in view.scope.sentinels.items() if name != "eot"])
    view.hit_tokens(
        "special-tokens-in-content",
        found,
        lambda _, place: f"the control token {view.scope.decode_id(int(ids[place]))}",
    )


def finish(counters: Counters, dataset: Dataset, splits: Mapping[str, int], *, sampled: bool) -> None:
    """Compare the counts of the whole cache with those in its meta.json.

    Args:
        splits: the splits that were read, and how many documents meta.json counts in each.
        sampled: not all documents were read.
    """
    folder, meta = dataset.path, dataset.manifest
    for split, recorded in splits.items():
        tokens = len(stream_of(dataset, split))
        counted = int(meta["splits"][split].get("tokens", 0))
        if tokens != counted:
            _differ(counters, folder, split, "tokens", counted, tokens)
        if sampled or not recorded:
            continue
        counted_documents = counters.sums[f"{split}: documents"]
        if not meta.get("separate_documents", True) or (recorded > 1 and counted_documents == 1):
            note = f"{recorded:,} documents in {tokens:,} tokens, and no end-of-text token between them"
            counters.add("documents-not-separated", [Evidence(-1, f"{folder} {split}", note)], count=1, rows=0)
        elif counted_documents != recorded:
            _differ(counters, folder, split, "documents", recorded, counted_documents)


def _differ(counters: Counters, folder: Path, split: str, what: str, recorded: int, found: int) -> None:
    note = f"meta.json counts {recorded:,} {what}; the files hold {found:,}"
    counters.add("counts-differ", [Evidence(-1, f"{folder} {split}", note)], count=1, rows=0)
