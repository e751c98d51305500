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
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import Shards


class Parts(Shards):
    """Writes one split."""

    def begin(self, number: int) -> None:
        """Open a part's files."""
        split = self.facts.split
        self._dtype = token_dtype(self.facts)
        self._tokens = self.set.open(f"{split}/token_ids_part_{number:04d}.npy")
        self._mask = self.set.open(f"{split}/labels_mask_part_{number:04d}.npy") if self.facts.has_mask else None
        self._documents = self.set.open(f"{split}/token_ids_part_{number:04d}.csv.gz")
        # Compressed in memory, because the file is hashed while it is written; without name and time, so that the same
        # rows give the same bytes.
        self._compressed = io.BytesIO()
        self._gzip = gzip.GzipFile(filename="", mode="wb", fileobj=self._compressed, mtime=0, compresslevel=6)

    def append(self, rows: Rows) -> None:
        """Append rows: after 10 tokens, rows of lengths 3 2 are the lines 10,13 and 13,15."""
        # Raw values under the suffix .npy, as OLMo-core maps them.
        self._tokens.write(as_tokens(rows.ids, self._dtype))
        if self._mask is not None:
            # One byte of 0 or 1 for each token, as numpy stores bool.
            self._mask.write(rows.trained)
        ends = self.tokens + np.cumsum(rows.lengths)
        lines = io.StringIO()
        np.savetxt(lines, np.stack([ends - rows.lengths, ends], axis=1), fmt="%d", delimiter=",")
        self._gzip.write(lines.getvalue().encode())
        self._write_compressed()

    def end(self) -> None:
        """Finish the compressed lines."""
        self._gzip.close()
        self._write_compressed()

    def _write_compressed(self) -> None:
        """Write what gzip has given so far, and empty its buffer, so that memory stays flat."""
        self._documents.write(self._compressed.getvalue())
        self._compressed.seek(0)
        self._compressed.truncate()


def _use(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    del settings
    facts = next(iter(splits.values()))  # vocabulary and mask are the dataset's, equal in all splits
    name = np.dtype(token_dtype(facts)).name
    return [
        f"NumpyPackedFSLDatasetConfig(paths=['DIRECTORY/train/token_ids_part_*.npy'], expand_glob=True, dtype={name})"
        + (", with label_mask_paths=['DIRECTORY/train/labels_mask_part_*.npy']." if facts.has_mask else "."),
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
