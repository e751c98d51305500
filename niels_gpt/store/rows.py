"""Rows of ids, and `Split`: how those of any dataset are read.

::

    dataset = open_dataset("cache/chats")          Dataset   .kind .manifest .vocab_size .special_token_ids
    train = dataset.splits["train"]                Split     len(train), .lengths
    train.row(17).ids                              Row       one row
    train.rows(np.array([17, 3]))                  Rows      some rows, one after the other in flat arrays
    for rows in train.chunks(1 << 20): ...                   the whole split, about a million tokens at a time

    kind        a row is
    pretrain    a document (`DocumentSplit`), or a training window
    sft         an example; a file of masks, or the sentinels among its ids, decide what is trained
    episodes    an episode, or a packed row of several texts

Memory grows with the rows that are read, not with the dataset. Nothing loops over tokens or rows in Python.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.display.html import notebook_html
from niels_gpt.display.rows import TokenRow, spelling_of, weighted_row
from niels_gpt.display.terminal import PREVIEW_TOKENS, in_colour, terminal_text
from niels_gpt.errors import UsageError
from niels_gpt.store.gather import CHUNK_ROWS, CHUNK_TOKENS, Array, Int64s, gather, row_starts, slices_of_tokens
from niels_gpt.store.index_sets import IndexSet, Span
from niels_gpt.store.masks import IGNORE_INDEX

Bools = npt.NDArray[np.bool_]
Tokens = npt.NDArray[np.unsignedinteger[Any]]
TokenText = Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a split.

    Attributes:
        number: its number in the split.
        ids: unsigned integers of shape (tokens,), in the dtype of the files.
        weights: the loss weight of each token when it is the target: uint8 of 0 and 1, or float32. `None` where the
            dataset records none, which trains every token.
        segment_ids: of each token; another text begins where they change. `None` where a row is one text.
        load_text: returns the text of an id, if a tokenizer is available; called only to show the row.

    `show()` prints it in colour; a notebook shows coloured tokens.
    """

    number: int
    ids: Tokens
    weights: Array | None = None
    segment_ids: Array | None = None
    load_text: Callable[[], TokenText | None] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        """One line of counts; the arrays are attributes."""
        return f"<Row {self.number:,}: {self._counts()}>"

    def _counts(self) -> str:
        trained = int(np.count_nonzero(self.trained))
        texts = 1 if self.segment_ids is None else 1 + int(np.count_nonzero(np.diff(self.segment_ids)))
        # A new text begins where the number changes: 0 0 1 1 1 2 has two changes, so three texts.
        packed = f", {texts:,} texts" if texts > 1 else ""
        return f"{len(self.ids):,} tokens, {trained:,} trained{packed}"

    def shown(self) -> TokenRow:
        """The row as `niels_gpt.display` shows it."""
        weights = np.ones(len(self.ids), np.uint8) if self.weights is None else self.weights
        heading = f"row {self.number:,}: {self._counts()}"
        return weighted_row(self.ids, weights, self.segment_ids, heading=heading)

    def _spelling(self, tokenizer: Any) -> TokenText | None:
        """By the tokenizer that was passed, else by the dataset's, if that is available."""
        if tokenizer is None and self.load_text is not None:
            return self.load_text()
        return spelling_of(tokenizer)

    def __str__(self) -> str:
        """In a terminal also the first tokens in colour, elsewhere the same as `repr`."""
        if not in_colour():
            return repr(self)
        return f"{self!r}\n{terminal_text([self.shown()], self._spelling(None), most=PREVIEW_TOKENS)}"

    def show(self, tokenizer: Any = None) -> None:
        """Print the row in colour.

        Args:
            tokenizer: anything with `decode(ids)`, or a function from an id to its text; default the tokenizer that
                is beside the dataset; if there is none, ids are shown.

        Raises:
            UsageError: the tokenizer cannot decode.
        """
        print(terminal_text([self.shown()], self._spelling(tokenizer)), end="")

    def _repr_html_(self) -> str:
        """Coloured tokens for notebooks, the place, id and weight of each in its tooltip."""
        return notebook_html(self._counts(), [self.shown()], self._spelling(None))

    @property
    def trained(self) -> Bools:
        """Which tokens are in the loss, bool of shape (tokens,)."""
        return np.ones(len(self.ids), np.bool_) if self.weights is None else np.asarray(self.weights > 0)


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows, one after the other.

    ::

        numbers  7 3
        starts   0 3 5            row 7 is ids[0:3], row 3 is ids[3:5]
        ids      a b c d e
        weights  0 1 1 0 1        aligned with the ids

    Attributes:
        numbers: the rows' numbers in the split, int64 of shape (rows,).
        starts: int64 of shape (rows + 1,).
        ids, weights, segment_ids: as in `Row`, of shape (tokens,).

    Exports and imports read and write rows whose weights are 0 wherever a text begins (`rows_of`): nothing predicts
    the first token of a text, so it is never trained.
    """

    numbers: Int64s
    starts: Int64s
    ids: Tokens
    weights: Array | None = None
    segment_ids: Array | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        """One line of counts; the arrays are attributes."""
        trained = len(self.ids) if self.weights is None else int(np.count_nonzero(self.weights))
        return f"<Rows: {len(self):,} rows, {len(self.ids):,} tokens, {trained:,} trained>"

    @property
    def lengths(self) -> Int64s:
        """The tokens of each row, int64 of shape (rows,)."""
        return np.diff(self.starts)

    def __getitem__(self, at: int) -> Row:
        """The row at a place of `numbers`."""
        # Views of the flat arrays, not copies.
        here = slice(int(self.starts[at]), int(self.starts[at + 1]))
        weights, segments = (None if values is None else values[here] for values in (self.weights, self.segment_ids))
        return Row(int(self.numbers[at]), self.ids[here], weights, segments)

    @cached_property
    def begins(self) -> Bools:
        """True where a text begins, with a row or inside one; bool of shape (tokens,)."""
        found = np.zeros(len(self.ids), dtype=np.bool_)
        if self.segment_ids is not None:
            # Segments 0 0 1 | 1 1 of two rows: texts begin at 0 2, and at 3 with the row.
            found[1:] = self.segment_ids[1:] != self.segment_ids[:-1]
        found[self.starts[:-1]] = True
        return found

    @property
    def trained(self) -> Bools:
        """True on trained tokens, bool of shape (tokens,)."""
        return np.ones(len(self.ids), np.bool_) if self.weights is None else np.asarray(self.weights > 0)

    def text_lengths(self) -> Int64s:
        """The lengths of all texts, int64 of shape (texts,)."""
        return np.diff(np.flatnonzero(self.begins), append=len(self.ids))

    def texts_per_row(self) -> Int64s:
        """How many texts each row has, int64 of shape (rows,)."""
        # Flags 1 0 1 | 1 0 of rows that start at 0 3: 2 texts and 1.
        counts: Int64s = np.add.reduceat(self.begins, self.starts[:-1], dtype=np.int64)
        return counts

    def labels(self) -> npt.NDArray[np.int32]:
        """The ids where they are trained and -100 elsewhere, **unshifted**: label i is for token i.

        Raises:
            UsageError: an id that int32 does not hold.
        """
        return np.where(self.trained, self.signed_ids(), np.int32(IGNORE_INDEX))

    def signed_ids(self) -> npt.NDArray[np.int32]:
        """The ids as int32.

        Raises:
            UsageError: an id that int32 does not hold.
        """
        if self.ids.size and self.ids.max() > np.iinfo(np.int32).max:
            raise UsageError(
                f"id {int(self.ids.max())} does not fit into int32, as this format stores ids; check the tokenizer"
            )
        return self.ids.astype(np.int32)

    def spans(self, numbers: Int64s, starts: Int64s, lengths: Int64s) -> Rows:
        """Rows of these spans of the tokens."""
        parts = (self.ids, self.weights, self.segment_ids)
        ids, weights, segments = (None if part is None else gather(part, starts, lengths) for part in parts)
        assert ids is not None
        return Rows(numbers, row_starts(lengths), ids, weights, segments)

    def take(self, places: npt.NDArray[np.integer[Any]]) -> Rows:
        """The rows at some places of `numbers`, in this order."""
        return self.spans(self.numbers[places], self.starts[places], self.lengths[places])


def rows_of(ids: Tokens, lengths: Int64s, weights: Array | None) -> Rows:
    """Rows of one text each, numbered from 0, whose weights are 0 where they begin; `None`: everything is trained."""
    return without_first(Rows(np.arange(len(lengths)), row_starts(lengths), ids, weights))


def without_first(rows: Rows) -> Rows:
    """The rows with weights that are 0 wherever a text begins."""
    # A copy, since the weights may be a view of a mapped file.
    weights = np.ones(len(rows.ids), dtype=np.uint8) if rows.weights is None else rows.weights.copy()
    weights[rows.begins] = 0
    return replace(rows, weights=weights)


class Split(ABC):
    """One split of a dataset: rows that can be read in any order.

    Attributes:
        name: "train" or "val".
        n_tokens: how many tokens the split's files hold.
        load_text: returns the text of an id, if a tokenizer is available; called only to show rows.
    """

    name: str
    n_tokens: int
    load_text: Callable[[], TokenText | None] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def lengths_of(self, numbers: IndexSet) -> Int64s:
        """The tokens of some rows, int64 of the same shape; no other rows are read."""

    @abstractmethod
    def rows(self, numbers: Int64s) -> Rows:
        """Some rows, in the order of `numbers` (0 to len - 1, not checked)."""

    @abstractmethod
    def describe(self, number: int) -> str:
        """Which row this is, for messages: the file and the record in it."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal for equal content, wherever it is stored: 32 hex digits."""

    @cached_property
    def lengths(self) -> Int64s:
        """The tokens of every row, int64 of shape (rows,): 8 bytes a row, held in memory after the first use."""
        return self.lengths_of(Span(0, len(self)))

    def row(self, number: int) -> Row:
        """One row.

        Raises:
            UsageError: there is no such row.
        """
        if not 0 <= number < len(self):
            # Negative numbers are refused as well: arrays would take them from the end.
            rows = f"rows 0 to {len(self) - 1:,}" if len(self) else "no rows"
            raise UsageError(f"{self.name} has {rows}; there is no row {number:,}")
        return replace(self.rows(np.array([number]))[0], load_text=self.load_text)

    def __repr__(self) -> str:
        """One line; counting the documents of a pretraining split would read all of it, so tokens are counted."""
        return f"<Split {self.name}: {self.n_tokens:,} tokens>"

    def first_rows(self, n: int) -> list[Row]:
        """The first `n` rows, or all; reads little more than these, also of a split whose rows must be searched for."""
        found: list[Row] = []
        # Not `self.row(n)`: documents of pretraining caches are only found by reading from the beginning.
        for rows in self.chunks(PREVIEW_TOKENS):
            found += [replace(rows[at], load_text=self.load_text) for at in range(min(len(rows), n - len(found)))]
            if len(found) >= n:
                break
        return found

    def chunks(self, max_tokens: int = CHUNK_TOKENS) -> Iterator[Rows]:
        """All rows in order, about `max_tokens` tokens at a time; a longer row comes alone."""
        # Lengths are looked up for some rows at a time, so that they need little memory for any number of rows.
        for first in range(0, len(self), CHUNK_ROWS):
            numbers = np.arange(first, min(first + CHUNK_ROWS, len(self)))
            for part in slices_of_tokens(self.lengths_of(numbers), max_tokens):
                yield self.rows(numbers[part])

    def __iter__(self) -> Iterator[Row]:
        for rows in self.chunks():
            for at in range(len(rows)):
                yield replace(rows[at], load_text=self.load_text)
