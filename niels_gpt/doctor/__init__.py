"""The doctor: finds, before GPU hours are spent, what no loss curve shows.

::

    run.py        diagnose: from any input to a report          rules/      every rule: its words and its check
    live.py       check_batch: a batch about to be trained      report.py   findings, evidence, their JSON form
    kit.py        tokenizer, renderer, layout; conclusions      show.py     a report in a terminal, as markdown
    reading.py    inputs as slices of rows (arrow.py)           probes.py   conversations that show how a format writes
    columns.py    other tools' columns as rows of ids           sarif.py    a report for code-scanning tools
    stored.py     our own caches and episodes as rows           cli.py      niels-gpt doctor
    learning.py   how a format lays out turns, from probes      layout.py   turns found by it in any ids
    work.py       what a worker does with a slice (view.py)     tally.py    counts and first places, merged in order
    slices.py     rows in slices, undecoded                     pool.py     slices examined by several processes
    documents.py  our caches of plain text                      comparing.py  two formats on the same conversations
    graded.py     answers beside the mask                       summaries.py  a finding in one line
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_gpt.doctor.live import check_batch
    from niels_gpt.doctor.report import Evidence, Finding, Report, WindowToken
    from niels_gpt.doctor.rules import RULES
    from niels_gpt.doctor.run import diagnose

# Where each public name lives: the command line offers the doctor, and no other command should load all renderers.
_HOMES = {
    "RULES": "rules",
    "Evidence": "report",
    "Finding": "report",
    "Report": "report",
    "WindowToken": "report",
    "check_batch": "live",
    "diagnose": "run",
}

__all__ = ["RULES", "Evidence", "Finding", "Report", "WindowToken", "check_batch", "diagnose"]


def __getattr__(name: str) -> Any:
    """Import a public name's module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
