"""The doctor: finds faults of data, masks, tokenizers and templates that the loss curve does not show.

How a diagnosis runs::

    diagnose(source)                                     run.py          (options.py: which rows, and how)
      open_input -> Opened                               niels_gpt.inputs: what the input is, and its rows in slices
      Context.for_input -> tokenizer, renderer, layout   context.py      (layouts/)
      examine_slices: for every slice, in workers        examine.py
        chat_rows, inputs.parts.token_parts -> rows      rows.py, inputs/rows.py
        View: turns, padding, mask of these rows         view.py         (layouts/)
        rules -> Counters                                rules/, counters.py (evidence.py)
      Counters.merge, in the order of the input
      Context.conclude: what only the whole shows        context.py
      data.leaks: rows that validation data hold as well rules/data.py
      Report                                             report.py       (show.py, sarif.py; template.py of a template)

`diagnose(source, other)` compares two tokenizers or templates instead (comparing.py). `watch(trainer)`
(live.py) judges the first batches of a training; `fix=` writes repaired rows (repair.py). docs/add_a_rule.md says
how to add a rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names

if TYPE_CHECKING:
    from niels_gpt.doctor.evidence import Evidence, WindowToken
    from niels_gpt.doctor.live import watch
    from niels_gpt.doctor.report import Finding, Report
    from niels_gpt.doctor.rules import RULES
    from niels_gpt.doctor.run import check_batch, diagnose

# Public names, imported when they are used: `niels-gpt` imports this package, and most commands need no renderers.
_MODULES = {
    "RULES": "rules",
    "Evidence": "evidence",
    "Finding": "report",
    "Report": "report",
    "WindowToken": "evidence",
    "check_batch": "run",
    "diagnose": "run",
    "watch": "live",
}

__all__ = [
    "RULES",
    "Evidence",
    "Finding",
    "Report",
    "WindowToken",
    "check_batch",
    "diagnose",
    "watch",
]

if not TYPE_CHECKING:  # else a type checker would accept any name
    __getattr__ = lazy_names(__name__, _MODULES)
