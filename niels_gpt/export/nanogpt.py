"""`nanogpt`: `train.bin` and `val.bin` of uint16 tokens, concatenated rows without a header."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.errors import UsageError
from niels_gpt.export.formats import Format, Settings, as_tokens
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import FileSet

_MOST_IDS = 1 << 16  # of a vocabulary that uint16 holds


class OneFile:
    """Writes one split.

    Raises:
        UsageError: a vocabulary, or where none is recorded an id, that uint16 does not hold.
    """

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        del settings
        # By the vocabulary, before anything is read: its highest ids are those of ends of turns, so they are in nearly
        # every row, and the export would end at the first of them, after the checksums of all files were computed.
        if facts.vocab_size is not None and facts.vocab_size > _MOST_IDS:
            raise UsageError(
                f"{facts.path}: its vocabulary has {facts.vocab_size:,} ids, and nanoGPT reads uint16, which holds "
                f"{_MOST_IDS:,}; export to another format, such as llmc or datatrove"
            )
        self._set = FileSet(folder)
        self._tokens = self._set.open(f"{facts.split}.bin")
        self.files = self._set.files

    def write(self, rows: Rows) -> None:
        """Append rows."""
        # nanoGPT reads uint16 whatever the vocabulary is.
        self._tokens.write(as_tokens(rows.ids, "<u2"))

    def close(self) -> None:
        """Finish the file."""
        self._set.finish()

    def abandon(self) -> None:
        """Close and delete an unfinished file; does nothing after `close`."""
        self._set.abandon()


def _use(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    del settings
    # nanoGPT reads the vocabulary's size from a meta.pkl, which this export does not write, and else assumes 50,304.
    size = next(iter(splits.values())).vocab_size
    return [
        f"Put train.bin and val.bin into nanoGPT's data/NAME/ and train with --dataset=NAME; vocab_size is {size}.",
        "There is no mask: every token is trained, and windows cross rows. For fine-tuning use another format.",
        "Rows end as in the source; no end-of-text token is appended.",
    ]


NANOGPT = Format(
    name="nanogpt",
    title="train.bin and val.bin of nanoGPT; no mask",
    open=OneFile,
    use=_use,
    mask="none",
    packs=False,
)
