"""`DiagnoseOptions`: which rows the doctor examines, how, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from niels_gpt import ranges
from niels_gpt.doctor.rules import rule_of
from niels_gpt.errors import UsageError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.loss import LossOn, Preset
from niels_gpt.seeds import DEFAULT_SEED

EVIDENCE: Final = 5


@dataclass(frozen=True)
class DiagnoseOptions:
    """Which rows are examined, how, and what is reported; the same for every kind of input.

    Attributes:
        loss_on: which tokens of conversations are trained: a `LossOn`, or the name of its preset.
        split: of a hub dataset (default train), or of a dataset of ours (default all).
        form: the dialect of conversations; by default the first rows decide.
        sample: read only so many rows, drawn with `seed`.
        max_length: the longest row that training takes, in tokens.
        workers: processes. With more than one, a script needs `if __name__ == "__main__"`.
        validation: validation data (rows, a file, a directory, a dataset), whose rows must not be in the input.
        fix: a .jsonl file for the rows of ids with what is certain repaired (see `repair`); of a tokenizer its
            generation_config.json.
        silence: findings that are accepted: rule -> reason.
        evidence: how many places of each rule are reported.
        progress: receives progress.
    """

    loss_on: LossOn | Preset | None = None
    split: str | None = None
    form: str | None = None
    sample: int | None = None
    seed: int = DEFAULT_SEED
    max_length: int | None = None
    workers: int = 1
    validation: Any = None
    fix: str | Path | None = None
    silence: Mapping[str, str] = field(default_factory=dict)
    evidence: int = EVIDENCE
    progress: Progress = SILENT

    def check(self) -> None:
        """Refuse what is wrong whatever the input is.

        Raises:
            UsageError: a number out of range, an unknown rule, or one that is silenced without a reason.
        """
        # Before anything is read: a wrong number must not be found after an hour of reading.
        ranges.SAMPLE.check(self.sample)
        ranges.SEED.check(self.seed)
        ranges.EXAMINED_LENGTH.check(self.max_length)
        ranges.WORKERS.check(self.workers)
        ranges.EVIDENCE.check(self.evidence)
        for name, reason in self.silence.items():
            rule_of(name)
            if not reason.strip():  # the report shows the reason
                raise UsageError(f"rule {name} is silenced without a reason; say why: {name}=REASON")
