"""`olmo`: token and mask arrays of OLMo-core, with the file names of open-instruct.

::

    OUT/train/token_ids_part_0000.npy     tokens, uint16 or uint32, without a header despite the name
    OUT/train/labels_mask_part_0000.npy   one bool a token, aligned with the tokens
    OUT/train/token_ids_part_0000.csv.gz  lines `start,end` of every row, in tokens of its part
"""

from __future__ import annotations

import gzip
import io

import numpy as np

from niels_gpt.export.formats import Format, Settings, as_tokens, token_dtype
from niels_gpt.export.rows import Int64s, Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import Shards
from niels_gpt.storage.files import HashedWriter


class Parts(Shards):
    """Writes one split."""

    def begin(self, number: int) -> None:
        """Open a part's files."""
        split = self.facts.split
        self._dtype = token_dtype(self.facts)
        self._tokens = self.set.open(f"{split}/token_ids_part_{number:04d}.npy")
        self._mask = self.set.open(f"{split}/labels_mask_part_{number:04d}.npy") if self.facts.has_mask else None
        self._rows = _GzippedPairs(self.set.open(f"{split}/token_ids_part_{number:04d}.csv.gz"))

    def append(self, rows: Rows) -> None:
        """Append rows: after 10 tokens, rows of lengths 3 2 are the lines 10,13 and 13,15."""
        self._tokens.write(as_tokens(rows.ids, self._dtype))
        if self._mask is not None:
            # One byte of 0 or 1 for each token, as numpy stores bool.
            self._mask.write(rows.trained)
        ends = self.tokens + np.cumsum(rows.lengths)
        self._rows.write(np.stack([ends - rows.lengths, ends], axis=1))

    def end(self) -> None:
        """Finish the compressed lines."""
        self._rows.close()


class _GzippedPairs:
    """Lines of two numbers, gzipped without a time stamp, so that the same rows give the same bytes."""

    def __init__(self, file: HashedWriter) -> None:
        self._file = file
        self._compressed = io.BytesIO()
        self._gzip = gzip.GzipFile(filename="", mode="wb", fileobj=self._compressed, mtime=0, compresslevel=6)

    def write(self, pairs: Int64s) -> None:
        lines = io.StringIO()
        np.savetxt(lines, pairs, fmt="%d", delimiter=",")
        self._gzip.write(lines.getvalue().encode())
        self._flush()

    def _flush(self) -> None:
        self._file.write(self._compressed.getvalue())
        self._compressed.seek(0)
        # The buffer is emptied after each write, so that memory stays flat.
        self._compressed.truncate()

    def close(self) -> None:
        self._gzip.close()
        self._flush()


def _use(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    del settings
    one = next(iter(splits.values()))
    name = np.dtype(token_dtype(one)).name
    return [
        f"NumpyPackedFSLDatasetConfig(paths=['DIRECTORY/train/token_ids_part_*.npy'], expand_glob=True, dtype={name})"
        + (", with label_mask_paths=['DIRECTORY/train/labels_mask_part_*.npy']." if one.has_mask else "."),
        "OLMo-core shifts labels and mask together; the mask is aligned with the tokens.",
        "Where OLMo-core does not read the .csv.gz, it takes every eos_token_id of its tokenizer as the end of a "
        "document: it expects one at the end of a row, and cuts conversations into turns if the template ends every "
        "turn with eos. The export appends nothing.",
    ]


OLMO = Format(
    name="olmo",
    title="token and label-mask arrays of OLMo-core, named as by open-instruct",
    open=Parts,
    use=_use,
    mask="binary",
    packs=False,
)
