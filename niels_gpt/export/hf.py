"""`hf` and `trl`: parquet with `input_ids` and unshifted `labels`, named as a dataset on the hub.

::

    OUT/data/train-00000-of-00002.parquet        and so on; the val split is called validation

`labels` are the ids where they are trained and -100 elsewhere, aligned with `input_ids`: models of `transformers` shift
them themselves. Rows of several texts have `seq_lengths`, the lengths of their texts. A label is -100 where a text
begins, so that no text is predicted from the one before it. For texts a b c and d e in one row::

    input_ids     a b c d e
    labels     -100 b c -100 e
    seq_lengths   3 2
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from niels_gpt.export.formats import Format, Settings
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import Lists, ParquetFile
from niels_gpt.storage.checksums import FileRecord

# The hub's names: `datasets` takes the split from the beginning of a file's name.
SPLIT_NAMES = {"train": "train", "val": "validation"}


class HubFiles(ABC):
    """Writes one split as parquet files of about `shard_tokens` tokens, named as on the hub.

    A new file begins where rows would make the last one larger than that; rows are never cut. A subclass sets `columns`
    (and `scalars`) before the first row, and overrides `append`.

    Attributes:
        columns, scalars: see `ParquetFile`.
        files: the finished files, under the names of the hub.
    """

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        self.columns: dict[str, str] = {}
        self.scalars: dict[str, str] = {}
        self.files: dict[str, FileRecord] = {}
        self._name = folder / "data" / SPLIT_NAMES[facts.split]
        self._most = settings.shard_tokens
        self._closed: list[tuple[Path, FileRecord]] = []  # under their temporary names
        self._file: ParquetFile | None = None
        self._tokens = 0  # in the open file

    def write(self, rows: Rows) -> None:
        """Append rows, to a new file if need be."""
        # The check comes before writing, so a file is over the limit only if one portion of rows is.
        if self._tokens + len(rows.ids) > self._most:
            self._end()
        if self._file is None:
            path = self._name.with_name(f"{self._name.name}-{len(self._closed):05d}.parquet")
            self._file, self._tokens = ParquetFile(path, self.columns, self.scalars), 0
        self.append(self._file, rows)
        self._tokens += len(rows.ids)

    @abstractmethod
    def append(self, file: ParquetFile, rows: Rows) -> None:
        """Append rows as a row group."""

    def _end(self) -> None:
        """Close the open file, if there is one."""
        if self._file is not None:
            self._closed.append((self._file.path, self._file.close()))
            self._file = None

    def close(self) -> None:
        """Finish the files and rename them as on the hub, where the name says how many files there are."""
        self._end()
        for path, record in self._closed:
            name = f"{path.stem}-of-{len(self._closed):05d}.parquet"
            # The number of files is known only now; export.json is not written yet.
            path.rename(path.with_name(name))
            self.files[f"data/{name}"] = record

    def abandon(self) -> None:
        """Close and delete an unfinished file; does nothing after `close`."""
        if self._file is not None:
            self._file.abandon()


class LabelledRows(HubFiles):
    """Ids and labels of one split."""

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        super().__init__(folder, facts, settings)
        self.columns = {"input_ids": "int32", "labels": "int32"}
        if settings.options.get("assistant_masks"):
            self.columns["assistant_masks"] = "int8"
        if settings.several_texts(facts):
            self.columns["seq_lengths"] = "int32"

    def append(self, file: ParquetFile, rows: Rows) -> None:
        """Append rows as a row group."""
        # Each column with its own lengths: `seq_lengths` has fewer values than the others.
        columns: dict[str, Lists] = {
            "input_ids": (rows.signed_ids(), rows.lengths),
            "labels": (rows.labels(), rows.lengths),
        }
        if "assistant_masks" in self.columns:
            columns["assistant_masks"] = (rows.trained.astype(np.int8), rows.lengths)
        if "seq_lengths" in self.columns:
            columns["seq_lengths"] = (rows.text_lengths(), rows.texts_per_row())
        file.write(columns)


def _use_hf(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    lines = [
        "Open it with `datasets.load_dataset(DIRECTORY)`; splits: " + ", ".join(SPLIT_NAMES[name] for name in splits),
        "`labels` are unshifted and -100 where a token is not trained; models of transformers shift them themselves.",
    ]
    if any(settings.several_texts(facts) for facts in splits.values()):
        lines.append(
            "Rows hold several texts, with lengths in `seq_lengths`. Attention must not cross between them: pass "
            "`position_ids` that begin at 0 in each text (or `cu_seq_lens_q/k`), no attention_mask, and "
            "use_cache=False, because with a cache transformers does not use positions to separate texts."
        )
    return lines


def _use_trl(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    # Without padding_free TRL's collator pads rows, and texts of one row would attend to each other.
    packed = any(settings.several_texts(facts) for facts in splits.values())
    flags = "packing=False, padding_free=True, max_length=None" if packed else "packing=False, max_length=None"
    lines = [
        f'SFTConfig({flags}, dataset_kwargs={{"skip_prepare_dataset": True}})',
        "SFTTrainer(train_dataset=datasets.load_dataset(DIRECTORY, split='train'), ...) uses the rows as they are: it "
        "adds no template and no eos, and does not truncate.",
        "Do not set assistant_only_loss or completion_only_loss: the labels are in the data. Pass no data_collator.",
    ]
    if packed:
        lines.append(
            "Load the model with a Flash Attention implementation, which TRL requires for padding_free: its collator "
            "computes position_ids from `seq_lengths`, and attention stays inside each text."
        )
    return lines


HF = Format(
    name="hf",
    title="parquet for datasets and transformers: input_ids, unshifted labels",
    open=LabelledRows,
    use=_use_hf,
    mask="binary",
    options={"assistant_masks": False},
    library="pyarrow",
)
TRL = Format(
    name="trl",
    title="parquet for TRL's SFTTrainer: tokenised, with labels, optionally packed",
    open=LabelledRows,
    use=_use_trl,
    mask="binary",
    library="pyarrow",
)
