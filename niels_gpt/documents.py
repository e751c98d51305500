"""Texts -> ids, wherever that is done, and the choices that follow, which depend on the documents' order.

::

    rows --DocumentWork--> portions --drawn--> documents, each for train or val --shuffle, Rooms--> files
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.builds import CacheTokenizer, check_ids
from niels_gpt.format.rows import batches, judged_documents
from niels_gpt.inputs import Document, Rejected
from niels_gpt.portions import Portion
from niels_gpt.sources.rejections import Rejections
from niels_gpt.splits import ValidationSplit
from niels_gpt.tokenizer.sentinels import Ids, Lengths, encode_ordinary, sentinel_ids

Bools = npt.NDArray[np.bool_]

_NO_WEIGHTS: Final = np.zeros(0, dtype=np.uint8)


@dataclass(frozen=True)
class DocumentWork:
    """The work of a pretraining cache: see `portions.Work`.

    Args:
        separate: an end-of-turn id after each document.
        num_threads: for encoding; the result does not depend on it.
    """

    tokenizer: CacheTokenizer
    separate: bool
    num_threads: int | None = None
    whole: ClassVar[bool] = True
    metadata: ClassVar[bool] = True

    def portions(self, rows: Iterable[str | Document | Rejected], rejections: Rejections) -> Iterator[Portion]:
        """See `Work`. A row is rejected when all documents before it have come out, so that a build that has enough
        and stops there has met the same bad rows, however far was read ahead.
        """
        for batch in batches(judged_documents(rows), _size):
            documents = [row for row in batch if isinstance(row, Document)]
            ids, lengths = self._encode([document.text for document in documents])
            at = first = 0
            for kind, run in groupby(batch, type):
                if kind is Rejected:
                    rejections.take(row for row in run if isinstance(row, Rejected))
                    continue
                own = [row for row in run if isinstance(row, Document)]
                counts = lengths[first : first + len(own)]
                end = at + int(counts.sum())
                groups, facts = [row.group for row in own], [_facts(row) for row in own]
                yield Portion(ids[at:end], counts, _NO_WEIGHTS, groups, facts)
                at, first = end, first + len(own)

    def _encode(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        """The documents' ids one after the other, each followed by an end-of-turn id if they are separate."""
        ids, lengths = encode_ordinary(self.tokenizer, texts, num_threads=self.num_threads)
        if self.separate:
            ids = np.insert(ids, np.cumsum(lengths), sentinel_ids(self.tokenizer)["eot"])
            lengths = lengths + 1
        check_ids(ids, self.tokenizer.vocab_size)
        return ids, lengths


def _size(row: Document | Rejected) -> int:
    return len(row.text if isinstance(row, Document) else row.detail)


def _facts(document: Document) -> dict[str, Any]:
    return {"characters": len(document.text), "split": document.split}


@dataclass(frozen=True, slots=True)
class DrawnDocument:
    """A document's ids and the side of the split that it was drawn for.

    Attributes:
        characters: of its text, by which documents are taken together.
    """

    ids: npt.NDArray[np.integer[Any]]
    characters: int
    val: bool


def drawn(portions: Iterable[Portion], split: ValidationSplit) -> Iterator[DrawnDocument]:
    """The documents one by one, those that name their split where they belong."""
    for portion in portions:
        ends = np.cumsum(portion.lengths)
        starts = (ends - portion.lengths).tolist()
        for start, end, group, facts in zip(starts, ends.tolist(), portion.groups, portion.facts, strict=True):
            val = facts["split"] == "val" if facts["split"] else split.draw(group)
            ids = portion.ids[start:end].copy()  # one document in a shuffle buffer must not hold a million others
            yield DrawnDocument(ids, facts["characters"], val)


def joined(batch: Sequence[DrawnDocument]) -> tuple[npt.NDArray[np.integer[Any]], Lengths, Bools]:
    """The ids of some documents one after the other, the lengths, and who was drawn for val."""
    lengths = np.fromiter((len(document.ids) for document in batch), dtype=np.int64, count=len(batch))
    in_val = np.fromiter((document.val for document in batch), dtype=np.bool_, count=len(batch))
    return np.concatenate([document.ids for document in batch]), lengths, in_val


class Rooms:
    """How many tokens each split may still take, and which documents therefore go where.

    Attributes:
        documents: how many went to each split so far.
    """

    def __init__(self, budgets: dict[str, int]) -> None:
        self._left = dict(budgets)
        self.documents = dict.fromkeys(budgets, 0)

    @property
    def full(self) -> bool:
        """Nothing more fits anywhere."""
        return not any(self._left.values())

    def assign(self, in_val: Bools, lengths: Lengths) -> dict[str, Bools]:
        """Which documents go to each split: the one drawn while it has room, else the other while that has.

        A document belongs to a split if it begins within the split's room; with room 5, lengths 3 3 3 give two.
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
        """The ids that fit; they are taken off the split's room."""
        kept = ids[: self._left[split]]
        self._left[split] -= len(kept)
        return kept
