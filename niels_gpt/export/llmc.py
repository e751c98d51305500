"""`llmc`: token files of llm.c and of the speed-run repositories based on it.

::

    OUT/tokens_train_000000.bin    256 int32 of header (magic, version, number of tokens), then the tokens

uint16 has magic 20240520 and version 1, uint32 magic 20240801 and version 7. A file holds fewer than 2**31 tokens.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from niels_gpt.errors import UsageError, storage_errors
from niels_gpt.export.formats import Format, Settings, as_tokens, token_dtype
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import Shards
from niels_gpt.storage.checksums import FileRecord, file_record

HEADER = 256  # int32 numbers
MAGIC_AND_VERSION = {"<u2": (20240520, 1), "<u4": (20240801, 7)}
MOST_TOKENS = 2**31 - 1  # the header counts tokens in int32


class TokenFiles(Shards):
    """Writes one split. The header holds the number of tokens, so it is written last, over a blank one."""

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        super().__init__(folder, facts, settings)
        if settings.shard_tokens > MOST_TOKENS:
            raise UsageError(f"shard_tokens is {settings.shard_tokens:,}; an llm.c file holds at most {MOST_TOKENS:,}")
        self._headers: dict[str, int] = {}
        self._records: dict[str, FileRecord] = {}
        self._dtype = token_dtype(facts)

    @property
    def files(self) -> dict[str, FileRecord]:
        """The finished files."""
        return self._records

    def begin(self, number: int) -> None:
        """Open a file with a blank header."""
        self._name = f"tokens_{self.facts.split}_{number:06d}.bin"
        self._tokens = self.set.open(self._name)
        # Room for the header, which holds the number of tokens.
        self._tokens.write(np.zeros(HEADER, dtype="<i4"))

    def append(self, rows: Rows) -> None:
        """Append rows."""
        if self.tokens + len(rows.ids) > MOST_TOKENS:
            raise UsageError(f"a document of {len(rows.ids):,} tokens; an llm.c file holds at most {MOST_TOKENS:,}")
        self._tokens.write(as_tokens(rows.ids, self._dtype))

    def end(self) -> None:
        """Note how many tokens the file has."""
        # Written in `close`: `FileSet` writes forward only, and hashes what it writes.
        self._headers[self._name] = self.tokens

    def close(self) -> None:
        """Write the headers."""
        super().close()
        for name, tokens in self._headers.items():
            path = self.folder / name
            # The whole header again, over the blank one.
            header = np.zeros(HEADER, dtype="<i4")
            # Magic number, version (which decides the dtype), number of tokens; the rest is 0.
            header[:3] = (*MAGIC_AND_VERSION[self._dtype], tokens)
            with storage_errors("writing", path), path.open("r+b") as file:
                file.write(header.tobytes())
                file.flush()
                os.fsync(file.fileno())
            # Read again: the checksum that was computed while writing is of a blank header.
            self._records[name] = file_record(path)


def _use(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    del settings
    wide = token_dtype(next(iter(splits.values()))) == "<u4"
    return [
        "train_gpt2cu -i 'DIRECTORY/tokens_train_*.bin' -j 'DIRECTORY/tokens_val_*.bin'",
        "Tokens are uint32 (version 7), as the Llama 3 trainer of llm.c reads them."
        if wide
        else "Tokens are uint16 (version 1).",
        "There is no mask: every token is trained, and windows cross rows.",
    ]


LLMC = Format(
    name="llmc",
    title="token files of llm.c, with its header; no mask",
    open=TokenFiles,
    use=_use,
    mask="none",
    packs=False,
)
