"""`DiagnoseOptions`: which rows the doctor examines, how, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from niels_gpt import ranges
from niels_gpt.doctor.rules import rule_of
from niels_gpt.errors import UsageError
from niels_gpt.options import Option
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.loss import LossOn, Preset
from niels_gpt.seeds import DEFAULT_SEED

EVIDENCE: Final = 5


@dataclass(frozen=True)
class DiagnoseOptions:
    """The options of `diagnose` that are the same for every kind of input; its docstring says what they are.

    Those with an `Option` are the command's as they are.
    """

    loss_on: LossOn | Preset | None = None
    split: Annotated[str | None, Option("Of a hub dataset (default train), or of a cache.", "SPLIT")] = None
    form: str | None = None
    sample: Annotated[int | None, Option("Examine so many rows only, drawn with --seed.", limits=ranges.SAMPLE)] = None
    seed: Annotated[int, Option("Seed of the sample.", limits=ranges.SEED)] = DEFAULT_SEED
    max_length: Annotated[
        int | None,
        Option(
            "The longest row that training takes, in tokens.",
            "TOKENS",
            limits=ranges.EXAMINED_LENGTH,
            flag="--sequence-length",
        ),
    ] = None
    workers: int = 1
    validation: Any = None
    fix: str | Path | None = None
    silence: Mapping[str, str] = field(default_factory=dict)
    evidence: Annotated[int, Option("How many places of each rule it names.", limits=ranges.EVIDENCE)] = EVIDENCE
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
