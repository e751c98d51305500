"""Rules on caches of plain text: documents one after the other, without turns or masks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from niels_gpt.doctor.documents import Documents, Run
from niels_gpt.doctor.report import Evidence
from niels_gpt.doctor.rows import Int64s
from niels_gpt.doctor.rules import data
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.stored import StoredFiles
from niels_gpt.doctor.tally import Tally
from niels_gpt.doctor.view import Scope, View

RULES: Final = (
    Rule(
        "documents-not-separated",
        "warning",
        "nothing says where documents end",
        "Training windows run from one text into the next, and the model learns that texts change their subject in the "
        "middle of a line. It is not taught to end one either.",
        "The cache was built with separate_documents=False.",
        "Build it with an end-of-text behind each document, which is the default.",
        applies=("documents",),
        needs=("everything",),
    ),
    Rule(
        "counts-differ",
        "error",
        "meta.json counts other documents or tokens than the files hold",
        "Epochs, budgets and mixtures are planned by these numbers. Files that were exchanged or edited hold other "
        "data than the recipe says.",
        "Shards of another build, or tokens that were edited in place.",
        "Build the cache again; `niels-gpt cache verify` compares checksums.",
        applies=("documents",),
        needs=("everything",),
    ),
)


def check(numbers: Int64s, documents: Documents, run: Run, scope: Scope, tally: Tally) -> None:
    """Judge some documents, or pieces of them.

    Args:
        run: the ids of their split.
    """
    rows, filled = documents.read(run, numbers)
    tally.sums["rows"] += int(documents.begins.sum())
    tally.sums[f"{documents.split}: documents"] += int(documents.begins.sum())
    tally.sums[f"{documents.split}: ends"] += int(documents.ends.sum())
    tally.sums["tokens"] += len(rows.ids)
    for at in np.flatnonzero(documents.whole & (documents.starts == documents.stops)).tolist():
        tally.add(
            "empty-row", [Evidence(int(numbers[at]), documents.where(at), "an end-of-text and nothing before it")]
        )
    if not len(rows):
        return
    view = View(rows, scope, tally)
    data.hash_rows(view, documents.whole[filled])
    data.check_ids(view)
    _sentinels(view)


def _sentinels(view: View) -> None:
    """Control tokens of conversations inside plain text."""
    ids = view.rows.ids
    found = np.isin(ids, [token for name, token in view.scope.sentinels.items() if name != "eot"])
    view.hit_tokens(
        "special-tokens-in-content", found, lambda _, place: f"the control token {view.scope.spell(int(ids[place]))}"
    )


def finish(tally: Tally, files: StoredFiles, splits: Mapping[str, int], *, sampled: bool) -> None:
    """What only the whole cache shows.

    Args:
        splits: those that were looked at, and how many documents the meta counts. sampled: not all were.
    """
    folder, meta = files.folder, files.manifest
    for split, told in splits.items():
        tokens = len(files.run(split))
        counted = int(meta["splits"][split].get("tokens", 0))
        if tokens != counted:
            _differ(tally, folder, split, "tokens", counted, tokens)
        if sampled or not told:
            continue
        held = tally.sums[f"{split}: documents"]
        if not meta.get("separate_documents", True) or (told > 1 and held == 1):
            note = f"{told:,} documents in {tokens:,} tokens, and no end-of-text between them"
            tally.add("documents-not-separated", [Evidence(-1, f"{folder} {split}", note)], count=1, rows=0)
        elif held != told:
            _differ(tally, folder, split, "documents", told, held)


def _differ(tally: Tally, folder: Path, split: str, what: str, told: int, held: int) -> None:
    note = f"meta.json counts {told:,} {what}; the files hold {held:,}"
    tally.add("counts-differ", [Evidence(-1, f"{folder} {split}", note)], count=1, rows=0)
