"""`datatrove`: tokenized files as the tokenizer step of datatrove writes them, for nanotron.

::

    OUT/train/00000.ds            tokens, uint16 or uint32, no header
    OUT/train/00000.ds.index      where every row ends, in tokens, uint64
    OUT/train/00000.ds.loss       one byte a token, 1 where it is trained
    OUT/train/00000.ds.metadata   three lines: tokenizer and bytes a token, the number of tokens, that number for people
"""

from __future__ import annotations

import numpy as np

from niels_gpt.export.formats import Format, Settings, as_tokens, token_dtype
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import Shards


class TokenizedFiles(Shards):
    """Writes one split."""

    def begin(self, number: int) -> None:
        """Open a shard's files."""
        self._dtype = token_dtype(self.facts)
        self._name = f"{self.facts.split}/{number:05d}.ds"
        self._tokens = self.set.open(self._name)
        self._ends = self.set.open(f"{self._name}.index")
        # Without a mask everything is trained, and no file says so.
        self._loss = self.set.open(f"{self._name}.loss") if self.facts.has_mask else None

    def append(self, rows: Rows) -> None:
        """Append rows: after 10 tokens, rows of lengths 3 2 end at 13 15."""
        self._tokens.write(as_tokens(rows.ids, self._dtype))
        # The ends of documents, counted from the start of the shard.
        self._ends.write((self.tokens + np.cumsum(rows.lengths)).astype("<u8"))
        if self._loss is not None:
            self._loss.write(rows.trained)

    def end(self) -> None:
        """Write the metadata."""
        tokenizer = self.facts.tokenizer_sha256 or "unknown"
        width = np.dtype(self._dtype).itemsize
        # datatrove writes the number again for people: 1 234 567 is `1.23 MT`, 12 is `12 T`.
        units = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"), (1, ""))
        size, unit = next(scale for scale in units if self.tokens >= scale[0] or scale[0] == 1)
        # Three lines: tokenizer and bytes per token, the number of tokens, and the same for people.
        text = f"{tokenizer}|{width}\n{self.tokens}\n{self.tokens / size:.3g} {unit}T"
        self.set.open(f"{self._name}.metadata").write(text.encode())


def _use(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    del settings
    # The files do not say how wide tokens are, and datatrove's reader assumes two bytes.
    width = np.dtype(token_dtype(next(iter(splits.values())))).itemsize
    return [
        f"DatatroveFolderDataset('DIRECTORY/train', seq_len=..., token_size={width}, return_positions=True)",
        "Its windows of seq_len + 1 tokens cross rows; it computes positions from the .index files.",
        "The mask is in .ds.loss, aligned with the tokens; datatrove's dataset classes do not read it.",
    ]


DATATROVE = Format(
    name="datatrove",
    title="tokenized .ds files of datatrove, for nanotron",
    open=TokenizedFiles,
    use=_use,
    mask="binary",
    packs=False,
)
