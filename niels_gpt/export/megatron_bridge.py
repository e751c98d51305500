"""`megatron-bridge`: packed parquet of Megatron-Bridge and NeMo for supervised fine-tuning.

::

    OUT/training.idx.parquet      input_ids, seq_start_id, loss_mask; validation.idx.parquet for val

Its `loss_mask` is aligned with the labels, not with the tokens, although it is as long as the tokens: Megatron-Bridge
pairs input i with label i + 1 and reads the mask at i. So the mask is written one position to the left. With texts
a b c and d e, of which c and e are trained::

    input_ids      a b c d e        seq_start_id  0 3
    our mask       . . # . #
    loss_mask      . # . # .        the last entry of a text is never used

With `pad_multiple` every text is padded for context parallelism; see `rows.padded`. Megatron-Bridge takes the last
token that is not its tokenizer's eos as the end of a text, so `pad_id` must be that eos.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError
from niels_gpt.export.formats import Format, Settings
from niels_gpt.export.rows import padded
from niels_gpt.export.source import Source
from niels_gpt.export.writers import ParquetFile
from niels_gpt.store.checksums import FileRecord
from niels_gpt.store.gather import Int64s
from niels_gpt.store.rows import Rows

FILE_NAMES = {"train": "training", "val": "validation"}
ROW_GROUP = 500  # rows


class PackedRows:
    """Writes one split."""

    def __init__(self, folder: Path, source: Source, settings: Settings) -> None:
        self._multiple, self._pad_id = settings.options["pad_multiple"], settings.options["pad_id"]
        if self._multiple == 1 and self._pad_id is not None:
            raise UsageError(
                "pad_id without pad_multiple; pass the multiple to which texts are padded (--option pad_multiple=2*CP)"
            )
        # Ids are stored as int32, which bounds the id where no vocabulary is recorded.
        most = (source.dataset.vocab_size or 2**31) - 1
        is_id = isinstance(self._pad_id, int) and 0 <= self._pad_id <= most
        if self._multiple > 1 and not is_id:
            raise UsageError(
                f"pad_id is {self._pad_id!r}; expected an id up to {most:,}: the eos of Megatron-Bridge's tokenizer, "
                "by which it recognises padding (--option pad_id=EOS)"
            )
        self.files: dict[str, FileRecord] = {}
        columns = {"input_ids": "int32", "loss_mask": "int8", "seq_start_id": "int32"}
        self._file = ParquetFile(folder / f"{FILE_NAMES[source.split.name]}.idx.parquet", columns)

    def write(self, rows: Rows) -> None:
        """Append rows."""
        if self._multiple > 1:
            rows = padded(rows, self._multiple, self._pad_id)
        self._file.write(
            {
                "input_ids": (rows.signed_ids(), rows.lengths),
                "loss_mask": (label_aligned(rows), rows.lengths),
                "seq_start_id": (text_starts(rows), rows.texts_per_row()),
            },
            row_group=ROW_GROUP,
        )

    def close(self) -> None:
        """Finish the file."""
        self.files[self._file.path.name] = self._file.close()

    def abandon(self) -> None:
        """Close and delete an unfinished file; does nothing after `close`."""
        self._file.abandon()


def label_aligned(rows: Rows) -> npt.NDArray[np.int8]:
    """The mask aligned with the labels, int8 of shape (tokens,).

    The first token of a text is never trained, so one shift over all rows moves nothing into another text.
    """
    shifted = np.zeros(len(rows.ids), dtype=np.int8)
    # mask . . # . # becomes . # . # .; what moves to the end of a text is the 0 of the next text's first token.
    shifted[:-1] = rows.trained[1:]
    return shifted


def text_starts(rows: Rows) -> Int64s:
    """Where texts start in their rows: a row of texts of 3 2 tokens and a row of one text give 0 3 0."""
    # Texts begin at 0 3 5 of all tokens, in rows that begin at 0 5: 0 3 5 minus 0 0 5.
    starts = np.flatnonzero(rows.begins)
    return starts - np.repeat(rows.starts[:-1], rows.texts_per_row())


def _use(settings: Settings, splits: dict[str, Source]) -> list[str]:
    size = settings.how.max_length or "the longest row"
    multiple, pad_id = settings.options["pad_multiple"], settings.options["pad_id"]
    # Context parallelism cuts every text into 2 * CP equal parts.
    parallelism = (
        "Context parallelism: texts are not padded to multiples of 2 * CP. Use a context-parallel size of 1, or export "
        "with --option pad_multiple=2*CP."
    )
    if multiple > 1:
        parallelism = (
            f"Context parallelism: the inputs of every text are padded to a multiple of {multiple} with the id "
            f"{pad_id}, which must be its tokenizer's eos. Set pad_seq_to_mult={multiple}; it must be a multiple of 2 "
            "* CP, and with sequence parallelism also of CP * TP. Set calculate_per_token_loss=True and "
            "average_in_collective=False."
        )
    lines = [
        f"packed_train_data_path=DIRECTORY/training.idx.parquet and packed_sequence_size={size}; "
        + ("packed_val_data_path=DIRECTORY/validation.idx.parquet." if "val" in splits else "no validation split."),
        "answer_only_loss=True: without it Megatron-Bridge ignores loss_mask.",
        "Do not shift loss_mask: it is already aligned with the labels.",
        "Megatron-Bridge removes the loss where the input token is its tokenizer's eos. The token after an end-of-turn "
        "is normally not trained, so this changes nothing, unless eos also occurs inside trained turns.",
        parallelism,
    ]
    if not settings.how.packing:
        lines.append("Rows are not packed; export with --packing --sequence-length to fill them.")
    return lines


MEGATRON_BRIDGE = Format(
    name="megatron-bridge",
    title="packed parquet of Megatron-Bridge (NeMo), mask aligned with the labels",
    open=PackedRows,
    use=_use,
    mask="binary",
    options={"pad_multiple": 1, "pad_id": None},
    library="pyarrow",
)
