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
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from niels_gpt.errors import UsageError
from niels_gpt.export.formats import Format, Settings
from niels_gpt.export.source import Source
from niels_gpt.inputs.megatron import MAGIC, VERSION
from niels_gpt.store.checksums import FileRecord
from niels_gpt.store.files import HashedWriter
from niels_gpt.store.gather import Int64s
from niels_gpt.store.rows import Rows

DTYPE_CODES = {"|u1": 1, "<i4": 4, "<u2": 8}
CHUNK = 1 << 17  # lengths that are read at once: 1 MB
SMALL_VOCABULARY = 65_499  # Megatron itself writes uint16 for vocabularies below 65 500 ids


class IndexedDataset:
    """Writes one split: tokens, mask, and both indexes."""

    def __init__(self, folder: Path, source: Source, settings: Settings) -> None:
        del settings
        name, vocab_size = source.split.name, source.dataset.vocab_size
        # By the vocabulary, not by the ids of this split: splits and later exports must have the same dtype.
        is_small = vocab_size is not None and vocab_size <= SMALL_VOCABULARY
        self._dtypes = {name: "<u2" if is_small else "<i4"}
        if source.has_mask:
            self._dtypes[f"{name}_mask"] = "|u1"
        self.files: dict[str, FileRecord] = {}
        self._folder, self._n = folder, 0
        self._data = [HashedWriter(folder / f"{stem}.bin") for stem in self._dtypes]
        # int64. The header of an index holds the number of rows, which is known at the end only; memory stays flat.
        self._lengths = HashedWriter(folder / f".{name}_lengths.partial")

    def write(self, rows: Rows) -> None:
        """Append rows, one sequence each."""
        # The index would wrap around silently.
        if rows.lengths.max(initial=0) > np.iinfo(np.int32).max:
            raise UsageError(f"a row of {int(rows.lengths.max()):,} tokens; megatron stores lengths as int32")
        # Ids are below the vocabulary; where none is recorded, they may be anything.
        values = (rows.signed_ids(), rows.trained)
        for file, of_file, dtype in zip(self._data, values, self._dtypes.values(), strict=False):
            file.write(of_file.astype(dtype, copy=False))
        self._lengths.write(rows.lengths.astype(np.int64, copy=False))
        self._n += len(rows)

    def close(self) -> None:
        """Finish the files, and write the indexes."""
        self._lengths.close()
        for (stem, dtype), file in zip(self._dtypes.items(), self._data, strict=True):
            self.files[file.path.name] = file.close()
            index = HashedWriter(self._folder / f"{stem}.idx")
            try:
                self._write_index(index, dtype)
                self.files[index.path.name] = index.close()
            finally:
                index.abandon()
        self._lengths.path.unlink()

    def _write_index(self, index: HashedWriter, dtype: str) -> None:
        """Write an index: rows of 3 2 tokens of two bytes have lengths 3 2, starts 0 6 and the document list 0 1 2."""
        n, size, before = self._n, np.dtype(dtype).itemsize, 0
        # Little-endian, without padding: version, dtype code, sequences, documents (every row is one) and the end.
        index.write(MAGIC + struct.pack("<QBQQ", VERSION, DTYPE_CODES[dtype], n, n + 1))
        for lengths in self._chunks():
            index.write(lengths.astype("<i4"))
        for lengths in self._chunks():
            # `before` carries the end of one chunk into the next.
            ends: Int64s = before + size * np.cumsum(lengths)
            index.write((ends - size * lengths).astype("<i8"))
            before = int(ends[-1])
        # In pieces: the list has 8 bytes a row.
        for first in range(0, n + 1, CHUNK):
            index.write(np.arange(first, min(first + CHUNK, n + 1), dtype="<i8"))

    def _chunks(self) -> Iterator[Int64s]:
        """The lengths of all rows, some at a time."""
        with self._lengths.path.open("rb") as file:
            while data := file.read(8 * CHUNK):
                yield np.frombuffer(data, dtype=np.int64)

    def abandon(self) -> None:
        """Close and delete unfinished files; does nothing after `close`."""
        for file in (*self._data, self._lengths):
            file.abandon()


def _use(settings: Settings, splits: dict[str, Source]) -> list[str]:
    del settings
    lines = [
        "Give Megatron the path without its suffix: --data-path DIRECTORY/train, or IndexedDataset('DIRECTORY/train').",
        "Rows are exported as they are, without an additional end-of-document token. Whether --eod-mask-loss, "
        "--reset-position-ids and --reset-attention-mask work depends on the token that ends your rows.",
    ]
    if any(source.has_mask for source in splits.values()):
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
