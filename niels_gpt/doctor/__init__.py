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

from niels_gpt.doctor.live import check_batch
from niels_gpt.doctor.report import Evidence, Finding, Report, WindowToken
from niels_gpt.doctor.rules import RULES
from niels_gpt.doctor.run import diagnose

__all__ = ["RULES", "Evidence", "Finding", "Report", "WindowToken", "check_batch", "diagnose"]
