"""Rows of ids of other programs (Megatron, MDS, litData, OLMo, nanoGPT, parquet with `input_ids`, ...) for the page.

They are read as the doctor reads them, and copied into an episodes dataset in a temporary directory, so that rows,
packing and masks are shown through our loaders. Rows have the doctor's numbers and places.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from niels_gpt.datasets import Row, TokenText
from niels_gpt.doctor.columns import token_parts
from niels_gpt.doctor.open_input import Opened
from niels_gpt.doctor.rows import TokenRows
from niels_gpt.doctor.token_files import ends_of
from niels_gpt.episodes.format import SEGMENTS_NAME
from niels_gpt.episodes.writer import EpisodeWriter
from niels_gpt.errors import InputError
from niels_gpt.explorer.dataset import About, Filter, RowDetail, RowSummary, check_row
from niels_gpt.explorer.line_index import PlaceNames
from niels_gpt.explorer.renderer_list import RendererChoice, RendererList
from niels_gpt.explorer.stored import StoredRows
from niels_gpt.explorer.token_columns import LossMode
from niels_gpt.token_display import TokenSpelling

MOST_TOKENS = 1 << 27  # are copied: half a gigabyte of ids
SPLIT = "train"  # of the copy; it holds all rows

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Copy:
    """What was copied.

    Attributes:
        numbers: the doctor's number of each row of the copy, int64 of shape (copied rows,).
        problems: why other rows cannot be shown, by the doctor's number.
        is_whole: nothing was left out at the end.
    """

    numbers: Int64s
    problems: dict[int, str]
    is_whole: bool


class CopiedRows(StoredRows):
    """Rows of ids of another program.

    Args:
        opened: rows of ids, as the doctor opens them.
        renderers: its first tokenizer gives the text of ids, and the id at which a stream is cut into documents.

    Raises:
        InputError: no row can be shown.
    """

    def __init__(self, opened: Opened, renderers: RendererList) -> None:
        text: TokenText | None = None
        controls: dict[str, int] = {}
        if renderers.tokenizers:
            encoder = renderers.encoder(next(iter(renderers.tokenizers)))
            # Data may hold ids that a smaller tokenizer does not have.
            text = TokenSpelling(
                lambda ids: [
                    encoder.token_bytes([id])[0] if id < encoder.vocab_size else f"<{id}?>".encode() for id in ids
                ]
            )
            controls = dict(encoder.control_ids)
            if opened.token_files is not None:
                opened = replace(opened, token_files=replace(opened.token_files, ends=ends_of(encoder)))
        self._temporary = tempfile.TemporaryDirectory(prefix="niels-gpt-explore-")
        folder, self._names = Path(self._temporary.name), PlaceNames()
        try:
            self._copy = copied(opened, folder, self._names)
            super().__init__(folder, [])
        except BaseException:  # Ctrl-C too: the caller gets no object that it could close
            self.close()
            raise
        self._form, self.token_text, self.name = opened.form, text, opened.name
        self.numbers, self.special = self._copy.numbers, controls
        # Row 5 of the doctor is row 3 of the copy if two rows before it cannot be read; -1: it cannot, either.
        self._in_copy = np.full(len(self._names), -1, np.int64)
        self._in_copy[self.numbers] = np.arange(len(self.numbers))

    def close(self) -> None:
        """Remove the copy."""
        self._names.close()
        self._temporary.cleanup()

    def about(self, split: str) -> About:
        """See `Dataset`."""
        facts = {"format": self._form, "tokens": int(self.sizes_of(split).sum())}
        if not self._copy.is_whole:
            facts["shown"] = "the first rows only; niels-gpt import makes episodes of all"
        return About(self.name, "tokens", "tokens", self.splits, len(self._in_copy), 1.0, facts=facts)

    def place_of(self, number: int) -> tuple[str, int]:
        """See `Dataset`: rows have the doctor's numbers."""
        return SPLIT, number

    def sizes_of(self, split: str) -> Int64s:
        """The tokens of every row; 0 of those that cannot be shown."""
        sizes = np.zeros(len(self._in_copy), np.int64)
        sizes[self._copy.numbers] = self.split(split).lengths
        return sizes

    def tokens(self, split: str, row: int) -> Row:
        """See `StoredRows`; no tokens of a row that cannot be shown."""
        number = int(self._in_copy[row])
        return self.split(split).row(number) if number >= 0 else Row(row, np.empty(0, np.uint32))

    def _matching(self, split: str, row: int, wanted: Filter) -> RowSummary | None:
        # A row without tokens has an empty text, which an expression such as `x*` would match.
        return None if wanted.text and self._in_copy[row] < 0 else super()._matching(split, row, wanted)

    def _summary(self, split: str, row: int) -> RowSummary:
        problem = self._copy.problems.get(row, "") if self._in_copy[row] < 0 else ""
        return replace(super()._summary(split, row), where=self._names[row], problem=problem)

    def detail(self, split: str, row: int, choice: RendererChoice, modes: list[LossMode]) -> RowDetail:
        """See `Dataset`."""
        check_row(row, len(self._in_copy), 1.0, self.name)
        where, number = self._names[row], int(self._in_copy[row])
        if number < 0:
            return RowDetail(row, where, None, problem=self._copy.problems[row])
        return replace(super().detail(split, number, choice, modes), row=row, where=where)

    def sizes(self, split: str, rows: list[int], choice: RendererChoice) -> list[tuple[int, float]]:
        """See `Dataset`."""
        return super().sizes(split, [row for row in rows if self._in_copy[row] >= 0], choice)


def copied(opened: Opened, folder: Path, names: PlaceNames) -> Copy:
    """Write rows of ids as the episodes of a dataset.

    Args:
        names: gets the places of all rows, by the doctor's number.

    Raises:
        InputError: see `CopiedRows`.
    """
    writer = EpisodeWriter(folder, SPLIT, segments_dtype="uint32")
    numbers, problems = [np.empty(0, np.int64)], dict[int, str]()
    is_whole, is_packed = True, False
    for slice_rows, payload in opened.slices():
        if writer.tokens >= MOST_TOKENS:
            is_whole = False
            break
        parts, misfits = token_parts(slice_rows, payload)
        where = {misfit.number: misfit.where for misfit in misfits}
        problems |= {misfit.number: f"{misfit.where}: {misfit.note}" for misfit in misfits}
        for part in parts:
            where |= dict(zip(part.numbers.tolist(), part.wheres, strict=True))
            # An episodes dataset has ids of 32 bits. Rows with others are left out; their note is about the first one.
            at_wrong = np.flatnonzero((part.ids < 0) | (part.ids >= 1 << 32))
            wrong_rows, first = np.unique(part.row_of[at_wrong], return_index=True)
            for row, at in zip(wrong_rows.tolist(), at_wrong[first].tolist(), strict=True):
                problems[int(part.numbers[row])] = (
                    f"{part.wheres[row]}: token {at - part.starts[row]} has the id {part.ids[at]}; expected 0 to "
                    "2**32 - 1"
                )
            usable = part.select(~np.isin(np.arange(len(part.numbers)), wrong_rows)) if len(wrong_rows) else part
            _write(writer, usable)
            is_packed |= part.documents is not None
            numbers.append(usable.numbers)
        names.extend([where[number] for number in slice_rows.tolist()])
    writer.close()
    if not is_packed:  # rows without them are texts
        (folder / SPLIT / SEGMENTS_NAME).unlink(missing_ok=True)
    if not writer.episodes:
        raise InputError(
            f"{opened.name}: no row has ids that can be shown; niels-gpt doctor says what is wrong with each"
        )
    return Copy(np.concatenate(numbers), problems, is_whole)


def _write(writer: EpisodeWriter, rows: TokenRows) -> None:
    # Without a mask everything is trained, but the first token of a text, which nothing predicts.
    trained = ~rows.first_of_document if rows.trained is None else rows.trained
    segments = np.zeros(len(rows.ids), np.int64)
    if rows.documents is not None:
        # Numbers of texts from 0 on in each row: firsts # . # | # .  give 1 1 2 3 3, less those before the row.
        count = np.cumsum(rows.first_of_document)
        segments = count - count[rows.starts[:-1]][rows.row_of]
    writer.write(rows.ids.astype(np.uint32), rows.lengths, trained.astype(np.uint8), segments=segments)
