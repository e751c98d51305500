"""`nanogpt`: `train.bin` and `val.bin` of uint16 tokens, concatenated rows without a header."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.export.formats import Format, Settings, as_tokens
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import FileSet


class OneFile:
    """Writes one split.

    Raises:
        UsageError: an id that uint16 does not hold.
    """

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        del settings
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
