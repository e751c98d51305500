"""The doctor's report (`niels-gpt doctor --json`) as the page shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from niels_gpt.errors import InputError
from niels_gpt.explorer.dataset import Dataset
from niels_gpt.sources.files.inputs import existing_file, read_text


def read_findings(path: Path) -> dict[str, Any]:
    """A report as the doctor writes it: `findings`, each with its `evidence`, `rows`, `skipped`, `judged`.

    Raises:
        InputError: no such file, or not a report of version 1.
    """
    text = read_text(existing_file(path))
    try:
        report: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not valid JSON ({error}); expected what niels-gpt doctor --json writes") from error
    found = report.get("version") if isinstance(report, dict) else None
    if found != 1 or not isinstance(report.get("findings"), list):
        raise InputError(
            f"{path}: version is {found!r}; expected a report of version 1 with findings, from niels-gpt doctor --json"
        )
    return dict(report)


def placed(report: dict[str, Any], dataset: Dataset | None) -> dict[str, Any]:
    """The report with the `split` of every piece of evidence, and `row` as its number in it.

    The doctor counts through all splits. Row -1 is about the whole input.
    """
    for finding in report["findings"]:
        for place in finding["evidence"]:
            place["split"] = ""
            if dataset is not None and place["row"] >= 0:
                place["split"], place["row"] = dataset.place_of(place["row"])
    return report
