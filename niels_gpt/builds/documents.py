"""The task that encodes documents, and what follows it in order: split, shuffle buffer, token budgets.

::

    rows --DocumentTask--> chunks --with_split--> SplitDocument, ... --shuffle buffer--> batches --TokenBudgets--> files
          (anywhere)                              (one process, in order)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.build import CacheTokenizer
from niels_gpt.builds.document_encoders import DocumentEncoder
from niels_gpt.builds.rows import batches, checked_documents
from niels_gpt.builds.splits import ValidationSplit
from niels_gpt.builds.tasks import Chunk
from niels_gpt.errors import TokenizerError
from niels_gpt.sources.inputs import Document, Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.tokenizer.sentinels import Ids, Lengths

Bools = npt.NDArray[np.bool_]

_NO_WEIGHTS: Final = np.zeros(0, dtype=np.uint8)


@dataclass(frozen=True)
class DocumentTask:
    """Encodes documents for a pretraining cache, see `tasks.Task`.

    Args:
        encoder: the tokenizer, and the ids that separate documents.
        num_threads: threads for encoding; the ids do not depend on it.
    """

    encoder: DocumentEncoder
    num_threads: int | None = None
    binary_mask: ClassVar[bool] = True
    with_metadata: ClassVar[bool] = True

    def chunks(self, rows: Iterable[str | Document | Rejected], rejections: Rejections) -> Iterator[Chunk]:
        """See `Task`.

        A row is rejected after the documents before it have been yielded. A build that stops early, because its budgets
        are full, has then counted the same bad rows however far the encoder read ahead.
        """
        for batch in batches(checked_documents(rows), _size):
            batch, ids, lengths = self._encode(batch)
            at = first = 0
            # Runs of neighbouring rows of one type: documents D, rejections R.  D D R D  ->  [D D] [R] [D]
            for kind, run in groupby(batch, type):
                if kind is Rejected:
                    rejections.record(row for row in run if isinstance(row, Rejected))
                    continue
                own = [row for row in run if isinstance(row, Document)]
                counts = lengths[first : first + len(own)]
                end = at + int(counts.sum())
                groups, metadata = [row.group for row in own], [_row_metadata(row) for row in own]
                yield Chunk(ids[at:end], counts, _NO_WEIGHTS, groups, metadata)
                at, first = end, first + len(own)

    def _encode(self, batch: list[Document | Rejected]) -> tuple[list[Document | Rejected], Ids, Lengths]:
        """The ids and lengths of a batch's documents; and the batch, with `Rejected` for those that have no ids."""
        texts = [row.text for row in batch if isinstance(row, Document)]
        try:
            return batch, *self.encoder.encode(texts, num_threads=self.num_threads)
        except TokenizerError:
            if isinstance(self.encoder.tokenizer, CacheTokenizer):
                raise  # the tokenizer is unusable, not a text
        checked = [self._checked(row) for row in batch]
        texts = [row.text for row in checked if isinstance(row, Document)]
        return checked, *self.encoder.encode(texts, num_threads=self.num_threads)

    def _checked(self, row: Document | Rejected) -> Document | Rejected:
        """The row, `Rejected` if its text cannot be encoded as text, such as one that only spells a control token."""
        if isinstance(row, Document):
            try:
                self.encoder.encode([row.text])
            except TokenizerError as error:
                return Rejected(row.where, "not_encodable", f"{row.where}: {error}")
        return row


def _size(row: Document | Rejected) -> int:
    return len(row.text if isinstance(row, Document) else row.detail)


def _row_metadata(document: Document) -> dict[str, Any]:
    return {"characters": len(document.text), "split": document.split}


@dataclass(frozen=True, slots=True)
class SplitDocument:
    """A document's ids and its split.

    Attributes:
        characters: length of its text; batches are formed by this size.
        val: it was drawn for validation.
    """

    ids: npt.NDArray[np.integer[Any]]
    characters: int
    val: bool


def with_split(chunks: Iterable[Chunk], split: ValidationSplit) -> Iterator[SplitDocument]:
    """The documents one by one, each with its split: the one its source names, else a random draw."""
    for chunk in chunks:
        ends = np.cumsum(chunk.lengths)  # lengths 3 2 4: ends 3 5 9, starts 0 3 5
        starts = (ends - chunk.lengths).tolist()
        for start, end, group, metadata in zip(starts, ends.tolist(), chunk.groups, chunk.metadata, strict=True):
            val = metadata["split"] == "val" if metadata["split"] else split.draw(group)
            ids = chunk.ids[start:end].copy()  # a view would retain the whole chunk in memory
            yield SplitDocument(ids, metadata["characters"], val)


def concatenated(batch: Sequence[SplitDocument]) -> tuple[npt.NDArray[np.integer[Any]], Lengths, Bools]:
    """The ids of some documents concatenated, their lengths, and which of them were drawn for val."""
    lengths = np.fromiter((len(document.ids) for document in batch), dtype=np.int64, count=len(batch))
    in_val = np.fromiter((document.val for document in batch), dtype=np.bool_, count=len(batch))
    return np.concatenate([document.ids for document in batch]), lengths, in_val


class TokenBudgets:
    """How many tokens each split may still receive, and which documents go where because of that.

    Args:
        budgets: tokens by split.

    Attributes:
        documents: number of documents assigned so far, by split.
    """

    def __init__(self, budgets: dict[str, int]) -> None:
        self._left = dict(budgets)
        self.documents = dict.fromkeys(budgets, 0)

    @property
    def full(self) -> bool:
        """The budgets of all splits are used up."""
        return not any(self._left.values())

    def assign(self, in_val: Bools, lengths: Lengths) -> dict[str, Bools]:
        """Which documents go to each split, as masks by split: the drawn one if its budget has room, else the other.

        A document goes to a split if it begins within the remaining budget, so the last one may exceed it and is cut by
        `cut`. With 5 tokens left, lengths 3 3 3 begin at 0 3 6, so two documents are assigned.
        """
        val = in_val & self._begin_inside(in_val, lengths, "val")
        train = ~val & self._begin_inside(~val, lengths, "train")
        val |= ~train
        val &= self._begin_inside(val, lengths, "val")
        chosen = {"train": train, "val": val}
        for split, documents in chosen.items():
            self.documents[split] += int(documents.sum())
        return chosen

    def _begin_inside(self, chosen: Bools, lengths: Lengths, split: str) -> Bools:
        taken = np.where(chosen, lengths, 0)
        inside: Bools = np.cumsum(taken) - taken < self._left[split]
        return inside

    def cut(self, split: str, ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
        """The first ids that fit into the split's budget, which they reduce."""
        fitting = ids[: self._left[split]]
        self._left[split] -= len(fitting)
        return fitting
