"""The doctor's report (`niels-gpt doctor --json`) as the page shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from niels_gpt.errors import InputError
from niels_gpt.explorer.dataset import Dataset
from niels_gpt.sources.files.inputs import existing_file, read_text


class _Read(BaseModel):
    """Fields of newer reports are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Token(_Read):
    """A token of an example."""

    id: int
    text: str = ""
    trained: bool | None = None
    role: str | None = None


class Evidence(_Read):
    """One place: the row, its file and line, and the message and token where the rule names them.

    Attributes:
        row: its number in the doctor's input; in `Findings.placed`, in its split.
        split: of the open dataset; empty without one.
    """

    row: int
    split: str = ""
    where: str = ""
    message: int | None = None
    token: int | None = None
    note: str = ""
    window: list[Token] = Field(default_factory=list)
    mark: int | None = None


class Finding(_Read):
    """A finding of one rule: why it matters, its cause, and how to fix it."""

    rule: str
    severity: str
    title: str
    count: int = 0
    rows: int = 0
    summary: str = ""
    cause: str = ""
    fix: str = ""
    thread: str = ""
    evidence: list[Evidence] = Field(default_factory=list)


class Findings(_Read):
    """A report of `niels-gpt doctor --json`.

    Attributes:
        skipped: the rules that were not judged, and why: without them nothing found does not mean nothing wrong.
        judged: the number of those that were.
    """

    version: Literal[1]
    rows: int = 0
    findings: list[Finding] = Field(default_factory=list)
    skipped: dict[str, str] = Field(default_factory=dict)
    judged: int = 0

    def placed(self, dataset: Dataset) -> Findings:
        """The findings with the rows as a dataset numbers them; the doctor counts through all splits."""
        findings = []
        for finding in self.findings:
            # Asked once for each row: for a document of a pretraining cache it reads the split up to there.
            places = {place.row: dataset.place_of(place.row) for place in finding.evidence if place.row >= 0}
            evidence = []
            for place in finding.evidence:
                if place.row >= 0:  # -1: about the whole input
                    split, row = places[place.row]
                    place = place.model_copy(update={"split": split, "row": row})
                evidence.append(place)
            findings.append(finding.model_copy(update={"evidence": evidence}))
        return self.model_copy(update={"findings": findings})


def read_findings(path: Path) -> Findings:
    """A report.

    Raises:
        InputError: no such file, or not a report of version 1; the first wrong field is named.
    """
    text = read_text(existing_file(path))
    try:
        return Findings.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"{path}: {field}: {first['msg'].lower()}; expected a report of version 1, from niels-gpt doctor --json"
        ) from error
