"""Columns of a tokenised dataset, under the names that other tools use, as `TokenRows`.

::

    input_ids, tokens                          the ids
    labels                                     trained where not -100
    assistant_masks, completion_mask, ...      trained where all of them are 1, as in TRL; not used beside labels
    attention_mask                             0 is padding; numbers above 1 count the texts of a packed row
    position_ids, seq_lengths, seq_start_id    where the texts of a packed row begin
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.rows import Bools, Int64s, TokenRows
from niels_gpt.doctor.slices import Arrow, decoded, unpacked
from niels_gpt.doctor.token_files import Concatenated
from niels_gpt.errors import UsageError
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.store.masks import IGNORE_INDEX, MASK_COLUMNS

IDS: Final = ("input_ids", "tokens")
TRAINED: Final = ("labels", *MASK_COLUMNS)  # any of them says what is trained
ALIGNED: Final = ("labels", "attention_mask", "position_ids", *MASK_COLUMNS)
LENGTHS: Final = "seq_lengths"
STARTS: Final = (
    "seq_start_id"  # of Megatron-Bridge, whose masks belong to the targets: the mask of a token is one earlier
)
KNOWN: Final = (*IDS, *ALIGNED, LENGTHS, STARTS)


@dataclass(frozen=True)
class Column:
    """A column of lists of numbers: all values, and the length of each row's list, int64 of shape (rows,)."""

    flat: np.ndarray[Any, Any]
    lengths: Int64s


@dataclass(frozen=True)
class Problem:
    """A row that cannot be used, or only in part: the rule that reports it, its index in the slice, and a note."""

    rule: str
    row: int
    note: str


def is_tokenised(names: Sequence[str] | Mapping[str, Any]) -> bool:
    """Whether these are the columns of a dataset of ids."""
    return any(name in names for name in IDS)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Column], list[Problem]]:
    """Columns from rows as objects; a row with a column that is not a list of numbers is a problem."""
    columns: dict[str, Column] = {}
    problems: list[Problem] = []
    # Unknown columns may hold anything, and are never read.
    names = [name for name in KNOWN if any(row.get(name) is not None for row in rows)]
    for name in names:
        lists: list[Sequence[Any]] = []
        for number, row in enumerate(rows):
            values: Any = row.get(name)
            if hasattr(values, "tolist") and not isinstance(values, np.ndarray):  # a tensor, of any library
                values = values.tolist()
            # Weights of masks may be fractions; ids and labels may not.
            usable = values is None or _are_numbers(values, integers=name not in MASK_COLUMNS)
            if not usable:
                problems.append(Problem("unusable-row", number, f"{name} is not a list of numbers"))
            # A row without usable values keeps its place with an empty list, so that rows stay aligned over columns.
            lists.append(values if usable and values is not None else ())
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        # All rows in one flat array: rules are a few numpy calls over all rows of a slice.
        kind = np.float64 if name in MASK_COLUMNS else np.int64
        columns[name] = Column(np.fromiter(chain.from_iterable(lists), dtype=kind, count=int(lengths.sum())), lengths)
    return columns, problems


def _are_numbers(values: Any, *, integers: bool) -> bool:
    """Whether a value is a list or array of numbers that fit into 64 bits; with `integers`, of no others."""
    if isinstance(values, np.ndarray):
        # Numpy's kinds: i and u are integers, b is bool, f is float.
        return values.ndim == 1 and values.dtype.kind in ("iub" if integers else "iubf")
    # One `set` over the types is faster than a check of each value. numpy would accept texts such as "7", too.
    allowed = {int, bool} if integers else {int, bool, float}
    if not isinstance(values, list | tuple) or not set(map(type, values)) <= allowed:
        return False
    # Python's integers have no limit; numpy's conversion would raise.
    return not values or (min(values) >= -(2**63) and max(values) < 2**63)


def columns_of_arrow(batch: Any) -> dict[str, Column]:
    """Columns from an Arrow record batch; unknown columns, and columns that are not lists of numbers, are ignored."""
    import pyarrow as pa

    columns: dict[str, Column] = {}
    for name in KNOWN:
        at = batch.schema.get_field_index(name)
        # Arrow's way to say that there is no such column.
        if at < 0:
            continue
        column = batch.column(at)
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            # Other columns under these names, such as `tokens` as text, are not ids.
            if not pa.types.is_fixed_size_list(column.type):
                continue
            column = column.cast(pa.list_(column.type.value_type))
        value = column.type.value_type
        if not (pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_boolean(value)):
            continue
        # A null row has no length in Arrow; here it is an empty row, which is reported.
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        # A null id becomes -1, which is reported as outside the vocabulary.
        flat = column.flatten().fill_null(False if pa.types.is_boolean(value) else -1)
        # `flatten` respects slices of a batch, `values` would not.
        columns[name] = Column(flat.to_numpy(zero_copy_only=False), lengths)
    return columns


def is_batch(row: Any) -> bool:
    """Whether an item of an iterable is a batch, as a `DataLoader` gives it: ids of shape (rows, length)."""
    if not isinstance(row, Mapping) or not is_tokenised(row):
        return False
    return getattr(next(row[name] for name in IDS if name in row), "ndim", 0) == 2


def rows_of_batch(batch: Mapping[str, Any]) -> list[dict[str, np.ndarray[Any, Any]]]:
    """The rows of a batch, with those of its columns that are known.

    Raises:
        UsageError: as `batch_rows`.
    """
    # Weights of masks may be fractions; any above 0 trains the token. Lists cannot be compared with a number.
    known = {
        name: batch[name] > 0 if name in MASK_COLUMNS and hasattr(batch[name], "ndim") else batch[name]
        for name in (*IDS, *ALIGNED)
        if batch.get(name) is not None
    }
    # An attention mask of four dimensions is made from the other columns, so these are judged without it.
    return batch_rows(
        {name: values for name, values in known.items() if name in IDS or getattr(values, "ndim", 2) <= 2}
    )


def batch_rows(batch: Mapping[str, Any]) -> list[dict[str, npt.NDArray[Any]]]:
    """The rows of a batch of arrays or tensors, each as a dict of arrays of shape (length,).

    Raises:
        UsageError: a column that is no array of integers, has more than two dimensions, or another shape than the ids.
    """
    expected = "expected integers of shape (rows, length)"
    # One array at a time, so that the message names the one that is wrong; then their shapes together.
    arrays: dict[str, npt.NDArray[np.int64]] = {}
    for name, values in batch.items():
        try:
            if hasattr(values, "detach"):  # a torch tensor; torch itself need not be imported for this
                values = values.detach().cpu().numpy()
            # One row may be passed without a batch dimension.
            array = np.atleast_2d(np.asarray(values))
        except (TypeError, ValueError) as error:  # rows of different lengths, or a dtype that numpy does not have
            raise UsageError(f"{name} is no array: {error}; {expected}") from error
        if array.ndim != 2 or array.dtype.kind not in "iub":
            raise UsageError(f"{name} is {array.dtype} of shape {array.shape}; {expected}")
        arrays[name] = array.astype(np.int64)  # a copy: a trainer may use the memory of its batches again
    # Collators may pass the columns in any order.
    ids_name = next(name for name in IDS if name in arrays)
    shape = arrays[ids_name].shape
    for name, array in arrays.items():
        if array.shape != shape:
            raise UsageError(f"{name} has the shape {array.shape} and {ids_name} {shape}; expected the same")
    return [{name: array[row] for name, array in arrays.items()} for row in range(shape[0])]


def by_mask(columns: Mapping[str, Column], problems: Sequence[Problem] = ()) -> list[tuple[Bools, dict[str, Column]]]:
    """The columns of the rows that have a mask, and of those that have none, which have no column of masks then.

    Args:
        problems: rows that are reported already; they count as rows with a mask, as rows without ids do.

    Returns:
        One or two pairs of the rows, bool of shape (rows,), and their columns.
    """
    # A list of length 0 is a row without this column.
    masks = [columns[name].lengths > 0 for name in TRAINED if name in columns]
    id_lengths = next((columns[name].lengths for name in IDS if name in columns), np.zeros(0, np.int64))
    masked = np.logical_or.reduce(masks) if masks else np.zeros(len(id_lengths), dtype=np.bool_)
    # A row that is reported already must not be reported as one without a mask, too.
    reported = id_lengths == 0
    reported[[problem.row for problem in problems]] = True
    if masked.all() or not masked.any():
        return [(np.ones(len(id_lengths), dtype=np.bool_), dict(columns))]
    # Two parts, since `TokenRows.trained` is of all rows or of none.
    without = {name: column for name, column in columns.items() if name not in TRAINED}
    return [
        (chosen, {n: Column(_select_rows(c, chosen), c.lengths[chosen]) for n, c in some.items()})
        for chosen, some in ((masked | reported, columns), (~masked & ~reported, without))
    ]


def token_rows(
    columns: Mapping[str, Column], numbers: Int64s, wheres: Sequence[str]
) -> tuple[TokenRows, list[Problem]]:
    """Rows from columns.

    Args:
        numbers, wheres: number and place of each row.

    Returns:
        The usable rows; and the others, empty or with columns of different lengths, as problems in order of rows.
    """
    ids = next(
        (columns[name] for name in IDS if name in columns), Column(np.zeros(0), np.zeros(len(numbers), np.int64))
    )
    # A column that no row fills is none: then the data has no mask, and no row lacks it.
    columns = {name: column for name, column in columns.items() if name in IDS or column.lengths.any()}
    problems: list[Problem] = []
    usable = ids.lengths > 0
    problems += [Problem("empty-row", row, "no ids") for row in np.flatnonzero(~usable).tolist()]
    for name in ALIGNED:
        if name not in columns:
            continue
        lengths = columns[name].lengths
        wrong = (lengths != ids.lengths) & usable
        for row in np.flatnonzero(wrong).tolist():
            found = f" and {lengths[row]:,} {name}" if lengths[row] else f" without {name}, which other rows have"
            problems.append(Problem("unusable-row", row, f"{ids.lengths[row]:,} ids{found}"))
        # A row is left out at the first column that does not fit, so it is reported once.
        usable &= ~wrong
    values = {name: _select_rows(column, usable) for name, column in columns.items()}
    # Rows of 3 and 2 ids start at 0 and 3; the last entry is the end, 5.
    starts = np.concatenate(([0], np.cumsum(ids.lengths[usable])))
    labels, trained, origin = _trained(values)
    if STARTS in values and labels is None and trained is not None and len(trained):
        # Megatron-Bridge's masks belong to the targets: . # # | # . of two rows are . . # | . # of the tokens.
        trained = np.concatenate(([False], trained[:-1]))
        trained[starts[:-1]] = False
    attended = values["attention_mask"] > 0 if "attention_mask" in values else None
    chosen = np.flatnonzero(usable)
    # Rows whose texts are recorded wrongly are reported and judged all the same: ids and masks do not depend on it.
    documents, misfits = _documents(values, columns, usable, starts, attended)
    problems += [Problem("packing-lengths", int(chosen[row]), note) for row, note in misfits]
    ids_name = next((name for name in IDS if name in values), None)
    rows = TokenRows(
        numbers=numbers[chosen],
        wheres=[wheres[row] for row in chosen.tolist()],
        ids=values[ids_name].astype(np.int64) if ids_name else np.zeros(0, np.int64),
        starts=starts,
        trained=trained,
        labels=labels,
        attended=attended,
        documents=documents,
        mask_from=origin,
    )
    return rows, sorted(problems, key=lambda problem: problem.row)


def _select_rows(column: Column, usable: Bools) -> np.ndarray[Any, Any]:
    """The values of the usable rows: usable # . and lengths 2 3 select # # . . .."""
    return column.flat if usable.all() else column.flat[np.repeat(usable, column.lengths)]


def _trained(values: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Int64s | None, Bools | None, str]:
    """Labels, what is trained, and the column that this comes from: labels first, else all masks, as in TRL."""
    if "labels" in values:
        labels = values["labels"].astype(np.int64)
        return labels, labels != IGNORE_INDEX, "labels"
    # TRL takes a token into the loss only if all masks that there are say so.
    masks = [name for name in MASK_COLUMNS if name in values]
    if not masks:
        return None, None, ""
    # Masks may be floats; any weight above 0 trains the token.
    trained = np.logical_and.reduce([values[name] > 0 for name in masks])
    return None, trained, ", ".join(masks)


def _documents(
    values: Mapping[str, np.ndarray[Any, Any]],
    columns: Mapping[str, Column],
    usable: Bools,
    starts: Int64s,
    attended: Bools | None,
) -> tuple[Int64s | None, list[tuple[int, str]]]:
    """A number for the text of each token, from the first column that has it, and `(row, note)` where it is wrong.

    `None` where no column separates texts.
    """
    if not starts[-1]:  # no tokens
        return None, []
    positions = values["position_ids"].astype(np.int64) if "position_ids" in values else None
    if LENGTHS in values:
        documents, notes = _by_lengths(values[LENGTHS].astype(np.int64), columns[LENGTHS].lengths[usable], starts)
        if positions is not None:
            # Where lengths do not add up, positions cannot be compared with them.
            wrong = {row for row, _ in notes}
            notes += [note for note in _restarts(positions, documents, starts, attended) if note[0] not in wrong]
        return documents, notes
    if STARTS in values:
        return _by_starts(values[STARTS].astype(np.int64), columns[STARTS].lengths[usable], starts)
    if positions is not None:
        return _by_positions(positions, starts, attended)
    # LLaMA-Factory and Axolotl number the texts of a packed row in its attention mask: 1 1 2 2 2 0.
    if "attention_mask" in values and int(values["attention_mask"].max()) > 1:
        return values["attention_mask"].astype(np.int64), []
    return None, []


def _by_lengths(flat: Int64s, counts: Int64s, starts: Int64s) -> tuple[Int64s, list[tuple[int, str]]]:
    """Numbers of texts from their lengths.

    Args:
        flat: `seq_lengths` of all rows. counts: how many each row has.
    """
    # In the examples rows have 3 and 3 tokens, and seq_lengths are [2 1] [3]: documents 1 1 2 3 3 3.
    lengths = np.diff(starts)
    # The row of each entry of `flat`: counts 2 1 give 0 0 1.
    owner = np.repeat(np.arange(len(counts)), counts)
    flat = np.clip(flat, -1, 1 << 40)  # above any real length, and sums of such numbers do not overflow
    # Of each row the sum of its lengths: 2 1 and 3 give 3 3.
    sums = np.bincount(owner, weights=flat, minlength=len(counts)).astype(np.int64)
    wrong = (sums != lengths) | (np.bincount(owner, weights=flat <= 0, minlength=len(counts)) > 0)
    notes = [
        (row, f"seq_lengths add up to {sums[row]:,} and must all be above 0; the row has {lengths[row]:,} ids")
        for row in np.flatnonzero(wrong).tolist()
    ]
    first = np.zeros(int(starts[-1]), dtype=np.int64)
    first[starts[:-1]] = 1
    # A text begins where those before it in its row end: 0 2 3 of all rows, minus 0 0 3 for the texts of rows before.
    inside = np.concatenate(([0], np.cumsum(flat)))[:-1]
    base = np.concatenate(([0], np.cumsum(sums)))[:-1]
    # Lengths that do not add up would place texts outside their row.
    valid = ~wrong[owner]
    first[(starts[:-1][owner] + inside - base[owner])[valid]] = 1
    return np.cumsum(first), notes


def _by_starts(flat: Int64s, counts: Int64s, starts: Int64s) -> tuple[Int64s, list[tuple[int, str]]]:
    """Numbers of texts from where they begin in their rows."""
    # Texts that begin at 0 2 | 0 of rows of 3 and 3 tokens are documents 1 1 2 3 3 3.
    owner = np.repeat(np.arange(len(counts)), counts)
    valid = (flat >= 0) & (flat < np.diff(starts)[owner])
    first = np.zeros(int(starts[-1]), dtype=np.int64)
    first[starts[:-1]] = 1
    first[(starts[:-1][owner] + flat)[valid]] = 1
    rows = np.unique(owner[~valid]).tolist()
    return np.cumsum(first), [(row, "seq_start_id holds a place outside of the row") for row in rows]


def _restarts(positions: Int64s, documents: Int64s, starts: Int64s, attended: Bools | None) -> list[tuple[int, str]]:
    """Rows whose positions do not restart at 0 exactly where their lengths say that a text begins."""
    begins = np.concatenate(([True], documents[1:] != documents[:-1]))
    wrong = begins != (positions == 0)
    if attended is not None:  # positions of padding are not used
        wrong &= attended
    rows = np.unique(np.searchsorted(starts, np.flatnonzero(wrong), side="right") - 1)
    return [(int(row), "position_ids do not restart at 0 where seq_lengths begin a text") for row in rows]


def _by_positions(positions: Int64s, starts: Int64s, attended: Bools | None) -> tuple[Int64s, list[tuple[int, str]]]:
    """Numbers of texts from positions, which restart at 0."""
    # Positions 0 1 0 1 2 | 0 1 of two rows are documents 1 1 2 2 2 3 3.
    # A text begins where positions restart, and with every row, whatever its positions are.
    first = positions == 0
    first[starts[:-1]] = True
    counts_on = np.ones(len(positions), dtype=np.bool_)
    counts_on[1:] = positions[1:] == positions[:-1] + 1
    wrong = ~counts_on & (positions != 0)
    # The first token of a row has no token before it to count on from; it must be 0.
    wrong[starts[:-1]] = positions[starts[:-1]] != 0
    if attended is not None:  # positions of padding are not used
        # Nor is the step from padding to the first real token one to judge.
        wrong &= attended & np.concatenate(([True], attended[:-1]))
    rows = np.searchsorted(starts, np.flatnonzero(wrong), side="right") - 1
    notes = [(int(row), "position_ids neither count up by one nor restart at 0") for row in np.unique(rows)]
    return np.cumsum(first), notes


@dataclass(frozen=True)
class Misfit:
    """A row that the reading itself reports: its number in the input, its place, the rule, and a note."""

    number: int
    where: str
    rule: str
    note: str


def token_parts(numbers: Int64s, payload: Any) -> tuple[list[TokenRows], list[Misfit]]:
    """The rows of a slice of ids (`slices.Lines`, `Objects`, `Arrow`, or `token_files.Concatenated`).

    Returns:
        The usable rows, those with a mask separate from those without one, since a part has a mask in all rows or in
        none; and the misfits, in the order of the input.
    """
    if isinstance(payload, Concatenated):
        return _parts_of_files(numbers, payload)
    if isinstance(payload, Arrow):
        batch = unpacked(payload.packed)
        wheres, columns, problems = payload.wheres, columns_of_arrow(batch), list[Problem]()
    else:
        records = decoded(payload)
        wheres = [record.where for record in records]
        # A row without ids is an object without columns, so that the others keep their indexes.
        tokenised: list[Mapping[str, Any]] = []
        unreadable: list[Problem] = []
        for at, record in enumerate(records):
            if isinstance(record, Record) and isinstance(record.value, Mapping) and is_tokenised(record.value):
                tokenised.append(record.value)
                continue
            tokenised.append({})
            note = record.why if isinstance(record, Rejected) else "the row has no input_ids"
            unreadable.append(Problem("unusable-row", at, note))
        columns, problems = columns_of(tokenised)
        problems = unreadable + problems
    if not columns:  # no row of the slice has ids
        columns = {"input_ids": Column(np.zeros(0, dtype=np.int64), np.zeros(len(numbers), dtype=np.int64))}
    parts = []
    for chosen, column_set in by_mask(columns, problems):
        indexes = np.flatnonzero(chosen)
        rows, more = token_rows(column_set, numbers[indexes], [wheres[row] for row in indexes.tolist()])
        problems += [replace(problem, row=int(indexes[problem.row])) for problem in more]
        parts.append(rows)
    # A row with several problems of one rule is one hit, with the note of the first.
    # Reversed, so that the first problem of a row and rule is the one that stays in the dict.
    first = {(problem.row, problem.rule): problem for problem in problems[::-1]}
    misfits = [
        Misfit(int(numbers[row]), wheres[row], rule, first[row, rule].note)
        for row, rule in sorted(first)
        # A row that cannot be read has no ids, either.
        if rule != "empty-row" or (row, "unusable-row") not in first
    ]
    return parts, misfits


def _parts_of_files(numbers: Int64s, part: Concatenated) -> tuple[list[TokenRows], list[Misfit]]:
    """Rows of token files of other programs; a damaged index may have some without ids."""
    rows = TokenRows(
        numbers=numbers,
        wheres=part.wheres,
        ids=part.ids.astype(np.int64),
        starts=np.concatenate(([0], np.cumsum(part.lengths))),
        trained=part.trained,
        mask_from="" if part.trained is None else "loss_mask",
    )
    # `TokenRows` must not contain empty rows.
    filled = rows.lengths > 0
    empty = [
        Misfit(int(numbers[row]), part.wheres[row], "empty-row", "no ids") for row in np.flatnonzero(~filled).tolist()
    ]
    return [rows if filled.all() else rows.select(filled)], empty
