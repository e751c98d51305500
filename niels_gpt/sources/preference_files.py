"""Preferences from files: the rows of one or several files in order, each as a `Preference` or `Rejected`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from niels_gpt.errors import InputError, MessageError, UsageError, did_you_mean, shown
from niels_gpt.sources.file_source import FileSource
from niels_gpt.sources.files.inputs import ReadProgress, Record, Rejected
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

    def facts(self) -> dict[str, Any]:
        """The form of the rows."""
        return {"form": self.detected_form()}

    def detected_form(self) -> str:
        """The form of the rows.

        Raises:
            InputError: no row has the columns of any form. UsageError: two files have different ones.
        """
        if self.form is not None:
            return self.form
        found = {str(path): _form_of(path) for path in self.files}
        forms = [form for form in dict.fromkeys(found.values()) if form is not None]
        if len(forms) > 1:
            listed = ", ".join(f"{path}: {form}" for path, form in found.items())
            raise UsageError(f"the files hold rows of different forms ({listed}); build one dataset of each")
        if not forms:
            # "chosen and rejected; or prompt/instruction/... and completions/responses"
            expected = "; or ".join(" and ".join("/".join(key) for key in shape.needs) for shape in FORMS.values())
            raise InputError(
                f"{self.files[0]}: no row has the columns of preferences; found {_columns_of(self.files[0])}; expected "
                f"{expected}. Name the form with --format, or build conversations with: niels-gpt build"
            )
        return forms[0]

    def resolved(self) -> PreferenceFiles:
        """See `Sliceable`: the form is detected once, not for every slice."""
        return replace(self, form=self.detected_form(), count=ReadProgress())

    def converted(self, file: AnyFile, items: Iterator[Record | Rejected]) -> Iterator[Preference | Rejected]:
        form = self.detected_form()
        return (item if isinstance(item, Rejected) else record_to_preference(item, form) for item in items)


def preference_files(inputs: Sequence[str | AnyFile], form: str | None = None) -> PreferenceFiles:
    """The source of files, URLs and glob patterns, in this order without repeats.

    Raises:
        UsageError: an unknown form. InputError: a pattern matches nothing.
    """
    return PreferenceFiles(list_files(inputs, ROW_NAMES), form)


def record_to_preference(record: Record, form: str) -> Preference | Rejected:
    """A record as a preference, or `Rejected`. Nulls that Arrow added are dropped, see `arrow_nulls`."""
    row, where = record.value, record.where
    if not isinstance(row, Mapping):
        return Rejected(where, "row_not_an_object", f"{where}: the row is a {type(row).__name__}; expected an object")
    try:
        return to_preference(row, form, where, arrow=record.arrow)
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")


def _form_of(path: AnyFile) -> str | None:
    # More than the first row, because unusable rows may come first.
    return next(filter(None, (detect_form(record.value) for record in first_objects(path))), None)


def _columns_of(path: AnyFile) -> str:
    """The columns of the first row that is an object, for a message."""
    row: dict[str, Any] | None = next((record.value for record in first_objects(path)), None)
    if row is None:
        return "no row that is an object"
    more = f" and {len(row) - MOST_COLUMNS} more" if len(row) > MOST_COLUMNS else ""
    return f"{', '.join(map(shown, [*row][:MOST_COLUMNS])) or 'no column'}{more}"
