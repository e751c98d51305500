"""`megatron`: IndexedDataset files of Megatron-LM and Megatron-core, with the mask as a second dataset.

::

    OUT/train.bin        all tokens, uint16 or int32, no header
    OUT/train.idx        how many tokens each sequence has, where it starts, which document it is
    OUT/train_mask.bin   uint8, 1 where a token is trained; with an index of its own, so the same reader opens it

The index, little-endian::

    magic (9 bytes) | version (u8) | dtype code (u1) | number of sequences n (u8) | entries in the document list (u8)
    lengths (n x i4) | starts in bytes (n x i8) | document list (i8), which begins with 0

Each row is a sequence and a document of its own.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from niels_gpt.errors import UsageError
from niels_gpt.export.formats import Format, Settings
from niels_gpt.export.rows import Int64s, Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import FileSet, Spool

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPE_CODES = {"|u1": 1, "<i4": 4, "<u2": 8}
SMALL_VOCABULARY = 65_499  # Megatron itself writes uint16 for vocabularies below 65 500 ids


class IndexedDataset:
    """Writes one split: tokens, mask, and both indexes."""

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        del settings
        self._set, self._name = FileSet(folder), facts.split
        # By the vocabulary, not by the ids of this split: splits and later exports must have the same dtype.
        is_small = facts.vocab_size is not None and facts.vocab_size <= SMALL_VOCABULARY
        self._dtype = "<u2" if is_small else "<i4"
        self._tokens = self._set.open(f"{facts.split}.bin")
        self._mask = self._set.open(f"{facts.split}_mask.bin") if facts.has_mask else None
        # The header of the index holds the number of rows, which is known at the end only.
        self._lengths = Spool(folder / f".{facts.split}_lengths.partial")
        self.files = self._set.files

    def write(self, rows: Rows) -> None:
        """Append rows, one sequence each."""
        # The index would wrap around silently.
        if rows.lengths.max(initial=0) > np.iinfo(np.int32).max:
            raise UsageError(f"a row of {int(rows.lengths.max()):,} tokens; megatron stores lengths as int32")
        # Ids are below the vocabulary; where none is recorded, they may be anything.
        self._tokens.write(rows.signed_ids().astype(self._dtype, copy=False))
        if self._mask is not None:
            self._mask.write(rows.trained.astype(np.uint8))
        self._lengths.write(rows.lengths)

    def close(self) -> None:
        """Write the indexes."""
        self._lengths.close()
        self._write_index(f"{self._name}.idx", self._dtype)
        if self._mask is not None:
            self._write_index(f"{self._name}_mask.idx", "|u1")
        self._set.finish()
        self._lengths.remove()

    def _write_index(self, name: str, dtype: str) -> None:
        """Write an index: rows of 3 2 tokens of two bytes have lengths 3 2, starts 0 6 and the document list 0 1 2."""
        # Tokens and mask have the same rows, so both indexes are written from the same lengths.
        index, n, size = self._set.open(name), self._lengths.n, np.dtype(dtype).itemsize
        # Little-endian, without padding: version, dtype code, sequences, documents (every row is one) and the end.
        index.write(MAGIC + struct.pack("<QBQQ", VERSION, DTYPE_CODES[dtype], n, n + 1))
        for lengths in self._lengths.chunks():
            index.write(lengths.astype("<i4"))
        before = 0
        for lengths in self._lengths.chunks():
            # `before` carries the end of one chunk into the next.
            ends: Int64s = before + size * np.cumsum(lengths)
            index.write((ends - size * lengths).astype("<i8"))
            before = int(ends[-1])
        # In pieces: the list has 8 bytes a row.
        for first in range(0, n + 1, 1 << 17):
            index.write(np.arange(first, min(first + (1 << 17), n + 1), dtype="<i8"))

    def abandon(self) -> None:
        """Close and delete unfinished files; does nothing after `close`."""
        self._set.abandon()
        self._lengths.remove()


def _use(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    del settings
    lines = [
        "Give Megatron the path without its suffix: --data-path DIRECTORY/train, or IndexedDataset('DIRECTORY/train').",
        "Rows are exported as they are, without an additional end-of-document token. Whether --eod-mask-loss, "
        "--reset-position-ids and --reset-attention-mask work depends on the token that ends your rows.",
    ]
    if any(facts.has_mask for facts in splits.values()):
        lines.append(
            "Megatron's GPTDataset does not read a mask. It is a second dataset (train_mask), aligned with the tokens, "
            "not with the labels; a dataset class of yours must read both. For SFT without code of your own, export "
            "to megatron-bridge."
        )
    return lines


MEGATRON = Format(
    name="megatron",
    title=".bin and .idx of Megatron-LM and Megatron-core, mask as a second dataset",
    open=IndexedDataset,
    use=_use,
    mask="binary",
    packs=False,
)
