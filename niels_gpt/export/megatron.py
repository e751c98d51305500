"""`megatron`: IndexedDataset files of Megatron-LM and Megatron-core, and the mask as a second dataset beside them.

::

    OUT/train.bin        all tokens, uint16 or int32, no header
    OUT/train.idx        how many tokens each sequence has, where it starts, which document it is
    OUT/train_mask.bin   uint8, 1 where a token is trained; with an index of its own, so the same reader opens it

The index, little-endian: 9 bytes of magic, version, a code for the dtype, the number of sequences and of entries in
the document list; then lengths (int32), starts in bytes (int64) and the document list (int64), which begins with 0.
Each row is a sequence and a document of its own.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from niels_gpt.errors import UsageError
from niels_gpt.export.filesets import FileSet, Spool
from niels_gpt.export.formats import Format, Settings, as_tokens, token_dtype
from niels_gpt.export.rows import Int64s, Rows
from niels_gpt.export.source import Facts

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPE_CODES = {"|u1": 1, "<i4": 4, "<u2": 8}
SMALL_VOCABULARY = 65_499  # Megatron's own choice: uint16 below 65 500 ids


class IndexedDataset:
    """Writes one split: tokens, mask, and both indexes."""

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        del settings
        self._set, self._name, self._folder = FileSet(folder), facts.split, folder
        self._dtype = token_dtype(facts, most_uint16=SMALL_VOCABULARY, wide="<i4")
        self._tokens = self._set.open(f"{facts.split}.bin")
        self._mask = self._set.open(f"{facts.split}_mask.bin") if facts.has_mask else None
        self._lengths = Spool(folder / f".{facts.split}_lengths.partial")
        self.files = self._set.files

    def write(self, rows: Rows) -> None:
        """Append rows, each a sequence."""
        if rows.lengths.max(initial=0) > np.iinfo(np.int32).max:
            raise UsageError(f"a row of {int(rows.lengths.max()):,} tokens; megatron counts them in int32")
        self._tokens.write(as_tokens(rows.ids, self._dtype))
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
        """Lengths 3 2 of two-byte tokens: lengths 3 2, starts 0 6, documents 0 1 2."""
        index, n, size = self._set.open(name), self._lengths.n, np.dtype(dtype).itemsize
        index.write(MAGIC + struct.pack("<QBQQ", VERSION, DTYPE_CODES[dtype], n, n + 1))
        for lengths in self._lengths.chunks():
            index.write(lengths.astype("<i4"))
        before = 0
        for lengths in self._lengths.chunks():
            ends: Int64s = before + size * np.cumsum(lengths)
            index.write((ends - size * lengths).astype("<i8"))
            before = int(ends[-1])
        for first in range(0, n + 1, 1 << 17):
            index.write(np.arange(first, min(first + (1 << 17), n + 1), dtype="<i8"))

    def abandon(self) -> None:
        """Let go of unfinished files; harmless after `close`."""
        self._set.abandon()
        self._lengths.remove()


def _use(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    del settings
    lines = [
        "Give Megatron the path without its suffix: --data-path DIRECTORY/train, or IndexedDataset('DIRECTORY/train').",
        "Rows go out as they are: no end-of-document is appended, so do not pass --append-eod again, and set "
        "--eod-mask-loss, --reset-position-ids and --reset-attention-mask by the token that ends your rows.",
    ]
    if any(facts.has_mask for facts in splits.values()):
        lines.append(
            "Megatron's GPTDataset knows no mask. It lies beside the tokens as a dataset of its own (train_mask), "
            "aligned with the tokens, not with the labels; a dataset class of yours must read both. For SFT without "
            "code of your own, export to megatron-bridge."
        )
    return lines


MEGATRON = Format(
    name="megatron",
    title=".bin and .idx of Megatron-LM and Megatron-core, mask beside them",
    open=IndexedDataset,
    use=_use,
    mask="binary",
    packs=False,
)
