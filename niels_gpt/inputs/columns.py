"""Columns of a tokenised dataset, under the names that other tools use, as `TokenRows`.

::

    input_ids, tokens                          the ids
    labels                                     trained where not -100
    assistant_masks, completion_mask, ...      trained where all of them are 1, as in TRL; not used beside labels
    attention_mask                             0 is padding; numbers above 1 count the texts of a packed row
    position_ids, seq_lengths, seq_start_id    where the texts of a packed row begin

A row that cannot be read is never an empty one: it is a `Misfit`, which the doctor reports and an import refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import shown
from niels_gpt.inputs.rows import Bools, Int64s, TokenRows
from niels_gpt.store.masks import IGNORE_INDEX, MASK_COLUMNS

IDS: Final = ("input_ids", "tokens")
TRAINED: Final = ("labels", *MASK_COLUMNS)  # any of them says what is trained
ALIGNED: Final = ("labels", "attention_mask", "position_ids", *MASK_COLUMNS)
LENGTHS: Final = "seq_lengths"
STARTS: Final = "seq_start_id"  # of Megatron-Bridge, whose masks belong to the targets: a token's mask is one earlier
KNOWN: Final = (*IDS, *ALIGNED, LENGTHS, STARTS)

Notes = list[tuple[int, str]]  # rows, and what is wrong with each


@dataclass(frozen=True)
class Column:
    """A column of lists of numbers: all values, and the length of each row's list, int64 of shape (rows,)."""

    flat: npt.NDArray[Any]
    lengths: Int64s

    def select(self, rows: Bools) -> Column:
        """Of some rows: True . True and lengths 2 3 1 select # # . . . #."""
        return self if rows.all() else Column(self.flat[np.repeat(rows, self.lengths)], self.lengths[rows])


Columns = dict[str, Column]


@dataclass(frozen=True)
class Misfit:
    """A row that cannot be used, or only in part: its number in the input, its place, the rule, and a note."""

    number: int
    where: str
    rule: str
    note: str


@dataclass(frozen=True)
class Places:
    """Number and place of each row of a slice."""

    numbers: Int64s
    wheres: Sequence[str]

    def misfits(self, rule: str, notes: Notes) -> list[Misfit]:
        """Misfits of rows of the slice."""
        return [Misfit(int(self.numbers[row]), self.wheres[row], rule, note) for row, note in notes]

    def select(self, rows: Bools) -> Places:
        """Of some rows."""
        chosen = np.flatnonzero(rows)
        return Places(self.numbers[chosen], [self.wheres[row] for row in chosen.tolist()])


def ids_name(row: Mapping[str, Any]) -> str | None:
    """The column with the ids of a row, or of a batch; `None` for a row of another kind.

    `tokens` is also the name of a count, or of words, so there it is a list of integers that makes the row one of ids.
    """
    if row.get("input_ids") is not None or ("input_ids" in row and "tokens" not in row):
        return "input_ids"
    values = row.get("tokens")
    if hasattr(values, "dtype"):  # an array or tensor
        return "tokens" if getattr(values, "ndim", 0) else None
    is_list = isinstance(values, list | tuple) and all(type(value) is int for value in values[:8])
    return "tokens" if is_list else None


def ids_name_of_schema(schema: Any) -> str | None:
    """The column with the ids of an Arrow schema, as `ids_name`."""
    import pyarrow as pa

    if "input_ids" in schema.names:
        return "input_ids"
    if "tokens" not in schema.names:
        return None
    kind = schema.field("tokens").type
    is_list = isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
    return "tokens" if is_list and pa.types.is_integer(kind.value_type) else None


def columns_of(rows: Sequence[Mapping[str, Any]], places: Places) -> tuple[Columns, list[Misfit]]:
    """Columns from rows as objects, each named `input_ids` if it holds the ids; and rows with other values in them.

    Columns with unknown names may hold anything, and are never read.
    """
    columns: Columns = {}
    misfits: list[Misfit] = []
    ids = [ids_name(row) or "input_ids" for row in rows]
    for name in ("input_ids", *KNOWN[len(IDS) :]):
        names = ids if name == "input_ids" else [name] * len(rows)
        found: list[Any] = [row.get(of) for row, of in zip(rows, names, strict=True)]
        is_null = name == "input_ids" and any("input_ids" in row for row in rows)  # every row, which is a misfit
        if all(values is None for values in found) and not is_null:
            continue
        # Weights of masks may be fractions; ids and labels may not.
        fractions = name in MASK_COLUMNS
        for number, values in enumerate(found):
            if hasattr(values, "tolist") and not isinstance(values, np.ndarray):  # a tensor, of any library
                values = found[number] = values.tolist()
            if values is None and name == "input_ids" and names[number] in rows[number]:
                misfits += places.misfits("unusable-row", [(number, "input_ids is null")])
            if values is not None and not _are_numbers(values, integers=not fractions):
                note = f"{name} is {shown(values, 40)}; expected a list of {'numbers' if fractions else 'integers'}"
                misfits += places.misfits("unusable-row", [(number, note)])
                values = None
            # A row without usable values keeps its place with an empty list, so that rows stay aligned over columns.
            found[number] = () if values is None else values
        lengths = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
        # All rows in one flat array: whoever reads them takes a few numpy calls for a slice.
        dtype = np.float64 if fractions else np.int64
        columns[name] = Column(np.fromiter(chain.from_iterable(found), dtype=dtype, count=int(lengths.sum())), lengths)
    return columns, misfits


def _are_numbers(values: Any, *, integers: bool) -> bool:
    """Whether a value is a list or array of numbers that fit into 64 bits; with `integers`, of no others."""
    if isinstance(values, np.ndarray):
        # Numpy's kinds: i and u are integers, b is bool, f is float.
        return values.ndim == 1 and values.dtype.kind in ("iub" if integers else "iubf")
    # One `set` over the types is faster than a check of each value. numpy would also accept texts such as "7".
    allowed = {int, bool} if integers else {int, bool, float}
    if not isinstance(values, list | tuple) or not set(map(type, values)) <= allowed:
        return False
    # Python's integers have no limit; numpy's conversion would raise.
    return not values or (min(values) >= -(2**63) and max(values) < 2**63)


def columns_of_arrow(batch: Any, places: Places) -> tuple[Columns, list[Misfit]]:
    """Columns from an Arrow record batch. Where one holds anything but lists of numbers, as `columns_of`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = {name: name for name in KNOWN[len(IDS) :] if name in batch.schema.names}
    names |= {"input_ids": ids} if (ids := ids_name_of_schema(batch.schema)) else {}
    found = {name: batch.column(of) for name, of in names.items()}
    found = {name: column for name, column in found.items() if not pa.types.is_null(column.type)}
    if not all(_is_plain(column, fractions=name in MASK_COLUMNS) for name, column in found.items()):
        return columns_of(batch.select([*names.values()]).to_pylist(), places)
    columns = {}
    for name, column in found.items():
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
        # `flatten` respects slices, `values` would not.
        columns[name] = Column(column.flatten().to_numpy(zero_copy_only=False), lengths)
    return columns, []


def _is_plain(column: Any, *, fractions: bool) -> bool:
    """Whether an Arrow column holds lists of numbers, without a null."""
    import pyarrow as pa

    if not isinstance(column.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType) or column.null_count:
        return False
    value = column.type.value_type
    is_number = pa.types.is_integer(value) or pa.types.is_boolean(value) or (fractions and pa.types.is_floating(value))
    return is_number and not column.flatten().null_count


def token_rows(columns: Mapping[str, Column], places: Places) -> tuple[TokenRows, list[Misfit]]:
    """Rows from columns.

    Returns:
        The usable rows; and the others, empty or with columns of different lengths, as misfits, those whose texts are
        recorded wrongly among them: these are also in the rows, since ids and masks do not depend on it.
    """
    none = Column(np.zeros(0, np.int64), np.zeros(len(places.numbers), np.int64))
    ids = columns.get("input_ids", none)
    # A column that no row fills is none: then the data has no mask, and no row lacks it.
    columns = {name: column for name, column in columns.items() if name in IDS or column.lengths.any()}
    usable = ids.lengths > 0
    misfits = places.misfits("empty-row", [(row, "no ids") for row in np.flatnonzero(~usable).tolist()])
    for name in (name for name in ALIGNED if name in columns):
        lengths = columns[name].lengths
        wrong = (lengths != ids.lengths) & usable
        for row in np.flatnonzero(wrong).tolist():
            found = f" and {lengths[row]:,} {name}" if lengths[row] else f" without {name}, which other rows have"
            misfits += places.misfits("unusable-row", [(row, f"{ids.lengths[row]:,} ids{found}")])
        # A row is left out at the first column that does not fit, so it is reported once.
        usable &= ~wrong
    chosen = {name: column.select(usable) for name, column in columns.items()}
    values = {name: column.flat for name, column in chosen.items()}
    # Rows of 3 and 2 ids start at 0 and 3; the last entry is the end, 5.
    starts = np.concatenate(([0], np.cumsum(ids.lengths[usable])))
    labels, trained, origin = _trained(values)
    if STARTS in values and labels is None and trained is not None and len(trained):
        # Megatron-Bridge's masks belong to the targets: . # # | # . of two rows are . . # | . # of the tokens.
        trained = np.concatenate(([False], trained[:-1]))
        trained[starts[:-1]] = False
    attended = values["attention_mask"] > 0 if "attention_mask" in values else None
    documents, notes = _documents(chosen, starts, attended)
    of_usable = places.select(usable)
    misfits += of_usable.misfits("packing-lengths", notes)
    rows = TokenRows(
        numbers=of_usable.numbers,
        wheres=of_usable.wheres,
        ids=chosen.get("input_ids", none).flat.astype(np.int64),
        starts=starts,
        trained=trained,
        labels=labels,
        attended=attended,
        documents=documents,
        mask_from=origin,
    )
    return rows, misfits


def _trained(values: Mapping[str, npt.NDArray[Any]]) -> tuple[Int64s | None, Bools | None, str]:
    """Labels, what is trained, and the column that this comes from: labels first, else all masks, as in TRL."""
    if "labels" in values:
        labels = values["labels"].astype(np.int64)
        return labels, labels != IGNORE_INDEX, "labels"
    # TRL takes a token into the loss only if all masks that there are say so.
    masks = [name for name in MASK_COLUMNS if name in values]
    if not masks:
        return None, None, ""
    # Masks may be floats; any weight above 0 trains the token.
    return None, np.logical_and.reduce([values[name] > 0 for name in masks]), ", ".join(masks)


def _documents(columns: Mapping[str, Column], starts: Int64s, attended: Bools | None) -> tuple[Int64s | None, Notes]:
    """A number for the text of each token, from the first column that separates texts, and rows where it is wrong.

    `None` where no column separates texts.
    """
    if not starts[-1]:  # no tokens
        return None, []
    positions = columns["position_ids"].flat.astype(np.int64) if "position_ids" in columns else None
    # LLaMA-Factory and Axolotl number the texts of a packed row in its attention mask: 1 1 2 2 2 0.
    counted = columns["attention_mask"].flat.astype(np.int64) if "attention_mask" in columns else None
    if LENGTHS in columns:
        documents, notes = _by_lengths(columns[LENGTHS], starts)
    elif STARTS in columns:
        return _by_starts(columns[STARTS], starts)
    elif counted is not None and counted.max() > 1:
        documents, notes = counted, []
    else:
        return (None, []) if positions is None else _by_positions(positions, starts, attended)
    if positions is not None:
        # Where lengths do not add up, positions cannot be compared with them.
        wrong = {row for row, _ in notes}
        found = _restarts(positions, documents, starts, attended, all_of_them=LENGTHS in columns)
        notes += [note for note in found if note[0] not in wrong]
    return documents, notes


def _by_lengths(column: Column, starts: Int64s) -> tuple[Int64s, Notes]:
    """Numbers of texts from their lengths."""
    # In the examples rows have 3 and 3 tokens, and seq_lengths are [2 1] [3]: documents 1 1 2 3 3 3.
    counts, lengths = column.lengths, np.diff(starts)
    # The row of each entry: counts 2 1 give 0 0 1.
    owner = np.repeat(np.arange(len(counts)), counts)
    flat = np.clip(column.flat.astype(np.int64), -1, 1 << 40)  # above any real length; sums do not overflow
    # Of each row the sum of its lengths: 2 1 and 3 give 3 3.
    sums = np.bincount(owner, weights=flat, minlength=len(counts)).astype(np.int64)
    wrong = (sums != lengths) | (np.bincount(owner, weights=flat <= 0, minlength=len(counts)) > 0)
    notes = [
        (row, f"seq_lengths add up to {sums[row]:,} and must all be above 0; the row has {lengths[row]:,} ids")
        for row in np.flatnonzero(wrong).tolist()
    ]
    # A text begins where those before it in its row end: 0 2 3 of all rows, minus 0 0 3 for the texts of rows before.
    inside = np.concatenate(([0], np.cumsum(flat)))[:-1] - (np.cumsum(sums) - sums)[owner]
    # Lengths that do not add up would place texts outside their row.
    return _begun(starts, owner, inside, ~wrong[owner]), notes


def _by_starts(column: Column, starts: Int64s) -> tuple[Int64s, Notes]:
    """Numbers of texts from where they begin in their rows."""
    # Texts that begin at 0 2 | 0 of rows of 3 and 3 tokens are documents 1 1 2 3 3 3.
    flat = column.flat.astype(np.int64)
    owner = np.repeat(np.arange(len(column.lengths)), column.lengths)
    valid = (flat >= 0) & (flat < np.diff(starts)[owner])
    rows = np.unique(owner[~valid]).tolist()
    return _begun(starts, owner, flat, valid), [(row, "seq_start_id holds a place outside of the row") for row in rows]


def _begun(starts: Int64s, owner: Int64s, inside: Int64s, valid: Bools) -> Int64s:
    """Numbers of texts, one of which begins with every row, and where `valid` at place `inside` of the row `owner`."""
    first = np.zeros(int(starts[-1]), dtype=np.int64)
    first[starts[:-1]] = 1
    first[(starts[:-1][owner] + inside)[valid]] = 1
    return np.cumsum(first)


def _restarts(
    positions: Int64s, documents: Int64s, starts: Int64s, attended: Bools | None, *, all_of_them: bool
) -> Notes:
    """Rows whose positions restart at 0 where no text begins; with `all_of_them`, or do not where one does.

    With numbers of texts in the attention mask, positions may as well run on through a row.
    """
    begins = np.concatenate(([True], documents[1:] != documents[:-1]))
    begins[starts[:-1]] = True
    wrong = begins != (positions == 0) if all_of_them else ~begins & (positions == 0)
    if attended is not None:  # positions of padding are not used
        wrong &= attended
    where = "seq_lengths begin" if all_of_them else "attention_mask begins"
    return _of_rows(wrong, starts, f"position_ids do not restart at 0 where {where} a text")


def _by_positions(positions: Int64s, starts: Int64s, attended: Bools | None) -> tuple[Int64s, Notes]:
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
    return np.cumsum(first), _of_rows(wrong, starts, "position_ids neither count up by one nor restart at 0")


def _of_rows(wrong: Bools, starts: Int64s, note: str) -> Notes:
    """The rows with a token that is wrong."""
    rows = np.unique(np.searchsorted(starts, np.flatnonzero(wrong), side="right") - 1)
    return [(row, note) for row in rows.tolist()]
