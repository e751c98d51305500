"""Preferences from files: the rows of one or several files in order, each as a `Preference` or `Rejected`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from niels_gpt.errors import InputError, UsageError, did_you_mean, shown
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.file_source import FileSource, read_record
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.files.listing import ROW_NAMES, list_files
from niels_gpt.sources.files.records import first_objects
from niels_gpt.sources.rows.preference_rows import Preference, to_preference
from niels_gpt.sources.rows.shapes import FORMS, detect_form
from niels_gpt.store.remote import AnyFile

MOST_COLUMNS = 12  # names of columns in a message


@dataclass(frozen=True)
class PreferenceFiles(FileSource[Preference]):
    """Files of preferences; made by `preference_files`.

    Args:
        form: one of `shapes.FORMS`; `None`: that of the first row that has the columns of one.

    Raises:
        UsageError: an unknown form.
    """

    form: str | None = None

    def __post_init__(self) -> None:
        if self.form is not None and self.form not in FORMS:
            raise UsageError(f"no form {self.form!r}; known: {', '.join(FORMS)}{did_you_mean(self.form, FORMS)}")

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """The files, and the form of the rows."""
        return {**super().config(progress), "form": self.detected_form()}

    def detected_form(self) -> str:
        """The form of the rows.

        Raises:
            InputError: no row has the columns of any form. UsageError: two files have different ones.
        """
        if self.form is not None or self.shapes:
            return self.form or str(self.shapes[0])
        found = {str(path): _form_of(path) for path in self.files}
        forms = [form for form in dict.fromkeys(found.values()) if form is not None]
        if len(forms) > 1:
            listed = ", ".join(f"{path}: {form}" for path, form in found.items())
            raise UsageError(f"the files hold rows of different forms ({listed}); build one dataset of each")
        if not forms:
            # "chosen and rejected; or prompt/instruction/... and completions/responses"
            expected = "; or ".join(" and ".join("/".join(key) for key in shape.needs) for shape in FORMS.values())
            row: Any = next((record.value for record in first_objects(self.files[0])), None)
            columns = "no row that is an object" if row is None else ", ".join(map(shown, [*row][:MOST_COLUMNS]))
            raise InputError(
                f"{self.files[0]}: no row has the columns of preferences; found {columns or 'no column'}; expected "
                f"{expected}. Name the form with --format, or build conversations with: niels-gpt build"
            )
        return forms[0]

    def detected(self, files: Sequence[AnyFile]) -> tuple[str | None, ...]:
        return (self.detected_form(),) * len(files)

    def row_of(self, item: Record, shape: str | None) -> Preference | Rejected:
        return record_to_preference(item, str(shape))


def preference_files(inputs: Sequence[str | AnyFile], form: str | None = None) -> PreferenceFiles:
    """The source of files, URLs and glob patterns, in this order without repeats.

    Raises:
        UsageError: an unknown form. InputError: a pattern matches nothing.
    """
    return PreferenceFiles(list_files(inputs, ROW_NAMES), form)


def record_to_preference(record: Record, form: str) -> Preference | Rejected:
    """A record as a preference, or `Rejected`. Nulls that Arrow added are dropped, see `arrow_nulls`."""
    return read_record(record, lambda row: to_preference(row, form, record.where, arrow=record.arrow))


def _form_of(path: AnyFile) -> str | None:
    # More than the first row, because unusable rows may come first.
    return next(filter(None, (detect_form(record.value) for record in first_objects(path))), None)
